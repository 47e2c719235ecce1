"""Horovod, which is no framework and binds to several: what a `Framework` with a binding declares of it."""

from __future__ import annotations

from scaling.frameworks.base import Exchange

PACKAGE = "horovod"
DISTRIBUTIONS = {PACKAGE: (PACKAGE,)}
VARIABLES = "HOROVOD_|GLOO_"
EXCHANGE = Exchange(overlap="horovod", messages="fusion", by_nccl=True)
