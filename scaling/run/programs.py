"""Programs that rank 0 starts: other commands on a finished run, a trial of batches before the plan is made.

They cost the run no memory, and `run` imports none of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from scaling import frameworks
from scaling.agent import environment, strategies
from scaling.agent.environment import child_environ, outside_of_mpi
from scaling.errors import StoreError, UsageError
from scaling.plan.placement import slots_of
from scaling.plan.plan import Plan
from scaling.plan.tasks import rank_tasks
from scaling.records import store
from scaling.records.events import Finished
from scaling.records.point import WANTED
from scaling.records.run import Header
from scaling.records.task import BatchFit, BatchTrial, Clocks

# Each takes seconds; the timeout is for a file system or font cache that hangs.
PATIENCE_S = 120.0
LOOK_S = 0.1


def output(
    command: str, arguments: Sequence[str], look: Callable[[], None] = lambda: None
) -> subprocess.CompletedProcess[str]:
    """Run `scaling COMMAND`; return its output and exit code. Calls `look` meanwhile; if it raises (Ctrl-C), the
    program is killed. Raises OSError or subprocess.TimeoutExpired."""
    environ = {**outside_of_mpi(os.environ), "PYTHONIOENCODING": "utf-8"}
    return awaited([sys.executable, "-m", "scaling", command, *arguments], environ, look)


def awaited(
    argv: Sequence[str],
    environ: Mapping[str, str],
    look: Callable[[], None],
    *,
    given: str = "",
    within_s: float = PATIENCE_S,
) -> subprocess.CompletedProcess[str]:
    """Run a program with `given` on its stdin, as `output` does."""
    with subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        env=environ,
        start_new_session=True,
    ) as process:
        end_s = time.monotonic() + within_s
        try:
            while True:
                look()
                with suppress(subprocess.TimeoutExpired):
                    out, err = process.communicate(given, timeout=LOOK_S)
                    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
                given = ""  # communicate takes the input once
                if time.monotonic() > end_s:
                    raise subprocess.TimeoutExpired(process.args, within_s)
        except BaseException:
            process.kill()
            raise


def complaint(done: subprocess.CompletedProcess[str], command: str) -> str:
    """Return the last line of a program's stderr without its name, or its exit code."""
    why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return why.removeprefix(f"scaling {command}: error: ")


# ---------------------------------------------------------------- a trial of batches
# On a GPU of rank 0's host, if the user gave no batch.

TRIAL_S = 180.0
_FOUND = msgspec.json.Decoder(BatchFit | None)


def batch_tried(made: Plan, look: Callable[[], None]) -> BatchFit | str:
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
    python = environment.python_of(frameworks.running(baseline).name, os.environ)
    environ = child_environ(os.environ, task, strategies.environ(task))
    command = [python, "-m", "scaling.worker.batch_fit"]
    given = msgspec.json.encode(BatchTrial(task=task, memory_bytes=made.gpu_memory_bytes)).decode()
    try:
        done = awaited(command, environ, look, given=given, within_s=TRIAL_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the trial of larger batches failed: {error}"
    if done.returncode:
        return f"the trial of larger batches failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}"
    return _FOUND.decode(done.stdout.rpartition("\n")[2]) or "not even one batch fits"


# ---------------------------------------------------------------- comparison with an older run (--against RUN)

COMPARE = "compare"
REVISIONS = "a revision is measured in a git worktree of its own; then: python -m scaling compare BASE NEW"
# Exit codes of scaling compare with a verdict: nothing slower, something slower, a cell undecided.
FINE, SLOWER, UNTOLD = 0, 1, 3


class Compared(NamedTuple):
    """The result as text and exit code; `why` is the reason if nothing was compared."""

    text: str
    code: int
    why: str = ""


def comparable_header(run: Path) -> Header:
    """Read the header of the run to compare with.
    Raises UsageError if it cannot be compared, before hours of measuring."""
    try:
        header, records = store.load_measured(run)
    except UsageError as error:
        mend = "" if os.access(run, os.F_OK) else f"; {REVISIONS}"
        raise UsageError(f"--against {error}{mend}") from None
    if store.is_being_written(run):
        raise UsageError(f"--against {run}: is still being written; wait until its sweep has ended")
    if header.config.get("epochs") is not None:
        raise UsageError(f"--against {run}: a training to an accuracy cannot be compared; repeat it with --like")
    if not any(one.point.kind in WANTED and isinstance(one.outcome, Finished) for one in records):
        raise UsageError(f"--against {run}: it has no measured exchange to compare with")
    return header


def compared(
    base: Path, new: Path, look: Callable[[], None] = lambda: None, *, require_proof: bool = False
) -> Compared:
    """Compare two finished runs; call `look` meanwhile. Raises StoreError without a verdict."""
    arguments = [str(base), str(new), *(["--require-proof"] if require_proof else [])]
    command = f"python -m scaling {COMPARE} {' '.join(arguments)}"
    try:
        done = output(COMPARE, arguments, look)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StoreError(f"--against {base}: not compared: {error}; try: {command}") from None
    text = f"{done.stdout}\nagainst: {base} (again: {command})\n"
    if done.returncode in (FINE, SLOWER, *([UNTOLD] if require_proof else [])) and done.stdout:
        return Compared(text, done.returncode)
    said = complaint(done, COMPARE).removeprefix("RUN: ")
    why = f"--against {base}: not compared: {said}"
    if done.returncode == UsageError.exit_code:
        return Compared(text if done.stdout else "", UsageError.exit_code, why)
    raise StoreError(f"{why}; try: {command}")
