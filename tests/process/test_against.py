"""`--against` as a process: a run, a revision, a revision of a strategy from outside."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scaling.hosts.info import PACKAGE
from scaling.records import store
from tests.support.checkouts import commit, edit, git, measure
from tests.support.matrix import cases
from tests.support.scripted_records import record, written

# `python -m scaling.run --against`: measured again, compared with an older run, and an exit code that says so.

QUICK = (
    "--strategy", "fake:a", "--kinds", "solo,exchange", "--rounds", "3", "--windows", "3", "--window-s", "0.01",
    "--soak-s", "0", "--world-sizes", "1", "--option", "step_s=0.002", "--option", "overhead_s=0.2", "--no-page",
)  # fmt: skip


def start(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("SCALING_")}
    return subprocess.run(
        [sys.executable, "-m", "scaling.run", "--ranks", "1", *argv],
        cwd=cwd, env=environ, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measured")
    done = start(*QUICK, cwd=folder)
    assert done.returncode == 0, done.stderr
    (run,) = (folder / "results").iterdir()
    return run


def as_if(measured: Path, folder: Path, exchange_s: float) -> Path:
    """The same run as it would be if exchanges took so long a step, and the plain loop 10 ms."""
    header, records = store.load(measured)
    times = {"solo": 0.01, "exchange": exchange_s}
    written(folder, (header, [record(one.point, times[one.point.kind]) for one in records]))
    return folder


@pytest.mark.parametrize(
    ("exchange_s", "verdict", "code"),
    cases([(0.01, "1 slower", 1), (100.0, "1 faster", 0)], [(0.01, "1 slower", 1)]),
)
def test_against_measures_compares_and_says_so(
    measured: Path, tmp_path: Path, exchange_s: float, verdict: str, code: int
) -> None:
    """An efficiency of 1 % against one of 100 % and one of 0.01 %, which no load of the machine hides; the line
    for programs stays the last."""
    base = as_if(measured, tmp_path / "base", exchange_s)
    done = start("--against", str(base), "--no-page", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (code, "")
    (new,) = (tmp_path / "results").iterdir()
    assert store.load(new)[0].config == store.load(base)[0].config
    *above, ran, _, again, last = done.stdout.splitlines()
    (more,) = (line for line in above if line.startswith("  more "))
    assert f"  verdict   {verdict}" in above
    assert f" results/{new.name} " in more and above.index(more) < above.index("Comparison of runs")
    assert again == f"against: {base} (again: python -m scaling compare {base} results/{new.name})"
    assert ran.strip() and last.startswith("scaling: fake:a N=1 ")


def test_other_cells_than_those_of_the_run_are_no_green_light(measured: Path, tmp_path: Path) -> None:
    done = start("--against", str(measured), "--no-page", "--option", "step_s=0.004", cwd=tmp_path)
    assert done.returncode == 2
    assert "  verdict   1 missing, 1 new" in done.stdout.splitlines()
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"scaling: error: --against {measured}: not compared: no cell could be compared")
    assert done.stdout.splitlines()[-1].startswith("scaling: fake:a N=1 ")


def test_a_run_that_nothing_can_be_compared_with_is_refused_before_any_point(
    measured: Path, tmp_path: Path
) -> None:
    base = shutil.copytree(measured, tmp_path / "base")
    path = base / store.FILE
    path.write_text(path.read_text().splitlines()[0] + "\n")
    done = start("--against", "base", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == ("scaling: error: --against base: it has no measured exchange to compare with\n")
    assert not (tmp_path / "results").exists()


# `python -m scaling.run --against REV`: both revisions in one launch, and what is refused before any point.

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


def against_revision_start(checkout: Path, *argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return measure(str(checkout), "--strategy", "fake:a", *argv, cwd=cwd)


def test_each_side_runs_its_own_code_also_where_one_stands_in_the_other(checkout: Path, tmp_path: Path) -> None:
    """Started in the checkout itself, whose folder Python looks into first."""
    done = against_revision_start(
        checkout, "--against", "HEAD", "--results", str(tmp_path / "results"), cwd=checkout
    )
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
        ("v9.9", "--against v9.9: is neither a run nor a revision of "),
        ("HEAD~1", ": its workers use another protocol (scaling 0.1.0, protocol "),
        ("fake:b", "--against fake:b: is not a revision; measure two strategies with --strategy A,B"),
        ("--help", "--against"),
    ],
)
def test_what_cannot_be_measured_beside_is_refused_and_nothing_left(
    checkout: Path, tmp_path: Path, revision: str, words: str
) -> None:
    done = against_revision_start(checkout, f"--against={revision}", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("scaling: error: --against ") and words in line
    assert list(tmp_path.iterdir()) == []


def test_a_package_without_git_has_no_revisions(checkout: Path, tmp_path: Path) -> None:
    shutil.copytree(checkout / "scaling", tmp_path / "plain" / "scaling")
    done = against_revision_start(tmp_path / "plain", "--against", "HEAD", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--against HEAD: is neither a run nor a revision of " in done.stderr
    assert "not a git repository" in done.stderr


# `--against REV` with a strategy from outside the package: the revision is that of its own repository.

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
def against_strategy_file_checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def against_strategy_file_start(
    source: Path, *argv: str, cwd: Path, name: str = NAME
) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(source), os.environ.get("PYTHONPATH", "")]))
    return measure(path, "--strategy", name, *argv, cwd=cwd)


@pytest.mark.parametrize("where", cases(["beside", "inside"], ["inside"]))
def test_each_side_runs_its_own_files(against_strategy_file_checkout: Path, tmp_path: Path, where: str) -> None:
    """The strategy's file and what it imports from beside it, also where the launch is started among them."""
    cwd = against_strategy_file_checkout / "src" if where == "inside" else tmp_path
    done = against_strategy_file_start(
        against_strategy_file_checkout / "src",
        "--against",
        "HEAD",
        "--results",
        str(tmp_path / "results"),
        cwd=cwd,
    )
    assert (done.returncode, done.stderr) == (0, "")
    (run,) = (tmp_path / "results").iterdir()
    header, records = store.load(run)
    head = git(against_strategy_file_checkout, "rev-parse", "HEAD")
    assert header.config["against"] == head
    found = {one.point.strategy: one.ranks[0].ready for one in records}
    names = {strategy: ready.device_name for strategy, ready in found.items() if ready}
    assert names == {"fake:plain": "fake", NAME: "new and new", f"{NAME}@{head[:10]}": "old and old"}
    said = " ".join(done.stdout.split())
    assert f"@{head[:10]}: workers with that revision of the strategy's own code; " in said


