"""images/s of the project's workers of an `exchange` point at 2 ranks on CPU against the plainest script of each
framework's own documentation doing the same work (`tests/bench/plain`): at least 0.99 of it, by an interval of
1 % to either side or less.

Both are alive at once and take turns by blocks of about 0.4 s, the other one stopped meanwhile; several starts of
both are the unit of the interval (`paired.py`, `turns.py`). CPUs, threads and the kept heap are the same for both.
The quickest quarter of blocks is told too: others slow a shared machine down for part of the time.
STARTS=22 and BLOCKS=16 (9 minutes for torch:gloo) told 0.9 % on one whose cores varied by a third. On a quiet one,
at 14 blocks, 10 starts (3 minutes) do for torch:gloo, torch:horovod and MXNet's kvstores, 20 for torch:fsdp2 and
mxnet:horovod, 24 for tensorflow:ps; tensorflow:ring and tensorflow:horovod take 40 to 60: each start of theirs has
a rate of its own, by 3 %.

[STARTS=6] [BLOCKS=12] [SEED=1] python -m tests.bench.strategies [NAME...]      (all that run here)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import fmean

from scaling import frameworks
from scaling.hosts.proc import adopt_orphans
from tests.bench import paired, turns, workers
from tests.bench.paired import Side
from tests.bench.plain import launch
from tests.bench.plain.launch import BATCH, RANKS
from tests.bench.plain.ways import WAYS
from tests.support import ranks

STARTS = int(os.environ.get("STARTS", "6"))
BLOCKS = int(os.environ.get("BLOCKS", "12"))
SEED = os.environ.get("SEED", "1")
BAR = f"must reach {paired.LEAST_RATIO} by ± {paired.WIDEST}"
HEAD = f"{RANKS} ranks, digits-cnn, batch {BATCH}, 1 thread each; {BAR}"


def main(names: Sequence[str]) -> None:
    found = {name: compare(name) for name in names or available()}
    turns.say(HEAD)
    for name, told in found.items():
        turns.say(f"  {name:24} {told}")


def available() -> list[str]:
    """The strategies that run on this machine's CPU."""
    loaded = {name: frameworks.load(name) for name in frameworks.NAMES}
    return [name for name, one in loaded.items() if "cpu" in one.devices(name) and one.missing(name) is None]


def compare(name: str, starts: int = STARTS) -> str:
    """Print both rates of each start and their ratio; returns what is said of the ratio over the starts."""
    adopt_orphans()
    programs: dict[Side, turns.Opened] = {
        "subject": partial(exchange, name),
        "reference": partial(launch.program, name),
    }
    found: list[paired.Start] = []
    for number in range(starts):
        found.append(turns.start(programs, pairs=BLOCKS, seed=f"{SEED}/{name}/{number}"))
        turns.say(
            f"  start {number + 1}: {_rates(found[-1:])} images/s, {BLOCKS} blocks of {found[-1].steps} steps, "
            f"{paired.ratio(found[-1:]).mean:.3f}"
        )
    quickest = paired.ratio(found, paired.quickest_of_start)
    told = (
        f"{paired.said(paired.ratio(found), BLOCKS)}; quickest quarter of blocks: {paired.said(quickest, BLOCKS)}"
    )
    turns.say(f"{name}: scaling against {WAYS[name].script}.py, {_rates(found)} images/s")
    turns.say(f"  {told}")
    return told


@contextmanager
def exchange(name: str, folder: Path, guard: turns.Guard) -> Iterator[turns.Program]:
    """The project's workers of the point."""
    tasks = ranks.tasks(name, "exchange", RANKS, batch_size=BATCH)
    with workers.program(tasks, folder, guard) as program:
        yield program


def _rates(starts: Sequence[paired.Start]) -> str:
    ours, plain = (
        fmean(map(fmean, sides)) for sides in ([one.subject for one in starts], [one.reference for one in starts])
    )
    return f"{ours:.1f} against {plain:.1f}"


if __name__ == "__main__":
    main(sys.argv[1:])
