"""One rank of a timed all-reduce, in its own process: torch.distributed over NCCL or Gloo.

    python -m scaling.frameworks.pytorch.all_reduce      (started by the preflight only)

The first line of stdin is the request. The process waits after its answer until it is ended: a rank that leaves
early would cut off the others.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable
from itertools import pairwise
from queue import SimpleQueue

import msgspec
import torch
from torch import Tensor, distributed

from scaling.frameworks.pytorch import group as joining
from scaling.records.task import AskedAllReduce, RankAllReduce, Task, Timed, timed
from scaling.text import one_line

# Tried in this order while the network is fast enough. The last one tried is reported.
SIZES_BYTES = (1_000_000, 16_000_000, 256_000_000)
LEAST_REPEATS, MOST_REPEATS = 3, 10
FLOAT32_BYTES = 4


class AllReduce:
    """A rank that has joined the others."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._cuda = task.point.hardware.device == "cuda"
        self._device = torch.device("cuda", task.device_index) if self._cuda else torch.device("cpu")
        if self._cuda:
            torch.cuda.set_device(self._device)
        # Without its device: with it NCCL would split off the groups of nodes, which needs all ranks.
        joining.join(task)

    def timed(self, members: int, sizes: Iterable[int], budget_s: float, group: distributed.ProcessGroup) -> Timed:
        """Time the largest size of which LEAST_REPEATS fit into the budget."""
        known = list(sizes)
        size, seconds = known[0], min(self._repeated(known[0], 2, group))
        for smaller, larger in pairwise(known):
            if LEAST_REPEATS * seconds * larger / smaller > budget_s:
                break
            size, seconds = larger, self._repeated(larger, 1, group)[0]
        repeats = max(LEAST_REPEATS, min(MOST_REPEATS, int(budget_s / seconds)))
        return timed(members, size, tuple(self._repeated(size, repeats, group)))

    def inside(self) -> distributed.ProcessGroup | None:
        """Create the group of every node; return that of this rank's node, None for a lone rank."""
        mine = None
        for host in dict.fromkeys(self._task.hosts):
            ranks = [rank for rank, name in enumerate(self._task.hosts) if name == host]
            group = distributed.new_group(ranks) if len(ranks) > 1 else None
            if self._task.rank in ranks:
                mine = group
        return mine

    def _repeated(self, size: int, repeats: int, group: distributed.ProcessGroup) -> list[float]:
        """Return the seconds of each repetition by the slowest rank, the same on all ranks."""
        tensor = torch.rand(size // FLOAT32_BYTES, device=self._device)
        seconds = torch.tensor(
            [self._once(tensor, group) for _ in range(repeats)], dtype=torch.float64, device=self._device
        )
        distributed.all_reduce(seconds, op=distributed.ReduceOp.MAX, group=group)
        return [float(each) for each in seconds.tolist()]

    def _once(self, tensor: Tensor, group: distributed.ProcessGroup) -> float:
        distributed.all_reduce(torch.zeros(1, device=self._device), group=group)
        self._sync()
        start_s = time.perf_counter()
        distributed.all_reduce(tensor, group=group)
        self._sync()
        return time.perf_counter() - start_s

    def _sync(self) -> None:
        if self._cuda:
            torch.cuda.synchronize(self._device)


def measure(asked: AskedAllReduce) -> RankAllReduce:
    """Join, time the all-reduces of all ranks, then those inside all nodes at the same time."""
    task = asked.task
    torch.set_num_threads(task.threads)
    sizes = [size for size in SIZES_BYTES if size <= asked.largest_bytes] or SIZES_BYTES[:1]
    rank = AllReduce(task)
    assert distributed.group.WORLD is not None
    everyone = rank.timed(task.point.world_size, sizes, asked.budget_s, distributed.group.WORLD)
    group = rank.inside() if asked.inside else None
    inside = rank.timed(group.size(), sizes, asked.budget_s, group) if group is not None else None
    library = f"NCCL {joining.nccl_version()}" if task.point.strategy == "torch:nccl" else "Gloo"
    return RankAllReduce(everyone=everyone, inside=inside, library=f"torch {torch.__version__}, {library}")


# ---------------------------------------------------------------- pipes


class Pipes:
    """The pipes of a process that measures for the preflight: requests on stdin, answers on stdout, one a line.
    What libraries print goes to stderr. At the end of stdin the process is killed with its children, because its
    agent is gone."""

    def __init__(self) -> None:
        self._answers = os.dup(1)
        os.dup2(2, 1)
        self._lines: SimpleQueue[bytes] = SimpleQueue()
        self.line = self._lines.get
        threading.Thread(target=self._read, daemon=True).start()

    def answer(self, told: msgspec.Struct) -> None:
        os.write(self._answers, msgspec.json.encode(told) + b"\n")

    def _read(self) -> None:
        rest = b""
        while data := os.read(0, 65536):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._lines.put(line)
        os.killpg(0, signal.SIGKILL)


def said(error: Exception) -> str:
    """Return an exception as one line with its type."""
    return one_line(f"{type(error).__name__}: {error}")


def main() -> None:
    pipes = Pipes()
    line = pipes.line()
    try:
        told = measure(msgspec.json.decode(line, type=AskedAllReduce))
    except Exception as error:
        told = RankAllReduce(error=said(error))
    pipes.answer(told)
    threading.Event().wait()


if __name__ == "__main__":
    main()
