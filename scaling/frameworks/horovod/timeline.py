"""Horovod's own profiler, which its bindings share. Worker's side."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scaling.frameworks.tracing import Tracer, pack
from scaling.records.task import Task

# Horovod closes its file in its next cycle, 1 ms later.
LOOKS, LOOK_S = 500, 0.01


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
