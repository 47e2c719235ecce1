"""A framework's profiler, as the worker uses it. Worker's side."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol, runtime_checkable


class Tracer:
    """A profiler of what this rank does.

    A subclass overrides `start` and `stop`, which may raise whatever its framework raises: a trace that fails
    costs a note and no point. `end` ends its file's name. `tells_gpu`: the file tells of the rank's GPU, in
    torch.profiler's words (analysis/measured/trace_split.py).
    """

    end = ".json.gz"
    tells_gpu = False

    def start(self, path: Path) -> None:
        """Begin to record for `path`: Chrome's trace events as JSON, which Perfetto reads."""
        raise NotImplementedError

    def window(self) -> AbstractContextManager[object]:
        """The steps that are timed run inside; a profiler that can mark them does."""
        return nullcontext()

    def stop(self) -> None:
        """End, and write the file."""
        raise NotImplementedError


@runtime_checkable
class Traceable(Protocol):
    """A trainer has this too where its framework has a profiler."""

    def tracers(self) -> Sequence[Tracer]:
        """All profilers that can run at once, made anew."""


def pack(plain: Path, packed: Path) -> None:
    """Compress a file in the place of another, and remove it."""
    with plain.open("rb") as source, gzip.open(packed, "wb") as target:
        shutil.copyfileobj(source, target)
    plain.unlink()
