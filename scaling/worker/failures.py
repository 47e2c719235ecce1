"""An exception -> the cause of a failed point. Frameworks' classes are told by name: none is imported.

What an exception means stands in its text alone where a framework raises; here it is read, and nowhere else.
"""

from __future__ import annotations

import errno
import re
import traceback
from collections.abc import Sequence

from scaling.frameworks.feeding import FeedError
from scaling.hosts import process_limits
from scaling.records.events import Error
from scaling.text import readable
from scaling.worker.loop import NanLoss

# What a failure is called, by the words of libraries in lower case: the first line of which all of one group are
# in the text counts. What libraries of RDMA and shared memory say of memory comes before what frameworks say.
WORDS: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...] = (
    # Pinned memory for a card: `ulimit -l`, not memory, is what is short.
    ("memlock", (("ibv_", "cannot allocate memory"), ("mr_reg", "cannot allocate memory"), ("memlock",))),
    (
        "shm",
        (
            ("/dev/shm", "no space left"),
            ("/dev/shm", "error while creating"),
            ("posix_fallocate", "no space left"),
            ("bus error", "shared memory"),
            ("allocate shared memory",),
            ("shared memory segment nccl",),
        ),
    ),
    (
        "driver",
        (
            ("driver", "is too old"),
            ("driver version is insufficient",),
            ("no nvidia driver",),
            ("no cuda-capable device",),
            ("cuda_error_no_device",),
            ("cuda driver combination",),
            ("driver mismatch",),
            ("system not yet initialized",),
            ("libcuda.so", "cannot open shared object file"),
        ),
    ),
    (
        "no-kernel",
        (("no kernel image",), ("nokernelimage",), ("status_arch_mismatch",), ("invalid device function",)),
    ),
    (
        "oom",
        (
            ("out of memory",),
            ("out_of_memory",),
            ("bad_alloc",),
            ("not enough memory",),
            ("allocate memory",),
            ("oom when allocating",),
            ("unable to allocate",),
            ("failed to allocate",),
            ("_alloc_failed",),
            ("host_allocation_failed",),
        ),
    ),
    ("port-taken", (("address already in use",), ("eaddrinuse",))),
    ("nccl", (("nccl", "error"), ("nccl", "failed"), ("nccl", "timeout"))),
    # torch raises it wherever the worker is when a loader process dies.
    ("feed", (("dataloader worker", "exited unexpectedly"), ("dataloader worker", "killed by signal"))),
)
PEER_GONE = ("connection", "peer", "broken pipe", "socket", "remote", "unavailable", "aborted", "shut down")
# Lines that do not say what happened: headings, and frames of Python, TensorFlow (`[[`) and MXNet (`[bt]`).
FRAME = 'File "'
HEADING = re.compile(rf"\s*({FRAME}|\[bt\]|\[\[|\d+ root error|.*:$)")
# After these words NCCL's own say what happened; those before are the same for every failure.
LAST_ERROR = "Last error:"


def event_of(error: BaseException) -> Error:
    """What is reported of a caught exception."""
    return Error(
        cause=cause_of(error),
        message=readable(message_of(error) + process_limits.hint(str(error))),
        traceback=readable("".join(traceback.format_exception(error))),
        may_follow=may_follow(error),
    )


def cause_of(error: BaseException) -> str:
    """Return a cause of `records.Failed`; "error" for what has no name of its own."""
    if isinstance(error, NanLoss):
        return "nan-loss"
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "oom"
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return "port-taken"
    text = str(error).lower()
    found = (cause for cause, groups in WORDS if any(all(word in text for word in words) for words in groups))
    named = next(found, "feed" if isinstance(error, FeedError) else "error")
    return "missing" if isinstance(error, ImportError) and named != "driver" else named


def may_follow(error: BaseException) -> bool:
    """Whether it may only tell that a peer is gone: a survivor notices that before the peer's agent does."""
    words = message_of(error).lower()
    return cause_of(error) in ("error", "nccl") and any(word in words for word in PEER_GONE)


def message_of(error: BaseException, limit: int = 500) -> str:
    """Return the exception's type and the line that says what happened, with NCCL's last error."""
    name, lines = type(error).__name__, [line for line in str(error).splitlines() if line.strip()]
    text = f"{name}: {_telling(lines).removeprefix(f'{name}: ')}" if lines else name
    stripped = [line.strip() for line in lines]
    if LAST_ERROR in stripped[:-1]:
        text += f" ({stripped[stripped.index(LAST_ERROR) + 1]})"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _telling(lines: Sequence[str]) -> str:
    """The first line that is no heading, no frame, and no source line indented below one; else the first."""
    for before, line in zip(["", *lines], lines, strict=False):
        is_source = before.lstrip().startswith(FRAME) and _indent(line) > _indent(before)
        if not is_source and not HEADING.match(line):
            return line.strip()
    return lines[0].strip()


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