@pytest.mark.parametrize(
    ("name", "revision", "words"),
    [
        (NAME, "v9.9", "--against v9.9: is neither a run nor a revision of "),
        (
            NAME,
            "HEAD~1",
            "this revision lacks what is measured: --strategy mine.ring:paper: cannot import mine.ring",
        ),
        (NAME, "HEAD~2", "ring.py: it was elsewhere or not yet"),
        (f"fake:a,{NAME}", "HEAD", "ring.py are in different folders; measure each in a run of its own"),
        ("mine.ring:paper,mine.moon:paper", "HEAD", "--strategy mine.moon:paper: cannot import mine.moon: "),
    ],
    ids=["unknown", "before", "no-folder", "two-repositories", "no-module"],
)
def test_against_strategy_file_what_cannot_be_measured_beside_is_refused_and_nothing_left(
    against_strategy_file_checkout: Path, tmp_path: Path, name: str, revision: str, words: str
) -> None:
    done = against_strategy_file_start(
        against_strategy_file_checkout / "src", "--against", revision, cwd=tmp_path, name=name
    )
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("scaling: error: ") and words in line
    assert list(tmp_path.iterdir()) == []


def test_a_file_found_elsewhere_is_not_taken_for_the_revision(
    against_strategy_file_checkout: Path, tmp_path: Path
) -> None:
    """The revision has no such module, and Python would find the one that is measured anyway."""
    (tmp_path / "flat").mkdir()
    copy = tmp_path / "copy"
    shutil.copytree(against_strategy_file_checkout, copy)
    git(copy, "rm", "-q", "--cached", "src/mine/ring.py", "src/mine/__init__.py", "src/mine/names.py")
    (copy / "src" / "other.txt").write_text("")
    git(copy, "add", "src/other.txt")
    git(copy, "commit", "-q", "-m", "without the package")
    commit(copy, "with it")
    done = against_strategy_file_start(copy / "src", "--against", "HEAD~1", cwd=tmp_path / "flat")
    assert (done.returncode, done.stdout) == (2, "")
    assert "this revision lacks what is measured: mine.ring:paper: " in done.stderr
    assert "ring.py would be taken" in done.stderr


def test_a_file_that_git_does_not_keep_has_no_revisions(
    against_strategy_file_checkout: Path, tmp_path: Path
) -> None:
    shutil.copytree(against_strategy_file_checkout / "src", tmp_path / "src")
    done = against_strategy_file_start(tmp_path / "src", "--against", "HEAD", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--against HEAD: is neither a run nor a revision of " in done.stderr
    assert "not a git repository" in done.stderr
