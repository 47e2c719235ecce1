"""Figures of a report as plain data; `FIGURES` maps each name of `--figure` to its function."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import get_args

from scaling.analysis.table import catalogue
from scaling.analysis.table.catalogue import drawn, serious
from scaling.analysis.table.rows import Column, Row
from scaling.records.events import Failed
from scaling.records.point import Kind
from scaling.records.run import PointRecord, RankRecord
from scaling.records.telemetry import Sample
from scaling.report import quantities, words
from scaling.report.figures.burn_in import burn_in
from scaling.report.figures.parts import (
    Bar,
    Bars,
    Cards,
    Carried,
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
from scaling.report.figures.scaling import efficiency, speedup
from scaling.report.headline import headline
from scaling.report.material import Material
from scaling.text import counted, duration

# ---------------------------------------------------------------- loss


EFFICIENCY = "efficiency"
LABEL_WIDTH = 34
# Bars of one figure; the table has all rows.
MOST = 40


def loss(material: Material) -> Iterator[Figure]:
    """Make a bar per row: its losses by cause."""
    rows = shown(material.rows)
    if not any(row.breakdown for row in rows):
        return
    causes = catalogue.causes(rows)
    names = tuple(cause.title for cause in causes)
    made = tuple(_bar(row, label, causes) for row, label in zip(rows, row_labels(material, rows), strict=True))
    best = headline(material.rows)
    lines = tuple(_loss_line(row, bar, causes) for row, bar in zip(rows, made, strict=True))
    yield Figure(
        name="loss",
        title="Loss of efficiency, by cause",
        says=_loss_says([line for line, row in zip(lines, rows, strict=True) if row is best], names),
        body=Bars(names=names, bars=made),
        table=Table(("row", f"{EFFICIENCY}, %", *(f"{name}, %" for name in names), "marks"), lines),
        stamps=serious({flag for row in rows for flag in row.flags}),
        left_out=left_out(material.rows, rows),
    )


def shown(rows: Sequence[Row]) -> list[Row]:
    """Return all rows, or the `MOST` rows with the largest world sizes."""
    if len(rows) <= MOST:
        return list(rows)
    largest = sorted(range(len(rows)), key=lambda at: rows[at].world_size, reverse=True)[:MOST]
    return [rows[at] for at in sorted(largest)]


def left_out(rows: Sequence[Row], drawn: Sequence[Row]) -> str:
    more = len(rows) - len(drawn)
    return f"{more} of {len(rows)} rows, those of smaller world sizes, are in the table only" if more else ""


def row_labels(material: Material, rows: Sequence[Row]) -> tuple[str, ...]:
    """Return `torch:nccl over ib0 N=16` for each row, cut if too long."""
    names = tuple(material.label(row) for row in rows)
    cut = dict(zip(names, shortened(names, LABEL_WIDTH), strict=True))
    return tuple(f"{cut[name]} N={row.world_size}" for name, row in zip(names, rows, strict=True))


def _bar(row: Row, label: str, causes: Sequence[Column]) -> Bar:
    mark = drawn(row.flags)
    if row.failed is not None:
        return Bar(label=label, says=f"failed: {row.failed.cause}", mark=mark)
    if row.efficiency is None or row.breakdown is None:
        return Bar(label=label, says=catalogue.claimless(row) or "no baseline", mark=mark)
    parts = [getattr(row.breakdown, cause.key) for cause in causes]
    return Bar(
        label=label,
        parts=tuple(None if part is None else 100 * part for part in parts),
        says=catalogue.NOT_COMPARABLE if row.learnt_less else "",
        mark=mark,
    )


def _loss_line(row: Row, bar: Bar, causes: Sequence[Column]) -> tuple[str, ...]:
    if not bar.parts:
        return (bar.label, bar.says, *(words.NONE for _ in causes), bar.mark)
    parts = (words.cell(quantities.cell(cause, row), cause)[0].strip() for cause in causes)
    efficiency = quantities.percent(row.efficiency)
    share = words.mean(efficiency, with_unit=False) if efficiency else words.NONE
    return (bar.label, bar.says or share, *parts, bar.mark)


def _loss_says(found: Sequence[tuple[str, ...]], names: Sequence[str]) -> str:
    """Return the headline row's line as a sentence."""
    if not found:
        return "A bar per row; a row that loses nothing has none"
    label, first, *parts, _ = found[0]
    said = [f"{name} {part} %" for name, part in zip(names, parts, strict=True) if part != words.NONE]
    return f"A bar per row; {label}: {', '.join(said) or first}"


