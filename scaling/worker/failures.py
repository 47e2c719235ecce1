"""An exception -> the cause of a failed point. Frameworks' classes are told by name: none is imported.

What an exception means stands in its text alone where a framework raises; here it is read, and nowhere else.
"""

from __future__ import annotations

import errno
import traceback

from scaling.records.events import Error
from scaling.worker.loop import NanLoss

OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "bad_alloc")
PORT_TAKEN = ("address already in use", "eaddrinuse")
PEER_GONE = ("connection", "peer", "broken pipe", "socket", "remote")


def event_of(error: BaseException) -> Error:
    """What is reported of a caught exception."""
    return Error(
        cause=cause_of(error),
        message=message_of(error),
        traceback="".join(traceback.format_exception(error)),
        may_follow=may_follow(error),
    )


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


def may_follow(error: BaseException) -> bool:
    """Whether it may only tell that a peer is gone: a survivor notices that before the peer's agent does."""
    return cause_of(error) == "error" and any(words in message_of(error).lower() for words in PEER_GONE)


def message_of(error: BaseException, limit: int = 500) -> str:
    """The exception in one line: its type and the first line that says anything."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= limit else text[: limit - 1] + "…"
