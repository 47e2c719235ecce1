"""`python -m scaling.run` as a process of one rank: bad input, odd surroundings, resumed runs, signals."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest

from scaling.records import store
from scaling.records.events import Failed
from tests.support import faulty
from tests.support.started import ALONE, SCALING, ours, outlived, ran, run_of, shelled
from tests.support.waiting import eventually

FAKE = ("--strategy", "fake:a")
# One point of a rank alone.
QUICK = (*FAKE, "--rounds", "1", "--windows", "3", "--window-s", "0.01", "--kinds", "exchange", "--no-page")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--world-sizes", "1,2", *FAKE), "start them with --ranks 2, or mpirun -np 2 python -m scaling.run"),
        (("--kinds", "exchange", "--interleave", *FAKE), "--interleave: no framework has two points"),
        (("--resume", "nowhere"), "nowhere: not a run"),
        (("--like", "nowhere"), "nowhere: not a run"),
        (("--results", "/dev/null/results", *FAKE), "--results /dev/null/results"),
        (("--results", __file__, *FAKE), f"--results {__file__}"),
        (("--metrics", "none/run.prom", *FAKE), "--metrics none/run.prom: there is no folder {cwd}/none; make it"),
    ],
)
def test_one_line_exit_2_and_nothing_made(tmp_path: Path, argv: tuple[str, ...], words: str) -> None:
    done = ran(*argv, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("scaling: error: ") and words.format(cwd=tmp_path) in line
    assert list(tmp_path.iterdir()) == []


def test_too_few_open_files_are_one_line(tmp_path: Path) -> None:
    """MPI would hang, crash or tell of its internals."""
    done = shelled("ulimit -n 12; exec $PYTHON -m scaling.run --dry-run --strategy fake:a", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("scaling: error: ulimit -n 12: ")


@pytest.mark.parametrize("what", ["--help", "--list", "--dry-run"])
def test_what_a_full_disk_does_not_take_is_one_line(tmp_path: Path, what: str) -> None:
    done = shelled(f"$PYTHON -m scaling.run --ranks 1 --strategy fake:a {what} > /dev/full", tmp_path)
    assert done.returncode == 1
    assert done.stderr == "scaling: error: standard output: No space left on device\n"


def test_help_in_a_locale_without_its_signs(tmp_path: Path) -> None:
    done = ran("--help", cwd=tmp_path, PYTHONIOENCODING="latin-1", COLUMNS="80")
    assert (done.returncode, done.stderr) == (0, "")
    assert "130 Ctrl-C" in done.stdout


def test_dry_run_says_what_would_be_measured_and_measures_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a home: Open MPI 5 takes it for an internal failure; cron, systemd and docker exec set none."""
    monkeypatch.delenv("HOME")
    done = ran("--dry-run", *FAKE, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "fake:a                  exchange  N=1" in done.stdout
    assert "12 points in all, about" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_list_says_what_is_missing_and_how_to_get_it(tmp_path: Path) -> None:
    done = ran("--list", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert all(words in done.stdout for words in ("torch:gloo", "digits-cnn", "real handwritten digits"))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measured")
    quick = (
        "--rounds", "2", "--windows", "3", "--window-s", "0.01", "--soak-s", "0", "--batch-size", "8",
        "--option", "step_s=0.002",
    )  # fmt: skip
    done = ran(*FAKE, *quick, cwd=folder)
    assert done.returncode == 0, done.stderr
    return run_of(folder)


def test_like_measures_anew_with_the_settings_of_a_run(measured: Path, tmp_path: Path) -> None:
    again = ran("--like", measured, "--rounds", "1", "--name", "again", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    other = run_of(tmp_path)
    assert other.name.endswith("-again")
    before, after = store.load(measured)[0].config, store.load(other)[0].config
    assert {key for key in before if before[key] != after[key]} == {"rounds", "name"}


def test_resume_writes_through_no_link_in_the_folder(measured: Path, tmp_path: Path) -> None:
    run, elsewhere = tmp_path / "results/run", tmp_path / "elsewhere"
    run.mkdir(parents=True)
    elsewhere.mkdir()
    (elsewhere / "victim").write_text("untouched")
    header = (measured / store.FILE).read_bytes().splitlines(keepends=True)[0]
    (run / store.FILE).write_bytes(header)
    (run / "logs").symlink_to(elsewhere)
    (run / "page.html").symlink_to(elsewhere / "victim")
    done = ran("--resume", run, "--page", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [(path.name, path.read_text()) for path in elsewhere.iterdir()] == [("victim", "untouched")]
    assert list((run / "logs").iterdir()) and not (run / "page.html").is_symlink()


def test_resume_on_other_code_is_refused(measured: Path, tmp_path: Path) -> None:
    run = shutil.copytree(measured, tmp_path / "run")
    path = run / store.FILE
    text = path.read_text().replace(store.load(run)[0].code, "0123456789ab", 1)
    path.write_text(text.replace('"config":{', '"config":{"novel":1,', 1))  # which only that code knows
    refused = ran("--resume", run, cwd=tmp_path)
    assert refused.returncode == 2
    assert "was measured by other code" in refused.stderr and "--like" in refused.stderr


# As a launcher's children, which inherit that the kernel reaps theirs.
REAPED = (
    "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); "
    "os.execv(sys.executable, [sys.executable, '-m', 'scaling.run', *sys.argv[1:]])"
)
# As Anaconda's Pythons (python-trio/trio#2855), and all on a Linux before 5.3.
WITHOUT_PIDFD = "import os, sys; del os.pidfd_open; from scaling.run.__main__ import main; sys.exit(main())"


@pytest.mark.parametrize(
    ("program", "environ"),
    [
        (ALONE, {"PYTHONIOENCODING": "ascii"}),
        (ALONE, {"PYTHONUTF8": "0", "LC_ALL": "C"}),
        (("-c", REAPED, "--ranks", "1"), {}),
        (("-c", WITHOUT_PIDFD, "--ranks", "1"), {}),
    ],
    ids=["ascii", "C", "ends of children ignored", "no pidfds"],
)
def test_odd_surroundings_do_not_lose_the_run(
    tmp_path: Path, program: tuple[str, ...], environ: dict[str, str]
) -> None:
    done = ran(*QUICK, cwd=tmp_path, program=program, **environ)
    assert (done.returncode, done.stderr) == (0, "")
    assert "  more     python -m scaling report " in done.stdout


@pytest.mark.parametrize("closing", ["> /dev/full", ">&-", "| head -1"])
def test_an_output_that_nobody_takes_does_not_lose_the_run(tmp_path: Path, closing: str) -> None:
    done = shelled(f"$PYTHON -m scaling.run --ranks 1 {' '.join(QUICK)} {closing}", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert len(store.load(run_of(tmp_path))[1]) == 1


@pytest.mark.parametrize("command", ["run", "check", "lab", "report"])
def test_every_command_refuses_a_wrong_flag_in_the_same_words(tmp_path: Path, command: str) -> None:
    done = ran(command, "--qqq", cwd=tmp_path, program=SCALING)
    name = "scaling" if command == "run" else f"scaling {command}"
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"{name}: error: --qqq: no such flag; see --help\n"


def test_a_mistake_that_nobody_can_be_told_is_exit_2_all_the_same(tmp_path: Path) -> None:
    assert shelled("$PYTHON -m scaling.run --qqq 2> /dev/full", tmp_path).returncode == 2


def test_a_plug_in_that_raises_costs_its_cells_and_exit_1(tmp_path: Path) -> None:
    faulty.copied(tmp_path)
    quick = ("--rounds", "1", "--windows", "3", "--window-s", "0.02", "--kinds", "exchange")
    names = ",".join(("fake:a", *(f"my.plug:{mode}" for mode in ("fine", "environ", "helpers", "lacking"))))
    done = ran("--strategy", names, *quick, cwd=tmp_path)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    outcomes = {record.point.strategy: record.outcome for record in store.load(run_of(tmp_path))[1]}
    assert {name: one.cause if isinstance(one, Failed) else "" for name, one in outcomes.items()} == {
        "fake:a": "", "my.plug:fine": "", "my.plug:environ": "error", "my.plug:helpers": "error",
        "my.plug:lacking": "missing",
    }  # fmt: skip


# ---------------------------------------------------------------- signals


def started(folder: Path, *words: str, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *words], cwd=folder, env={**ours(), **environ}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


# A worker sleeps in each step: the run does not end by itself before it is asked to.
MANY = ("--option", "step_s=0.1", "--kinds", "exchange", "--rounds", "1", "--windows", "1000", "--window-s", "0.1")


@pytest.mark.parametrize(("answer", "last", "code"), [("SIG_DFL", "HUP", 129), ("SIG_IGN", "TERM", 143)])
def test_a_closed_terminal_ends_a_run_but_not_with_nohup(
    tmp_path: Path, answer: str, last: str, code: int
) -> None:
    """UCX, which Open MPI loads, takes SIGHUP for itself: the run went on for hours, unseen."""
    sets = f"signal.signal(signal.SIGHUP, signal.{answer})"
    begin = f"import os, signal, sys; {sets}; os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    process = started(tmp_path, "-c", begin, *ALONE, *FAKE, *MANY, "--no-page")
    logs = partial(eventually, lambda: any(tmp_path.glob("results/*/logs/*")), of=process)
    ended, out, err = outlived(process, logs, last)
    assert (ended, err) == (code, "")
    assert out.splitlines()[-1] == "scaling: nothing measured"


# What every Python of the run imports first: the page's hangs, as on a file system that does not answer.
HANGS = """
import os, pathlib, sys, time
if "report" in sys.orig_argv:
    told = pathlib.Path(os.environ["TOLD"])
    told.with_suffix(".part").write_text(str(os.getpid()))
    told.with_suffix(".part").rename(told)
    time.sleep(3600)
"""


def test_a_signal_ends_the_making_of_a_page(tmp_path: Path) -> None:
    """The table is out, the page is not waited for."""
    (tmp_path / "sitecustomize.py").write_text(HANGS)
    told = tmp_path / "told"
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    process = started(tmp_path, *ALONE, *QUICK[:-1], "--page", PYTHONPATH=path, TOLD=str(told))
    try:
        eventually(told.exists, of=process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, err) == (130, "")
    assert out.splitlines()[-1].startswith("scaling: fake:a N=1")
    assert not psutil.pid_exists(int(told.read_text()))
    assert len(store.load(run_of(tmp_path))[1]) == 1
