"""Ranks over ZeroMQ against MPI: the same efficiency, agents' CPU below 1 % of a core; 64 ranks enrol within 5 s.

python -m tests.bench.transport [--quick]. Sweeps of torch:gloo on two ranks take turns: zmq, MPI, zmq, MPI.
An agent's CPU is its process's, without children, during one point with windows of 10 s: the median over slices of
5 s. So starts and canaries are not counted. Rank 0 also has the sweep and the view. Enrolling begins once all
processes have imported what they need.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import psutil

from launch import _mpi
from tests.support.ranks import free_ports

TURNS, ENROLLED, ENROL_S, SLICE_S = 3, 64, 5.0, 5.0
SWEEP = ["-m", "scaling.run", "--strategy", "torch:gloo", "--no-page", "--view", "plain", "--results"]
QUICK = ["--rounds", "2", "--windows", "3", "--window-s", "0.05", "--soak-s", "0"]
LONG = ["--kinds", "exchange", "--world-sizes", "2", "--rounds", "1", "--windows", "3", "--window-s", "10"]
ANSWER = re.compile(r"^scaling: .* efficiency (\S+) flags \S+ ci95 \S+ \S+ (\S+)$", re.MULTILINE)
SECRET = {"SCALING_SECRET": "of no other launch"}


def main(argv: Sequence[str]) -> None:
    quick = "--quick" in argv
    print("transport  efficiency; intervals must overlap")
    for transport in ("zmq", "mpi") * (1 if quick else TURNS):
        text, _ = swept(transport, QUICK if quick else [])
        if not (found := ANSWER.search(text)):
            raise RuntimeError(text)
        print(f"{transport:<9}  {found[1]} ± {found[2]}", flush=True)
    print("transport  CPU of rank 0   of rank 1, of a core; must be below 1 %")
    for transport in ("zmq", "mpi"):
        _, cpu = swept(transport, LONG)
        print(f"{transport:<9}  {cpu[0]:12.2%}  {cpu[1]:12.2%}", flush=True)
    count = 8 if quick else ENROLLED
    print(f"{count} ranks enrolled in {enrolled(count):.2f} s beyond imports; must be below {ENROL_S:g} s")


def swept(transport: str, flags: Sequence[str]) -> tuple[str, list[float]]:
    """Run a sweep; return what it prints, and the CPU of both agents as shares of a core. Raises RuntimeError with
    the output if it fails."""
    with TemporaryDirectory() as folder:
        return _swept(transport, Path(folder), flags)


def _swept(transport: str, folder: Path, flags: Sequence[str]) -> tuple[str, list[float]]:
    words, mpirun = [sys.executable, *SWEEP, str(folder / "results"), *flags], _mpi.find_mpirun()
    where = f"127.0.0.1:{free_ports(1)[0]}"
    calls = [[*words, "--rank", rank, "--ranks", "2", "--coordinator", where] for rank in ("0", "1")]
    calls = [[str(mpirun), "-np", "2", *words]] if transport == "mpi" else calls
    environ = os.environ | (_mpi.mpi_environ(mpirun, 2) if transport == "mpi" else SECRET)
    with (folder / "out").open("w") as out:
        started = [subprocess.Popen(call, env=environ, stdout=out, stderr=out) for call in calls]
        cpu = followed(started[0], folder / "results")
        codes = [one.wait() for one in started]
    text = (folder / "out").read_text()
    if any(codes) or len(cpu) != 2:
        raise RuntimeError(text)
    return text, cpu


def followed(first: subprocess.Popen[bytes], results: Path) -> list[float]:
    """Look at the agents until the run ends; return each one's median CPU share, rank 0's (the larger) first."""
    seen: dict[int, list[tuple[float, float]]] = {}
    while first.poll() is None:
        for agent in agents() if any(results.glob("*/run.jsonl")) else ():
            with suppress(psutil.Error):
                times = agent.cpu_times()
                seen.setdefault(agent.pid, []).append((time.monotonic(), times.user + times.system))
        with suppress(subprocess.TimeoutExpired):
            first.wait(SLICE_S)
    return sorted((median(shares(looks)) for looks in seen.values() if len(looks) > 1), reverse=True)


def shares(looks: Sequence[tuple[float, float]]) -> list[float]:
    """Return the CPU seconds per second between each two looks."""
    return [(then - before) / (end_s - begin_s) for (begin_s, before), (end_s, then) in pairwise(looks)]


def agents() -> list[psutil.Process]:
    """The processes of ranks, each below a launcher or this process; forks of a rank have its command line too."""
    found = []
    with suppress(psutil.Error):
        for one in psutil.Process().children(recursive=True):
            parent = one.parent()
            if one.cmdline()[1:3] == SWEEP[:2] and parent and parent.cmdline()[1:3] != SWEEP[:2]:
                found.append(one)
    return found


def enrolled(count: int) -> float:
    """Return the seconds in which so many processes find each other once all have imported."""
    words = [sys.executable, "-m", "tests.bench.transport", "rank"]
    more, port = {"env": os.environ | SECRET, "text": True, "bufsize": 1}, str(free_ports(1)[0])
    with ExitStack() as stack:
        calls = ([*words, str(number), str(count), port] for number in range(count))
        made = [subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **more) for call in calls]  # type: ignore[call-overload]
        ranks = [stack.enter_context(one) for one in made]
        assert [one.stdout.readline() for one in ranks] == ["imported\n"] * count
        start_s = time.perf_counter()
        for one in ranks:
            one.stdin.write("go\n")
        assert [one.stdout.readline() for one in ranks] == ["enrolled\n"] * count
        return time.perf_counter() - start_s


def rank(number: int, count: int, port: int) -> None:
    import zmq  # noqa: F401

    from scaling.transport.start import Secret, Start
    from scaling.transport.zmq import connect

    print("imported", flush=True)
    sys.stdin.readline()
    place = Start(number, count, "127.0.0.1", port)
    cluster = connect(place, Secret(os.environ, Path(), place))
    print("enrolled", flush=True)
    sys.stdin.readline()  # until its end
    cluster.close()


if __name__ == "__main__":
    rank(*map(int, sys.argv[2:])) if sys.argv[1:2] == ["rank"] else main(sys.argv[1:])
