"""The interface of a framework's profiler. It runs in the worker."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol, runtime_checkable


class Tracer:
    """A profiler of this rank.

    `start` and `stop` of a subclass may raise any error: a failed trace costs a note, not the point.

    * end: the end of its file's name.
    * tells_gpu: the file covers the rank's GPU, in torch.profiler's words (analysis/measured/trace_split.py).
    """

    end = ".json.gz"
    tells_gpu = False

    def start(self, path: Path) -> None:
        """Begin to record for `path`: Chrome's trace events as JSON, which Perfetto reads."""
        raise NotImplementedError

    def window(self) -> AbstractContextManager[object]:
        """Return a context for the timed steps. A profiler may mark them in the trace."""
        return nullcontext()

    def stop(self) -> None:
        raise NotImplementedError


@runtime_checkable
class Traceable(Protocol):
    """A trainer whose framework has a profiler."""

    def tracers(self) -> Sequence[Tracer]:
        """Return new tracers for all profilers that can run together."""


def pack(plain: Path, packed: Path) -> None:
    """Compress the file `plain` to `packed` and remove it."""
    with plain.open("rb") as source, gzip.open(packed, "wb") as target:
        shutil.copyfileobj(source, target)
    plain.unlink()
