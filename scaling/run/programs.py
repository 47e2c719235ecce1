"""Run other commands of the package on a finished run, each in a process of its own.

They cost the run no memory, and `run` imports none of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from scaling.agent.environment import outside_of_mpi

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
        try:
            return _awaited(process, look, given, within_s)
        except BaseException:
            process.kill()
            raise


def _awaited(
    process: subprocess.Popen[str], look: Callable[[], None], given: str, within_s: float
) -> subprocess.CompletedProcess[str]:
    end_s = time.monotonic() + within_s
    while True:
        look()
        try:
            out, err = process.communicate(given, timeout=LOOK_S)
        except subprocess.TimeoutExpired:
            given = ""  # communicate takes the input once
            if time.monotonic() > end_s:
                raise subprocess.TimeoutExpired(process.args, within_s) from None
        else:
            return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def complaint(done: subprocess.CompletedProcess[str], command: str) -> str:
    """Return the last line of a program's stderr without its name, or its exit code."""
    why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return why.removeprefix(f"scaling {command}: error: ")
