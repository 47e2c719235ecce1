"""Which tests have no other beside them, and that they have none."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from tests import conftest
from tests.support import quiet


def is_free(folder: Path, how: int) -> bool:
    with (folder / "room").open("w") as room:
        try:
            fcntl.flock(room, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@pytest.mark.parametrize(("alone", "shared"), [(True, False), (False, True)])
def test_beside_one_that_is_alone_there_is_no_other(alone: bool, shared: bool, tmp_path: Path) -> None:
    with quiet.held(tmp_path, alone=alone):
        assert is_free(tmp_path, fcntl.LOCK_SH) == shared
        assert not is_free(tmp_path, fcntl.LOCK_EX)
    assert is_free(tmp_path, fcntl.LOCK_EX)


def test_folders_that_change_the_machine_are_one_group_and_others_are_files() -> None:
    files = [path for folder in conftest.TOGETHER for path in (conftest.HERE / folder).glob("test_*.py")]
    assert len(files) > len(conftest.TOGETHER)
    names = (path.relative_to(conftest.HERE).as_posix() for path in files)
    assert len({conftest.group(f"tests/{name}::test_a[x/y]") for name in names}) == 1
    assert conftest.group("tests/unit/test_quiet.py::test_a[x::y]") == "unit/test_quiet.py"


def test_those_that_are_alone_exist() -> None:
    assert [name for name in conftest.ALONE if not (conftest.HERE / name).is_file()] == []
