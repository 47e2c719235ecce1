"""TensorFlow's profiler as the worker starts and stops it. Worker's side."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

import tensorflow as tf

from scaling.frameworks.tracing import Tracer


class TensorFlowTracer(Tracer):
    """Operations on the host and, where TensorFlow sees one, kernels on the GPU."""

    def start(self, path: Path) -> None:
        """It writes into a tree of folders of its own."""
        # TensorFlow's own, which not every version has: without it there is no trace, and nothing else is lost.
        from tensorflow.python.profiler.internal import _pywrap_profiler_plugin

        self._convert = _pywrap_profiler_plugin.xspace_to_tools_data
        self._path = path
        self._folder = tempfile.TemporaryDirectory(dir=path.parent)
        tf.profiler.experimental.start(self._folder.name)

    def stop(self) -> None:
        """Make Chrome's events of what it wrote, as TensorBoard does."""
        with self._folder as folder:
            tf.profiler.experimental.stop()
            (written,) = Path(folder).rglob("*.xplane.pb")
            events, _ = self._convert([str(written)], "trace_viewer@")
        with gzip.open(self._path, "wb") as file:
            file.write(events)
