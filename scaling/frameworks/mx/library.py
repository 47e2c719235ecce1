"""MXNet, imported beside any NumPy: the worker's files have `mx` from here."""

from __future__ import annotations

from scaling.frameworks.mx import numpy_names

with numpy_names.restored():
    import mxnet as mx

__all__ = ["mx"]
