"""The package's other programs, run on a run that has ended, each as a process of its own.

What they do must cost no run its memory, and `run` imports none of them: they are commands as it is one itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from scaling.agent.environment import outside_of_mpi

# Each takes seconds; a file system or a font cache that hangs is not waited for.
PATIENCE_S = 120.0


def output(module: str, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """What `python -m module` printed, and its exit code. Raises OSError or subprocess.TimeoutExpired."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        env={**outside_of_mpi(os.environ), "PYTHONIOENCODING": "utf-8"},
        start_new_session=True,
        timeout=PATIENCE_S,
        check=False,
    )


def complaint(done: subprocess.CompletedProcess[str], module: str) -> str:
    """The last line that a program said to stderr, without its name; its exit code where it said nothing."""
    why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return why.removeprefix(f"{module}: error: ")
