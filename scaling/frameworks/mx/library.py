"""MXNet, imported with NumPy's removed names and CUDA's libraries. The worker's files import `mx` from here."""

from __future__ import annotations

from scaling.frameworks.mx import importing

importing.preload()
with importing.restored():
    import mxnet as mx

__all__ = ["mx"]
