"""One rank of a timed all-reduce, in its own process: torch.distributed over NCCL or Gloo.

    python -m scaling.frameworks.pytorch.all_reduce      (started by the preflight only)

The first line of stdin is the request. The process waits after its answer until it is ended: a rank that leaves
early would cut off the others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from datetime import timedelta
from itertools import pairwise

import msgspec
import torch
from torch import Tensor, distributed

from scaling.frameworks.base import timeout_s
from scaling.frameworks.pipes import Pipes, said
from scaling.frameworks.pytorch import libraries, store
from scaling.records.task import AskedAllReduce, RankAllReduce, Task, Timed, timed

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
        timeout = timedelta(seconds=timeout_s(task.clocks))
        # No device_id: with it NCCL would split off the groups of nodes, which needs all ranks.
        distributed.init_process_group(
            task.point.strategy.partition(":")[2],
            store=store.open_store(task.address, task.ports[0], hosts=task.rank == 0, timeout=timeout),
            rank=task.rank,
            world_size=task.point.world_size,
            timeout=timeout,
        )

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
    inside = None
    if asked.inside:
        group = rank.inside()
        if group is not None:
            inside = rank.timed(group.size(), sizes, asked.budget_s, group)
    return RankAllReduce(everyone=everyone, inside=inside, library=_library(task))


def _library(task: Task) -> str:
    if task.point.strategy != "torch:nccl":
        return f"torch {torch.__version__}, Gloo"
    return f"torch {torch.__version__}, NCCL {libraries.nccl()}"


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
