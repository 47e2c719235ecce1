"""What a framework's profiler is to the worker, and Horovod's, which its three bindings share. Worker's side."""

from __future__ import annotations

import gzip
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from scaling.records.task import Task

# Horovod closes its file in its next cycle, 1 ms later.
LOOKS, LOOK_S = 500, 0.01


class Tracer:
    """A profiler of what this rank does.

    A subclass overrides `start` and `stop`, which may raise whatever its framework raises: a trace that fails
    costs a note and no point. `end` ends its file's name. `tells_gpu`: the file tells of the rank's GPU, in
    torch.profiler's words (analysis/trace_split.py).
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


class HorovodTimeline(Tracer):
    """What Horovod's background thread did with each gradient: negotiated, queued, fused, exchanged.

    `start` and `stop` are those of its binding, which need HOROVOD_TIMELINE=DYNAMIC when it is initialised.
    """

    end = ".horovod.json.gz"

    def __init__(self, start: Callable[[str], None], stop: Callable[[], None]) -> None:
        self._start, self._stop = start, stop

    def start(self, path: Path) -> None:
        """It begins with Horovod's next cycle."""
        self._path, self._plain = path, path.with_suffix("")
        self._plain.touch()
        self._start(str(self._plain))

    def stop(self) -> None:
        """Wait until Horovod's thread has closed the file."""
        self._stop()
        for _ in range(LOOKS):
            if self._plain.read_bytes().rstrip().endswith(b"]"):
                break
            time.sleep(LOOK_S)
        else:
            raise TimeoutError("Horovod does not close its timeline")
        pack(self._plain, self._path)


def timelines(task: Task, binding: Any) -> list[Tracer]:
    """Of one of Horovod's bindings, a module: rank 0's tells of all ranks, and no other is written.

    A single rank exchanges nothing, and its file would never be closed.
    """
    if task.rank > 0 or task.point.world_size == 1:
        return []
    return [HorovodTimeline(binding.start_timeline, binding.stop_timeline)]


def pack(plain: Path, packed: Path) -> None:
    """Compress a file in the place of another, and remove it."""
    with plain.open("rb") as source, gzip.open(packed, "wb") as target:
        shutil.copyfileobj(source, target)
    plain.unlink()