# ---------------------------------------------------------------- timeline


KINDS: tuple[Kind, ...] = get_args(Kind)
# With more windows, a point is drawn as one stretch, start-up included.
MOST_STRETCHES = 3000


def timeline(material: Material) -> Iterator[Figure]:
    """Make a lane per round: when each point was measured, controls included."""
    records = material.records
    if not records:
        return
    by_window = sum(_most_windows(record) for record in records) <= MOST_STRETCHES
    begin_s = min(min((record.started_unix_s, *_starts(record))) for record in records)
    by_round: dict[int, list[PointRecord]] = defaultdict(list)
    for record in records:
        by_round[record.point.round].append(record)
    lanes = tuple(_lane(number, of, begin_s, by_window=by_window) for number, of in sorted(by_round.items()))
    kinds = tuple(kind for kind in KINDS if any(kind in lane.stretches for lane in lanes))
    failures = sum(len(lane.failures) for lane in lanes)
    yield Figure(
        name="run",
        title="When each point was measured",
        says=f"{counted(len(records), 'point')} in {counted(len(lanes), 'round')}, {failures} of them failed",
        body=Lanes(kinds=kinds, lanes=lanes),
        table=Table(
            ("round", "points", "from", "to", "failed"), tuple(map(_timeline_line, lanes, by_round.values()))
        ),
        stamps=serious(_flags(records) | ({"FAILED"} if failures else set())),
        left_out="" if by_window else "windows, for lack of room: bars are whole points with their start-up",
    )


def _flags(records: Iterable[PointRecord]) -> set[str]:
    """EMULATED is there even without a finished exchange: the seconds are real ones."""
    is_emulated = any(record.point.hardware.profile for record in records)
    return {"EMULATED"} if is_emulated else set()


def _most_windows(record: PointRecord) -> int:
    return max((len(rank.windows) for rank in record.ranks), default=0)


def _starts(record: PointRecord) -> Iterator[float]:
    for rank in record.ranks:
        yield from (window.end_unix_s - window.seconds for window in rank.windows[:1])


def _lane(number: int, records: Iterable[PointRecord], begin_s: float, *, by_window: bool) -> Lane:
    found: dict[str, list[Stretch]] = defaultdict(list)
    failures = []
    for record in records:
        if isinstance(record.outcome, Failed):
            failures.append(record.started_unix_s - begin_s)
        found[record.point.kind] += _stretches(record, begin_s) if by_window else [_whole(record, begin_s)]
    stretches = {kind: tuple(_joined(sorted(of))) for kind, of in found.items() if of}
    return Lane(label=f"round {number + 1}", stretches=stretches, failures=tuple(sorted(failures)))


def _stretches(record: PointRecord, begin_s: float) -> list[Stretch]:
    rank = max(record.ranks, key=lambda one: len(one.windows), default=None)
    windows = rank.windows if rank else ()
    ends = ((window.end_unix_s - begin_s, window.seconds) for window in windows)
    return [Stretch(end_s - seconds, end_s) for end_s, seconds in ends]


def _whole(record: PointRecord, begin_s: float) -> Stretch:
    start_s = record.started_unix_s - begin_s
    return Stretch(start_s, start_s + record.wall_s)


def _joined(stretches: Sequence[Stretch]) -> Iterator[Stretch]:
    open_: Stretch | None = None
    for one in stretches:
        if open_ is not None and one.start_s <= open_.end_s + 0.01:
            open_ = Stretch(open_.start_s, max(open_.end_s, one.end_s))
            continue
        if open_ is not None:
            yield open_
        open_ = one
    if open_ is not None:
        yield open_


