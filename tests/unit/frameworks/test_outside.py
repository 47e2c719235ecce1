"""Strategies from outside the package: a class in one file, its trainer in the same file."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from scaling import frameworks
from scaling.errors import UsageError
from scaling.frameworks.base import Strategy, Traits, read_options
from tests.support.paper_tasks import one_task

CLASS = """
from scaling.frameworks.base import Option, Strategy, Traits


class Mine(Strategy):
    names = ("{module}:ring", "{module}:tree")
    baseline = "fake:plain"
    options = {{"depth": Option(type=int, default=2, help="of the tree")}}

    def traits(self, name):
        return Traits(synchronous=name.endswith("ring"))

    def environ(self, task, announced):
        return {{"MINE_RANK": str(task.rank)}}


def connect(task):
    return "the trainer"
"""
OBJECT = """
from {beside} import Mine

STRATEGY = Mine()
STRATEGY.names = ("{module}:ring",)
"""


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that writes a module into a package outside and returns its dotted name. Python keeps
    modules by name, so each test has a package of its own."""
    package = f"outside_{tmp_path.name.replace('-', '_')}"
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str, text: str, **fields: str) -> str:
        module = f"{package}.{name}"
        (tmp_path / package / f"{name}.py").write_text(text.format(module=module, **fields))
        return module

    return write


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that writes a file into the working directory and returns its path, which is new."""
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> str:
        path = f"mine-{tmp_path.name}.py"
        (tmp_path / path).write_text(text)
        return path

    return write


def test_a_class_in_one_file_with_its_trainer(outside: Any) -> None:
    module = outside("mine", CLASS)
    task = one_task("fake:plain")
    for mode, synchronous in (("ring", True), ("tree", False)):
        strategy = frameworks.load(f"{module}:{mode}")
        assert strategy.traits(f"{module}:{mode}") == Traits(synchronous=synchronous)
        assert strategy.environ(task, {}) == {"MINE_RANK": "0"}
        assert read_options(strategy.options, {"depth": "3"}) == {"depth": 3}
        assert (strategy.helpers(task), strategy.missing(mode), strategy.refuse(task.point)) == ([], None, None)
        assert strategy.trainer_module == strategy.server_module == module
        assert import_module(strategy.trainer_module).connect(task) == "the trainer"
    assert frameworks.startup_s(f"{module}:ring") == frameworks.FRAMEWORKS["fake"].startup_s


def test_a_class_of_a_file_lists_its_mode_alone(file: Any) -> None:
    path = file(CLASS.format(module="any").replace('"any:tree"', '"tree"'))
    strategy = frameworks.load(f"{path}:tree")
    assert strategy.trainer_module == path
    assert import_module(strategy.trainer_module).connect(one_task()) == "the trainer"
    with pytest.raises(UsageError, match="lists it"):
        frameworks.load(f"{path}:ring")


def test_a_made_object_is_taken_before_any_class(outside: Any) -> None:
    beside = outside("mine", CLASS)
    module = outside("other", OBJECT, beside=beside)
    strategy = frameworks.load(f"{module}:ring")
    assert (strategy.names, strategy.trainer_module) == ((f"{module}:ring",), beside)


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        (CLASS, "star", "{0} has no class derived from Strategy that lists it in its names"),
        (OBJECT, "tree", "{0} does not list it in its names"),
        (
            "from {beside} import Mine\n",
            "ring",
            "{0} has no class derived from Strategy that lists it in its names",
        ),
        ("import nobody_has_this\n", "ring", "cannot import {0}: No module named 'nobody_has_this'"),
        ("raise ValueError('planted')\n", "ring", "cannot import {0}: ValueError: planted"),
        ("NAMES = (\n", "ring", "cannot import {0}: SyntaxError: '(' was never closed"),
    ],
)
def test_a_module_without_the_strategy(text: str, mode: str, words: str, outside: Any) -> None:
    module = outside("other", text, beside=outside("mine", CLASS))
    with pytest.raises(UsageError) as error:
        frameworks.load(f"{module}:{mode}")
    assert str(error.value).startswith(f"--strategy {module}:{mode}: {words.format(module)}")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nobody.has_this:ring", "cannot import nobody.has_this: No module named 'nobody'"),
        ("torch:glooo", "unknown; did you mean 'torch:gloo'?"),
        ("none.py:ring", "there is no file none.py in "),
        ("nothing", "unknown; known: jax:fsdp, "),
    ],
)
def test_a_name_of_nothing(name: str, words: str) -> None:
    with pytest.raises(UsageError) as error:
        frameworks.load(name)
    assert str(error.value).startswith(f"--strategy {name}: {words}")
    assert "fake" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = 1\nb = (\n", ":2: SyntaxError: '(' was never closed"),
        ("a = 1\n\nraise ValueError('planted')\n", ":3: ValueError: planted"),
        ("import nobody_has_this\n", ":1: ModuleNotFoundError: No module named 'nobody_has_this'"),
        ("def f():\n    exit(3)\nf()\n", ":2: SystemExit: 3"),
    ],
)
def test_a_file_that_breaks_is_named_with_its_line(file: Any, text: str, said: str) -> None:
    path = file(text)
    with pytest.raises(UsageError) as error:
        frameworks.load(f"{path}:ring")
    assert str(error.value).startswith(f"--strategy {path}:ring: {path}{said}")


def test_a_revision_of_older_records_is_ignored() -> None:
    assert frameworks.load("torch:gloo@0123456789").names == frameworks.load("torch:gloo").names


def test_the_miswired_one_is_torchs_but_for_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/system/lab runs it."""
    monkeypatch.setenv("SCALING_MISWIRED", "eth9")
    name = "tests.support.miswired:gloo"
    strategy, wanted = frameworks.load(name), frameworks.load("torch:gloo")
    task = one_task(name, "exchange", ports=(5000,))
    assert isinstance(strategy, Strategy)
    assert strategy.environ(task, {}) == {**wanted.environ(task, {}), "GLOO_SOCKET_IFNAME": "eth9"}
    assert strategy.devices(name) == wanted.devices("torch:gloo")
    assert (strategy.baseline, strategy.trainer_module) == (wanted.baseline, wanted.trainer_module)
    assert strategy.environ(one_task(kind="solo", ports=()), {}) == {}
