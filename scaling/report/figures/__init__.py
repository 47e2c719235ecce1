"""Figures of a report as plain data; `FIGURES` maps each name of `--figure` to its function."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from statistics import fmean, median
from typing import Any, NamedTuple, get_args

from scaling.analysis.statistics.intervals import Estimate
from scaling.analysis.table import catalogue
from scaling.analysis.table.burn_in import StepTimes
from scaling.analysis.table.catalogue import drawn, mark_named, serious
from scaling.analysis.table.rows import Column, Row
from scaling.records.events import Failed
from scaling.records.point import Kind
from scaling.records.run import PointRecord
from scaling.records.telemetry import Sample
from scaling.report import labels, quantities
from scaling.report.document import by_curve
from scaling.report.figures.parts import (
    Bar,
    Bars,
    Cards,
    Carried,
    Cross,
    Curve,
    Curves,
    Dot,
    Figure,
    Heat,
    Lane,
    Lanes,
    Reading,
    Spread,
    Spreads,
    Stretch,
    Strip,
    Strips,
    Table,
    shortened,
)
from scaling.report.labels import headline
from scaling.report.material import Material
from scaling.report.parts import NONE, Quantity
from scaling.report.parts import shown as shown_as
from scaling.report.sections import behind, headline_of, name_of
from scaling.text import HOUR_S, MINUTE_S, counted, decimals, duration, fixed

LABEL_WIDTH = 34
# Bars of one figure; the table has all rows.
MOST = 40


def _shown(material: Material, rows: Sequence[Row]) -> tuple[list[tuple[Row, str]], str]:
    """Return the `MOST` rows of the largest world sizes with their names `torch:nccl over ib0 N=16`, and what is
    left out."""
    kept = set(sorted(range(len(rows)), key=lambda at: rows[at].world_size, reverse=True)[:MOST])
    shown = [row for at, row in enumerate(rows) if at in kept]
    names = shortened(tuple(map(material.label, shown)), LABEL_WIDTH)
    more = len(rows) - len(shown)
    left_out = f"{more} of {len(rows)} rows, those of smaller world sizes, are in the table only" if more else ""
    return [(row, f"{name} N={row.world_size}") for row, name in zip(shown, names, strict=True)], left_out


def _stamps(rows: Iterable[Row]) -> tuple[str, ...]:
    return serious({flag for row in rows for flag in row.flags})


# ---------------------------------------------------------------- speedup, efficiency


# With more curves, neither colours nor names are distinguishable.
MOST_CURVES = 16


class _Axis(NamedTuple):
    """The upright axis: its text, the value of a row, and how the table shows it. `ideal`: the value of one
    device. A row that does not claim its value has a place in the figure alone."""

    upright: str
    value: Callable[[Row], Estimate | None]
    shown: Callable[[Estimate], Quantity | None]
    ideal: float | None = None
    claims: Callable[[Row], bool] = lambda _: True


def speedup(material: Material) -> Iterator[Figure]:
    """Make a figure per group of rows: speedup, or samples/s if no row has a speedup. One device has none."""

    def claims(row: Row) -> bool:
        return row.speedup is not None and not row.learnt_less

    for title, rows in _groups(material):
        if all(row.world_size == 1 for row in rows):
            continue
        if any(row.speedup for row in rows):
            axis = _Axis("times one device", _speedup_in(rows), quantities.speedup, 1.0, claims)
            yield _scaling("speedup", f"Speedup{title}", material, rows, axis)
        elif any(row.samples_per_s for row in rows):
            work = rows[0].workload
            axis = _Axis(f"{work.unit}/s", lambda row: row.units_per_s, partial(quantities.rate, workload=work))
            yield _scaling("speedup", f"{work.unit}/s, without a rate of one device{title}", material, rows, axis)


def efficiency(material: Material) -> Iterator[Figure]:
    """Make a figure per group of rows with an efficiency."""

    def percent(row: Row) -> Estimate | None:
        return row.efficiency.times(100.0) if row.efficiency and not row.learnt_less else None

    axis = _Axis("efficiency, %", percent, lambda found: quantities.percent(found.times(0.01)), 100.0)
    for title, rows in _groups(material):
        if any(row.efficiency for row in rows):
            yield _scaling("efficiency", f"Efficiency{title}", material, rows, axis)


def _groups(material: Material) -> Iterator[tuple[str, list[Row]]]:
    for number in dict.fromkeys(row.group for row in material.rows):
        rows = [row for row in material.rows if row.group == number]
        varying = labels.varying(rows[0], material.context)
        yield (f": {', '.join(varying)}" if varying else ""), rows


def _speedup_in(rows: Sequence[Row]) -> Callable[[Row], Estimate | None]:
    """Return the speedup of a row for drawing. Rows that claim none are placed by their rate over that of one
    device of their framework (weak scaling only)."""
    alone = {
        row.framework: row.samples_per_s.mean / row.speedup.mean
        for row in rows
        if row.samples_per_s and row.speedup and row.workload.batch_rule == "weak"
    }

    def of(row: Row) -> Estimate | None:
        if row.speedup or not row.samples_per_s or row.framework not in alone:
            return row.speedup
        return Estimate(mean=row.samples_per_s.mean / alone[row.framework], low=None, high=None, n=row.rounds)

    return of


def _scaling(name: str, title: str, material: Material, rows: Sequence[Row], axis: _Axis) -> Figure:
    """Make a figure over the number of devices. Of many curves it has those with a wrong row, then those that end
    at the most devices and highest."""
    every = []
    for of in by_curve(rows):
        values = [(row, found) for row in of if (found := axis.value(row)) is not None and found.mean > 0]
        if values:
            dots = (
                Dot(row.world_size, found.mean, found.low, found.high, drawn(row.flags), axis.claims(row))
                for row, found in values
            )
            every.append(Curve(labels.curve(of, material.context), of[0].curve, tuple(dots)))
    kept = sorted(every, key=_worth, reverse=True)[:MOST_CURVES]
    curves = tuple(curve for curve in every if curve in kept)
    crosses = tuple(Cross(row.world_size, labels.name(row, material.context)) for row in rows if row.failed)
    # The boundary is the geometric mean of the largest world size on one node and the smallest on several.
    inside = max((row.world_size for row in rows if row.nodes == 1 and not row.failed), default=0)
    across = min((row.world_size for row in rows if row.nodes > 1), default=0)
    boundary = float((inside * across) ** 0.5) if 0 < inside < across else None
    is_percent, more = axis.ideal == 100.0, len(every) - len(curves)
    ends = [
        f"{curve.label} {dot.value:,.{decimals(dot.value)}f}{' %' if is_percent else ''} at N={dot.at}"
        for curve in curves
        for dot in [dot for dot in curve.dots if dot.claimed][-1:]
    ]
    lines = [(curve.label, str(dot.at), _text(dot, axis), dot.mark) for curve in every for dot in curve.dots]
    lines += [(cross.label, str(cross.world_size), NONE, "FAILED") for cross in crosses]
    lowest = "those that end lowest, are in the table only"
    return Figure(
        name,
        title,
        says=f"{title}, over the number of devices: {'; '.join(ends) or 'nothing was measured'}",
        body=Curves(axis.upright, is_percent, curves, crosses, axis.ideal, boundary),
        table=Table(("strategy", "N", axis.upright, "marks"), tuple(lines)),
        stamps=_stamps(rows),
        left_out=f"{more} of {len(every)} strategies, {lowest}" if more else "",
    )


def _worth(curve: Curve) -> tuple[bool, int, float]:
    wrong = any(mark_named(dot.mark).is_wrong for dot in curve.dots)
    return wrong, curve.dots[-1].at, curve.dots[-1].value


def _text(dot: Dot, axis: _Axis) -> str:
    found = axis.shown(Estimate(mean=dot.value, low=dot.low, high=dot.high, n=0)) if dot.claimed else None
    return NONE if found is None else f"{found}"


# ---------------------------------------------------------------- loss


def loss(material: Material) -> Iterator[Figure]:
    """Make a bar per row: its losses by cause."""
    shown, left_out = _shown(material, material.rows)
    rows = [row for row, _ in shown]
    if not any(row.breakdown for row in rows):
        return
    causes = catalogue.causes(rows)
    names = tuple(cause.title for cause in causes)
    bars = tuple(_bar(row, label, causes) for row, label in shown)
    lines, best, says = [], headline(material.rows), "a row that loses nothing has none"
    for row, bar in zip(rows, bars, strict=True):
        parts, first = [NONE] * len(causes), bar.says
        if bar.parts:
            parts = [shown_as(quantities.cell(cause, row), cause)[0].strip() for cause in causes]
            share = quantities.percent(row.efficiency)
            first = bar.says or (share.mean(with_unit=False) if share else NONE)
        lines.append((bar.label, first, *parts, bar.mark))
        if row is best:
            said = (f"{name} {part} %" for name, part in zip(names, parts, strict=True) if part != NONE)
            says = f"{bar.label}: {', '.join(said) or first}"
    yield Figure(
        "loss",
        "Loss of efficiency, by cause",
        says=f"A bar per row; {says}",
        body=Bars(names, bars),
        table=Table(("row", "efficiency, %", *(f"{name}, %" for name in names), "marks"), tuple(lines)),
        stamps=_stamps(rows),
        left_out=left_out,
    )


def _bar(row: Row, label: str, causes: Sequence[Column]) -> Bar:
    mark = drawn(row.flags)
    if row.failed is not None:
        return Bar(label, says=f"failed: {row.failed.cause}", mark=mark)
    if row.efficiency is None or row.breakdown is None:
        return Bar(label, says=catalogue.claimless(row) or "no baseline", mark=mark)
    parts = (getattr(row.breakdown, cause.key) for cause in causes)
    says = catalogue.NOT_COMPARABLE if row.learnt_less else ""
    return Bar(label, tuple(None if part is None else 100 * part for part in parts), says, mark)


# ---------------------------------------------------------------- timeline


KINDS: tuple[Kind, ...] = get_args(Kind)
# With more windows, a point is drawn as one stretch, start-up included.
MOST_STRETCHES = 3000


def timeline(material: Material) -> Iterator[Figure]:
    """Make a lane per round: when each point was measured, controls included."""
    records = material.records
    if not records:
        return
    windows = {one.point.key: max((rank.windows for rank in one.ranks), key=len, default=()) for one in records}
    by_window = sum(map(len, windows.values())) <= MOST_STRETCHES
    firsts = (window for record in records for rank in record.ranks for window in rank.windows[:1])
    starts = (window.end_unix_s - window.seconds for window in firsts)
    begin_s = min(chain(starts, (record.started_unix_s for record in records)))
    by_round: dict[int, list[PointRecord]] = defaultdict(list)
    for record in records:
        by_round[record.point.round].append(record)
    lanes = []
    for number, of in sorted(by_round.items()):
        found: dict[str, list[Stretch]] = defaultdict(list)
        for one in of:
            start_s = one.started_unix_s - begin_s
            ends = ((window.end_unix_s - begin_s, window.seconds) for window in windows[one.point.key])
            whole = [Stretch(start_s, start_s + one.wall_s)]
            found[one.point.kind] += [Stretch(end - s, end) for end, s in ends] if by_window else whole
        stretches = {kind: tuple(_joined(sorted(several))) for kind, several in found.items() if several}
        failed = (one.started_unix_s - begin_s for one in of if isinstance(one.outcome, Failed))
        lanes.append(Lane(f"round {number + 1}", stretches, tuple(sorted(failed))))
    failures = sum(len(lane.failures) for lane in lanes)
    # EMULATED is there even without a finished exchange: the seconds are real ones.
    flags = {"EMULATED": any(record.point.hardware.profile for record in records), "FAILED": failures > 0}
    yield Figure(
        "run",
        "When each point was measured",
        says=f"{counted(len(records), 'point')} in {counted(len(lanes), 'round')}, {failures} of them failed",
        body=Lanes(tuple(kind for kind in KINDS if any(kind in lane.stretches for lane in lanes)), tuple(lanes)),
        table=Table(
            ("round", "points", "from", "to", "failed"), tuple(map(_timeline_line, lanes, by_round.values()))
        ),
        stamps=serious(name for name, holds in flags.items() if holds),
        left_out="" if by_window else "windows, for lack of room: bars are whole points with their start-up",
    )


def _joined(stretches: Iterable[Stretch]) -> list[Stretch]:
    found: list[Stretch] = []
    for one in stretches:
        if found and one.start_s <= found[-1].end_s + 0.01:
            found[-1] = Stretch(found[-1].start_s, max(found[-1].end_s, one.end_s))
        else:
            found.append(one)
    return found


def _timeline_line(lane: Lane, records: Sequence[PointRecord]) -> tuple[str, ...]:
    ends = [tuple(one) for of in lane.stretches.values() for one in of] or [(0.0, 0.0)]
    kinds = Counter(record.point.kind for record in records).items()
    points, last = ", ".join(f"{count} {kind}" for kind, count in kinds), max(0.0, *(end for _, end in ends))
    return lane.label, points, duration(min(ends)[0]), duration(last), str(len(lane.failures))


# ---------------------------------------------------------------- rounds


def rounds(material: Material) -> Iterator[Figure]:
    """Make a line per row: samples/s of each round against the row's mean."""
    shown, left_out = _shown(material, [row for row in material.rows if row.rounds])
    if not any(row.rounds > 1 for row, _ in shown):
        return
    found = []
    for row, label in shown:
        rates = material.cell(row).rates
        found.append(Spread(label, tuple(100 * (rate / fmean(rates) - 1) for rate in rates), drawn(row.flags)))
    widest = max(found, key=lambda one: max(one.values) - min(one.values))
    low, high = fixed(min(widest.values), 1), fixed(max(widest.values), 1)
    lines = ((one.label, ", ".join(fixed(value, 2) for value in one.values), one.mark) for one in found)
    yield Figure(
        "rounds",
        "Every round, against the mean of its row",
        says=f"The rounds of {widest.label} lie farthest apart: from {low} to {high} % off their mean",
        body=Spreads(tuple(found)),
        table=Table(("row", "rounds, % off the mean", "marks"), tuple(lines)),
        stamps=_stamps(row for row, _ in shown),
        left_out=left_out,
    )