def _timeline_line(lane: Lane, records: Sequence[PointRecord]) -> tuple[str, ...]:
    ends = [one for of in lane.stretches.values() for one in of]
    first, last = min((one.start_s for one in ends), default=0.0), max((one.end_s for one in ends), default=0.0)
    kinds = Counter(record.point.kind for record in records)
    points = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    return lane.label, points, duration(first), duration(last), str(len(lane.failures))


# ---------------------------------------------------------------- rounds


def rounds(material: Material) -> Iterator[Figure]:
    """Make a line per row: samples/s of each round against the row's mean."""
    rows = [row for row in shown(material.rows) if row.rounds]
    if not any(row.rounds > 1 for row in rows):
        return
    found = []
    for row, label in zip(rows, row_labels(material, rows), strict=True):
        rates = material.cell(row).rates
        values = tuple(100 * (rate / fmean(rates) - 1) for rate in rates)
        found.append(Spread(label=label, values=values, mark=drawn(row.flags)))
    widest = max(found, key=lambda one: max(one.values) - min(one.values))
    yield Figure(
        name="rounds",
        title="Every round, against the mean of its row",
        says=(
            f"The rounds of {widest.label} lie farthest apart: from {words.number(min(widest.values), 1)} to "
            f"{words.number(max(widest.values), 1)} % off their mean"
        ),
        body=Spreads(spreads=tuple(found)),
        table=Table(("row", "rounds, % off the mean", "marks"), tuple(map(_round_line, found))),
        stamps=serious({flag for row in rows for flag in row.flags}),
        left_out=left_out([row for row in material.rows if row.rounds], rows),
    )


def _round_line(one: Spread) -> tuple[str, ...]:
    return one.label, ", ".join(words.number(value, 2) for value in one.values), one.mark


# ---------------------------------------------------------------- ranks
#
# In an exchange all ranks wait for the slowest. Only `together` shows which rank that is.


# With more ranks, the heat map has lines of hosts and of the slowest ranks.
MOST_RANKS = 64
MOST_HOSTS = 48
SLOWEST = 16
MOST_COLUMNS = 240
_SAYS = {
    "together": "Plain loops at once, no exchange: no rank waits, so a dark line is a slow rank",
    "exchange": "The exchange: all ranks wait for the slowest, so columns are dark and not lines",
}

# Step times by rank and column, over the median of the round.
Grid = dict[tuple[int, str], list[float | None]]


def ranks(material: Material) -> Iterator[Figure]:
    """Make heat maps of ranks by windows for the headline row: `together`, then the exchange."""
    row = headline(material.rows)
    if row is None or not row.rounds or row.world_size == 1:
        return
    of = {"together": material.together(row), "exchange": tuple(material.cell(row).records)}
    for kind, records in of.items():
        grid, breaks = _grid(records)
        if len(grid) > 1:
            heat, left_out = _heat(grid, breaks)
            yield Figure(
                name="ranks",
                title=f"Ranks by windows, {kind}, N={row.world_size}",
                says=f"{_SAYS[kind]}. {_worst(grid)}",
                body=heat,
                table=Table(("rank", "mean over the median of its rounds"), tuple(_lines(grid))),
                stamps=serious(set(row.flags)),
                left_out=left_out,
            )


def _grid(records: Iterable[PointRecord]) -> tuple[Grid, tuple[int, ...]]:
    grid: Grid = defaultdict(list)
    breaks: list[int] = []
    width = 0
    for record in sorted(records, key=lambda one: one.point.round):
        steps = {(rank.rank, rank.host): _steps(rank) for rank in record.ranks if rank.windows}
        if not steps:
            continue
        middle = median(step for found in steps.values() for step in found)
        columns = max(map(len, steps.values()))
        for who, found in steps.items():
            grid[who] += [None] * (width - len(grid[who]))
            grid[who] += [step / middle for step in found]
        breaks.append(width)
        width += columns
    padded = {who: [*line, *[None] * (width - len(line))] for who, line in sorted(grid.items())}
    return padded, tuple(breaks[1:])


def _steps(rank: RankRecord) -> list[float]:
    return [window.seconds / window.steps for window in rank.windows if window.steps and window.seconds > 0]


def _mean(line: Sequence[float | None]) -> float:
    return fmean([cell for cell in line if cell is not None] or [1.0])


