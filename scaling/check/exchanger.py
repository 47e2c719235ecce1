"""A rank's part of a timed all-reduce: the process that makes it, since torch must not live beside MPI."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import IO

import msgspec
from msgspec.structs import replace

from scaling.agent import interpreters, strategies
from scaling.agent.environment import child_environ, granted
from scaling.errors import ScalingError
from scaling.frameworks import nccl_log
from scaling.records.all_reduce import AskedAllReduce, RankAllReduce
from scaling.records.task import Task
from scaling.text import one_line, signal_name

PROCESS = "scaling.frameworks.pytorch.all_reduce"
TAIL_BYTES = 4000
FOR_GOOD = math.inf


class Exchanger:
    """One rank's processes for all-reduces, one at a time and numbered upwards."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._over: float = -1

    def measured(self, number: int, asked: AskedAllReduce) -> RankAllReduce:
        """What the process told; blocks until it has, or is gone. It lives on until `end`."""
        try:
            with tempfile.TemporaryFile() as log, tempfile.TemporaryDirectory(prefix="scaling-check-") as folder:
                # Beside it NCCL writes down what it chose.
                asked = replace(asked, task=replace(asked.task, log=f"{folder}/all-reduce"))
                environ = self._child_environ(asked.task)
                process = self._start(number, environ, log)
                line = _answer(process, msgspec.json.encode(asked) + b"\n")
                if line.endswith(b"\n"):
                    told = msgspec.json.decode(line, type=RankAllReduce)
                else:
                    told = RankAllReduce(error=_cause(process.wait(), log))
                return replace(told, nccl=nccl_log.read(environ.get("NCCL_DEBUG_FILE", ""), process.pid))
        except (OSError, ScalingError) as error:
            return RankAllReduce(error=one_line(str(error)))

    def _child_environ(self, task: Task) -> dict[str, str]:
        return child_environ(self._environ, task, granted(self._environ, strategies.environ(task)))

    def _start(self, number: int, environ: Mapping[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        with self._lock:
            if number <= self._over:
                raise InterruptedError("over before it began")
            self._process = subprocess.Popen(
                [interpreters.of("torch", self._environ), "-m", PROCESS],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environ,
                start_new_session=True,
            )
            return self._process

    def end(self, number: float) -> None:
        """End the process; none of this number or a lower one is started any more."""
        with self._lock:
            self._over = max(self._over, number)
            process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


def _answer(process: subprocess.Popen[bytes], question: bytes) -> bytes:
    """The answer to a question, without an end of line where the process died."""
    assert process.stdin is not None and process.stdout is not None
    with suppress(BrokenPipeError):
        process.stdin.write(question)
        process.stdin.flush()
    return process.stdout.readline()


def _cause(code: int, log: IO[bytes]) -> str:
    """Why a process died: the last line that it wrote, else its exit code."""
    log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
    lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    ended = f"ended by {signal_name(-code)}" if code < 0 else f"exited with code {code}"
    return f"{ended}: {one_line(lines[-1])}" if lines else ended
