"""The page of a run that has ended, by a process of its own: drawing must cost no run its exit code or memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from scaling.agent.environment import outside_of_mpi
from scaling.errors import StoreError

FILE = "page.html"
# A page takes seconds; a file system or a font cache that hangs is not waited for.
PATIENCE_S = 120.0


def write(folder: Path) -> Path:
    """Write the page beside the run's file; returns its path. Raises StoreError with the command to try again."""
    path = folder / FILE
    command = ["-m", "scaling.report", str(folder), "--format", "html", "--output", str(path)]
    try:
        done = subprocess.run(
            [sys.executable, *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=outside_of_mpi(os.environ),
            start_new_session=True,
            timeout=PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StoreError(f"{path}: not written: {error}") from None
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        why = why.removeprefix("scaling.report: error: ")
        raise StoreError(f"{path}: not written: {why}; then try: python {' '.join(command)}")
    return path
