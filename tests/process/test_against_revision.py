"""`python -m scaling.run --against REV`: both revisions in one launch, and what is refused before any point."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from scaling.hosts.revision import PACKAGE
from scaling.records import store
from tests.support.checkouts import commit, edit, git, measure

TRAINER, TASK = "scaling/frameworks/fake/trainer.py", "scaling/records/task.py"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two commits of the package, the older of which tells workers more, and a change that is not committed."""
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(PACKAGE, folder / "scaling", ignore=shutil.ignore_patterns("__pycache__"))
    git(folder, "init", "-q")
    edit(folder / TASK, '    data_dir: str = ""\n', '    data_dir: str = ""\n    moon: int = 0\n')
    commit(folder, "older")
    edit(folder / TASK, "    moon: int = 0\n", "")
    commit(folder, "newer")
    edit(folder / TRAINER, 'device_name = "fake"', 'device_name = "changed"')
    return folder


def start(checkout: Path, *argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return measure(str(checkout), "--strategy", "fake:a", *argv, cwd=cwd)


def test_each_side_runs_its_own_code_also_where_one_stands_in_the_other(checkout: Path, tmp_path: Path) -> None:
    """Started in the checkout itself, whose folder Python looks into first."""
    done = start(checkout, "--against", "HEAD", "--results", str(tmp_path / "results"), cwd=checkout)
    assert (done.returncode, done.stderr) == (0, "")
    (run,) = (tmp_path / "results").iterdir()  # and no folder of the other revision
    header, records = store.load(run)
    head = git(checkout, "rev-parse", "HEAD")
    assert header.config["against"] == head and header.git == f"{head[:10]}-dirty"
    found = {}
    for one in records:
        ready = one.ranks[0].ready
        assert ready is not None
        found[one.point.strategy] = ready.device_name
    assert found == {"fake:plain": "changed", "fake:a": "changed", f"fake:a@{head[:10]}": "fake"}
    assert f"fake:a@{head[:10]}" in done.stdout


@pytest.mark.parametrize(
    ("revision", "words"),
    [
        ("v9.9", "--against v9.9: is no run, and no revision that git knows of "),
        ("HEAD~1", ": its workers understand other tasks (scaling 0.1.0, protocol "),
        ("fake:b", "--against fake:b: is no revision; measure two strategies with --strategy A,B"),
        ("--help", "--against"),
    ],
)
def test_what_cannot_be_measured_beside_is_refused_and_nothing_left(
    checkout: Path, tmp_path: Path, revision: str, words: str
) -> None:
    done = start(checkout, f"--against={revision}", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("scaling: error: --against ") and words in line
    assert list(tmp_path.iterdir()) == []


def test_a_package_without_git_has_no_revisions(checkout: Path, tmp_path: Path) -> None:
    shutil.copytree(checkout / "scaling", tmp_path / "plain" / "scaling")
    done = start(tmp_path / "plain", "--against", "HEAD", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--against HEAD: is no run, and no revision that git knows of " in done.stderr
    assert "not a git repository" in done.stderr
