"""CPU of all agents of a 16-rank launch while their workers measure: must stay below 1 % of a core each.

The workers sleep (fake strategy), so that agents are all there is to see. Rank 0 also sweeps, collects
and draws the live view.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

import psutil

from tests.bench.launching import start

RANKS = 16
SECONDS = 20.0
FLAGS = (
    "--strategy", "fake:sleep", "--option", "step_s=0.05", "--kinds", "exchange", "--world-sizes", str(RANKS),
    "--rounds", "1", "--windows", "200", "--view", "live",
)  # fmt: skip


def main() -> None:
    with TemporaryDirectory() as folder, TemporaryFile() as output:
        process = start(RANKS, FLAGS, Path(folder), output)
        try:
            agents = _agents(process.pid)
            time.sleep(4.0)  # start-up and warm-up are over
            before = [_cpu_s(agent) for agent in agents]
            begun_s = time.monotonic()
            time.sleep(SECONDS)
            passed_s = time.monotonic() - begun_s
            percents = [100 * (_cpu_s(a) - b) / passed_s for a, b in zip(agents, before, strict=True)]
        finally:
            process.terminate()
            process.wait(30)
    _print(percents)


def _agents(launcher: int) -> list[psutil.Process]:
    for _ in range(200):
        found = [
            child for child in psutil.Process(launcher).children(recursive=True)
            if child.cmdline()[1:3] == ["-m", "scaling.run"] and child.pid != launcher
        ]  # fmt: skip
        workers = sum(len(agent.children()) for agent in found)
        if len(found) == RANKS and workers >= RANKS:
            return sorted(found, key=_rank)
        time.sleep(0.1)
    raise RuntimeError(f"{len(found)} agents with {workers} workers instead of {RANKS} after 20 s")


def _rank(agent: psutil.Process) -> int:
    environ = agent.environ()
    return int(environ.get("OMPI_COMM_WORLD_RANK") or environ["PMI_RANK"])


def _cpu_s(agent: psutil.Process) -> float:
    times = agent.cpu_times()
    return float(times.user + times.system)


def _print(percents: list[float]) -> None:
    out = sys.stdout.write
    out(f"agents: CPU in % of a core over {SECONDS:g} s of measured windows, {RANKS} ranks, live view on rank 0\n")
    out(f"  rank 0 (sweep, collector, view)  {percents[0]:.2f}\n")
    out(f"  other ranks, mean                {sum(percents[1:]) / len(percents[1:]):.2f}\n")
    out(f"  other ranks, most                {max(percents[1:]):.2f}\n")
    out(f"  worst / 1 %                      {max(percents):.2f}  (must be below 1)\n")


if __name__ == "__main__":
    main()
