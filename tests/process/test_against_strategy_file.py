"""`--against REV` with a strategy from outside the package: the revision is that of its own repository."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from scaling.records import store
from tests.support.checkouts import commit, edit, git, measure

NAME = "mine.ring:paper"
RING = """
from mine import names
from scaling.frameworks.fake import trainer
from scaling.frameworks.fake.strategy import Fake


class Ring(Fake):
    names = ("mine.ring:paper",)
    trainer = "mine.ring"


def connect(task):
    made = trainer.connect(task)
    made.device_name = f"{names.FIRST} and old"
    return made
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three commits, in the first of which there is no code and in the second no strategy, and a change of files
    that is not committed; those that are print when they are imported, and at the end."""
    folder = tmp_path_factory.mktemp("mine")
    package = folder / "src" / "mine"
    package.mkdir(parents=True)
    (package / "names.py").write_text('FIRST = "old"\n')
    (package / "__init__.py").write_text("")
    git(folder, "init", "-q")
    git(folder, "commit", "-q", "--allow-empty", "-m", "oldest")
    commit(folder, "older")
    (package / "ring.py").write_text(RING)
    talk = package / "__init__.py"
    talk.write_text("import atexit\nprint('mine')\natexit.register(print, 'mine')\n")
    commit(folder, "newer")
    talk.write_text("")
    edit(package / "names.py", "old", "new")
    edit(package / "ring.py", "and old", "and new")
    return folder


def start(source: Path, *argv: str, cwd: Path, name: str = NAME) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(source), os.environ.get("PYTHONPATH", "")]))
    return measure(path, "--strategy", name, *argv, cwd=cwd)


@pytest.mark.parametrize("where", ["beside", "inside"])
def test_each_side_runs_its_own_files(checkout: Path, tmp_path: Path, where: str) -> None:
    """The strategy's file and what it imports from beside it, also where the launch is started among them."""
    cwd = checkout / "src" if where == "inside" else tmp_path
    done = start(checkout / "src", "--against", "HEAD", "--results", str(tmp_path / "results"), cwd=cwd)
    assert (done.returncode, done.stderr) == (0, "")
    (run,) = (tmp_path / "results").iterdir()
    header, records = store.load(run)
    head = git(checkout, "rev-parse", "HEAD")
    assert header.config["against"] == head
    found = {one.point.strategy: one.ranks[0].ready for one in records}
    names = {strategy: ready.device_name for strategy, ready in found.items() if ready}
    assert names == {"fake:plain": "fake", NAME: "new and new", f"{NAME}@{head[:10]}": "old and old"}
    said = done.stdout.replace("\n", " ")
    assert f"@{head[:10]}: workers with that revision of the strategy's own code; " in said


@pytest.mark.parametrize(
    ("name", "revision", "words"),
    [
        (NAME, "v9.9", "--against v9.9: is no run, and no revision that git knows of "),
        (NAME, "HEAD~1", "it lacks what is measured: --strategy mine.ring:paper: cannot import mine.ring"),
        (NAME, "HEAD~2", "ring.py was elsewhere or not yet"),
        (f"fake:a,{NAME}", "HEAD", "ring.py lie in different folders: measure them in a run each"),
        ("mine.ring:paper,mine.moon:paper", "HEAD", "--strategy mine.moon:paper: cannot import mine.moon: "),
    ],
    ids=["unknown", "before", "no-folder", "two-repositories", "no-module"],
)
def test_what_cannot_be_measured_beside_is_refused_and_nothing_left(
    checkout: Path, tmp_path: Path, name: str, revision: str, words: str
) -> None:
    done = start(checkout / "src", "--against", revision, cwd=tmp_path, name=name)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("scaling: error: ") and words in line
    assert list(tmp_path.iterdir()) == []


def test_a_file_found_elsewhere_is_not_taken_for_the_revision(checkout: Path, tmp_path: Path) -> None:
    """The revision has no such module, and Python would find the one that is measured anyway."""
    (tmp_path / "flat").mkdir()
    copy = tmp_path / "copy"
    shutil.copytree(checkout, copy)
    git(copy, "rm", "-q", "--cached", "src/mine/ring.py", "src/mine/__init__.py", "src/mine/names.py")
    (copy / "src" / "other.txt").write_text("")
    git(copy, "add", "src/other.txt")
    git(copy, "commit", "-q", "-m", "without the package")
    commit(copy, "with it")
    done = start(copy / "src", "--against", "HEAD~1", cwd=tmp_path / "flat")
    assert (done.returncode, done.stdout) == (2, "")
    assert "it lacks what is measured: mine.ring:paper: " in done.stderr
    assert "ring.py would be taken" in done.stderr


def test_a_file_that_git_does_not_keep_has_no_revisions(checkout: Path, tmp_path: Path) -> None:
    shutil.copytree(checkout / "src", tmp_path / "src")
    done = start(tmp_path / "src", "--against", "HEAD", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--against HEAD: is no run, and no revision that git knows of " in done.stderr
    assert "not a git repository" in done.stderr
