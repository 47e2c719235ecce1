"""Without a launcher `python -m scaling.run` starts the ranks of this machine: their end, failures, bad input."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]
import pytest

from scaling.hosts import info
from scaling.records import store
from scaling.records.events import Finished
from tests.support import scripts
from tests.support.matrix import cases
from tests.support.started import QUICK, RUN, SCALING, SLOW, WITHIN_S, ours, points, ran, run_of
from tests.support.waiting import eventually

TWO = ("--ranks", "2")
DEVICES, _ = info.devices("cpu")


class Started:
    """A launch in a session of its own, which is that of rank 0."""

    def __init__(self, folder: Path, *argv: str, program: tuple[str, ...] = RUN) -> None:
        self._file = folder / "said.txt"
        with self._file.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, *program, *argv], cwd=folder, env=ours(), stdin=subprocess.DEVNULL, stdout=out,
                stderr=out, start_new_session=True,
            )  # fmt: skip
        self._all: set[psutil.Process] = set()

    def said(self) -> str:
        return self._file.read_text()

    def after(self, ask: Callable[[], object]) -> psutil.Process:
        """Wait until this is so, then return rank 1."""
        eventually(ask, self.said, within_s=WITHIN_S, of=self.process)
        zero = psutil.Process(self.process.pid)
        self._all = {zero, *zero.children(recursive=True)}
        return next(one for one in zero.children() if one.cmdline() == zero.cmdline())

    def code(self) -> int:
        """Return the exit code, once no process of the launch is left."""
        code = self.process.wait(WITHIN_S)
        assert not psutil.wait_procs(self._all, timeout=30)[1], self.said()
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


Start = Callable[..., Started]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made: list[Started] = []

    def begin(*argv: str, **how: tuple[str, ...]) -> Started:
        made.append(Started(tmp_path, *argv, **how))
        return made[-1]

    yield begin
    for one in made:
        one.close()


# ---------------------------------------------------------------- the answer


def test_one_rank_on_each_device_ends_in_the_answer(tmp_path: Path) -> None:
    """By the name of the command; other tests here call its module."""
    told = ran(*QUICK, "--device", "cpu", cwd=tmp_path, program=(*SCALING, "run"))
    assert told.returncode == 0, told.stderr
    header, records = store.load(run_of(tmp_path))
    assert header.launch_size == DEVICES and header.mpi.startswith("ZeroMQ ")
    assert all(isinstance(record.outcome, Finished) for record in records)
    first = f"scaling: starts {DEVICES} ranks, one on each core (--ranks N takes another number)\n"
    assert told.stderr == ("" if DEVICES == 1 else first)
    assert [path.name for path in (tmp_path / "results").iterdir() if path.name.startswith(".")] == []


def test_a_number_of_ranks_is_taken_and_said(tmp_path: Path) -> None:
    told = ran(*QUICK, *TWO, "--dry-run", cwd=tmp_path, program=RUN)
    assert (told.returncode, told.stderr) == (0, "scaling: starts 2 ranks (--ranks N takes another number)\n")
    assert "launch: 2 ranks on 1 host" in told.stdout
    assert "\nranks: by scaling itself (--ranks N)\n" in told.stdout
    assert list(tmp_path.iterdir()) == []


def test_more_ranks_than_devices_are_marked(tmp_path: Path) -> None:
    told = ran(*QUICK, "--ranks", str(2 * DEVICES), "--device", "cpu", "--dry-run", cwd=tmp_path, program=RUN)
    assert told.returncode == 0 and "OVERSUBSCRIBED" in told.stdout


def test_torch_trains_on_two_ranks(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    flags = ("--strategy", "torch:gloo", *QUICK[2:], "--kinds", "solo,exchange", "--batch-size", "8")
    told = ran(*flags, *TWO, cwd=tmp_path, program=RUN)
    assert told.returncode == 0, told.stderr
    assert told.stdout.splitlines()[-1].startswith("scaling: torch:gloo N=2 ")


def test_a_script_is_measured(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(scripts.LOOP)
    flags = (*TWO, "--rounds", "1", "--windows", "3", "--window-s", "0.05", "--soak-s", "0", "--no-page")
    told = ran(*flags, "--", "train.py", "--batch-size", "16", cwd=tmp_path, program=RUN)
    assert told.returncode == 0, told.stderr
    assert told.stdout.splitlines()[-1].startswith("scaling: script:train.py N=2 ")


def test_a_check_measures_two_ranks(tmp_path: Path) -> None:
    few = ("--no-all-reduce", "--no-device-rates")
    told = ran(*TWO, *few, cwd=tmp_path, program=(*SCALING, "check"))
    assert "launch         1 node with 2 ranks each\n" in told.stdout, told.stderr
    assert told.stderr == "scaling check: starts 2 ranks (--ranks N takes another number)\n"


def test_certify_measures_two_ranks_after_its_preflight(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    flags = (*TWO, "--strategy", "fake:a", "--device", "cpu", "--dry-run")
    told = ran(*flags, cwd=tmp_path, program=(*SCALING, "certify"))
    assert told.returncode == 0, told.stderr
    assert "launch: 2 ranks on 1 host" in told.stdout


# ---------------------------------------------------------------- signals and deaths


@pytest.mark.parametrize(
    ("number", "to_all"),
    cases([(signal.SIGINT, True), (signal.SIGTERM, False), (signal.SIGINT, False), (signal.SIGHUP, True)],
          [(signal.SIGINT, True), (signal.SIGTERM, False)]),
)  # fmt: skip
def test_a_signal_ends_the_launch_with_its_answer(
    start: Start, tmp_path: Path, number: signal.Signals, to_all: bool
) -> None:
    """A terminal sends its signal to all ranks, kill to one."""
    one = start(*SLOW, *TWO)
    one.after(lambda: points(tmp_path) > 2)
    (os.killpg if to_all else os.kill)(one.process.pid, number)
    assert one.code() == 128 + number, one.said()
    assert re.search(r"^interrupted after \d+ of 99 points", one.said(), re.MULTILINE)


def test_a_rank_that_is_killed_ends_the_launch_and_keeps_its_points(start: Start, tmp_path: Path) -> None:
    one = start(*SLOW, *TWO)
    one.after(lambda: points(tmp_path) > 2).kill()
    assert one.code() == 1
    assert "scaling: error: rank 1 ended, or its node or network is lost" in one.said()
    assert len(store.load(run_of(tmp_path))[1]) >= 2


@pytest.mark.parametrize("folder", ["results", ""])
def test_without_rank_0_nothing_is_left(start: Start, tmp_path: Path, folder: str) -> None:
    """Killed while it measures, and at once."""
    one = start(*SLOW, *TWO)
    one.after(lambda: points(tmp_path) > 2 if folder else len(psutil.Process(one.process.pid).children()))
    one.process.kill()
    assert one.code() == -signal.SIGKILL


LOST = (
    "import os, sys\nfrom scaling.transport import zmq\nfrom scaling.run import __main__ as run\n"
    "zmq._follow = lambda *_: os._exit(7)\nsys.exit(run.main(sys.argv[1:]))\n"
)


def test_a_rank_that_ends_before_all_have_come_is_named(tmp_path: Path) -> None:
    told = ran(*QUICK, *TWO, cwd=tmp_path, program=("-c", LOST))
    assert told.returncode == 2
    assert told.stderr.endswith("scaling: error: rank 1 ended before all ranks had come: exit code 7\n")


# ---------------------------------------------------------------- bad input


OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}


@pytest.mark.parametrize(
    ("argv", "environ", "said"),
    [
        (("--ranks", "0"), {}, "--ranks 0: must be a number from 1"),
        (("--ranks", "two"), {}, "--ranks two: must be a number from 0"),
        (("--ranks", "99999"), {}, f"--ranks 99999: this machine has {os.cpu_count()} CPU"),
        (("--ranks", "2", "--qqq"), {}, "--qqq: no such flag; see --help"),
        (("--ranks", "2", "--transport", "mpi"), {}, "--ranks: not with --transport mpi, "),
        (TWO, OPEN_MPI, "--ranks 2: the ranks are numbered by mpirun (OMPI_COMM_WORLD_RANK, "),
        ((), {"WORLD_SIZE": "2"}, "WORLD_SIZE=2: for a launch RANK, MASTER_ADDR and MASTER_PORT must be set too"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_starts_nothing(
    tmp_path: Path, argv: tuple[str, ...], environ: dict[str, str], said: str
) -> None:
    told = ran("--device", "cpu", *argv, cwd=tmp_path, program=RUN, **environ)
    assert (told.returncode, told.stdout) == (2, "")
    (line,) = told.stderr.splitlines()
    assert line.startswith(f"scaling: error: {said}")
    assert list(tmp_path.iterdir()) == []


def test_a_secret_of_the_environment_changes_nothing(tmp_path: Path) -> None:
    assert ran(*QUICK, *TWO, "--dry-run", cwd=tmp_path, program=RUN, SCALING_SECRET="short").returncode == 0
