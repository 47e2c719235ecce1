"""A process that measures for the preflight: one rank of a timed all-reduce, or the rates of one device alone.

    python -m scaling.frameworks.pytorch.preflight      (started by the preflight only)

The first line of stdin is the request.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import pairwise
from queue import SimpleQueue
from statistics import median
from time import perf_counter
from typing import NoReturn

import msgspec
import torch
from msgspec.structs import replace
from torch import Tensor, distributed

from scaling.frameworks.pytorch import group as joining
from scaling.frameworks.pytorch.loop import Training
from scaling.hosts import proc
from scaling.records.task import AskedAllReduce, AskedDeviceRates, DeviceRates, RankAllReduce, Task, Timed, timed
from scaling.text import one_line

FLOAT32_BYTES = 4

# ---------------------------------------------------------------- all-reduce
#
# torch.distributed over NCCL or Gloo. The process waits after its answer until it is ended: a rank that leaves
# early would cut off the others.

# Tried in this order while the network is fast enough. The last one tried is reported.
SIZES_BYTES = (1_000_000, 16_000_000, 256_000_000)
LEAST_REPEATS, MOST_REPEATS = 3, 10


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
        start_s = perf_counter()
        distributed.all_reduce(tensor, group=group)
        self._sync()
        return perf_counter() - start_s

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


# ---------------------------------------------------------------- device rates
#
# Matrix product, memory, transfers and a training step. The process answers once it is built, and measures after
# the second line.
#
# A GPU's rate is of the median repeat, timed by CUDA events. A rate of CPUs is of the fastest repeat: other
# programs take caches from most of them. The time that its thread waits for other programs is not counted.

# Seconds of repeats over all passes; WARM_UP_S precede them. At least one repeat is made, however long it takes.
WARM_UP_S, MATRIX_S, COPY_S, TRANSFER_S, STEP_S = 0.2, 1.0, 1.0, 0.4, 2.0
# Rows of square matrices: on a GPU enough to fill it, on CPUs so few that a core repeats the product often.
GPU_ROWS, CPU_ROWS = 8192, 1024
GPU_COPY_BYTES = 1 << 30
# Virtual machines are slow for seconds: on CPUs all rates are measured several times, in turns.
CPU_PASSES = 3
# Longest time of repeats, in budgets, if other programs use the cores.
CROWDED = 3
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Probe:
    """A device with the plain loop built on it."""

    def __init__(self, asked: AskedDeviceRates) -> None:
        self._asked = asked
        self._loop = Training(asked.task)
        self._device = self._loop.device
        self._passes = 1 if self._loop.cuda else CPU_PASSES

    def rates(self) -> DeviceRates:
        """Measure one rate after the other; the best pass counts. A failure ends it: CUDA may be unusable then."""
        told = self._asked.device
        for field, measure in [*self._measures().items()] * self._passes:
            try:
                told = replace(told, **{field: max(measure(), getattr(told, field) or 0.0)})
            except Exception as error:
                return replace(told, error=said(error))
        return told

    def _measures(self) -> dict[str, Callable[[], float]]:
        transfers: dict[str, Callable[[], float]] = {
            "to_device_bytes_per_s": lambda: self._transfer_bytes_per_s(to_device=True),
            "from_device_bytes_per_s": lambda: self._transfer_bytes_per_s(to_device=False),
        }
        return {
            "matrix_flops_per_s": self._matrix_flops_per_s,
            "copy_bytes_per_s": self._copy_bytes_per_s,
            **(transfers if self._loop.cuda else {}),
            "samples_per_s": self._samples_per_s,
        }

    def _matrix_flops_per_s(self) -> float:
        rows = GPU_ROWS if self._loop.cuda else CPU_ROWS
        dtype = HALVES.get(self._asked.task.point.workload.precision, torch.float32)
        left, right = (torch.randn(rows, rows, device=self._device, dtype=dtype) for _ in range(2))
        product = torch.empty_like(left)
        return 2 * rows**3 / self._seconds(lambda: torch.mm(left, right, out=product), MATRIX_S)

    def _copy_bytes_per_s(self) -> float:
        """Count the bytes read and the bytes written."""
        size = GPU_COPY_BYTES if self._loop.cuda else self._asked.host_bytes
        source = torch.ones(size // FLOAT32_BYTES, device=self._device)
        target = torch.empty_like(source)
        return 2 * source.nbytes / self._seconds(lambda: target.copy_(source), COPY_S)

    def _transfer_bytes_per_s(self, *, to_device: bool) -> float:
        host = torch.ones(self._asked.host_bytes // FLOAT32_BYTES, pin_memory=True)
        there = torch.ones(len(host), device=self._device)
        source, target = (host, there) if to_device else (there, host)
        return source.nbytes / self._seconds(lambda: target.copy_(source, non_blocking=True), TRANSFER_S)

    def _samples_per_s(self) -> float:
        return self._asked.task.point.workload.batch_size / self._seconds(self._loop.step, STEP_S)

    def _seconds(self, work: Callable[[], Tensor | None], budget_s: float) -> float:
        repeated, pick = (self._by_events, median) if self._loop.cuda else (by_clock, min)
        repeated(work, WARM_UP_S / self._passes)
        times: list[float] = repeated(work, budget_s / self._passes)
        return pick(times)

    def _by_events(self, work: Callable[[], Tensor | None], budget_s: float) -> list[float]:
        """Time repeats in the device's queue, which always has one more of them."""
        times: list[float] = []
        end_s = perf_counter() + budget_s
        self._loop.mark()
        while not times or perf_counter() < end_s:
            work()
            self._loop.mark()
            times += self._loop.between_marks_s(ahead=1)
        return [*times, *self._loop.between_marks_s()]


def by_clock(work: Callable[[], Tensor | None], budget_s: float) -> list[float]:
    """Time repeats that are done when they return, for `budget_s` of seconds in which this thread had its core."""
    times: list[float] = []
    end_s = perf_counter() + CROWDED * budget_s
    while not times or (sum(times) < budget_s and perf_counter() < end_s):
        start_s, queued_s = perf_counter(), proc.queued_s()
        work()
        waited_s = proc.queued_s() - queued_s
        times.append(perf_counter() - start_s - waited_s)
    return times


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
    asked = msgspec.json.decode(pipes.line(), type=AskedAllReduce | AskedDeviceRates)
    if isinstance(asked, AskedDeviceRates):
        tell_rates(asked, pipes)
    try:
        told = measure(asked)
    except Exception as error:
        told = RankAllReduce(error=said(error))
    pipes.answer(told)
    threading.Event().wait()


def tell_rates(asked: AskedDeviceRates, pipes: Pipes) -> NoReturn:
    told = asked.device
    try:
        if asked.task.cpus:
            with suppress(OSError):  # a cgroup may forbid CPUs
                os.sched_setaffinity(0, asked.task.cpus)
        probe = Probe(asked)
        pipes.answer(told)
        pipes.line()
        told = probe.rates()
    except Exception as error:
        told = replace(told, error=said(error))
    pipes.answer(told)
    os._exit(0)  # torch's threads may abort at the interpreter's exit


if __name__ == "__main__":
    main()
