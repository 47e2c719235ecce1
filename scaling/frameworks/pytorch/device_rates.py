"""The rates of one device alone, in a process of its own: matrix product, memory, transfers, a training step.

    python -m scaling.frameworks.pytorch.device_rates      (started by the preflight only)

The first line of stdin is the request. The process answers once it is built, and measures after the second line.

A GPU's rate is of the median repeat, timed by CUDA events. A rate of CPUs is of the fastest repeat: other programs
take caches from most of them. The time that its thread waits for other programs is not counted.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from statistics import median
from time import perf_counter

import msgspec
import torch
from msgspec.structs import replace
from torch import Tensor

from scaling.frameworks.pytorch.all_reduce import Pipes, said
from scaling.frameworks.pytorch.loop import Training
from scaling.hosts import proc
from scaling.records.task import AskedDeviceRates, DeviceRates

# Seconds of repeats over all passes; WARM_UP_S precede them. At least one repeat is made, however long it takes.
WARM_UP_S, MATRIX_S, COPY_S, TRANSFER_S, STEP_S = 0.2, 1.0, 1.0, 0.4, 2.0
# Rows of square matrices: on a GPU enough to fill it, on CPUs so few that a core repeats the product often.
GPU_ROWS, CPU_ROWS = 8192, 1024
GPU_COPY_BYTES = 1 << 30
# Virtual machines are slow for seconds: on CPUs all rates are measured several times, in turns.
CPU_PASSES = 3
# Longest time of repeats, in budgets, if other programs use the cores.
CROWDED = 3
FLOAT32_BYTES = 4
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


def main() -> None:
    pipes = Pipes()
    asked = msgspec.json.decode(pipes.line(), type=AskedDeviceRates)
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
