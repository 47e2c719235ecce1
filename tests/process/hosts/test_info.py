"""The revision of the code, by a real git."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from scaling.hosts.revision import revision


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder `tmp_path/repo` with the package `scaling` in it; not a repository yet.

    A git hook that runs the tests sets GIT_DIR: git would then write into the hook's own repository.
    """
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "repo/scaling"
    (folder / "worker").mkdir(parents=True)
    (folder / "__init__.py").write_text("one")
    (folder / "worker/loop.py").write_text("two")
    return folder


def git(repository: Path, *args: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(repository), *identity, *args]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit_all(repository: Path) -> str:
    git(repository, "init", "-q")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "all")
    return git(repository, "rev-parse", "HEAD")[:10]


needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@needs_git
def test_revision_of_a_checkout(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert revision(package) == ""
    commit = commit_all(package.parent)
    assert revision(package) == commit
    (package.parent / "notes.txt").write_text("beside the package")
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert revision(package) == commit
    (package / "new.py").touch()
    assert revision(package) == f"{commit}-dirty"


@needs_git
def test_a_package_installed_inside_someone_elses_checkout_has_no_revision(package: Path) -> None:
    (package.parent / ".gitignore").write_text("scaling/\n")
    commit_all(package.parent)
    assert revision(package) == ""


@needs_git
@pytest.mark.parametrize("is_packed", [False, True], ids=["loose", "packed"])
def test_without_git_the_checkouts_own_files_tell(
    package: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, is_packed: bool
) -> None:
    (package.parent / "setup.cfg").touch()
    commit = commit_all(package.parent)
    if is_packed:
        git(package.parent, "pack-refs", "--all")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert revision(package) == f"{commit}-unchecked"


def test_without_a_checkout_the_stamp_of_the_image_tells(
    package: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert revision(package) == ""
    (package / "REVISION").write_text("0123456789abcdef\n")
    assert revision(package) == "0123456789"
