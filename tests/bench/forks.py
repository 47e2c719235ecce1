"""Workers that are forked from a process that has imported their framework against fresh ones: how long a point of
2 ranks takes until it trains, and whether the two are equally fast then. The ratio of the rates must lie between
0.99 and 1.01, on quiet cores.

Start-ups alternate, by chance; for the rates both are alive at once and take turns by blocks (`turns.py`).

[STARTS=4] [BLOCKS=8] [SEED=1] python -m tests.bench.forks [NAME...]      (one strategy of each framework)
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from scaling import frameworks
from scaling.agent.child import Starter
from scaling.analysis.statistics import intervals
from scaling.hosts.proc import adopt_orphans
from tests.bench import paired, turns, workers
from tests.bench.paired import Side
from tests.support import ranks
from tests.support.waiting import eventually

STARTS = int(os.environ.get("STARTS", "4"))
BLOCKS = int(os.environ.get("BLOCKS", "8"))
SEED = os.environ.get("SEED", "1")
RANKS, BATCH = 2, 32
USUAL = ("torch:gloo", "tensorflow:ring", "mxnet:dist_sync")
WAYS: dict[Side, str] = {"subject": "forked", "reference": "fresh"}
# One that is not counted and these: three, in all.
FIRST_STEPS = 2
ALIKE, WIDEST = 0.01, 0.01


def main(names: Sequence[str]) -> None:
    adopt_orphans()
    turns.say(f"{RANKS} ranks, digits-cnn, batch {BATCH}, 1 thread each; forked over fresh must be 0.99 to 1.01")
    for name in names or USUAL:
        if reason := frameworks.load(name).missing(name):
            turns.say(f"{name}: {reason}")
        else:
            compare(name)


def compare(name: str) -> None:
    """Print both start-ups, and the ratio of the rates with its interval over starts."""
    begun_s = time.monotonic()
    with servers(name) as starter:
        turns.say(f"{name}: importing before all forks took {time.monotonic() - begun_s:.1f} s")
        programs: dict[Side, turns.Opened] = {side: partial(program, name, starter, side) for side in WAYS}
        startup_s: dict[Side, list[float]] = {side: [] for side in WAYS}
        for pair in paired.order(STARTS, f"{SEED}/{name} start-up"):
            for side in pair:
                startup_s[side].append(until_it_trains(programs[side]))
        told = ", ".join(f"{WAYS[side]} {median(found):.2f} s" for side, found in startup_s.items())
        turns.say(f"{name}: until three steps were trained {told} (medians of {STARTS})")
        found = [turns.start(programs, pairs=BLOCKS, seed=f"{SEED}/{name}/{number}") for number in range(STARTS)]
    rates = (fmean(map(fmean, sides)) for sides in ([s.subject for s in found], [s.reference for s in found]))
    turns.say("{}: forked {:.1f}, fresh {:.1f} images/s".format(name, *rates))
    ratio = paired.ratio(found)
    turns.say(f"{name}: {paired.summary(ratio, BLOCKS)}: {verdict(ratio)}")


def verdict(found: intervals.Estimate) -> str:
    """Whether the two are alike, as far as the interval can tell."""
    if found.half_width is None or found.half_width > WIDEST:
        return "too wide to tell"
    return "alike" if abs(found.mean - 1) <= ALIKE else "not alike"


@contextmanager
def servers(name: str) -> Iterator[Starter]:
    """Fork servers that have imported a strategy's framework."""
    starter = Starter(os.environ)
    plain = frameworks.load(name).baseline
    try:
        starter.preload(ranks.one_task(plain, "solo", batch_size=BATCH))
        eventually(starter.settled, within_s=ranks.LIMIT_S)
        yield starter
    finally:
        starter.close()


@contextmanager
def program(name: str, starter: Starter, side: Side, folder: Path, guard: turns.Guard) -> Iterator[turns.Program]:
    """The workers of an exchange, all started in one way."""
    is_fresh = WAYS[side] == "fresh"
    tasks = [replace(task, fresh=is_fresh) for task in ranks.tasks(name, "exchange", RANKS, batch_size=BATCH)]
    with workers.program(tasks, folder, guard, start=starter.start) as started:
        for member in started.members:
            if is_forked(member.pid) == is_fresh:
                raise RuntimeError(f"{name}: {member.name} was not started {WAYS[side]}")
        yield started


def is_forked(pid: int) -> bool:
    """Whether a process still shows its fork server's command line."""
    return b"scaling.worker.fork_server" in Path(f"/proc/{pid}/cmdline").read_bytes()


def until_it_trains(opened: turns.Opened) -> float:
    """Seconds from nothing until all ranks have trained three steps."""
    with TemporaryDirectory() as folder, turns.Guard() as guard:
        begun_s = time.monotonic()
        with opened(Path(folder), guard) as started:
            started.block(FIRST_STEPS)
            return time.monotonic() - begun_s


if __name__ == "__main__":
    main(sys.argv[1:])