# ---------------------------------------------------------------- ranks
#
# In an exchange all ranks wait for the slowest. Only `together` shows which rank that is.


# With more ranks, the heat map has lines of hosts and of the slowest ranks.
MOST_RANKS = 64
MOST_HOSTS, SLOWEST = 48, 16
MOST_COLUMNS = 240
_SAYS = {
    "together": "Plain loops at once, no exchange: no rank waits, so a dark line is a slow rank",
    "exchange": "The exchange: all ranks wait for the slowest, so columns are dark and not lines",
}
Steps = list[float | None]


def ranks(material: Material) -> Iterator[Figure]:
    """Make heat maps of ranks by windows for the headline row: `together`, then the exchange."""
    row = headline(material.rows)
    if row is None or not row.rounds or row.world_size == 1:
        return
    for kind, records in (("together", material.together(row)), ("exchange", material.cell(row).records)):
        grid, breaks = _grid(records)
        if len(grid) < 2:
            continue
        slowest = sorted(grid, key=lambda who: -_mean(grid[who]))
        lines = [(f"rank {rank} on {host}", f"{_mean(grid[rank, host]):.3f}") for rank, host in slowest]
        heat, left_out = _heat(grid, breaks, slowest)
        yield Figure(
            "ranks",
            f"Ranks by windows, {kind}, N={row.world_size}",
            says=f"{_SAYS[kind]}. Slowest overall: {lines[0][0]}, {lines[0][1]} times the median",
            body=heat,
            table=Table(("rank", "mean over the median of its rounds"), tuple(lines[:MOST_RANKS])),
            stamps=_stamps([row]),
            left_out=left_out,
        )


