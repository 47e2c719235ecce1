"""The page of a run that has ended, by a process of its own: drawing must cost no run its exit code or memory."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from scaling.errors import StoreError
from scaling.run import programs

FILE = "page.html"
REPORT = "scaling.report"


def write(folder: Path, look: Callable[[], None] = lambda: None) -> Path:
    """Write the page beside the run's file; returns its path. Raises StoreError with the command to try again, and
    what `look` raises, which is called meanwhile."""
    path = folder / FILE
    arguments = [str(folder), "--format", "html", "--output", str(path)]
    try:
        done = programs.output(REPORT, arguments, look)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StoreError(f"{path}: not written: {error}") from None
    if done.returncode:
        why = programs.complaint(done, REPORT)
        raise StoreError(f"{path}: not written: {why}; then try: python -m {REPORT} {' '.join(arguments)}")
    return path
