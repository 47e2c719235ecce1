"""The causes of lost efficiency, as fractions of a step. `breakdown.py` says how they are found."""

from __future__ import annotations

from scaling.records.point import Record


class Breakdown(Record, frozen=True, kw_only=True):
    """Fractions of the exchange's step time, means over rounds; with `unexplained`, the rest, they add up to
    1 - efficiency. None: not told by the controls that were measured (its part is in `unexplained`), or told by
    another cause: `exposed` only where CPU time is unknown, `exchange_cpu`, `servers` and `waiting` only where it
    is known.

    contention: the plain loop is slower with all devices at work (`each` -> `together`); straggling: the slowest
    rank against the mean; exposed: communication that compute does not hide; exchange_cpu: the exchange's own CPU
    time on the cores that compute; servers: parameter servers on them; waiting: exposed communication and all else
    that ranks wait for; data_wait: for samples, longer than one device alone does (contention is then that of
    loops whose batch stays on the device); small_batch: a device's part of a fixed global batch costs more than
    its share of the whole (0 under the weak rule).

    An asynchronous mode waits for nobody: straggling is None, the mean of `together` is that of the rates
    (harmonic), as its own step time is.
    """

    contention: float | None
    straggling: float | None
    exposed: float | None
    small_batch: float | None
    unexplained: float
    exchange_cpu: float | None = None
    servers: float | None = None
    waiting: float | None = None
    data_wait: float | None = None


CAUSES = tuple(name for name in Breakdown.__struct_fields__ if name != "unexplained")
