"""What a report says, before any layout: the same content for the terminal and for markdown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scaling.analysis import Analysis, analyse
from scaling.findings import Cell, Comparison, Row
from scaling.records import Header, PointRecord, Record
from scaling.report import words
from scaling.report.facts import Fact, facts, shared_options

MOST_NOTES = 4


class Column(Record, frozen=True):
    """A column: its name, and the same as a heading of two short lines. `losses` stand under one heading."""

    name: str
    heading: tuple[str, str]
    is_loss: bool = False


class Line(Record, frozen=True):
    """A line of a section's table. Where cells end before the columns do, `says` speaks for the rest.

    `crosses`: the first line on several nodes. `efficiency` is the fraction, for its colour.
    """

    cells: tuple[str, ...]
    says: str = ""
    flags: tuple[str, ...] = ()
    marks: tuple[int, ...] = ()
    crosses: bool = False
    efficiency: float | None = None


class Detail(Record, frozen=True):
    """A line below a section's table: a value for some of its world sizes."""

    label: str
    values: tuple[str, ...]


class Section(Record, frozen=True):
    """One scaling curve: a strategy on a network."""

    title: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    details: tuple[Detail, ...]


class Document(Record, frozen=True):
    """All of a report. `baselines` are (who, batch, images/s, efficiency), `comparisons` (N, best, other,
    difference)."""

    facts: tuple[Fact, ...]
    notices: tuple[str, ...]
    sections: tuple[Section, ...]
    baselines: tuple[tuple[str, ...], ...]
    comparisons: tuple[tuple[str, ...], ...]
    footnotes: tuple[str, ...]
    how_to_read: tuple[str, ...]


class Context(Record, frozen=True):
    """What titles leave out because all share it, and which of the `_ways` they name because they differ."""

    shared: frozenset[words.Option]
    varying: tuple[int, ...]


