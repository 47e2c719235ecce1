"""One rank's processes that measure by a framework: timed all-reduces, and the rates of its device."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO

import msgspec
from msgspec.structs import replace

from scaling import frameworks
from scaling.agent import environment, strategies
from scaling.agent.environment import child_environ, granted
from scaling.errors import ScalingError
from scaling.frameworks import nccl_log
from scaling.records.task import AskedAllReduce, AskedDeviceRates, DeviceRates, RankAllReduce, Task
from scaling.text import one_line, signal_name

FRAMEWORK = frameworks.all_reducing()
PROCESS = FRAMEWORK.all_reduce
RATES_PROCESS = FRAMEWORK.device_rates
TAIL_BYTES = 4000
KILLED_S = 5.0  # a process that a driver holds survives SIGKILL
FOR_GOOD = math.inf
# ValueError: a pipe was closed by `end`, or an answer is no JSON of its kind.
FAILURES = (OSError, ScalingError, ValueError, msgspec.DecodeError)


class Processes:
    """Runs one rank's processes, one at a time, with increasing numbers."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._over: float = -1

    def _environ_of(self, task: Task) -> dict[str, str]:
        return child_environ(self._environ, task, granted(self._environ, strategies.environ(task)))

    def _start(
        self, number: int, module: str, environ: Mapping[str, str], log: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        with self._lock:
            if number <= self._over:
                raise InterruptedError("cancelled before it started")
            self._process = subprocess.Popen(
                [environment.python_of(FRAMEWORK.name, self._environ), "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environ,
                start_new_session=True,
            )
            return self._process

    def end(self, number: float) -> None:
        """End the process. No process with this number or a lower one is started afterwards."""
        with self._lock:
            self._over = max(self._over, number)
            process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            try:
                process.wait(KILLED_S)
            except subprocess.TimeoutExpired:
                return  # a thread still reads its pipes, and closing them would wait for it
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


class Exchanger(Processes):
    """Runs one rank's processes for all-reduces."""

    def measured(self, number: int, asked: AskedAllReduce) -> RankAllReduce:
        """Run one measurement and block until the process answers or dies. The process lives until `end`."""
        try:
            with tempfile.TemporaryFile() as log, tempfile.TemporaryDirectory(prefix="scaling-check-") as folder:
                # NCCL writes its choices to a file next to this path.
                asked = replace(asked, task=replace(asked.task, log=f"{folder}/all-reduce"))
                environ = self._environ_of(asked.task)
                process = self._start(number, PROCESS, environ, log)
                line, error = _answer(process, msgspec.json.encode(asked), log)
                told = RankAllReduce(error=error) if error else msgspec.json.decode(line, type=RankAllReduce)
                return replace(told, nccl=nccl_log.read(environ.get("NCCL_DEBUG_FILE", ""), process.pid))
        except FAILURES as error:
            return RankAllReduce(error=one_line(str(error)))


class Rater(Processes):
    """Runs one rank's processes for the rates of its device."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        super().__init__(environ)
        self._go = threading.Event()

    def measured(self, number: int, asked: AskedDeviceRates, built: Callable[[DeviceRates], None]) -> DeviceRates:
        """Start the process and block until it is built, then until `go`, then until it answers. `built` is called
        in between, unless the process has failed."""
        self._go.clear()
        try:
            with tempfile.TemporaryFile() as log:
                process = self._start(number, RATES_PROCESS, self._environ_of(asked.task), log)
                told = _rates(process, msgspec.json.encode(asked), log, asked)
                if told.error:
                    return told
                built(told)
                self._go.wait()
                return _rates(process, b"", log, asked)
        except FAILURES as error:
            return replace(asked.device, error=one_line(str(error)))

    def go(self) -> None:
        """Let the process measure."""
        self._go.set()

    def end(self, number: float) -> None:
        super().end(number)
        self._go.set()


def _rates(
    process: subprocess.Popen[bytes], request: bytes, log: IO[bytes], asked: AskedDeviceRates
) -> DeviceRates:
    line, error = _answer(process, request, log)
    return replace(asked.device, error=error) if error else msgspec.json.decode(line, type=DeviceRates)


def _answer(process: subprocess.Popen[bytes], request: bytes, log: IO[bytes]) -> tuple[bytes, str]:
    """Return the process's next line, or why there is none."""
    assert process.stdin is not None and process.stdout is not None
    with suppress(BrokenPipeError):
        process.stdin.write(request + b"\n")
        process.stdin.flush()
    line = process.stdout.readline()
    return (line, "") if line.endswith(b"\n") else (b"", _cause(process.wait(), log))


def _cause(code: int, log: IO[bytes]) -> str:
    log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
    lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    ended = f"ended by {signal_name(-code)}" if code < 0 else f"exited with code {code}"
    return f"{ended}: {one_line(lines[-1])}" if lines else ended
