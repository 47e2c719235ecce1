"""A plain script's processes on this machine, told blocks of steps.

python -m tests.bench.plain.launch STRATEGY [STEPS]      (one by itself)
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bench.environment import with_heap
from tests.bench.paired import Answer
from tests.bench.plain import ways
from tests.bench.turns import LOG_TAIL, Guard, Program, say

RANKS, BATCH = 2, 32
# Keras writes its settings into its home: into none.
ENVIRON = {"TF_CPP_MIN_LOG_LEVEL": "1", "KERAS_HOME": os.devnull}


@contextmanager
def program(strategy: str, folder: Path, guard: Guard, *, ranks: int = RANKS) -> Iterator[Program]:
    """The plain script of a strategy."""
    way = ways.WAYS[strategy]
    started = Program(f"{way.script}.py", guard, asynchronous=way.asynchronous)
    with ways.processes(way, ranks) as processes, started:
        for process in processes:
            arguments = (BATCH, process.rank, ranks, *([way.mode] if way.mode else []))
            samples = BATCH * (ranks if way.single else 1)
            started.add(Script(process, way.script, [str(each) for each in arguments], samples, folder))
        yield started


class Script:
    """A process of it (a `turns.Member`), whose steps are of so many samples."""

    def __init__(
        self, process: ways.Process, script: str, arguments: Sequence[str], samples: int, folder: Path
    ) -> None:
        self.name, self.measures = process.name, process.measures
        self._samples, self._steps, self._told = samples, 0, b""
        self._log = folder / f"{script} {process.name}.log"
        bound = ["taskset", "-c", ",".join(map(str, process.cpus))] if process.cpus else []
        with self._log.open("wb") as log:
            self._popen = subprocess.Popen(
                [*bound, sys.executable, "-m", f"tests.bench.plain.{script}", *arguments],
                env=with_heap({**os.environ, **ENVIRON, **process.environ}),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                # As workers have it: Linux shares its CPUs out by session first (sched_autogroup).
                start_new_session=True,
            )
        assert self._popen.stdin is not None and self._popen.stdout is not None
        self._stdin, self._stdout = self._popen.stdin, self._popen.stdout
        self.pid, self.fd = self._popen.pid, self._stdout.fileno()
        os.set_blocking(self.fd, False)

    def tell(self, steps: int) -> None:
        """The line that its loop waits for; a process that is dead already is noticed elsewhere."""
        self._steps = steps
        with suppress(BrokenPipeError):
            self._stdin.write(f"{steps}\n".encode())

    def answer(self) -> Answer | None:
        """The line that it prints; libraries may print others."""
        self._told += self._stdout.read() or b""
        *lines, self._told = self._told.split(b"\n")
        for line in lines:
            if line.startswith(b'{"seconds"'):
                told = json.loads(line)
                return Answer(self._samples * self._steps, told["seconds"], told["loss"])
        return None

    def ended(self) -> bool:
        """Whether it has, which it never does before it is killed."""
        return self._popen.poll() is not None

    def log_tail(self) -> str:
        """The end of what it wrote to stderr."""
        return self._log.read_text(errors="replace")[-LOG_TAIL:]

    def kill(self) -> None:
        if not self.ended():
            os.killpg(self.pid, signal.SIGKILL)
            self._popen.wait()
        self._stdin.close()
        self._stdout.close()


def main(strategy: str, steps: int = 40) -> None:
    with TemporaryDirectory() as folder, Guard() as guard, program(strategy, Path(folder), guard) as script:
        script.turn(10)
        answers = script.turn(steps)
    losses = [f"{each.loss:.3f}" for each in answers]
    say(f"{strategy}: {script.rate(answers):.1f} images/s, loss {', '.join(losses)}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
