"""`python -m scaling.run` as a process of one rank: bad input, streams that nobody takes, resumed runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scaling.records import store
from scaling.records.events import Failed
from tests.support import faulty

FAKE = ("--strategy", "fake:a")
# One point of a rank alone.
QUICK = (*FAKE, "--rounds", "1", "--windows", "3", "--window-s", "0.01", "--kinds", "exchange", "--no-page")


def start(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environ = {key: value for key, value in os.environ.items() if key != "SCALING_VIEW"}
    return subprocess.run(
        [sys.executable, "-m", "scaling.run", "--ranks", "1", *argv],
        cwd=cwd, env=environ, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--world-sizes", "1,2", *FAKE), "start them with --ranks 2, or mpirun -np 2 python -m scaling.run"),
        (
            ("--world-sizes", "1", "--kinds", "exchange", "--interleave", *FAKE),
            "--interleave: no framework has two points",
        ),
        (("--resume", "nowhere"), "nowhere: not a run"),
        (("--like", "nowhere"), "nowhere: not a run"),
        (("--results", "/dev/null/results", *FAKE), "--results /dev/null/results"),
        (("--results", __file__, *FAKE), f"--results {__file__}"),
    ],
)
def test_one_line_exit_2_and_nothing_made(tmp_path: Path, argv: tuple[str, ...], words: str) -> None:
    done = start(*argv, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("scaling: error: ")
    assert words in line
    assert list(tmp_path.iterdir()) == []


def test_too_few_open_files_are_one_line(tmp_path: Path) -> None:
    """MPI would hang, crash or tell of its internals."""
    done = subprocess.run(
        ["bash", "-c", 'ulimit -n 12; exec "$@"', "-", sys.executable, "-m", "scaling.run", "--dry-run", *FAKE],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("scaling: error: ulimit -n 12: ")


@pytest.mark.parametrize("what", ["--help", "--list", "--dry-run"])
def test_what_a_full_disk_does_not_take_is_one_line(tmp_path: Path, what: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "scaling.run", "--ranks", "1", *FAKE, what],
            cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "scaling: error: standard output: No space left on device\n"


def test_help_in_a_locale_without_its_signs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    monkeypatch.setenv("COLUMNS", "80")
    done = start("--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "130 Ctrl-C" in done.stdout


def test_no_home_is_no_reason_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open MPI 5 takes it for an internal failure of its own; cron, systemd and docker exec set none."""
    monkeypatch.delenv("HOME")
    done = start("--dry-run", *FAKE, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_dry_run_says_what_would_be_measured_and_measures_nothing(tmp_path: Path) -> None:
    done = start("--dry-run", *FAKE, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "fake:a                  exchange  N=1" in done.stdout
    assert "12 points in all, about" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_list_says_what_is_missing_and_how_to_get_it(tmp_path: Path) -> None:
    done = start("--list", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "torch:gloo" in done.stdout
    assert "digits-cnn" in done.stdout
    assert "real handwritten digits" in done.stdout


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measured")
    quick = (
        "--rounds", "2", "--windows", "3", "--window-s", "0.01", "--soak-s", "0", "--batch-size", "8",
        "--option", "step_s=0.002",
    )  # fmt: skip
    done = start(*FAKE, *quick, cwd=folder)
    assert done.returncode == 0, done.stderr
    (run,) = (folder / "results").iterdir()
    return run


def test_like_measures_anew_with_the_settings_of_a_run(measured: Path, tmp_path: Path) -> None:
    again = start("--like", str(measured), "--rounds", "1", "--name", "again", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    (other,) = (tmp_path / "results").iterdir()
    assert other.name.endswith("-again")
    before, after = store.load(measured)[0].config, store.load(other)[0].config
    changed = {key for key in before if before[key] != after[key]}
    assert changed == {"rounds", "name"}


def test_resume_writes_through_no_link_in_the_folder(measured: Path, tmp_path: Path) -> None:
    run, elsewhere = tmp_path / "results/run", tmp_path / "elsewhere"
    run.mkdir(parents=True)
    elsewhere.mkdir()
    (elsewhere / "victim").write_text("untouched")
    header = (measured / store.FILE).read_bytes().splitlines(keepends=True)[0]
    (run / store.FILE).write_bytes(header)
    (run / "logs").symlink_to(elsewhere)
    (run / "page.html").symlink_to(elsewhere / "victim")
    done = start("--resume", str(run), "--page", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [(path.name, path.read_text()) for path in elsewhere.iterdir()] == [("victim", "untouched")]
    assert list((run / "logs").iterdir()) and not (run / "page.html").is_symlink()


def test_resume_on_other_code_is_refused(measured: Path, tmp_path: Path) -> None:
    run = shutil.copytree(measured, tmp_path / "run")
    path = run / store.FILE
    text = path.read_text().replace(store.load(run)[0].code, "0123456789ab", 1)
    path.write_text(text.replace('"config":{', '"config":{"novel":1,', 1))  # which only that code knows
    refused = start("--resume", str(run), cwd=tmp_path)
    assert refused.returncode == 2
    assert "was measured by other code" in refused.stderr
    assert "--like" in refused.stderr


@pytest.mark.parametrize("environ", [{"PYTHONIOENCODING": "ascii"}, {"PYTHONUTF8": "0", "LC_ALL": "C"}])
def test_a_stream_without_our_signs_does_not_lose_the_run(tmp_path: Path, environ: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scaling.run", "--ranks", "1", *QUICK],
        cwd=tmp_path, env={**os.environ, **environ}, capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert b"  more     python -m scaling report " in done.stdout


def test_a_launcher_that_ignores_the_ends_of_children_loses_nothing(tmp_path: Path) -> None:
    """Its children inherit that: the kernel then reaps theirs, too."""
    line = f"import os, signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv({sys.executable!r}, {{}})"
    command = [sys.executable, "-m", "scaling.run", "--ranks", "1", *QUICK]
    done = subprocess.run(
        [sys.executable, "-c", line.format(command)],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_a_python_without_pidfds_measures(tmp_path: Path) -> None:
    """As Anaconda's are (python-trio/trio#2855), and all on a Linux before 5.3."""
    code = "import os, sys; del os.pidfd_open; from scaling.run.__main__ import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, "--ranks", "1", *QUICK],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("closing", ["> /dev/full", ">&-", "| head -1"])
def test_an_output_that_nobody_takes_does_not_lose_the_run(tmp_path: Path, closing: str) -> None:
    line = f"'{sys.executable}' -m scaling.run --ranks 1 {' '.join(QUICK)} {closing}"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    (run,) = (tmp_path / "results").iterdir()
    assert len(store.load(run)[1]) == 1


@pytest.mark.parametrize("command", ["run", "check", "lab", "report"])
def test_every_command_refuses_a_wrong_flag_in_the_same_words(tmp_path: Path, command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scaling", command, "--qqq"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == ""
    name = "scaling" if command == "run" else f"scaling {command}"
    assert done.stderr == f"{name}: error: --qqq: no such flag; see --help\n"


def test_a_mistake_that_nobody_can_be_told_is_exit_2_all_the_same(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", f"'{sys.executable}' -m scaling.run --qqq 2> /dev/full"],
        cwd=tmp_path, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2


def test_help_is_answered_without_what_a_sweep_needs(tmp_path: Path) -> None:
    heavy = {
        "numpy", "scipy", "psutil", "pynvml", "pyroute2", "sklearn", "torch", "tensorflow", "mxnet", "horovod",
    }  # fmt: skip
    ours = {f"scaling.{name}" for name in ("agent", "analysis", "frameworks", "hosts", "report", "sweep")}
    code = (
        "import sys\nfrom scaling.run.__main__ import main\nassert main(['--help']) == 0\n"
        "print(*{name for name in sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert "--world-sizes" in done.stdout
    loaded = set(done.stderr.split())
    assert "typer" in loaded
    assert sorted(loaded & (heavy | ours)) == []


def test_a_plug_in_that_raises_costs_its_cells_and_exit_1(tmp_path: Path) -> None:
    (tmp_path / "my").mkdir()
    text = Path(faulty.__file__).read_text().replace(faulty.MODULE, "my.plug")
    (tmp_path / "my" / "plug.py").write_text(text)
    quick = ("--rounds", "1", "--windows", "3", "--window-s", "0.02", "--kinds", "exchange")
    names = ",".join(("fake:a", *(f"my.plug:{mode}" for mode in ("fine", "environ", "helpers", "lacking"))))
    done = start("--strategy", names, *quick, cwd=tmp_path)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    (folder,) = (tmp_path / "results").iterdir()
    causes = {
        record.point.strategy: record.outcome.cause if isinstance(record.outcome, Failed) else ""
        for record in store.load(folder)[1]
    }
    assert causes == {
        "fake:a": "", "my.plug:fine": "", "my.plug:environ": "error", "my.plug:helpers": "error",
        "my.plug:lacking": "missing",
    }  # fmt: skip
