"""Strategies and models from outside the package: a class in one file, its trainer in the same file; FILE:NAME."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from scaling import frameworks
from scaling.errors import UsageError
from scaling.frameworks import outside as outside_files
from scaling.frameworks.base import Traits, read_options
from scaling.plan import plan
from scaling.run import flags, invocation
from tests.support.inline import enrol, host
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
        path = f"mine_{tmp_path.name}.py"
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
    # A revision, which older records have, is ignored.
    assert frameworks.load(f"{module}:ring@0123456789").names == strategy.names


def test_a_class_of_a_file_lists_its_mode_alone(file: Any) -> None:
    path = file(CLASS.format(module="any").replace('"any:tree"', '"tree"'))
    strategy = frameworks.load(f"{path}:tree")
    assert strategy.trainer_module == path
    assert import_module(strategy.trainer_module).connect(one_task()) == "the trainer"
    with pytest.raises(UsageError, match="lists it"):
        frameworks.load(f"{path}:ring")


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        (CLASS, "star", "{0} has no class derived from Strategy that lists it in its names"),
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


# ---------------------------------------------------------------- models

BATCH = "def batch(size, generator):\n    return [0] * size, [1] * size\n"
NET = f"{BATCH}def Net():\n    return 1\n"


def refused(*argv: str) -> str:
    with pytest.raises(UsageError) as error:
        plan.make(invocation.resolve(flags.parse(argv)), [enrol(host(cores=2))] * 2)
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        (f"{BATCH}a = (\n", "Net", "{0}:3: SyntaxError: '(' was never closed"),
        (NET, "Nett", "{0} has no function or class Nett; did you mean 'Net'?"),
        (
            "class Net: ...\n",
            "Net",
            "{0} has no function batch(size, ...) that returns inputs and targets; add it",
        ),
        (NET, "", "{0} has no function or class ; known: Net, batch"),
    ],
)
def test_a_file_is_read_before_a_worker_starts(text: str, name: str, words: str, file: Any) -> None:
    path = file(text)
    assert refused("--model", f"{path}:{name}").startswith(f"--model {path}:{name}: {words.format(path)}")


@pytest.mark.parametrize("text", [NET, f"from x import *\n{BATCH}", f"{BATCH}try:\n    a = b\nexcept: ...\n"])
def test_a_name_that_may_be_there_passes(text: str, file: Any) -> None:
    frameworks.check_model(f"{file(text)}:Net", ["torch:gloo", "torch:plain"])


def test_a_file_without_a_name_or_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert refused("--model", "no.py:Net") == f"--model no.py:Net: there is no file no.py in {tmp_path}"
    assert refused("--model", "no.py").startswith("--model no.py: write no.py:NAME, ")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--strategy", "torch:gloo,mxnet:dist_sync"), "--strategy mxnet:dist_sync trains no model of a file"),
        (("--strategy", "tensorflow:ring"), "take one of torch or jax"),
        (
            ("--strategy", "torch:gloo,jax:psum"),
            "a file is of one framework; give --strategy of jax or torch alone",
        ),
        (("--device", "emulated:p100"), "use --device cpu or cuda"),
        (("--epochs", "2"), "leave it out"),
        (("--epochs", "2", "--weights", "a.npz"), "leave it out"),
        (("--image-size", "64"), "whose function batch makes all samples; leave it out"),
        (("--sequence-length", "64"), "leave it out"),
        (("--data", "mnist"), "leave it out"),
        (("--data-dir", "."), "leave it out"),
        (("--feed", "native"), "leave it out"),
        (("--kinds", "exchange,feed"), "leave it out"),
    ],
)
def test_what_such_a_model_cannot_have(argv: tuple[str, ...], words: str, file: Any) -> None:
    said = refused("--model", f"{file(NET)}:Net", *argv)
    assert words in said and "\n" not in said
    assert argv[0] in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "def batch(size, generator):\n    return [0] * size\n",
            ":1: batch() returned list; return inputs and targets, 2",
        ),
        (BATCH.replace("[1] * size", "[1]"), ":1: batch() returned tuple; return inputs and targets, 2 of each"),
        ("def batch(size):\n    return [0], [1]\n", ":1: TypeError: "),
        ("def batch(size, generator):\n    return generator.a, 1\n", ":2: AttributeError: "),
        (
            "def batch(size, generator):\n    return 1, 1\n",
            ":1: batch() returned tuple; return inputs and targets, 2",
        ),
    ],
)
def test_a_batch_that_is_none(text: str, words: str, file: Any) -> None:
    path = file(text)
    with pytest.raises(UsageError) as error:
        outside_files.Model(f"{path}:Net").batch(2, None)
    assert str(error.value).startswith(f"--model {path}:Net: {path}{words}")


def test_a_model_that_raises_and_a_lack_of_memory(file: Any) -> None:
    path = file(f"{BATCH}def Net():\n    raise ValueError('planted')\ndef Huge():\n    raise MemoryError\n")
    with pytest.raises(UsageError, match=f"^--model {path}:Net: {path}:4: ValueError: planted$"):
        outside_files.Model(f"{path}:Net").make()
    with pytest.raises(MemoryError):
        outside_files.Model(f"{path}:Huge").make()
    wrong = outside_files.Model(f"{path}:Net").wrong("", 1, "a torch.nn.Module")
    assert str(wrong) == f"--model {path}:Net: {path}:3: Net() returned int; return a torch.nn.Module"
