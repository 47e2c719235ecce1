"""Names of rows, the headline row, and the line about it for programs.

Names contain what differs; what all rows share is in the facts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from scaling.analysis.statistics.intervals import Estimate
from scaling.analysis.table import accuracy
from scaling.analysis.table.rows import Baseline, Contender, Row, Training
from scaling.records.point import Pass, Record, Unit, Workload, shown_name
from scaling.records.run import Certificate
from scaling.report.parts import NONE
from scaling.report.quantities import spread
from scaling.text import counted, decimals

Option = tuple[str, str]
_ONE_SAMPLE: dict[Unit, str] = {
    "images": "an image", "samples": "a sample", "tokens": "a token", "steps": "a step",
}  # fmt: skip
PASSES: Mapping[Pass, str] = {
    "forward": "forward pass",
    "backward": "forward and backward pass",
    "step": "whole step",
}


class Context(Record, frozen=True, kw_only=True):
    """What labels omit because all rows share it, and what they name. `varying`: indices of `ways` that differ.
    `tells_servers`: labels name the parameter servers."""

    shared: frozenset[Option]
    varying: tuple[int, ...]
    tells_servers: bool


def context(rows: Sequence[Row]) -> Context:
    options = [frozenset(row.options.items()) for row in rows]
    values = zip(*map(ways, rows), strict=True)
    return Context(
        shared=frozenset.intersection(*options) if options else frozenset(),
        varying=tuple(index for index, found in enumerate(values) if len(set(found)) > 1),
        tells_servers=_servers_differ(rows),
    )


def conditions(measured: Row | Baseline) -> tuple[str, ...]:
    work = measured.workload
    compiled = "compiled" if work.compile else "eager"
    layout = (work.memory_format, compiled, PASSES[work.pass_], feed(work))
    return (*what(work), measured.hardware.label, work.precision, *layout)


def what(work: Workload) -> tuple[str, ...]:
    """Return model, data, sample size and optimizer."""
    own = work.optimizer or "its own optimizer"
    return work.model, work.data, work.sample_size or "its own size", own


def feed(work: Workload) -> str:
    """Return `native feed, 4 workers, files dropped from the page cache`."""
    workers = f", {counted(work.feed_workers, 'worker')}" if work.feed_workers else ""
    dropped = ", files dropped from the page cache" if work.drop_caches else ""
    return f"{work.feed} feed{workers}{dropped}"


def ways(row: Row) -> tuple[str, ...]:
    """Return the conditions that titles name if they differ within the report."""
    work = row.workload
    shared = {"weak": "per device", "strong": "in all", "node": "per node"}[work.batch_rule]
    batch = f"{work.reference(row.world_size).batch_size} {shared}"
    return (*conditions(row), row.placement, batch)


def varying(row: Row, context: Context) -> tuple[str, ...]:
    """Return the conditions of a row that differ within the report."""
    found = ways(row)
    return tuple(found[index] for index in context.varying)


def _servers_differ(rows: Iterable[Row]) -> bool:
    """Check for dedicated servers, or different numbers of servers at one world size."""
    having = [row for row in rows if row.servers]
    counts: dict[int, set[int]] = defaultdict(set)
    for row in having:
        counts[row.world_size].add(row.servers)
    return any(row.server_hosts == "dedicated" for row in having) or any(len(of) > 1 for of in counts.values())


def name(row: Row, context: Context) -> str:
    """Return `torch:ps-sync over ib0 (wire=fp16), 2 servers dedicated`."""
    return curve([row], context)


def curve(rows: Sequence[Row], context: Context) -> str:
    """Return the name of a scaling curve; its servers may grow with the nodes: `1-4 servers`."""
    named = exchange(rows[0], context.shared)
    if not context.tells_servers or not rows[0].servers:
        return named
    dedicated = " dedicated" if rows[0].server_hosts == "dedicated" else ""
    return f"{named}, {spread([row.servers for row in rows], 'server')}{dedicated}"


def exchange(row: Row | Contender, shared: Collection[Option]) -> str:
    """Return `torch:nccl over ib0 (bucket_cap_mb=10)`. The automatic network and shared options are omitted."""
    named = shown_name(row.strategy)
    over = named if row.interconnect == "auto" else f"{named} over {row.interconnect}"
    own = [option for option in row.options.items() if option not in shared]
    return f"{over} ({options(own)})" if own else over


def title(rows: Sequence[Row], context: Context) -> str:
    """Return a curve's name with the conditions that differ within the report."""
    return ", ".join((curve(rows, context), *varying(rows[0], context)))


