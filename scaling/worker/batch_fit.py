"""Find how large a batch the memory of a GPU holds, by single steps of the plain loop at growing batches.

python -m scaling.worker.batch_fit        (rank 0 starts it before it makes the plan; a BatchTrial on stdin)
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from typing import NoReturn

import msgspec
from msgspec.structs import replace

from scaling import frameworks
from scaling.frameworks.abilities import of_trainer
from scaling.records.task import BatchFit, BatchTrial, Task
from scaling.worker.run_task import cause_of, draw_nothing, trainer_module

# The part of a GPU's memory that a step of the plain loop may use. An exchange needs buffers too, and points that
# wait hold their weights.
PART = 0.75
# A batch is at most this many times the model's own.
MOST = 1 << 8

# The peak of device memory of a step at this batch, in bytes: 0 if unknown, None if memory ran out.
Peak = Callable[[int], int | None]


def largest(least: int, memory_bytes: int, peak: Peak) -> BatchFit | None:
    """Return the largest batch, `least` times a power of two, whose step fits; None if not even `least` does.

    Memory grows linearly with the batch. So two steps tell which batch to try next, and out of memory ends it.
    """
    found: BatchFit | None = None
    batch, before = least, 0
    while batch <= MOST * least:
        used = peak(batch)
        if used is None or used > PART * memory_bytes:
            break
        found = BatchFit(batch_size=batch, used_bytes=used)
        growth = used - before if before else 0
        before = used
        # The next doubling adds twice what the last one has added.
        if growth and used + 2 * growth > PART * memory_bytes:
            break
        batch *= 2
    return found


def peak_of(task: Task) -> Peak:
    module = trainer_module(frameworks.load(task.point.strategy))

    def peak(batch_size: int) -> int | None:
        gc.collect()  # the trainer of the batch before holds memory until its cycles are collected
        work = replace(task.point.workload, batch_size=batch_size)
        try:
            trainer = module.connect(replace(task, point=replace(task.point, workload=work)))
            for _ in range(2):  # the first step makes the optimizer's state
                trainer.step()
            trainer.sync()
            return int(of_trainer(trainer, "peak_memory_bytes"))
        except Exception as error:
            if cause_of(error) != "oom":
                raise
            return None

    return peak


def main() -> NoReturn:
    draw_nothing()
    trial = msgspec.json.decode(sys.stdin.buffer.read(), type=BatchTrial)
    found = largest(trial.task.point.workload.batch_size, trial.memory_bytes, peak_of(trial.task))
    sys.stdout.buffer.write(b"\n" + msgspec.json.encode(found))  # after what the strategy printed
    sys.stdout.flush()
    # Frameworks' threads may abort at the interpreter's exit.
    os._exit(0)


if __name__ == "__main__":
    main()
