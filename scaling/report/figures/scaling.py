"""Figures of speedup and efficiency over the number of devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from scaling.analysis.statistics.intervals import Estimate
from scaling.analysis.table.catalogue import drawn, mark_named, serious
from scaling.analysis.table.rows import Row
from scaling.report import labels, quantities
from scaling.report.figures.parts import Cross, Curve, Curves, Dot, Figure, Table
from scaling.report.material import Material
from scaling.report.parts import NONE, Quantity
from scaling.text import decimals

# With more curves, neither colours nor names are distinguishable.
MOST = 16
_LOWEST = "those that end lowest, are in the table only"
Value = Callable[[Row], Estimate | None]
Shown = Callable[[Estimate | None], Quantity | None]


def speedup(material: Material) -> Iterator[Figure]:
    """Make a figure per group of rows: speedup, or samples/s if no row has a speedup. One device has none."""
    for title, rows in _groups(material):
        if all(row.world_size == 1 for row in rows):
            continue
        if any(row.speedup for row in rows):
            dots = [tuple(_dots(of, _speedup_in(rows), _claims_speedup)) for of in _by_curve(rows)]
            body = _body(material, rows, _curves(material, rows, dots), "times one device", 1.0)
            yield _figure("speedup", f"Speedup{title}", body, rows, quantities.speedup)
        elif any(row.samples_per_s for row in rows):
            work = rows[0].workload
            dots = [tuple(_dots(of, lambda row: row.units_per_s)) for of in _by_curve(rows)]
            body = _body(material, rows, _curves(material, rows, dots), f"{work.unit}/s")
            shown = partial(quantities.rate, workload=work)
            yield _figure("speedup", f"{work.unit}/s, without a rate of one device{title}", body, rows, shown)


def efficiency(material: Material) -> Iterator[Figure]:
    """Make a figure per group of rows with an efficiency."""
    for title, rows in _groups(material):
        if any(row.efficiency for row in rows):
            dots = [tuple(_dots(of, _percent)) for of in _by_curve(rows)]
            body = _body(material, rows, _curves(material, rows, dots), "efficiency, %", 100.0)
            yield _figure("efficiency", f"Efficiency{title}", body, rows, _as_percent)


def _groups(material: Material) -> Iterator[tuple[str, list[Row]]]:
    for number in dict.fromkeys(row.group for row in material.rows):
        rows = [row for row in material.rows if row.group == number]
        varying = labels.varying(rows[0], material.context)
        yield (f": {', '.join(varying)}" if varying else ""), rows


def _by_curve(rows: Sequence[Row]) -> list[list[Row]]:
    return [[row for row in rows if row.curve == number] for number in dict.fromkeys(row.curve for row in rows)]


def _percent(row: Row) -> Estimate | None:
    return row.efficiency.times(100.0) if row.efficiency and not row.learnt_less else None


def _as_percent(found: Estimate | None) -> Quantity | None:
    return None if found is None else quantities.percent(found.times(0.01))


def _speedup_in(rows: Sequence[Row]) -> Value:
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


def _claims_speedup(row: Row) -> bool:
    return row.speedup is not None and not row.learnt_less


def _dots(rows: Sequence[Row], value: Value, claims: Callable[[Row], bool] = lambda _: True) -> Iterator[Dot]:
    for row in rows:
        if (found := value(row)) is not None and found.mean > 0:
            yield Dot(row.world_size, found.mean, found.low, found.high, drawn(row.flags), claims(row))


def _curves(material: Material, rows: Sequence[Row], dots: Sequence[tuple[Dot, ...]]) -> tuple[Curve, ...]:
    named = ((labels.curve(of, material.context), of[0].curve) for of in _by_curve(rows))
    return tuple(Curve(*name, of) for name, of in zip(named, dots, strict=True) if of)


def _body(
    material: Material, rows: Sequence[Row], curves: Iterable[Curve], upright: str, ideal: float | None = None
) -> Curves:
    """The boundary is the geometric mean of the largest world size on one node and the smallest on several; None
    if one is missing, or they overlap."""
    crosses = tuple(Cross(row.world_size, labels.name(row, material.context)) for row in rows if row.failed)
    inside = max((row.world_size for row in rows if row.nodes == 1 and not row.failed), default=0)
    across = min((row.world_size for row in rows if row.nodes > 1), default=0)
    boundary = float((inside * across) ** 0.5) if 0 < inside < across else None
    return Curves(upright, ideal == 100.0, tuple(curves), crosses, ideal, boundary)


def _figure(name: str, title: str, body: Curves, rows: Sequence[Row], shown: Shown) -> Figure:
    worth = {curve.number: _worth(curve) for curve in sorted(body.curves, key=_worth)}
    kept = sorted(worth, key=lambda number: worth[number], reverse=True)[:MOST]
    drawn = body._replace(curves=tuple(curve for curve in body.curves if curve.number in kept))
    unit = " %" if body.is_percent else ""
    more = len(worth) - len(kept)
    ends = [
        f"{curve.label} {dot.value:,.{decimals(dot.value)}f}{unit} at N={dot.at}"
        for curve in drawn.curves
        for dot in [dot for dot in curve.dots if dot.claimed][-1:]
    ]
    return Figure(
        name,
        title,
        says=f"{title}, over the number of devices: {'; '.join(ends) or 'nothing was measured'}",
        body=drawn,
        table=Table(("strategy", "N", body.upright, "marks"), tuple(_lines(body, shown))),
        stamps=serious({flag for row in rows for flag in row.flags}),
        left_out=f"{more} of {len(worth)} strategies, {_LOWEST}" if more else "",
    )


def _worth(curve: Curve) -> tuple[bool, int, float]:
    """Curves with a wrong row first, then those that end at the most devices and highest."""
    wrong = any(mark_named(dot.mark).is_wrong for dot in curve.dots)
    return wrong, curve.dots[-1].at, curve.dots[-1].value


def _lines(body: Curves, shown: Shown) -> Iterator[tuple[str, ...]]:
    for curve in body.curves:
        for dot in curve.dots:
            found = shown(Estimate(mean=dot.value, low=dot.low, high=dot.high, n=0)) if dot.claimed else None
            yield curve.label, str(dot.at), f"{found}" if found else NONE, dot.mark
    yield from ((cross.label, str(cross.world_size), NONE, "FAILED") for cross in body.crosses)
