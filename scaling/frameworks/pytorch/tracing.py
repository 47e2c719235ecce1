"""torch.profiler as the worker starts and stops it. Worker's side."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from torch.profiler import ProfilerActivity, profile, record_function

from scaling.frameworks.tracing import Tracer
from scaling.records.gpu_time import WINDOW


class TorchTracer(Tracer):
    """Operators on the CPU and, with `cuda`, kernels on the GPU."""

    def __init__(self, *, cuda: bool) -> None:
        self.tells_gpu = cuda
        self._activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]

    def start(self, path: Path) -> None:
        """The first start of a process takes seconds."""
        self._path = path
        self._profile = profile(activities=self._activities)
        self._profile.start()

    def window(self) -> AbstractContextManager[object]:
        """An annotation, by which the steps are found again."""
        return record_function(WINDOW)

    def stop(self) -> None:
        """torch compresses it."""
        self._profile.stop()
        self._profile.export_chrome_trace(str(self._path))