def _heat(grid: Grid, breaks: tuple[int, ...]) -> tuple[Heat, str]:
    lines, left_out = {f"rank {rank}": line for (rank, _), line in grid.items()}, ""
    if len(grid) > MOST_RANKS:
        lines = _by_host(grid)
        left_out = f"of {len(grid)} ranks all but the worst of each host and the {SLOWEST} slowest"
    every = -(-max(map(len, lines.values())) // MOST_COLUMNS)
    heat = Heat(
        lines=tuple(lines),
        cells=tuple(tuple(_thinned(line, every)) for line in lines.values()),
        breaks=tuple(at // every for at in breaks),
    )
    return heat, left_out + (f"{'; ' if left_out else ''}{every} windows to a cell" if every > 1 else "")


def _thinned(line: Sequence[float | None], every: int) -> Iterator[float | None]:
    for start in range(0, len(line), every):
        yield max((cell for cell in line[start : start + every] if cell is not None), default=None)


def _by_host(grid: Grid) -> dict[str, list[float | None]]:
    """Return the worst rank of the `MOST_HOSTS` slowest hosts, and the `SLOWEST` ranks."""
    slowest = sorted(grid, key=lambda who: -_mean(grid[who]))
    hosts: dict[str, tuple[int, str]] = {}
    for who in slowest:
        hosts.setdefault(who[1], who)
    kept = sorted(list(hosts)[:MOST_HOSTS])
    lines = {host: grid[hosts[host]] for host in kept}
    return {**lines, **{f"rank {who[0]}": grid[who] for who in slowest[:SLOWEST]}}


def _lines(grid: Grid) -> Iterator[tuple[str, str]]:
    ordered = sorted(grid, key=lambda who: -_mean(grid[who]))
    for rank, host in ordered[:MOST_RANKS]:
        yield f"rank {rank} on {host}", f"{_mean(grid[rank, host]):.3f}"


def _worst(grid: Grid) -> str:
    rank, host = max(grid, key=lambda who: _mean(grid[who]))
    return f"Slowest overall: rank {rank} on {host}, {_mean(grid[rank, host]):.3f} times the median"


# ---------------------------------------------------------------- devices


# Readings of all GPUs are combined in this many steps of time.
STEPS = 120
_OF_GPUS: tuple[tuple[str, Callable[[Sample], float | None]], ...] = (
    ("power, W", lambda sample: sample.power_w),
    ("SM clock, MHz", lambda sample: sample.sm_clock_mhz),
    ("temperature, °C", lambda sample: sample.temperature_c),
    ("busy, %", lambda sample: sample.utilisation_percent),
)


def devices(material: Material) -> Iterator[Figure]:
    """Make strips for the headline row: GPUs over time; without GPUs, the CPU use of each rank."""
    row = headline(material.rows)
    if row is None or not row.rounds:
        return
    records = material.cell(row).records
    strips, across = _gpus(records), "s of measured windows, rounds joined"
    if not strips:
        strips, across = _cpus(records), "rank"
    if strips:
        yield Figure(
            name="devices",
            title=f"Devices while N={row.world_size} was measured",
            says=f"Lowest, mean and highest: {'; '.join(map(_said, strips))}",
            body=Strips(across=across, strips=tuple(strips)),
            table=Table(("quantity", "lowest", "mean", "highest"), tuple(map(_device_line, strips))),
            stamps=serious(set(row.flags)),
        )


def _gpus(records: Iterable[PointRecord]) -> list[Strip]:
    """Place rounds one after the other, each from its first reading."""
    samples: list[tuple[float, Sample]] = []
    past_s = 0.0
    for record in records:
        found = [sample for rank in record.ranks for sample in rank.telemetry.samples]
        found += [sample for helper in record.helpers for sample in helper.telemetry.samples]
        if found:
            first_s = min(sample.unix_s for sample in found)
            samples += [(past_s + sample.unix_s - first_s, sample) for sample in found]
            past_s += max(sample.unix_s for sample in found) - first_s + 1.0
    made = (Strip(title=title, readings=tuple(_readings(samples, of))) for title, of in _OF_GPUS)
    return [strip for strip in made if strip.readings]


def _readings(samples: Sequence[tuple[float, Sample]], of: Callable[[Sample], float | None]) -> Iterator[Reading]:
    step_s = max((at_s for at_s, _ in samples), default=0.0) / STEPS or 1.0
    found: dict[int, list[float]] = defaultdict(list)
    for at_s, sample in samples:
        if (value := of(sample)) is not None:
            found[int(at_s / step_s)].append(value)
    for step, values in sorted(found.items()):
        yield Reading(step * step_s, min(values), fmean(values), max(values))


def _cpus(records: Iterable[PointRecord]) -> list[Strip]:
    found: dict[int, list[float]] = defaultdict(list)
    for record in records:
        for rank in record.ranks:
            if rank.telemetry.cpu_percent is not None:
                found[rank.rank].append(rank.telemetry.cpu_percent)
    readings = tuple(Reading(rank, min(of), fmean(of), max(of)) for rank, of in sorted(found.items()))
    return [Strip(title="CPU, % of a core", readings=readings)] if readings else []


def _ends(strip: Strip) -> tuple[float, float, float]:
    readings = strip.readings
    return (
        min(one.low for one in readings),
        fmean(one.mean for one in readings),
        max(one.high for one in readings),
    )


def _said(strip: Strip) -> str:
    return f"{strip.title}: {', '.join(f'{value:,.0f}' for value in _ends(strip))}"


def _device_line(strip: Strip) -> tuple[str, ...]:
    return strip.title, *(f"{value:,.1f}" for value in _ends(strip))


# ---------------------------------------------------------------- cards


# Other cards with a smaller fraction of a row's bytes are not drawn.
LEAST_SHARE = 0.001
_SCALES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


def cards(material: Material) -> Iterator[Figure]:
    """Make a bar per card of each row across nodes: bytes sent, and bytes that the exchange must send."""
    crossing = [row for row in material.rows if row.receipt]
    rows = shown(crossing)
    if not rows:
        return
    most = max(max(row.receipt.sent_bytes.values(), default=0) for row in rows if row.receipt)
    scale, unit = next((one for one in _SCALES if most >= one[0]), _SCALES[-1])
    found: list[Carried] = []
    for row, label in zip(rows, row_labels(material, rows), strict=True):
        receipt = row.receipt
        assert receipt is not None
        total = sum(receipt.sent_bytes.values())
        least, highest = receipt.expected_bytes, receipt.expected_most_bytes or receipt.expected_bytes
        for card in sorted({*receipt.sent_bytes, *receipt.wanted}):
            sent, wanted = receipt.sent_bytes.get(card, 0), card in receipt.wanted
            if wanted or sent >= LEAST_SHARE * total:
                found.append(
                    Carried(
                        label=label,
                        card=card,
                        sent=sent / scale,
                        wanted=wanted,
                        least=least / scale if wanted and least else None,
                        most=highest / scale if wanted and highest else None,
                        mark=drawn(row.flags),
                    )
                )
    yield Figure(
        name="cards",
        title="Bytes between nodes, by card",
        says=_says(found, unit),
        body=Cards(unit=unit, carried=tuple(found)),
        table=Table(("row", "card", f"sent, {unit}", f"must be sent, {unit}", "marks"), tuple(map(_line, found))),
        stamps=serious({flag for row in rows for flag in row.flags}),
        left_out=left_out(crossing, rows),
    )


def _says(found: Sequence[Carried], unit: str) -> str:
    wrong = [one for one in found if one.mark == "MISLABELLED" and not one.wanted]
    said = "; ".join(f"{one.label} sent {one.sent:.3g} {unit} over {one.card}, not asked for" for one in wrong)
    return said or "A bar per row and card, with a tick at what the exchange must send over the card asked for"


def _line(one: Carried) -> tuple[str, ...]:
    must = "-" if one.least is None else f"{one.least:.4g}"
    if one.least is not None and one.most is not None and one.most > one.least:
        must += f" to {one.most:.4g}"
    return one.label, one.card + ("" if one.wanted else " (not asked for)"), f"{one.sent:.4g}", must, one.mark


# ---------------------------------------------------------------- figures

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
