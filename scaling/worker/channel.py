"""The worker's two pipes: commands in on fd 0, events out on an inherited fd, both JSON lines.

fd 0 is also the lifeline: at its end the agent is gone, and the worker kills its descendants and its group.
It is read by os.read in a thread: a thread blocked in a buffered read turns every exit into SIGABRT.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from contextlib import suppress

import msgspec
import psutil  # type: ignore[import-untyped, unused-ignore]

from scaling.records.events import Event
from scaling.records.task import Command, Task

HOLD_S = 0.5


class Channel:
    """The worker's end of its pipes."""

    def __init__(self, commands_fd: int, events_fd: int) -> None:
        self._in = commands_fd
        self._out = events_fd
        self._buffer = b""
        self._held = b""
        self._sent_s = 0.0
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._encoder = msgspec.json.Encoder()

    def read_task(self) -> Task:
        """Read the first line. `listen` follows, once the CPUs are taken: threads inherit them."""
        while b"\n" not in self._buffer:
            self._buffer += self._read()
        line, self._buffer = self._buffer.split(b"\n", 1)
        return msgspec.json.decode(line, type=Task)

    def listen(self) -> None:
        """From now on a thread reads commands and watches the lifeline."""
        threading.Thread(target=self._listen, daemon=True, name="lifeline").start()

    def receive(self) -> Command:
        """Wait for the next command."""
        return self._commands.get()

    def waiting(self) -> bool:
        """Whether a command has arrived that was not received yet."""
        return not self._commands.empty()

    def send(self, event: Event, *, hold: bool = False) -> None:
        """Report an event. With `hold` it may wait for company: whoever reads it runs on the cores that are
        being measured."""
        self._held += self._encoder.encode(event) + b"\n"
        now_s = time.monotonic()
        if hold and now_s - self._sent_s < HOLD_S:
            return
        data, self._held, self._sent_s = self._held, b"", now_s
        while data:
            data = data[os.write(self._out, data) :]

    def _read(self) -> bytes:
        data = os.read(self._in, 65536)
        if not data:
            with suppress(psutil.Error):
                for one in psutil.Process().children(recursive=True):  # those that left the group
                    one.kill()
            os.killpg(0, signal.SIGKILL)
        return data

    def _listen(self) -> None:
        decoder = msgspec.json.Decoder(Command)
        while True:
            while b"\n" not in self._buffer:
                self._buffer += self._read()
            line, self._buffer = self._buffer.split(b"\n", 1)
            self._commands.put(decoder.decode(line))
