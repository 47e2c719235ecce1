"""`--against RUN`: compare the new run with an older one, by `scaling compare`."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from scaling.errors import StoreError, UsageError
from scaling.records import store
from scaling.records.events import Finished
from scaling.records.point import WANTED
from scaling.records.run import Header
from scaling.run import programs

COMPARE = "compare"
# Exit codes of scaling compare with a verdict: nothing slower, something slower.
FINE, SLOWER = 0, 1


class Compared(NamedTuple):
    """The result as text and exit code; `why` is the reason if nothing was compared."""

    text: str
    code: int
    why: str = ""


def read(run: Path) -> Header:
    """Read the header of the run to compare with.
    Raises UsageError if it cannot be compared, before hours of measuring."""
    try:
        header, records = store.load_measured(run)
    except UsageError as error:
        no_run = not run.is_absolute() and not (store.folder_of(run) / store.FILE).exists()
        mend = f"; for the revision of this name write --against {run}^0" if no_run else ""
        raise UsageError(f"--against {error}{mend}") from None
    if store.is_being_written(run):
        raise UsageError(f"--against {run}: is still being written; wait until its sweep has ended")
    if header.config.get("epochs") is not None:
        raise UsageError(f"--against {run}: a training to an accuracy cannot be compared; repeat it with --like")
    if not any(one.point.kind in WANTED and isinstance(one.outcome, Finished) for one in records):
        raise UsageError(f"--against {run}: it has no measured exchange to compare with")
    return header


def compare(base: Path, new: Path, look: Callable[[], None] = lambda: None) -> Compared:
    """Compare two finished runs; call `look` meanwhile. Raises StoreError without a verdict."""
    command = f"python -m scaling {COMPARE} {base} {new}"
    try:
        done = programs.output(COMPARE, [str(base), str(new)], look)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StoreError(f"--against {base}: not compared: {error}; try: {command}") from None
    text = f"{done.stdout}\nagainst: {base} (again: {command})\n"
    if done.returncode in (FINE, SLOWER) and done.stdout:
        return Compared(text, done.returncode)
    said = programs.complaint(done, COMPARE).removeprefix("RUN: ")
    why = f"--against {base}: not compared: {said}"
    if done.returncode == UsageError.exit_code:
        return Compared(text if done.stdout else "", UsageError.exit_code, why)
    raise StoreError(f"{why}; try: {command}")
