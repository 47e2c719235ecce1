"""An exception -> the cause of a failed point. Frameworks' classes are told by name: none is imported."""

from __future__ import annotations

import errno

from scaling.worker.loop import NanLoss

OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "bad_alloc")
PORT_TAKEN = ("address already in use", "eaddrinuse")


def cause_of(error: BaseException) -> str:
    """Return a cause of `records.Failed`; "error" for what has no name of its own."""
    text = str(error).lower()
    if isinstance(error, NanLoss):
        return "nan-loss"
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "oom"
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return "port-taken"
    if isinstance(error, ImportError):
        return "missing"
    if any(words in text for words in OUT_OF_MEMORY):
        return "oom"
    if any(words in text for words in PORT_TAKEN):
        return "port-taken"
    return "error"


def message_of(error: BaseException, limit: int = 500) -> str:
    """The exception in one line: its type and the first line that says anything."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= limit else text[: limit - 1] + "…"