def _grid(records: Iterable[PointRecord]) -> tuple[dict[tuple[int, str], Steps], tuple[int, ...]]:
    """Return step times by rank and window over the median of their round, and where rounds begin."""
    grid: dict[tuple[int, str], Steps] = defaultdict(list)
    breaks, width = [], 0
    for record in sorted(records, key=lambda one: one.point.round):
        steps = {
            (rank.rank, rank.host): [
                one.seconds / one.steps for one in rank.windows if one.steps and one.seconds > 0
            ]
            for rank in record.ranks
            if rank.windows
        }
        if any(steps.values()):
            middle = median(chain.from_iterable(steps.values()))
            breaks.append(width)
            for who, found in steps.items():
                grid[who] += [*[None] * (width - len(grid[who])), *(step / middle for step in found)]
            width += max(map(len, steps.values()))
    return {who: [*line, *[None] * (width - len(line))] for who, line in sorted(grid.items())}, tuple(breaks[1:])


def _mean(line: Steps) -> float:
    return fmean([cell for cell in line if cell is not None] or [1.0])


def _heat(
    grid: Mapping[tuple[int, str], Steps], breaks: Sequence[int], slowest: Sequence[tuple[int, str]]
) -> tuple[Heat, str]:
    """Of many ranks: the worst one of the `MOST_HOSTS` slowest hosts, and the `SLOWEST` ranks."""
    lines, left_out = {f"rank {rank}": line for (rank, _), line in grid.items()}, []
    if len(grid) > MOST_RANKS:
        hosts: dict[str, tuple[int, str]] = {}
        for who in slowest:
            hosts.setdefault(who[1], who)
        lines = {host: grid[hosts[host]] for host in sorted(list(hosts)[:MOST_HOSTS])}
        lines |= {f"rank {who[0]}": grid[who] for who in slowest[:SLOWEST]}
        left_out.append(f"of {len(grid)} ranks all but the worst of each host and the {SLOWEST} slowest")
    every = -(-max(map(len, lines.values())) // MOST_COLUMNS)
    if every > 1:
        left_out.append(f"{every} windows to a cell")
    cells = tuple(
        tuple(
            max((cell for cell in line[at : at + every] if cell is not None), default=None)
            for at in range(0, len(line), every)
        )
        for line in lines.values()
    )
    return Heat(tuple(lines), cells, tuple(at // every for at in breaks)), "; ".join(left_out)


# ---------------------------------------------------------------- devices, and times of a burn-in


# Readings of all GPUs are combined in this many steps of time.
STEPS = 120
_OF_GPUS: Mapping[str, Callable[[Sample], float | None]] = {
    "power, W": lambda sample: sample.power_w,
    "SM clock, MHz": lambda sample: sample.sm_clock_mhz,
    "temperature, °C": lambda sample: sample.temperature_c,
    "busy, %": lambda sample: sample.utilisation_percent,
}
# Runs from here on have hours on the axis.
LONG_S = 2 * HOUR_S
_FAULTS: Mapping[str, Callable[[StepTimes], float | None]] = {
    "throttled, % of readings": lambda of: None if of.throttled is None else 100 * of.throttled,
    "windows repeated": lambda of: float(of.repeated),
    "link errors": lambda of: float(of.link_errors),
    "failed rounds": lambda of: float(of.failures),
}


def _strips_table(strips: Iterable[Strip], text: Callable[[float], str]) -> Table:
    lines = ((strip.title, *map(text, _ends(strip))) for strip in strips)
    return Table(("quantity", "lowest", "mean", "highest"), tuple(lines))


def _ends(strip: Strip) -> tuple[float, float, float]:
    _, lows, means, highs = zip(*strip.readings, strict=True)
    return min(lows), fmean(means), max(highs)


def devices(material: Material) -> Iterator[Figure]:
    """Make strips for the headline row: GPUs over time; without GPUs, the CPU use of each rank."""
    row = headline(material.rows)
    if row is None or not row.rounds:
        return
    records = material.cell(row).records
    strips, across = _gpus(records), "s of measured windows, rounds joined"
    if not strips:
        used: dict[int, list[float]] = defaultdict(list)
        for rank in chain.from_iterable(record.ranks for record in records):
            if rank.telemetry.cpu_percent is not None:
                used[rank.rank].append(rank.telemetry.cpu_percent)
        strips, across = [Strip("CPU, % of a core", _readings(used))] if used else [], "rank"
    if strips:
        said = (f"{strip.title}: {', '.join(f'{value:,.0f}' for value in _ends(strip))}" for strip in strips)
        yield Figure(
            "devices",
            f"Devices while N={row.world_size} was measured",
            says=f"Lowest, mean and highest: {'; '.join(said)}",
            body=Strips(across, tuple(strips)),
            table=_strips_table(strips, lambda value: f"{value:,.1f}"),
            stamps=_stamps([row]),
        )


def _gpus(records: Iterable[PointRecord]) -> list[Strip]:
    """Place rounds one after the other, each from its first reading."""
    samples: list[tuple[float, Sample]] = []
    past_s = 0.0
    for record in records:
        if found := [sample for child in record.children for sample in child.telemetry.samples]:
            first_s, last_s = min(one.unix_s for one in found), max(one.unix_s for one in found)
            samples += [(past_s + sample.unix_s - first_s, sample) for sample in found]
            past_s += last_s - first_s + 1.0
    step_s = max((at_s for at_s, _ in samples), default=0.0) / STEPS or 1.0
    by_title: dict[str, dict[int, list[float]]] = {title: defaultdict(list) for title in _OF_GPUS}
    for at_s, sample in samples:
        for title, of in _OF_GPUS.items():
            if (value := of(sample)) is not None:
                by_title[title][int(at_s / step_s)].append(value)
    return [Strip(title, _readings(by_step, step_s)) for title, by_step in by_title.items() if by_step]


def _readings(by_place: Mapping[int, Sequence[float]], unit: float = 1) -> tuple[Reading, ...]:
    return tuple(Reading(at * unit, min(of), fmean(of), max(of)) for at, of in sorted(by_place.items()))


def burn_in(material: Material) -> Iterator[Figure]:
    """Make strips over time for the headline exchange; none for a run of few rounds."""
    one = headline_of(material.over_time)
    if one is None or not one.steps:
        return
    plain = behind(one, material.over_time)
    scale_s, across = (HOUR_S, "hours") if one.whole.end_s >= LONG_S else (MINUTE_S, "minutes")
    unit, per_sample = f"{one.workload.unit}/s", one.workload.units_per_sample

    def rate(of: StepTimes) -> float | None:
        return of.samples_per_s and of.samples_per_s * per_sample

    def percentiles(of: StepTimes) -> tuple[float, ...] | None:
        known = [1e3 * seconds for seconds in (of.p50_s, of.p95_s, of.p99_s) if seconds is not None]
        return tuple(known) if len(known) == 3 else None

    what = "step, means of windows" if one.of_windows else "step"
    strips: list[tuple[str, Sequence[StepTimes], Callable[[StepTimes], Any], bool]] = [
        (unit, one.stretches, rate, False),
        (f"one device alone, {unit}", plain.stretches if plain else (), rate, False),
        (f"{what}, ms: p50, p95 (line), p99", one.stretches, percentiles, False),
        ("longest step, ms", one.stretches, lambda of: of.worst_s and 1e3 * of.worst_s, True),
    ]
    strips += [
        (title, one.stretches, fault, True) for title, fault in _FAULTS.items() if any(map(fault, one.stretches))
    ]
    shown = []
    for title, stretches, value, from_zero in strips:
        known = ((of.end_s / scale_s, found) for of in stretches if (found := value(of)) is not None)
        readings = (Reading(at, *(of if isinstance(of, tuple) else (of,) * 3)) for at, of in known)
        shown.append(Strip(title, tuple(readings), from_zero))
    shown = [strip for strip in shown if strip.readings]
    name = f"{name_of(one, material.context)} N={one.world_size}"
    yield Figure(
        "burn-in",
        f"Over time: {name}",
        says=f"{name} over {duration(one.whole.end_s)}, {len(one.stretches)} stretches",
        body=Strips(across, tuple(shown)),
        table=_strips_table(shown, lambda value: fixed(value, decimals(value), grouped=True)),
        stamps=serious(("EMULATED",) if one.hardware.profile else ()),
    )


# ---------------------------------------------------------------- cards


# Other cards with a smaller fraction of a row's bytes are not drawn.
LEAST_SHARE = 0.001
_SCALES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


def cards(material: Material) -> Iterator[Figure]:
    """Make a bar per card of each row across nodes: bytes sent, and bytes that the exchange must send."""
    shown, left_out = _shown(material, [row for row in material.rows if row.receipt])
    receipts = [(row.receipt, label, row) for row, label in shown if row.receipt]
    if not receipts:
        return
    most = max(max(receipt.sent_bytes.values(), default=0) for receipt, *_ in receipts)
    scale, unit = next((one for one in _SCALES if most >= one[0]), _SCALES[-1])
    found = []
    for receipt, label, row in receipts:
        least, highest = receipt.expected_bytes, receipt.expected_most_bytes or receipt.expected_bytes
        for card in sorted({*receipt.sent_bytes, *receipt.wanted}):
            sent, wanted = receipt.sent_bytes.get(card, 0), card in receipt.wanted
            if wanted or sent >= LEAST_SHARE * sum(receipt.sent_bytes.values()):
                low, high = (end / scale if wanted and end else None for end in (least, highest))
                found.append(Carried(label, card, sent / scale, wanted, low, high, drawn(row.flags)))
    wrong = (one for one in found if one.mark == "MISLABELLED" and not one.wanted)
    says = "; ".join(f"{one.label} sent {one.sent:.3g} {unit} over {one.card}, not asked for" for one in wrong)
    yield Figure(
        "cards",
        "Bytes between nodes, by card",
        says=says or "A bar per row and card, with a tick at what the exchange must send over the card asked for",
        body=Cards(unit, tuple(found)),
        table=Table(
            ("row", "card", f"sent, {unit}", f"must be sent, {unit}", "marks"), tuple(map(_card_line, found))
        ),
        stamps=_stamps(row for row, _ in shown),
        left_out=left_out,
    )


def _card_line(one: Carried) -> tuple[str, ...]:
    must = NONE if one.least is None else f"{one.least:.4g}"
    if one.least is not None and one.most is not None and one.most > one.least:
        must += f" to {one.most:.4g}"
    return one.label, one.card + ("" if one.wanted else " (not asked for)"), f"{one.sent:.4g}", must, one.mark


# In reading order.
FIGURES: Mapping[str, Callable[[Material], Iterator[Figure]]] = {
    "speedup": speedup,
    "efficiency": efficiency,
    "loss": loss,
    "rounds": rounds,
    "ranks": ranks,
    "cards": cards,
    "devices": devices,
    "run": timeline,
    "burn-in": burn_in,
}
