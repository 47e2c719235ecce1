"""Ask a GPU of rank 0's host how large a batch fits, if the user gave none."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from scaling import frameworks
from scaling.agent import interpreters, other_code, strategies
from scaling.agent.environment import child_environ
from scaling.plan.placement import slots_of
from scaling.plan.plan import Plan
from scaling.plan.tasks import rank_tasks
from scaling.records.task import BatchFit, BatchTrial, Clocks
from scaling.run import programs

PATIENCE_S = 180.0
_FOUND = msgspec.json.Decoder(BatchFit | None)


def tried(made: Plan, look: Callable[[], None]) -> BatchFit | str:
    """Return the largest batch of the plan's model that fits, or why that is unknown. `look` is called
    meanwhile."""
    plain = next((point for point in made.cells if point.kind in ("solo", "each")), made.cells[0])
    baseline = frameworks.load(plain.strategy).baseline
    point = replace(plain, strategy=baseline, kind="solo", world_size=1, options={})
    slots = slots_of(point, made.slots)
    (task,) = rank_tasks(
        point, slots, (), made.networks[0].places,
        attempt=0, retry=0, seed=made.config.seed, clocks=Clocks(), logs="", data_dir=made.config.data_dir or "",
    )  # fmt: skip
    python = interpreters.of(interpreters.framework_of(baseline), os.environ)
    environ = child_environ(os.environ, task, strategies.environ(task))
    command = other_code.command(python, "scaling.worker.batch_fit", "")
    given = msgspec.json.encode(BatchTrial(task=task, memory_bytes=made.gpu_memory_bytes)).decode()
    try:
        done = programs.awaited(command, environ, look, given=given, within_s=PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the trial of larger batches failed: {error}"
    if done.returncode:
        return f"the trial of larger batches failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}"
    return _FOUND.decode(done.stdout) or "not even one batch fits"
