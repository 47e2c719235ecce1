"""The pipes of a process that measures for the preflight: requests on stdin, answers on stdout, one a line."""

from __future__ import annotations

import os
import signal
import threading
from queue import SimpleQueue

import msgspec

from scaling.text import one_line


class Pipes:
    """Reads requests and writes answers. What libraries print goes to stderr. At the end of stdin the process is
    killed with its children, because its agent is gone."""

    def __init__(self) -> None:
        self._answers = os.dup(1)
        os.dup2(2, 1)
        self._lines: SimpleQueue[bytes] = SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def line(self) -> bytes:
        """Wait for the next line."""
        return self._lines.get()

    def answer(self, told: msgspec.Struct) -> None:
        os.write(self._answers, msgspec.json.encode(told) + b"\n")

    def _read(self) -> None:
        rest = b""
        while data := os.read(0, 65536):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._lines.put(line)
        os.killpg(0, signal.SIGKILL)


def said(error: Exception) -> str:
    """Return an exception as one line with its type."""
    return one_line(f"{type(error).__name__}: {error}")
