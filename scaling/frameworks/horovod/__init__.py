"""What a `Framework` with a binding of Horovod declares of it. Horovod binds to several frameworks."""

from __future__ import annotations

from scaling.frameworks.base import Exchange

PACKAGE = "horovod"
DISTRIBUTIONS = {PACKAGE: (PACKAGE,)}
VARIABLES = "HOROVOD_|GLOO_"
EXCHANGE = Exchange(messages="buckets", by_nccl=True)
