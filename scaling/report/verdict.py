"""The summary of a run: how well it scales, the largest losses, advice."""

from __future__ import annotations

from collections.abc import Iterator

from scaling.analysis.table import catalogue
from scaling.analysis.table.catalogue import claimless, mark_named, serious
from scaling.analysis.table.rows import Column, Row
from scaling.records.point import Record
from scaling.report import imported, quantities, words
from scaling.report.headline import headline
from scaling.report.material import Material
from scaling.report.parts import Quantity
from scaling.text import counted, decimals, one_line, several

# Smaller losses are not named.
LEAST = 0.01
NAMED = 6
NEAR_LIMIT = 0.8


class Tile(Record, frozen=True, kw_only=True):
    """A number in large type, with its label."""

    number: str
    says: str


class Banner(Record, frozen=True, kw_only=True):
    """A serious mark, and the rows that have it."""

    mark: str
    says: str


class Verdict(Record, frozen=True, kw_only=True):
    """The sentence, the advice for the largest loss ("" without one), the tiles, the headline's serious marks."""

    sentence: str
    advice: str = ""
    tiles: tuple[Tile, ...] = ()
    stamps: tuple[str, ...] = ()


def verdict(material: Material) -> Verdict:
    """Return the verdict on the headline row."""
    row = headline(material.rows)
    if row is None and material.header.is_import:
        return _imported(material)
    if row is None:
        return Verdict(sentence="No exchange of this run has ended: there is no result.")
    name, on = material.label(row), counted(row.world_size, "device")
    stamps = serious(row.flags)
    if row.failed is not None:
        return Verdict(
            sentence=f"On {on} {name} failed: {row.failed.cause}.", advice=_below(material), stamps=stamps
        )
    rate = quantities.rate(row.samples_per_s, row.workload)
    sentence = f"On {on} {name} trains {words.text((rate,)) if rate else words.NONE}"
    speedup, efficiency = quantities.speedup(row.speedup), _efficiency(row)
    if speedup is None or efficiency is None:
        sentence += f". No efficiency is claimed: {_why_none(row)}."
    else:
        sentence += f", {words.mean(speedup)} times one device: {words.mean(efficiency)} of the ideal."
        sentence += _lost(row) + _ranked(row)
    return Verdict(sentence=sentence, advice=_advice(row), tiles=tuple(_tiles(row)), stamps=stamps)


def _efficiency(row: Row) -> Quantity | None:
    return None if row.learnt_less else quantities.percent(row.efficiency)


def _why_none(row: Row) -> str:
    if row.learnt_less:
        return "its samples teach less than those of synchronous ranks (ASYNC)"
    if row.is_plain:
        return "it is the plain loop"
    mark = claimless(row)
    return f"{mark_named(mark).claimless} ({mark})" if mark else "its plain loop is missing"


def _imported(material: Material) -> Verdict:
    cell = imported.headline(material.header)
    if cell is None or cell.rate is None:
        return Verdict(sentence="The imported logs have no rate of a training.", stamps=("IMPORTED",))
    rate = f"{cell.rate.mean:,.{decimals(cell.rate.mean)}f} {cell.unit}/s"
    sentence = f"{cell.tool} says: {rate} on {counted(cell.world_size, 'device')}"
    if cell.speedup is not None and cell.efficiency is not None:
        share = _percent(cell.efficiency)
        sentence += f", {cell.speedup:.2f} times its own rate on one: {share} of the ideal"
    return Verdict(sentence=f"{sentence}. It was not measured here.", stamps=("IMPORTED",))


def _losses(row: Row) -> list[tuple[Column, float]]:
    found = [(cause, getattr(row.breakdown, cause.key)) for cause in catalogue.causes([row])]
    known = [(cause, value) for cause, value in found if value >= LEAST and not _is_noise(row, cause, value)]
    return sorted(known, key=lambda one: -one[1])


def _is_noise(row: Row, cause: Column, value: float) -> bool:
    return quantities.part(value, row.breakdown_intervals.get(cause.key)).is_noise


def _lost(row: Row) -> str:
    said = [f"{_percent(value)} to {_called(cause)}" for cause, value in _losses(row)[:3]]
    return f" Lost: {', '.join(said)}." if said else ""


def _ranked(row: Row) -> str:
    verdicts = {one.verdict for one in (row.standing, row.framework_standing) if one}
    if verdicts == {"best"}:
        return " It is significantly faster than its rivals."
    return " It is tied with at least one rival." if "leading" in verdicts else ""


def _called(cause: Column) -> str:
    if cause.key == "unexplained":
        return "the rest, which no control explains"
    return cause.title.replace("comm.", "communication")


def _percent(value: float) -> str:
    return words.mean(quantities.fraction(value))


def _advice(row: Row) -> str:
    if "MISLABELLED" in row.flags:
        return "The bytes took another network than its name says, so there is no advice."
    losses = _losses(row)
    if not losses or row.world_size == 1:
        return ""
    return f"What would help: {losses[0][0].advice}.{_network(row)}"


def _network(row: Row) -> str:
    """Name the busiest path if it had bytes to send most of the time."""
    if not row.paths or row.paths[0].busy_share < NEAR_LIMIT:
        return ""
    busiest = row.paths[0]
    return (
        f" {busiest} had bytes to send for {_percent(busiest.busy_share)} of the time: the network is the limit."
    )


def _below(material: Material) -> str:
    """Name the largest world size that was measured, if a larger one failed."""
    row = headline([row for row in material.rows if row.failed is None])
    if row is None:
        return "No other row has a result."
    on = counted(row.world_size, "device")
    return f"The largest measured row: {on}, {material.label(row)}, {_rate(row)}."


def _rate(row: Row) -> str:
    rate = quantities.rate(row.samples_per_s, row.workload)
    return words.text((rate,)) if rate else words.NONE


def _tiles(row: Row) -> Iterator[Tile]:
    rate, speedup = quantities.rate(row.samples_per_s, row.workload), quantities.speedup(row.speedup)
    if rate:
        half = f"± {words.half(rate)}, " if words.half(rate) else ""
        yield Tile(number=words.mean(rate), says=f"{half}on {counted(row.world_size, 'device')}")
    if speedup and not row.learnt_less:
        half = f", ± {words.half(speedup)}" if words.half(speedup) else ""
        yield Tile(number=f"{words.mean(speedup)} x", says=f"speedup of {row.world_size}{half}")
    if efficiency := _efficiency(row):
        half = words.half(efficiency)
        yield Tile(number=words.mean(efficiency), says=f"efficiency{f', ± {half}' if half else ''}")
    for cause, value in _losses(row)[:1]:
        yield Tile(number=_percent(value), says=f"largest loss: {cause.title}")


# ---------------------------------------------------------------- banners


def banners(material: Material) -> tuple[Banner, ...]:
    """Return a banner per serious mark, worst first. EMULATED has a notice in the document."""
    marks = serious({flag for row in material.rows for flag in row.flags})
    return tuple(Banner(mark=mark, says=_about(mark, material)) for mark in marks if mark_named(mark).about)


def _about(mark: str, material: Material) -> str:
    found = [row for row in material.rows if mark in row.flags]
    names = several([f"{one_line(material.label(row))} N={row.world_size}," for row in found], NAMED).rstrip(",")
    rows = counted(len(material.rows), "row")
    return f"{len(found)} of {rows}: {mark_named(mark).about}: {names}"
