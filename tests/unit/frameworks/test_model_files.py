"""`--model FILE:NAME`: one line for each mistake, with the file's line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from scaling import frameworks
from scaling.errors import UsageError
from scaling.frameworks import outside
from scaling.plan import plan
from scaling.run import flags, invocation
from tests.support.inline import enrol, host

BATCH = "def batch(size, generator):\n    return [0] * size, [1] * size\n"
NET = f"{BATCH}def Net():\n    return 1\n"


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Return a function that writes a file into the working directory and returns its path, which is new."""
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> str:
        path = f"mine_{tmp_path.name}.py"
        (tmp_path / path).write_text(text)
        return path

    return write


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
def test_a_file_is_read_before_a_worker_starts(
    text: str, name: str, words: str, written: Callable[[str], str]
) -> None:
    path = written(text)
    assert refused("--model", f"{path}:{name}").startswith(f"--model {path}:{name}: {words.format(path)}")


@pytest.mark.parametrize("text", [NET, f"from x import *\n{BATCH}", f"{BATCH}try:\n    a = b\nexcept: ...\n"])
def test_a_name_that_may_be_there_passes(text: str, written: Callable[[str], str]) -> None:
    frameworks.check_model(f"{written(text)}:Net", ["torch:gloo", "torch:plain"])


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
def test_what_such_a_model_cannot_have(argv: tuple[str, ...], words: str, written: Callable[[str], str]) -> None:
    said = refused("--model", f"{written(NET)}:Net", *argv)
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
def test_a_batch_that_is_none(text: str, words: str, written: Callable[[str], str]) -> None:
    path = written(text)
    with pytest.raises(UsageError) as error:
        outside.Model(f"{path}:Net").batch(2, None)
    assert str(error.value).startswith(f"--model {path}:Net: {path}{words}")


def test_a_model_that_raises_and_a_lack_of_memory(written: Callable[[str], str]) -> None:
    path = written(f"{BATCH}def Net():\n    raise ValueError('planted')\ndef Huge():\n    raise MemoryError\n")
    with pytest.raises(UsageError, match=f"^--model {path}:Net: {path}:4: ValueError: planted$"):
        outside.Model(f"{path}:Net").make()
    with pytest.raises(MemoryError):
        outside.Model(f"{path}:Huge").make()
    wrong = outside.Model(f"{path}:Net").wrong("", 1, "a torch.nn.Module")
    assert str(wrong) == f"--model {path}:Net: {path}:3: Net() returned int; return a torch.nn.Module"
