"""What both programs of a comparison are started with, beside what each framework's own launcher sets."""

from __future__ import annotations

from collections.abc import Mapping

# KEPT_HEAP is what scaling gives its workers on CPU: no bare script shall lose for want of it.
from scaling.agent.environment import KEPT_HEAP

ONE_THREAD: Mapping[str, str] = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def with_heap(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with one thread and the kept heap."""
    return {**environ, **ONE_THREAD, **KEPT_HEAP}
