"""What both programs of a comparison are started with, beside what each framework's own launcher sets."""

from __future__ import annotations

from collections.abc import Mapping

# glibc then keeps large buffers between steps, instead of handing them back and faulting them in again: the
# environment that scaling gives its workers on CPU, so that no bare script loses for want of it.
KEPT_HEAP: Mapping[str, str] = {
    "MALLOC_TRIM_THRESHOLD_": "2000000000",
    "MALLOC_MMAP_THRESHOLD_": "33554432",
    "MALLOC_TOP_PAD_": "67108864",
}
ONE_THREAD: Mapping[str, str] = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def with_heap(environ: Mapping[str, str], *, kept: bool = True) -> dict[str, str]:
    """One thread, and the heap kept or as the system has it, whatever `environ` says of either."""
    rest = {key: value for key, value in environ.items() if key not in KEPT_HEAP}
    return {**rest, **ONE_THREAD, **(KEPT_HEAP if kept else {})}
