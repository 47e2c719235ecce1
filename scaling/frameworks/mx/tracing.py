"""MXNet's profiler as the worker starts and stops it. Worker's side."""

from __future__ import annotations

from pathlib import Path

from scaling.frameworks.mx.library import mx
from scaling.frameworks.tracing import Tracer, pack


class MxnetTracer(Tracer):
    """What MXNet's engine runs, on all its devices."""

    def start(self, path: Path) -> None:
        """MXNet opens the file at its end only: open it now, so that a folder that takes none is noticed."""
        self._path, self._plain = path, path.with_suffix("")
        self._plain.touch()
        mx.profiler.set_config(profile_all=True, filename=str(self._plain))
        mx.profiler.set_state("run")

    def stop(self) -> None:
        """Wait for the engine, and write."""
        mx.nd.waitall()
        mx.profiler.set_state("stop")
        mx.profiler.dump(True)
        pack(self._plain, self._path)