def servers(rows: Sequence[Row]) -> str:
    """Return `one per node, on the training nodes`; "" if labels name the servers."""
    having = [row for row in rows if row.servers]
    if not having or _servers_differ(having):
        return ""
    grows = len({row.servers for row in having}) > 1 and all(row.servers == row.nodes for row in having)
    number = "one per node" if grows else spread([row.servers for row in having], "server")
    return f"{number}, on the training nodes"


def rates(rows: Iterable[Row]) -> str:
    """Return `images/s`, or `images/s or tokens/s` with several units."""
    return " or ".join(f"{unit}/s" for unit in dict.fromkeys(row.workload.unit for row in rows))


def one_sample(rows: Iterable[Row]) -> str:
    units = {row.workload.unit for row in rows}
    return _ONE_SAMPLE[units.pop()] if len(units) == 1 else "a sample"


def options(chosen: Iterable[Option]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(chosen))


# ---------------------------------------------------------------- the headline row


def headline(rows: Iterable[Row]) -> Row | None:
    """Return the headline row; None without rows. Criteria, in this order:

    1. the largest world size
    2. whole steps before passes
    3. a result
    4. an efficiency that `claims`
    5. the highest rate
    """

    def rank(row: Row) -> tuple[object, ...]:
        rate = mean_rate(row)
        return row.world_size, row.workload.trains, rate > 0, claims(row), rate

    return max(rows, key=rank, default=None)


def mean_rate(row: Row) -> float:
    """Return samples/s; 0 without a result, which is below every rate."""
    return row.samples_per_s.mean if row.samples_per_s else 0.0


def claims(row: Row) -> bool:
    """Check that a row has an efficiency, is synchronous and used the network of its name."""
    return row.efficiency is not None and row.synchronous and "MISLABELLED" not in row.flags


def last_line(
    rows: Iterable[Row], trainings: Iterable[Training] = (), certificate: Certificate | None = None
) -> str:
    """Return the line for programs, which grep and awk read:

        scaling: torch:nccl N=16 3937.2 images/s speedup 12.31 efficiency 0.769 flags - ci95 25.1 0.08 0.005

    Each word has a fixed position, `-` is unknown, commas separate flags. After ci95 are half the 95 % intervals
    of the rate, the speedup and the efficiency. Of scaling certify, the last two are `verdict PASS`.
    """
    row = headline(rows)
    judged = f" verdict {certificate.word}" if certificate else ""
    if row is None:
        best = max(accuracy.best(list(trainings)).values(), key=accuracy.last_top1, default=None)
        return f"scaling: nothing measured{judged}" if best is None else _accuracy(best)
    rate = None if row.samples_per_s is None else row.samples_per_s.times(row.workload.units_per_sample)
    speedup, efficiency = (None if row.learnt_less else one for one in (row.speedup, row.efficiency))
    each = ((rate, max(1, decimals(rate.mean)) if rate else 1), (speedup, 2), (efficiency, 3))
    means, halves = zip(*(_words(estimate, digits) for estimate, digits in each), strict=True)
    flags = ",".join(row.flags) or NONE
    passes = "" if row.workload.trains else f" pass {row.workload.pass_}"
    over = "" if row.interconnect == "auto" else f" over {row.interconnect}"
    return (
        f"scaling: {row.strategy} N={row.world_size} {means[0]} {row.workload.unit}/s speedup {means[1]} "
        f"efficiency {means[2]} flags {flags} ci95 {' '.join(halves)}{over}{passes}{judged}"
    )


def _words(estimate: Estimate | None, digits: int) -> tuple[str, str]:
    """Return the mean and half the interval, `-` if unknown."""
    found = (None, None) if estimate is None else (estimate.mean, estimate.half_width)
    mean, half = (NONE if one is None else f"{one:.{digits}f}" for one in found)
    return mean, half


def _accuracy(one: Training) -> str:
    return (
        f"scaling: {one.contender.strategy} N={one.world_size} batch {one.update_samples} "
        f"lr {one.regime.rate:.4g} top-1 {100 * accuracy.last_top1(one):.1f} % epochs {len(one.top1)} "
        f"seconds {one.train_s or 0:.1f} flags {','.join(one.flags) or NONE}"
    )
