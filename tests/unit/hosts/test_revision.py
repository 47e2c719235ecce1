"""The hash of the code that runs on a host."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from scaling.hosts.revision import code_hash


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "repo/scaling"
    (folder / "worker").mkdir(parents=True)
    (folder / "__init__.py").write_text("one")
    (folder / "worker/loop.py").write_text("two")
    return folder


def test_code_hash_knows_names_and_contents(package: Path) -> None:
    hashes = [code_hash(package)]
    (package / "worker/loop.py").write_text("three")
    hashes.append(code_hash(package))
    (package / "worker/loop.py").rename(package / "loop.py")
    hashes.append(code_hash(package))
    (package / "empty.py").touch()
    hashes.append(code_hash(package))
    assert len(set(hashes)) == 4
    assert all(len(text) == 12 and set(text) <= set("0123456789abcdef") for text in hashes)


def test_code_hash_is_equal_on_hosts_that_have_the_same_code(package: Path, tmp_path: Path) -> None:
    before = code_hash(package)
    copy = tmp_path / "elsewhere"
    shutil.copytree(package, copy)
    (copy / "__pycache__").mkdir()
    (copy / "__pycache__/loop.cpython-311.pyc").write_bytes(b"compiled")
    (copy / "README.md").write_text("for people")
    assert code_hash(copy) == before
