"""Figures of speedup and efficiency over the number of devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from msgspec.structs import replace

from scaling.analysis.statistics.intervals import Estimate
from scaling.analysis.table.catalogue import drawn, mark_named, serious
from scaling.analysis.table.rows import Row
from scaling.analysis.table.unmeasured import Judged
from scaling.report import labels, quantities, words
from scaling.report.figures.parts import Cross, Curve, Curves, Dot, Figure, Table
from scaling.report.material import Material
from scaling.report.parts import Quantity
from scaling.text import decimals

# With more curves, neither colours nor names are distinguishable.
MOST = 16


def speedup(material: Material) -> Iterator[Figure]:
    """Make a figure per group of rows: speedup, or samples/s if no row has a speedup. One device has none."""
    for title, rows in _groups(material):
        if all(row.world_size == 1 for row in rows):
            continue
        if any(row.speedup for row in rows):
            measured = _curves(
                material, rows, _speedup_in(rows), upright="times one device", ideal=1.0, claims=_claims_speedup
            )
            body = _with_predicted(measured, material, rows, lambda one: float(one.world_size))
            yield _figure("speedup", f"Speedup{title}", body, rows, quantities.speedup)
        else:
            work = rows[0].workload
            unit = work.unit
            body = _curves(
                material, rows,
                lambda row: row.units_per_s,
                upright=f"{unit}/s", ideal=None,
            )  # fmt: skip
            shown = partial(quantities.rate, workload=work)
            yield _figure("speedup", f"{unit}/s, without a rate of one device{title}", body, rows, shown)


def efficiency(material: Material) -> Iterator[Figure]:
    """Make a figure per group of rows with an efficiency."""
    for title, rows in _groups(material):
        if any(row.efficiency for row in rows):
            measured = _curves(material, rows, _percent, upright="efficiency, %", ideal=100.0, is_percent=True)
            body = _with_predicted(measured, material, rows, lambda _: 100.0)
            yield _figure("efficiency", f"Efficiency{title}", body, rows, _as_percent)


def _groups(material: Material) -> Iterator[tuple[str, list[Row]]]:
    found: dict[int, list[Row]] = {}
    for row in material.rows:
        found.setdefault(row.group, []).append(row)
    for rows in found.values():
        varying = labels.varying(rows[0], material.context)
        yield (f": {', '.join(varying)}" if varying else ""), rows


def _percent(row: Row) -> Estimate | None:
    return row.efficiency.times(100.0) if row.efficiency and not row.learnt_less else None


def _as_percent(found: Estimate | None) -> Quantity | None:
    return None if found is None else quantities.percent(found.times(0.01))


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


def _claims_speedup(row: Row) -> bool:
    return row.speedup is not None and not row.learnt_less


def _all(_: Row) -> bool:
    return True


def _curves(
    material: Material,
    rows: Sequence[Row],
    value: Callable[[Row], Estimate | None],
    *,
    upright: str,
    ideal: float | None,
    is_percent: bool = False,
    claims: Callable[[Row], bool] = _all,
) -> Curves:
    by_curve: dict[int, list[Row]] = {}
    for row in rows:
        by_curve.setdefault(row.curve, []).append(row)
    crosses = tuple(
        Cross(world_size=row.world_size, label=labels.name(row, material.context)) for row in rows if row.failed
    )
    return Curves(
        upright=upright,
        is_percent=is_percent,
        curves=tuple(
            Curve(label=labels.curve(of, material.context), number=number, dots=dots)
            for number, of in by_curve.items()
            if (dots := tuple(_dots(of, value, claims)))
        ),
        crosses=crosses,
        ideal=ideal,
        boundary=_boundary(rows),
    )


def _with_predicted(
    body: Curves, material: Material, rows: Sequence[Row], scale: Callable[[Judged], float]
) -> Curves:
    first, context = {row.curve: row for row in reversed(rows)}, material.context
    found = (
        Curve(label=f"{labels.curve([row], context)}, PREDICTED", number=number, dots=dots, band=True)
        for number, row in first.items()
        if (dots := tuple(_predicted(material.judged, row, scale)))
    )
    return replace(body, curves=(*body.curves, *found))


def _predicted(of: Iterable[Judged], row: Row, scale: Callable[[Judged], float]) -> Iterator[Dot]:
    for one in of:
        low, high = one.predicted_efficiency_low, one.predicted_efficiency_high
        if one.predicted_efficiency is None or not one.claimed or not one.is_of_curve(row):
            continue
        yield Dot(
            world_size=one.world_size,
            value=one.predicted_efficiency * scale(one),
            low=None if low is None else low * scale(one),
            high=None if high is None else high * scale(one),
            mark=one.kind,
        )


def _dots(
    rows: Iterable[Row], value: Callable[[Row], Estimate | None], claims: Callable[[Row], bool]
) -> Iterator[Dot]:
    for row in rows:
        if (found := value(row)) is not None and found.mean > 0:
            yield Dot(
                world_size=row.world_size,
                value=found.mean,
                low=found.low,
                high=found.high,
                mark=drawn(row.flags),
                claimed=claims(row),
            )


def _boundary(rows: Iterable[Row]) -> float | None:
    """Return the geometric mean of the largest world size on one node and the smallest on several. None if one is
    missing, or they overlap."""
    inside = [row.world_size for row in rows if row.nodes == 1 and not row.failed]
    across = [row.world_size for row in rows if row.nodes > 1]
    if not inside or not across or max(inside) >= min(across):
        return None
    return float((max(inside) * min(across)) ** 0.5)


def _figure(
    name: str, title: str, body: Curves, rows: Sequence[Row], shown: Callable[[Estimate | None], Quantity | None]
) -> Figure:
    drawn = _fewer(body)
    more = len(body.curves) - len(drawn.curves)
    return Figure(
        name=name,
        title=title,
        says=_says(title, drawn),
        body=drawn,
        table=Table(("strategy", "N", body.upright, "marks"), tuple(_lines(body, shown))),
        stamps=serious({flag for row in rows for flag in row.flags}),
        left_out=f"{more} of {len(body.curves)} strategies, those that end lowest, are in the table only"
        if more
        else "",
    )


def _fewer(body: Curves) -> Curves:
    """Keep `MOST` curves: those with a wrong row, then those that end at the most devices and highest."""

    def worth(curve: Curve) -> tuple[bool, int, float]:
        marked = any(mark_named(dot.mark).is_wrong for dot in curve.dots)
        return marked, curve.dots[-1].world_size, curve.dots[-1].value

    kept = {curve.number for curve in sorted(body.curves, key=worth, reverse=True)[:MOST]}
    return replace(body, curves=tuple(curve for curve in body.curves if curve.number in kept))


def _lines(body: Curves, shown: Callable[[Estimate | None], Quantity | None]) -> Iterator[tuple[str, ...]]:
    for curve in body.curves:
        for dot in curve.dots:
            found = shown(Estimate(mean=dot.value, low=dot.low, high=dot.high, n=0)) if dot.claimed else None
            text = words.text((found,)) if found else words.NONE
            mark = f"{dot.mark}, ± half of the 80 % interval" if curve.band else dot.mark
            yield curve.label, str(dot.world_size), text, mark
    yield from ((cross.label, str(cross.world_size), words.NONE, "FAILED") for cross in body.crosses)


def _says(title: str, body: Curves) -> str:
    unit = " %" if body.is_percent else ""
    ends = [
        f"{curve.label} {dot.value:,.{decimals(dot.value)}f}{unit} at N={dot.world_size}"
        for curve in body.curves
        for dot in [dot for dot in curve.dots if dot.claimed][-1:]
    ]
    return f"{title}, over the number of devices: {'; '.join(ends) or 'nothing was measured'}"
