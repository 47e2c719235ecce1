"""What both programs of a comparison are started with, beside what each framework's own launcher sets."""

from __future__ import annotations

from collections.abc import Mapping

# KEPT_HEAP is what scaling gives its workers on CPU: no bare script shall lose for want of it.
from scaling.agent.environment import KEPT_HEAP

ONE_THREAD: Mapping[str, str] = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def with_heap(environ: Mapping[str, str], *, kept: bool = True) -> dict[str, str]:
    """One thread, and the heap kept or as the system has it, whatever `environ` says of either."""
    rest = {key: value for key, value in environ.items() if key not in KEPT_HEAP}
    return {**rest, **ONE_THREAD, **(KEPT_HEAP if kept else {})}
