"""The preflight under real mpirun."""

from __future__ import annotations

import contextlib
import signal
import socket
from pathlib import Path

import msgspec
import psutil

from scaling.tools.check.facts import Findings
from tests.support.mpis import MPIS, Mpi, mpirun, on_mpi, running
from tests.support.waiting import eventually

CHECK = ("-m", "scaling", "check")


def test_under_mpirun() -> None:
    done = mpirun(MPIS[1], 2, *CHECK, "--no-all-reduce", "--no-device-rates")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "check: one node" in done.stdout
    assert done.stdout.count("ok       launch         1 node with 2 ranks each") == 1
    assert "there are no pairs to measure" in done.stdout
    assert "\x1b" not in done.stdout


@on_mpi("mpich")
def test_json_under_mpirun(mpi: Mpi) -> None:
    done = mpirun(mpi, 2, *CHECK, "--json", "--no-device-rates")
    seen = msgspec.json.decode(done.stdout, type=Findings)
    assert [one.host.hostname for one in seen.facts.ranks] == [socket.gethostname()] * 2
    assert mpi.banner in seen.facts.ranks[1].mpi
    (one,) = seen.facts.all_reduces  # by children of ranks that are inside MPI
    assert one.error == ""
    assert one.everyone is not None and one.everyone.ranks == 2


@on_mpi("openmpi4")
def test_a_mistake_under_mpirun_is_one_line(mpi: Mpi) -> None:
    done = mpirun(mpi, 2, *CHECK, "--interconnect", "nonet9")
    assert done.returncode == 2
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("scaling check: "))
    assert "--interconnect nonet9" in line
    assert "Traceback" not in done.stderr


@on_mpi("openmpi5")
def test_a_bug_under_mpirun_ends_all_ranks(mpi: Mpi) -> None:
    code = (
        "import sys\nfrom scaling.tools.check import __main__ as check, prober\n"
        "def broken(*_): raise RuntimeError('a planted bug')\n"
        "prober.watch = broken\nsys.exit(check.main(['--no-device-rates']))\n"
    )
    done = mpirun(mpi, 2, "-c", code)
    assert done.returncode != 0
    assert "a planted bug" in done.stderr


@on_mpi("openmpi4")
def test_ctrl_c_leaves_nothing(mpi: Mpi, tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom scaling.tools.check import __main__ as check, prober\n"
        "prober.watch = lambda _: time.sleep(60)\nsys.exit(check.main([]))\n"
    )
    with running(mpi, 2, "-c", code, cwd=tmp_path) as launch:
        eventually(lambda: "check: one node" in launch.said(), launch.said, of=launch.process)
        started = psutil.Process(launch.process.pid).children(recursive=True)
        launch.process.send_signal(signal.SIGINT)
        try:
            assert launch.process.wait(120) != 0, launch.said()
            assert psutil.wait_procs(started, timeout=10)[1] == []
        finally:
            for one in started:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
