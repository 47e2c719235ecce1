"""Run a plain script's processes on this machine and take what they measured.

python -m tests.bench.plain.launch STRATEGY [STEPS]      (one by itself)
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tests.bench.plain import ways

LIMIT_S, END_S, POLL_S = 300.0, 30.0, 0.1
WARMUP = 10
LOG_TAIL = 3000
# ln(10) is the loss of guessing one of ten digits.
LEARNT = 2.0
# Keras writes its settings into its home: into none.
ENVIRON = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "1", "KERAS_HOME": os.devnull}


class Measured(NamedTuple):
    """images/s over all ranks, and the mean of their last losses."""

    samples_per_s: float
    loss: float


def run(strategy: str, *, ranks: int, batch_size: int, steps: int) -> Measured:
    """Run the plain script of a strategy. RuntimeError with a log's end when a process fails, hangs or learns
    nothing; nothing of it is left running."""
    way = ways.WAYS[strategy]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        running = []
        for process in stack.enter_context(ways.processes(way, ranks)):
            arguments = (steps, WARMUP, batch_size, process.rank, ranks, way.mode)
            running.append(Running(process, way.script, [str(each) for each in arguments if each != ""], folder))
            stack.callback(running[-1].kill)
        try:
            told = _finish(running)
        except RuntimeError as error:
            logs = "\n".join(f"{each.process.name}: {each.log_tail()}" for each in running)
            raise RuntimeError(f"{strategy}: {error}\n{logs}") from None
    loss = sum(each["loss"] for each in told) / len(told)
    # Ranks that do not wait for each other learn more slowly, and by chance: their loss must be a number.
    if not loss < (math.inf if way.asynchronous else LEARNT):
        raise RuntimeError(f"{strategy}: its plain script has a loss of {loss:.3f} after {WARMUP + steps} steps")
    each_drives = ranks if way.single else 1
    rates = [each_drives * batch_size * steps / each["seconds"] for each in told]
    return Measured(sum(rates) if way.asynchronous else len(rates) * min(rates), loss)


class Running:
    """A process that was started; its output and log are files in `folder`."""

    def __init__(self, process: ways.Process, script: str, arguments: Sequence[str], folder: Path) -> None:
        self.process = process
        self._output, self._log = (folder / f"{process.name}.{kind}" for kind in ("out", "log"))
        # Not outliving us, however we end.
        bound = ["setpriv", "--pdeathsig", "KILL"]
        if process.cpus:
            bound += ["taskset", "-c", ",".join(map(str, process.cpus))]
        with self._output.open("wb") as output, self._log.open("wb") as log:
            self._popen = subprocess.Popen(
                [*bound, sys.executable, "-m", f"tests.bench.plain.{script}", *arguments],
                env={**os.environ, **ENVIRON, **process.environ},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=log,
                # As workers have it: Linux shares its CPUs out by session first (sched_autogroup).
                start_new_session=True,
            )

    def result(self) -> dict[str, float] | None:
        """What it has measured, None before. RuntimeError once it has failed."""
        if self._popen.poll():
            raise RuntimeError(f"{self.process.name} ended with {self._popen.returncode}")
        *lines, _ = self._output.read_bytes().split(b"\n")
        return json.loads(lines[-1]) if lines else None

    def release(self) -> None:
        """End its lingering."""
        assert self._popen.stdin is not None
        self._popen.stdin.close()

    def wait(self) -> None:
        """Until it has ended by itself, or RuntimeError."""
        try:
            code = self._popen.wait(END_S)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{self.process.name} does not end") from None
        if code:
            raise RuntimeError(f"{self.process.name} ended with {code}")

    def kill(self) -> None:
        """Whatever it does."""
        self.release()
        self._popen.kill()
        self._popen.wait()

    def log_tail(self) -> str:
        """The end of what it wrote to stderr."""
        return self._log.read_text(errors="replace")[-LOG_TAIL:]


def _finish(running: Sequence[Running]) -> list[dict[str, float]]:
    """The results of those that measure, once all have ended that end by themselves."""
    told = _results(running)
    for each in running:
        each.release()
    for each in running:
        if not each.process.serves:
            each.wait()
    return told


def _results(running: Sequence[Running]) -> list[dict[str, float]]:
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        told = [each.result() for each in running]
        measured = [one for one, each in zip(told, running, strict=True) if each.process.measures]
        if None not in measured:
            return [one for one in measured if one is not None]
        time.sleep(POLL_S)
    raise RuntimeError(f"no result within {LIMIT_S:g} s")


def main(strategy: str, steps: int = 40) -> None:
    """Print one run's rate and loss."""
    measured = run(strategy, ranks=2, batch_size=32, steps=steps)
    sys.stdout.write(f"{strategy}: {measured.samples_per_s:.1f} images/s, loss {measured.loss:.3f}\n")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
