"""A process that burns a core: planted foreign load.

python -m tests.support.burner BUSY_S IDLE_S LIVES_S      (started by `burning`)
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

MODULE = "tests.support.burner"
# Nobody ends it where the tests themselves are killed.
LIMIT_S = 300.0


@contextmanager
def burning(
    cpu: int, busy_s: float = 1.0, idle_s: float = 0.0, lives_s: float = 0.0, *, first: bool = False
) -> Iterator[str]:
    """Burn this CPU meanwhile, `busy_s` of every `busy_s` + `idle_s`; part of its name in a record. With `lives_s`
    by children that live for so long, one after the other, as a compilation does. `first`: before all usual
    programs (SCHED_FIFO, needs root), as a driver's thread."""
    command = [sys.executable, "-m", MODULE, f"{busy_s:g}", f"{idle_s:g}", f"{lives_s:g}"]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2])
    try:
        os.sched_setaffinity(process.pid, {cpu})
        if first:
            os.sched_setscheduler(process.pid, os.SCHED_FIFO, os.sched_param(1))
        yield MODULE
    finally:
        process.kill()
        process.wait()


@contextmanager
def confined(cpus: Collection[int]) -> Iterator[None]:
    """Have this process, and those that it starts meanwhile, see these CPUs alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def main() -> None:
    busy_s, idle_s, lives_s = map(float, sys.argv[1:])
    limit_s = time.monotonic() + LIMIT_S
    while (now_s := time.monotonic()) < limit_s:
        while time.monotonic() < now_s + busy_s:
            if lives_s:
                _live(lives_s)
        time.sleep(idle_s)


def _live(seconds: float) -> None:
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
