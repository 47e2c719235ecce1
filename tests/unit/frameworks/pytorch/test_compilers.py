"""What torch.compile would miss on a host."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaling.frameworks.pytorch import installed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("gcc", "g++"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "Python.h").write_text("")
    return tmp_path


def lacks(folder: Path, without: str = "", **environ: str) -> str:
    if without:
        (folder / without).unlink()
    return installed.compiler_lacks({"PATH": str(folder), **environ}, str(folder))


def test_nothing_is_missing(folder: Path) -> None:
    assert lacks(folder) == ""


@pytest.mark.parametrize(
    ("without", "missing"), [("gcc", "C compiler"), ("g++", "C++ compiler"), ("Python.h", "Python.h")]
)
def test_what_is_missing_is_named(folder: Path, without: str, missing: str) -> None:
    assert lacks(folder, without) == missing


def test_all_of_it(tmp_path: Path) -> None:
    assert installed.compiler_lacks({"PATH": ""}, str(tmp_path)) == "C compiler and C++ compiler and Python.h"


def test_one_that_is_named_in_the_environment_will_do(folder: Path) -> None:
    (folder / "own").write_text("")
    (folder / "own").chmod(0o755)
    own = str(folder / "own")
    assert lacks(folder, "gcc", CC=own) == ""
    assert lacks(folder, "g++", CC=own, CXX="nowhere") == "C++ compiler"
