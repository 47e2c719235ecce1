"""The whole program under real mpirun: both lines of Open MPI, and MPICH, with the fake strategy."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from scaling.records import store
from scaling.records.events import Finished
from tests.support import faulty
from tests.support.mpis import IMPATIENT, MPIS, Mpi, mpirun, on_mpi, on_mpi_each, running
from tests.support.started import points, run_of
from tests.support.waiting import eventually

FAKE = (
    "-m", "scaling.run", "--strategy", "fake:a", "--rounds", "1", "--windows", "3", "--window-s", "0.02",
    "--soak-s", "0",
)  # fmt: skip


@on_mpi_each("ranks", {2: "openmpi4", 4: "mpich", 16: ""})
def test_a_sweep_of_all_world_sizes_and_its_report(tmp_path: Path, mpi: Mpi, ranks: int) -> None:
    """With all controls, and on many ranks without those of several ranks."""
    kinds = 1 if ranks > 2 else 3
    few = ("--kinds", "solo,exchange") if kinds == 1 else ()
    done = mpirun(mpi, ranks, *FAKE, *few, cwd=tmp_path, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    header, records = store.load(run_of(tmp_path))
    sizes = [size for size in (1, 2, 4, 8, 16) if size <= ranks]
    assert mpi.banner in header.mpi
    assert header.launch_size == ranks
    assert sorted({record.point.world_size for record in records}) == sizes
    assert all(isinstance(record.outcome, Finished) for record in records)
    assert len(records) == len(sizes) + 1 + (kinds - 1) * (len(sizes) - 1)
    for size in sizes:
        assert re.search(rf"^ +{size}  ", done.stdout, re.MULTILINE), done.stdout
    screen, _, last = reported(run_of(tmp_path)).rstrip("\n").rpartition("\n")
    assert screen.partition("  more ")[0] in done.stdout
    assert done.stdout.splitlines()[-1] == last
    assert last.startswith(f"scaling: fake:a N={max(sizes)} ")


def reported(run: Path) -> str:
    done = subprocess.run([sys.executable, "-m", "scaling", "report", str(run)], capture_output=True, check=True)
    return done.stdout.decode()


ON_A_TERMINAL = "import pty, sys; pty.spawn(sys.argv[1:])"
HIDES_THE_CURSOR = "\x1b[?25l"


@on_mpi_each("to", {"": "openmpi4", " | cat": "mpich", " > file; cat file": "openmpi5"})
def test_the_view_is_live_only_on_a_terminal(tmp_path: Path, mpi: Mpi, to: str) -> None:
    """Also where mpirun hides it from rank 0, or makes a file look like one."""
    call = shlex.join([str(mpi.mpirun), "-np", "1", sys.executable, *FAKE, "--world-sizes", "1", "--no-page"])
    environ = {**os.environ, **mpi.environ(1), "TERM": "xterm"}
    for name in ("SCALING_VIEW", "COLUMNS", "LINES"):
        environ.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-c", ON_A_TERMINAL, "bash", "-c", call + to], stdin=subprocess.DEVNULL,
        capture_output=True, text=True, cwd=tmp_path, env=environ, timeout=60, check=False,
    )  # fmt: skip
    assert "points planned" in done.stdout or HIDES_THE_CURSOR in done.stdout, done.stdout + done.stderr
    assert (HIDES_THE_CURSOR in done.stdout) == (to == "")


@on_mpi("openmpi5")
def test_a_usage_error_is_one_line_of_rank_0(tmp_path: Path, mpi: Mpi) -> None:
    done = mpirun(mpi, 2, "-m", "scaling.run", "--strategy", "fake:a", "--world-sizes", "1,8", cwd=tmp_path)
    assert done.returncode == 2
    ours = [line for line in done.stderr.splitlines() if line.startswith("scaling: ")]
    assert len(ours) == 1
    assert "8 is more than the 2 ranks of this launch" in ours[0]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "results").exists()


@on_mpi("openmpi4")
def test_a_bug_of_ours_ends_all_ranks_with_its_traceback(tmp_path: Path, mpi: Mpi) -> None:
    code = (
        "import sys\nfrom scaling.run import enrolment\nfrom scaling.run import __main__ as run\n"
        "def broken(*_): raise RuntimeError('a planted bug')\n"
        "enrolment.check_versions = broken\nsys.exit(run.main(['--strategy', 'fake:a']))\n"
    )
    done = mpirun(mpi, 3, "-c", code, cwd=tmp_path)
    assert done.returncode not in (0, 2)
    assert "RuntimeError: a planted bug" in done.stderr


def test_a_rank_with_other_code_is_refused_by_name(tmp_path: Path) -> None:
    code = (
        "import os, sys\nfrom scaling.run import __main__ as run, enrolment\n"
        "if os.environ['OMPI_COMM_WORLD_RANK'] == '1': enrolment.__version__ = '0.0.9'\n"
        "sys.exit(run.main(['--strategy', 'fake:a']))\n"
    )
    done = mpirun(MPIS[1], 2, "-c", code, cwd=tmp_path)
    assert done.returncode == 2
    assert f"rank 1 on {os.uname().nodename} runs scaling 0.0.9" in done.stderr


@on_mpi("mpich")
def test_what_a_strategy_from_outside_lacks_on_another_rank_is_its_cause(tmp_path: Path, mpi: Mpi) -> None:
    faulty.copied(tmp_path)
    done = mpirun(mpi, 2, *FAKE[:3], "fake:a,my.plug:second", *FAKE[4:], "--kinds", "exchange", cwd=tmp_path)
    assert done.returncode == 1
    assert "no licence: buy one" in done.stdout
    _, records = store.load(run_of(tmp_path))
    assert {record.point.strategy for record in records if isinstance(record.outcome, Finished)} == {"fake:a"}


SLOW = ("-m", "scaling.run", "--strategy", "fake:a", "--rounds", "50", "--windows", "3", "--window-s", "0.1")


# The last table takes its time, as that of many points does.
LONG_TABLE = (
    "import sys, time\nfrom scaling.run import __main__ as run, ranks\nprint_screen = ranks.Ending._print\n"
    "ranks.Ending._print = lambda *a, **k: (time.sleep(1), print_screen(*a, **k))[1]\n"
    "sys.exit(run.main(sys.argv[3:]))\n"
)


def interrupted(mpi: Mpi, folder: Path, number: int, *first: str) -> tuple[int, str]:
    """Start a long sweep, signal its mpirun after two points, and return its exit code and output."""
    with running(mpi, 2, *first, *SLOW, cwd=folder) as launch:
        eventually(lambda: points(folder) > 2)
        launch.process.send_signal(number)
        code = launch.process.wait(120)
    nothing_left(folder)
    return code, launch.said()


def nothing_left(folder: Path) -> None:
    """Assert that within moments no process of this launch runs any more."""
    eventually(lambda: not processes(folder), lambda: processes(folder), within_s=10)


def processes(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = " ".join(process.info["cmdline"] or ())
        with suppress(OSError):
            if "scaling." in command and str(folder) in str(Path(f"/proc/{process.pid}/cwd").readlink()):
                found.append(process)
    return found


@on_mpi_each("number", {signal.SIGINT: "openmpi4", signal.SIGTERM: "mpich", signal.SIGUSR1: "openmpi5"})
def test_a_signal_keeps_the_points_and_prints_the_table(tmp_path: Path, mpi: Mpi, number: int) -> None:
    code, said = interrupted(mpi, tmp_path, number)
    run = run_of(tmp_path)
    _, records = store.load(run)
    assert len(records) >= 2
    assert re.search(r"^interrupted after \d+ of 250 points; these are kept$", said, re.MULTILINE), said
    assert f"python -m scaling.run --resume {run.relative_to(tmp_path)}" in said
    # mpirun has an exit code of its own for signals to itself; USR1 it hands on, and the code is ours.
    assert code == 130 if number == signal.SIGUSR1 else code != 0


@on_mpi_each("number", {signal.SIGINT: "mpich", signal.SIGTERM: ""})
def test_a_table_that_takes_long_is_printed_all_the_same(tmp_path: Path, mpi: Mpi, number: int) -> None:
    _, said = interrupted(mpi, tmp_path, number, "-c", LONG_TABLE)
    assert "interrupted after " in said and "\nscaling: fake:a N=" in said


def ranks_of(launcher: int) -> list[psutil.Process]:
    """The ranks under an mpirun, without a child that a rank has forked and that is not yet itself."""
    children = psutil.Process(launcher).children(recursive=True)
    found = [child for child in children if "scaling.run" in child.cmdline()]
    pids = {child.pid for child in found}
    return [child for child in found if child.ppid() not in pids]


@on_mpi("openmpi5")
def test_no_worker_survives_a_killed_rank(tmp_path: Path, mpi: Mpi) -> None:
    with running(mpi, 2, *SLOW, cwd=tmp_path) as launch:
        eventually(lambda: points(tmp_path) > 1)
        ranks = ranks_of(launch.process.pid)
        assert len(ranks) == 2
        ranks[1].kill()
        assert launch.process.wait(120) != 0
    nothing_left(tmp_path)
    assert store.load(run_of(tmp_path))[1]


@on_mpi_each("number", {None: "mpich", signal.SIGTERM: ""})
def test_a_rank_that_stands_still_ends_the_run_with_its_table(
    tmp_path: Path, mpi: Mpi, number: int | None
) -> None:
    with running(mpi, 2, "-c", IMPATIENT, *SLOW, cwd=tmp_path) as launch:
        eventually(lambda: points(tmp_path) > 2)
        (silent,) = (one for one in ranks_of(launch.process.pid) if rank_of(one) == "1")
        silent.suspend()
        if number is not None:
            launch.process.send_signal(number)
        assert launch.process.wait(60) != 0
    nothing_left(tmp_path)
    said = launch.said()
    assert f"--resume {run_of(tmp_path).relative_to(tmp_path)}\n" in said
    if number is None:
        assert f"scaling: error: no message from rank 1 on {os.uname().nodename} for 8 s" in said


def rank_of(process: psutil.Process) -> str | None:
    environ = process.environ()
    return environ.get("OMPI_COMM_WORLD_RANK", environ.get("PMI_RANK"))


@on_mpi("openmpi4")
def test_what_keeps_all_ranks_from_starting_is_one_line_of_rank_0(tmp_path: Path, mpi: Mpi) -> None:
    """Rank 0 is the last to find out."""
    code = (
        "import os, resource, sys, time\nfrom scaling.run import __main__ as run\n"
        "rank = os.environ.get('OMPI_COMM_WORLD_RANK', os.environ.get('PMI_RANK'))\n"
        "if rank == '0': time.sleep(2)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))\nsys.exit(run.main([]))\n"
    )
    done = mpirun(mpi, 4, "-c", code, cwd=tmp_path)
    assert done.returncode != 0
    ours = [line for line in done.stderr.splitlines() if line.startswith("scaling: ")]
    assert len(ours) == 1, done.stderr
    assert ours[0].startswith("scaling: error: ulimit -n 100: ")


@on_mpi("openmpi5")
def test_what_keeps_another_rank_from_starting_is_its_own_line(tmp_path: Path, mpi: Mpi) -> None:
    code = (
        "import os, resource, sys\nfrom scaling.run import __main__ as run\n"
        "rank = os.environ.get('OMPI_COMM_WORLD_RANK', os.environ.get('PMI_RANK'))\n"
        "if rank == '1': resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))\nsys.exit(run.main([]))\n"
    )
    done = mpirun(mpi, 2, "-c", code, cwd=tmp_path)
    assert done.returncode != 0
    assert f"scaling: error: rank 1 on {os.uname().nodename}: ulimit -n 100: " in done.stderr


def test_ranks_that_loaded_another_mpi_are_told_so(tmp_path: Path) -> None:
    mine, other = MPIS[2], MPIS[1]
    library = next((other.mpirun.parents[1] / "lib").glob("libmpi.so.40"))
    done = mpirun(mine, 2, *FAKE, cwd=tmp_path, env={"MPI4PY_LIBMPI": str(library)})
    assert done.returncode == 2
    assert "mpirun started 2 ranks, but mpi4py loaded another MPI (Open MPI v5" in done.stderr
    assert "MPI4PY_LIBMPI" in done.stderr


def test_resume_completes_an_interrupted_run(tmp_path: Path) -> None:
    mpi = MPIS[1]
    interrupted(mpi, tmp_path, signal.SIGUSR1)
    run = run_of(tmp_path)
    header, kept = store.load(run)
    plain = json.loads((run / "run.jsonl").read_text().splitlines()[0])
    plain["config"]["rounds"] = 1  # so that little is missing
    rest = (run / "run.jsonl").read_text().split("\n", 1)[1]
    (run / "run.jsonl").write_text(json.dumps(plain) + "\n" + rest)
    done = mpirun(mpi, 2, "-m", "scaling.run", "--resume", str(run), cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    _, records = store.load(run)
    assert records[: len(kept)] == kept
    first_round = [record.point.cell for record in records if record.point.round == 0]
    assert len(first_round) == len(set(first_round)) == 5
    assert header.launch_size == 2
