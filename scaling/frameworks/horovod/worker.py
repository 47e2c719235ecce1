"""The worker's side that Horovod's bindings share: joining and leaving, and Horovod's own profiler."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from scaling.frameworks.abilities import Rank, Tracer, pack, until_it_listens
from scaling.frameworks.base import timeout_s
from scaling.frameworks.horovod.strategy import options_of
from scaling.records.task import Task


class Joined(Rank):
    """A rank that exchanges by one of Horovod's bindings, the module `binding`."""

    task: Task
    versions: dict[str, str]
    binding: Any

    def join(self) -> None:
        """Connect to all ranks by the rendezvous."""
        until_it_listens(self.task.address, self.task.ports[0], timeout_s(self.task.clocks))
        self.binding.init()
        self.versions["horovod"] = metadata.version("horovod")

    def compression(self) -> Any:
        """Return the binding's compressor of gradients that the point asks for."""
        return getattr(self.binding.Compression, options_of(self.task.point)["compression"])

    def close(self) -> None:
        self.binding.shutdown()


# ---------------------------------------------------------------- profiler

# Horovod closes its file in its next cycle, 1 ms later.
LOOKS, LOOK_S = 500, 0.01


class HorovodTimeline(Tracer):
    """Profiler of Horovod's background thread: each gradient is negotiated, queued, fused and exchanged. `start`
    and `stop` belong to the binding. Both need HOROVOD_TIMELINE=DYNAMIC when Horovod is initialised."""

    end = ".horovod.json.gz"

    def __init__(self, start: Callable[[str], None], stop: Callable[[], None]) -> None:
        self._start, self._stop = start, stop

    def start(self, path: Path) -> None:
        self._path, self._plain = path, path.with_suffix("")
        self._plain.touch()
        self._start(str(self._plain))

    def stop(self) -> None:
        """Stop, and wait until Horovod's thread has closed the file. Raises TimeoutError."""
        self._stop()
        for _ in range(LOOKS):
            if self._plain.read_bytes().rstrip().endswith(b"]"):
                break
            time.sleep(LOOK_S)
        else:
            raise TimeoutError("Horovod does not close its timeline")
        pack(self._plain, self._path)


def timelines(task: Task, binding: Any) -> list[Tracer]:
    """Return the tracers of one of Horovod's bindings, a module. Only rank 0 writes a timeline, which covers all
    ranks. A single rank exchanges nothing, and its file would stay open."""
    if task.rank > 0 or task.point.world_size == 1:
        return []
    return [HorovodTimeline(binding.start_timeline, binding.stop_timeline)]
