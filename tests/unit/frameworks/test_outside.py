"""Strategies from outside the package: a class in one file, its trainer beside it, or a module of functions."""

from __future__ import annotations

from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from scaling import frameworks
from scaling.errors import UsageError
from scaling.frameworks import ModuleStrategy
from scaling.frameworks.base import Helper, Strategy, Traits, read_options
from tests.support.paper_tasks import one_task

CLASS = """
from collections.abc import Mapping

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

FUNCTIONS = """
from scaling.frameworks.base import Helper, Option, Traits

NAMES = ("{module}:plain", "{module}:ring")
BASELINE = "{module}:plain"
PLAIN_OPTIONS = {{"part": Option(type=int, default=1, help="of a batch")}}
OPTIONS = {{"depth": Option(type=int, default=2, help="of the ring"), **PLAIN_OPTIONS}}


def traits(name):
    return Traits(ports=3)


def devices(name):
    return ["cpu"]


def missing(name):
    return f"{{name}} is nowhere"


def refuse(point):
    return f"--model {{point.workload.model}}: no"


def helpers(task):
    return (Helper(name="server"),)


def environ(task, announced):
    return {{"MINE_RANK": str(task.rank), **announced}}


def prepare():
    pass


def connect(task):
    return "the trainer"


def serve(task, announce):
    announce({{}})
"""


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a module into a package outside; returns its dotted name. Python keeps modules by name: each test has
    a package of its own."""
    package = f"outside_{tmp_path.name.replace('-', '_')}"
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str, text: str, **fields: str) -> str:
        module = f"{package}.{name}"
        (tmp_path / package / f"{name}.py").write_text(text.format(module=module, **fields))
        return module

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


def test_a_made_object_is_taken_before_any_class(outside: Any) -> None:
    beside = outside("mine", CLASS)
    module = outside("other", OBJECT, beside=beside)
    strategy = frameworks.load(f"{module}:ring")
    assert strategy.names == (f"{module}:ring",)
    assert strategy.trainer_module == beside, "that of the class"


def test_a_module_of_functions_in_the_old_way(outside: Any) -> None:
    module = outside("old", FUNCTIONS)
    name = f"{module}:ring"
    strategy, task = frameworks.load(name), one_task("fake:plain")
    assert isinstance(strategy, ModuleStrategy)
    assert strategy.names == (f"{module}:plain", name)
    assert strategy.baseline == f"{module}:plain"
    assert strategy.traits(name) == Traits(ports=3)
    assert strategy.devices(name) == ("cpu",)
    assert strategy.missing(name) == f"{name} is nowhere"
    assert strategy.refuse(task.point) == "--model digits-cnn: no"
    assert strategy.helpers(task) == [Helper(name="server")]
    assert strategy.environ(task, {"A": "1"}) == {"MINE_RANK": "0", "A": "1"}
    assert strategy.trainer_module == strategy.server_module == module
    assert import_module(strategy.trainer_module).connect(task) == "the trainer"


def test_the_old_way_has_options_of_the_plain_loop_alone(outside: Any) -> None:
    module = outside("old", FUNCTIONS)
    assert [*frameworks.load(f"{module}:ring").options] == ["depth", "part"]
    assert [*frameworks.load(f"{module}:plain").options] == ["part"]


def test_how_long_it_takes_to_start_is_its_baselines(outside: Any) -> None:
    assert frameworks.startup_s(f"{outside('mine', CLASS)}:ring") == frameworks.FRAMEWORKS["fake"].startup_s
    assert frameworks.startup_s(f"{outside('old', FUNCTIONS)}:ring") == 3.0, "of no framework that is known"


@pytest.mark.parametrize("text", [CLASS, FUNCTIONS])
def test_a_name_that_it_does_not_list(text: str, outside: Any) -> None:
    module = outside("mine", text)
    with pytest.raises(UsageError, match=rf"^--strategy {module}:star: {module} (does not|has no .* that) list"):
        frameworks.load(f"{module}:star")


def test_an_object_that_does_not_list_it(outside: Any) -> None:
    module = outside("other", OBJECT, beside=outside("mine", CLASS))
    with pytest.raises(UsageError, match=f"--strategy {module}:tree: {module} does not list it in its names"):
        frameworks.load(f"{module}:tree")


def test_a_class_that_is_only_imported_is_none_of_its_own(outside: Any) -> None:
    beside = outside("mine", CLASS)
    module = outside("other", "from {beside} import Mine\n", beside=beside)
    with pytest.raises(UsageError, match=f"{module} has no class derived from Strategy"):
        frameworks.load(f"{module}:ring")


def test_a_module_that_is_not_there() -> None:
    reason = "--strategy nobody.has_this:ring: cannot import nobody.has_this: No module named 'nobody'"
    with pytest.raises(UsageError, match=f"^{reason}$"):
        frameworks.load("nobody.has_this:ring")


def test_a_module_that_needs_one_that_is_not_there(outside: Any) -> None:
    module = outside("mine", "import nobody_has_this\n")
    with pytest.raises(UsageError, match=f"cannot import {module}: No module named 'nobody_has_this'"):
        frameworks.load(f"{module}:ring")


def test_a_name_without_a_module_is_looked_for_in_the_table() -> None:
    with pytest.raises(UsageError, match=r"--strategy torch:glooo: unknown; did you mean 'torch:gloo'\?"):
        frameworks.load("torch:glooo")


def test_no_message_names_the_scripted_strategy() -> None:
    with pytest.raises(UsageError) as error:
        frameworks.load("nothing")
    assert "torch:gloo" in str(error.value) and "NAME" not in str(error.value)


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


def test_a_file_that_breaks_while_it_is_imported_is_a_mistake_of_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/half.py").write_text("NAMES = (\n")
    with pytest.raises(
        UsageError, match=r"--strategy broken\.half:mine: cannot import broken\.half: SyntaxError: "
    ):
        frameworks.load("broken.half:mine")


PICKY = CLASS.replace(
    "    def traits",
    """    def missing(self, name, device="cpu"):
        return f"{{name}} not on {{device}}" if device == "cuda" else None

    def traits""",
)


@pytest.mark.parametrize(("text", "said"), [(PICKY, "not on cuda"), (FUNCTIONS, "is nowhere")])
def test_it_may_be_asked_about_a_device_or_not(text: str, said: str, outside: Any) -> None:
    """Those that were written before there was one look at their name alone."""
    name = f"{outside('mine', text)}:ring"
    assert frameworks.missing(name, "cuda") == f"{name} {said}"
    assert frameworks.missing(name, "cpu") == (None if text is PICKY else f"{name} {said}")


# ---------------------------------------------------------------- files


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a file into the working directory; returns its path, which no other test has."""
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> str:
        path = f"mine-{tmp_path.name}.py"
        (tmp_path / path).write_text(text)
        return path

    return write


def test_a_class_of_a_file_lists_its_mode_alone(file: Any) -> None:
    path = file(CLASS.format(module="any").replace('"any:tree"', '"tree"'))
    for mode in ("ring", "tree"):
        with pytest.raises(UsageError, match="lists it") if mode == "ring" else nullcontext():
            strategy = frameworks.load(f"{path}:{mode}")
    assert strategy.trainer_module == path
    assert import_module(strategy.trainer_module).connect(one_task()) == "the trainer"


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


def test_a_file_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"^--strategy none.py:ring: there is no file none.py in {tmp_path}$"):
        frameworks.load("none.py:ring")
