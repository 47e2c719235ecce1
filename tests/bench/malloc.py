"""The default model's plain loop on one core with the heap kept between steps and with the system's: ms, minor
faults and kernel time of a step, and the ratio of the rates. Workers of both are alive at once and take turns by
blocks; starts alternate, since the system's heap costs another amount at each start.

[STARTS=4] [BLOCKS=8] [SEED=1] python -m tests.bench.malloc [FRAMEWORK...]      (all that are installed)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from scaling import frameworks
from scaling.hosts.parents import adopt_orphans
from tests.bench import paired, turns, workers
from tests.bench.paired import Answer, Side
from tests.support import ranks

STARTS = int(os.environ.get("STARTS", "4"))
BLOCKS = int(os.environ.get("BLOCKS", "8"))
SEED = os.environ.get("SEED", "1")
BATCH = 32
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
HEAPS: dict[Side, str] = {"subject": "kept", "reference": "the system's"}


class Used(NamedTuple):
    """What a process had of the kernel since its start, all its threads together."""

    minor_faults: int
    kernel_s: float


class Block(NamedTuple):
    """Means over the steps of one block; what was used counts the uncounted step too."""

    step_s: float
    minor_faults: float
    kernel_s: float


class Watched(turns.Program):
    """The plain loop, with what each of its blocks took."""

    def __init__(self, name: str, guard: turns.Guard, *, asynchronous: bool) -> None:
        super().__init__(name, guard, asynchronous=asynchronous)
        self.blocks: list[Block] = []

    def turn(self, steps: int) -> list[Answer]:
        """A block, between two readings."""
        before = used(self.members[0].pid)
        (answer,) = super().turn(steps)
        after = used(self.members[0].pid)
        faults, kernel_s = (now - then for now, then in zip(after, before, strict=True))
        self.blocks.append(Block(answer.seconds / steps, faults / (steps + 1), kernel_s / (steps + 1)))
        return [answer]


def used(pid: int) -> Used:
    """From /proc/PID/stat, whose fields after the command's closing bracket are counted from 3 (proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return Used(int(fields[10 - 3]), int(fields[15 - 3]) * TICK_S)


def main(names: Sequence[str]) -> None:
    adopt_orphans()
    turns.say(f"plain loop on one core, digits-cnn, batch {BATCH}, 1 thread")
    for name in names or installed():
        compare(f"{name}:{frameworks.PLAIN}")


def installed() -> list[str]:
    """The frameworks that are here."""
    plain = {name: f"{name}:{frameworks.PLAIN}" for name in frameworks.FRAMEWORKS if name != "fake"}
    return [name for name, loop in plain.items() if frameworks.load(loop).missing(loop) is None]


def compare(name: str) -> None:
    """Print both heaps' figures of each start, and the ratio over the starts."""
    found: list[paired.Start] = []
    for number in range(STARTS):
        watched: dict[Side, Watched] = {}
        programs: dict[Side, turns.Opened] = {side: partial(loop, name, side, watched) for side in HEAPS}
        found.append(turns.start(programs, pairs=BLOCKS, seed=f"{SEED}/{name}/{number}"))
        for side, heap in HEAPS.items():
            turns.say(f"  {name} start {number + 1}, heap {heap:12} {_means(watched[side].blocks[-BLOCKS:])}")
    turns.say(f"{name}: kept over the system's, {paired.summary(paired.ratio(found), BLOCKS)}")


@contextmanager
def loop(
    name: str, side: Side, watched: dict[Side, Watched], folder: Path, guard: turns.Guard
) -> Iterator[turns.Program]:
    """The worker of the plain loop with that heap; it is noted in `watched`."""
    task = ranks.one_task(name, "solo", batch_size=BATCH)
    with workers.program([task], folder, guard, kept=side == "subject", made=Watched) as program:
        assert isinstance(program, Watched)
        watched[side] = program
        yield program


def _means(blocks: Sequence[Block]) -> str:
    step_s, faults, kernel_s = (fmean(values) for values in zip(*blocks, strict=True))
    return f"{1e3 * step_s:6.1f} ms, {faults:6.0f} minor faults, {1e3 * kernel_s:5.1f} ms of kernel time a step"


if __name__ == "__main__":
    main(sys.argv[1:])
