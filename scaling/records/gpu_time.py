"""What a GPU did in a rank's profiled steps, as far as a split over ranks needs it (analysis/trace_split.py)."""

from __future__ import annotations

from scaling.records.bounds import Count, Seconds, Signed, Size
from scaling.records.point import Record

# The annotation around the profiled steps in a trace.
WINDOW = "scaling: traced steps"


class Kernels(Record, frozen=True, kw_only=True, array_like=True):
    """All runs of the kernels of one name, copies and fills among them: how many there were, how long together."""

    name: str
    count: Count
    run_s: Seconds


class Collective(Record, frozen=True, kw_only=True, array_like=True):
    """One run of a communication kernel, in which it also waits for the other ranks; `exposed_s` is the part in
    which neither a kernel that computes nor an earlier collective ran."""

    name: str
    run_s: Seconds
    exposed_s: Signed


class GpuTime(Record, frozen=True, kw_only=True):
    """One GPU's time in the profiled steps of its rank, from one device synchronisation to another.

    `span_s` = `compute_s` + what the collectives leave exposed + `idle_s`: each moment counts once. `kernels` are
    those that compute, `collectives` in the order of their starts.
    """

    steps: Size
    span_s: Seconds
    compute_s: Signed
    idle_s: Signed
    kernels: tuple[Kernels, ...]
    collectives: tuple[Collective, ...]

    @property
    def exposed_s(self) -> float:
        """Of all communication, what no computing hides."""
        return sum(collective.exposed_s for collective in self.collectives)
