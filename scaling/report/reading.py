"""How a report is to be read: the lines at its end, as far as it needs them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scaling.analysis.analyse import Analysis
from scaling.analysis.rows import Baseline, Row
from scaling.report import labels
from scaling.report.parts import Entry


def how_to_read(analysis: Analysis, *, compares: bool) -> tuple[Entry, ...]:
    """An entry for each kind of figure and flag that the report has."""
    rows = analysis.rows
    said = (
        ("efficiency", _efficiency(analysis.baselines, rows), bool(rows)),
        ("loss", _breakdown(rows), any(row.breakdown is not None for row in rows)),
        ("against the best", _ranked(rows), compares),
        ("ASYNC", _asynchronous(rows), any(not row.synchronous for row in rows)),
        ("EMULATED", _EMULATED, any(row.hardware.profile for row in rows)),
        ("VERIFIED", _VERIFIED, any(row.receipt for row in rows)),
        ("busiest path", _BUSIEST, any(row.paths for row in rows)),
        ("batch", _MXNET_BATCH, any(row.strategy.startswith("mxnet:") for row in rows)),
    )
    return tuple(Entry(label=label, phrase=(text,)) for label, text, applies in said if applies)


_EMULATED = (
    "devices sleep as long as published ones compute; gradients, exchange and network are real. Bytes were "
    "divided and times multiplied as said above, links slowed by both; all of it is undone in the figures."
)
_VERIFIED = (
    "while windows ran, the kernel's counters on all nodes saw at least 95 % of the bytes on the network that "
    "was asked for. MISLABELLED: they went elsewhere. UNVERIFIED: nobody can tell."
)
_BUSIEST = (
    "from node to node, the part of the time in which it had bytes to send, and what it carried then, by the "
    "kernel's account of each TCP connection. Near 100 % the network is the limit."
)
_MXNET_BATCH = (
    "per device in every row. MXNet counts it per process: where one process drives N devices, its own batch "
    "size is N times as much."
)


def _asynchronous(rows: Iterable[Row]) -> str:
    return (
        f"ranks do not wait for each other. {labels.rates(rows)} is the sum of their own rates; staleness is the "
        "steps of other ranks between a step's pull of the parameters and its push; straggling has no meaning. "
        "Judge them by the loss after equal samples."
    )


def _ranked(rows: Sequence[Row]) -> str:
    apart = (
        " Asynchronous contenders are never ranked against synchronous ones: "
        f"{labels.one_sample(rows)} trained on old parameters teaches less."
        if any(not row.synchronous for row in rows)
        else ""
    )
    return f"{labels.rates(rows)}, paired by round, ± half the 99 % interval over rounds.{apart}"


def _efficiency(baselines: Sequence[Baseline], rows: Iterable[Row]) -> str:
    names = list(dict.fromkeys(baseline.strategy for baseline in baselines))
    end = "± is half the 95 % interval over rounds."
    if len(names) < 2:
        return f"speedup / N, against {names[0] if names else 'the plain loop'} on one device; {end}"
    return (
        "speedup / N, against the plain loop of the same framework on one device "
        f"({', '.join(names)}); {end} These baselines differ: compare frameworks by {labels.rates(rows)}, since a "
        "slow plain loop makes efficiency look good."
    )


def _breakdown(rows: Iterable[Row]) -> str:
    strong = any(row.workload.is_strong for row in rows)
    small = "small batch, 1/N of the batch costs more than 1/N of the time; " if strong else ""
    return (
        "contention, devices at work slow each other; straggling, the slowest rank against the "
        f"mean; exposed comm., exchange that compute does not hide; {small}unexplained, the rest, also "
        "when negative. With the efficiency they add up to 100 %."
    )