class Notes:
    """Footnotes in the order of their first mark; equal texts share one number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def marks(self, texts: Sequence[str]) -> tuple[int, ...]:
        """The numbers of `texts`; all beyond the first few become one."""
        shown = list(texts)
        if len(shown) > MOST_NOTES:
            more = f"and {len(shown) - MOST_NOTES + 1} more notes, in --format json"
            shown = [*shown[: MOST_NOTES - 1], more]
        return tuple(self._numbers.setdefault(text, len(self._numbers) + 1) for text in shown)

    def texts(self) -> tuple[str, ...]:
        """All footnotes; the first is number 1."""
        return tuple(self._numbers)


def document(header: Header, records: Sequence[PointRecord], joined: Sequence[str] = ()) -> Document:
    """Say all that the records of a run say; `joined` are the lines about runs in one table."""
    found, notes = analyse(records), Notes()
    context = Context(shared=shared_options(found.rows), varying=_varying(found.rows))
    planned = max((row.rounds_tried for row in found.rows), default=0)
    sections = tuple(_section(group, context, planned, notes) for group in _groups(found.rows))
    return Document(
        facts=facts(header, records),
        notices=(*joined, *_notices(found)),
        sections=sections,
        baselines=(*_plain(found, notes), *_single_ranks(found, context)),
        comparisons=tuple(_comparison(one, context) for one in found.comparisons),
        footnotes=notes.texts(),
        how_to_read=tuple(_how_to_read(found)),
    )


def _notices(found: Analysis) -> Iterable[str]:
    if not found.rows:
        yield "no exchange of this run has ended: there is nothing to tabulate"
    elif max(row.rounds for row in found.rows) == 1:
        yield "one round: no interval, and nothing can be compared"


# ---------------------------------------------------------------- sections


def _groups(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of each scaling curve, by world size."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((words.who(row, ()), *_ways(row)), []).append(row)
    return list(groups.values())


def _conditions(cell: Cell) -> tuple[str, ...]:
    compiled = "compiled" if cell.compile else "eager"
    return (cell.model, cell.data, cell.device, cell.precision, cell.memory_format, compiled)


def _ways(row: Row) -> tuple[str, ...]:
    weak = row.batch_rule == "weak"
    batch = f"{row.batch_size} per device" if weak else f"{row.global_batch_size} in all"
    return (*_conditions(row), row.placement, batch)


def _varying(rows: Iterable[Row]) -> tuple[int, ...]:
    """Which of the `_ways` of measuring are not the same in the whole table, and so stand in titles."""
    values = zip(*(_ways(row) for row in rows), strict=True)
    return tuple(index for index, found in enumerate(values) if len(set(found)) > 1)


def _title(row: Row, context: Context) -> str:
    ways = _ways(row)
    return ", ".join((words.who(row, context.shared), *(ways[index] for index in context.varying)))


def _section(group: Sequence[Row], context: Context, planned: int, notes: Notes) -> Section:
    is_strong = group[0].batch_rule == "strong"
    has_nodes = any(row.nodes > 1 for row in group)
    return Section(
        title=_title(group[0], context),
        columns=_columns(has_nodes=has_nodes, is_strong=is_strong),
        lines=tuple(
            _line(row, before, notes.marks(_notes(row, planned)), has_nodes=has_nodes)
            for row, before in zip(group, (None, *group[:-1]), strict=True)
        ),
        details=tuple(Detail(label=label, values=values) for label, values in _details(group) if values),
    )


def _columns(*, has_nodes: bool, is_strong: bool) -> tuple[Column, ...]:
    columns = [Column(name="N", heading=("", "N"))]
    if has_nodes:
        columns.append(Column(name="nodes", heading=("", "nodes")))
    if is_strong:
        columns.append(Column(name="batch per device", heading=("batch/", "device")))
    columns += [
        Column(name="images/s", heading=("", "images/s")),
        Column(name="speedup", heading=("", "speedup")),
        Column(name="efficiency", heading=("", "efficiency")),
        Column(name="contention", heading=("conten-", "tion"), is_loss=True),
        Column(name="straggling", heading=("strag-", "gling"), is_loss=True),
        Column(name="exposed comm.", heading=("exposed", "comm."), is_loss=True),
    ]
    if is_strong:
        columns.append(Column(name="small batch", heading=("small", "batch"), is_loss=True))
    return (*columns, Column(name="unexplained", heading=("unex-", "plained"), is_loss=True))


def _notes(row: Row, planned: int) -> tuple[str, ...]:
    """Its footnotes; a row that a broken-off run left with fewer rounds says so."""
    fewer = (f"{row.rounds_tried} of {planned} rounds measured",) if row.rounds_tried < planned else ()
    return (*fewer, *row.footnotes)


def _line(row: Row, before: Row | None, marks: tuple[int, ...], *, has_nodes: bool) -> Line:
    cells = [str(row.world_size)]
    if has_nodes:
        cells.append(str(row.nodes))
    if row.batch_rule == "strong":
        cells.append(str(row.batch_size))
    cells, says = _measured_cells(row, cells)
    return Line(
        cells=tuple(cells),
        says=says,
        flags=tuple(flag for flag in row.flags if flag not in ("FAILED", says)),
        marks=marks,
        crosses=row.nodes > 1 and before is not None and before.nodes == 1,
        efficiency=row.efficiency.mean if row.efficiency else None,
    )


def _measured_cells(row: Row, cells: list[str]) -> tuple[list[str], str]:
    """All cells, or those there are and what is said in place of the others."""
    if row.failed is not None:
        return cells, f"failed: {row.failed.cause}"
    cells = [*cells, words.rate(row.images_per_s), words.speedup(row.speedup)]
    if row.efficiency is None or row.loss is None:
        return cells, "OVERSUBSCRIBED" if "OVERSUBSCRIBED" in row.flags else "no baseline"
    loss = row.loss
    parts = [loss.contention, loss.straggling, loss.exposed]
    if row.batch_rule == "strong":
        parts.append(loss.small_batch)
    return [*cells, words.percent(row.efficiency), *map(words.fraction, (*parts, loss.unexplained))], ""


def _details(group: Sequence[Row]) -> Iterable[tuple[str, tuple[str, ...]]]:
    """What has no column: the second baseline, the two factors of efficiency across nodes, the training."""
    own = [row for row in group if row.world_size > 1 and row.strategy_efficiency]
    across = [row for row in group if row.intra_node is not None]
    trained = [row for row in group if row.first_loss is not None]
    yield "against its own N=1", tuple(_at(row, words.percent(row.strategy_efficiency)) for row in own)
    yield "intra-node x inter-node", tuple(_at(row, _two_factors(row)) for row in across)
    yield "training loss", tuple(_at(row, f"{row.first_loss:.3f} to {row.last_loss:.3f}") for row in trained)


def _at(row: Row, value: str) -> str:
    return f"N={row.world_size} {value}"


def _two_factors(row: Row) -> str:
    return f"{words.fraction(row.intra_node, ' %')} x {words.fraction(row.inter_node, ' %')}"


# ---------------------------------------------------------------- below the tables


def mark_text(marks: Sequence[int]) -> str:
    """`[1,2]`, or nothing."""
    return f"[{','.join(map(str, marks))}]" if marks else ""


def _plain(found: Analysis, notes: Notes) -> Iterable[tuple[str, ...]]:
    references = {row.batch_size if row.batch_rule == "weak" else row.global_batch_size for row in found.rows}
    conditions = zip(*(_conditions(one) for one in found.baselines), strict=True)
    varying = [index for index, values in enumerate(conditions) if len(set(values)) > 1]
    for one in found.baselines:
        name = ", ".join((one.strategy, *(_conditions(one)[index] for index in varying)))
        value = words.rate(one.images_per_s) if one.images_per_s else "failed"
        remark = "= 100 %" if one.batch_size in references and one.images_per_s else ""
        marks = mark_text(notes.marks(one.footnotes))
        yield f"{name}, one device", f"batch {one.batch_size}", value, f"{remark} {marks}".strip()


def _single_ranks(found: Analysis, context: Context) -> Iterable[tuple[str, ...]]:
    for row in found.rows:
        if row.world_size == 1 and row.images_per_s is not None:
            efficiency = words.percent(row.efficiency) if row.efficiency else ""
            batch = f"batch {row.batch_size}"
            yield f"{_title(row, context)}, one rank", batch, words.rate(row.images_per_s), efficiency


def _comparison(one: Comparison, context: Context) -> tuple[str, ...]:
    best, other = words.who(one.best, context.shared), words.who(one.other, context.shared)
    return str(one.world_size), best, other, _difference(one)


def _difference(one: Comparison) -> str:
    advantage = one.advantage
    if advantage is None or advantage.low is None or advantage.high is None:
        return "not compared: fewer than two rounds shared"
    low, high = advantage.low, advantage.high
    if not one.distinguishable:
        return f"not distinguishable ({words.fraction(low)} to {words.fraction(high)} %)"
    # The best by all its rounds may still lose in those that it shares with the other.
    word = "faster" if advantage.mean > 0 else "slower"
    low, high = sorted((abs(low), abs(high)))
    return f"{words.fraction(abs(advantage.mean))} % {word} ({words.fraction(low)} to {words.fraction(high)})"


def _how_to_read(found: Analysis) -> Iterable[str]:
    if not found.rows:
        return
    names = " or ".join(dict.fromkeys(one.strategy for one in found.baselines)) or "the plain loop"
    yield f"efficiency: speedup / N, against {names} on one device; ± is half the 95 % interval over rounds."
    if any(row.loss is not None for row in found.rows):
        strong = any(row.batch_rule == "strong" for row in found.rows)
        small = "small batch, 1/N of the batch costs more than 1/N of the time; " if strong else ""
        yield (
            "loss: contention, devices at work slow each other; straggling, the slowest rank against the "
            f"mean; exposed comm., exchange that compute does not hide; {small}unexplained, the rest, also "
            "when negative. With the efficiency they add up to 100 %."
        )
