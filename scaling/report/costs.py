"""What training costs, in a report: a table for each curve. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10

from msgspec.structs import replace

from scaling.analysis.statistics.intervals import Estimate
from scaling.analysis.table import catalogue
from scaling.analysis.table.cost import Bill, Pricing, bill, knee
from scaling.analysis.table.entries import Column
from scaling.analysis.table.rows import Row
from scaling.records.run import Header
from scaling.report import labels, quantities
from scaling.report.curves import by_curve
from scaling.report.labels import Context
from scaling.report.parts import Cell, Detail, Line, Notes, Quantity, Section, Value

MACHINES = Column(key="machines", title="machines", is_text=True)
RELATIVE = Column(key="cost_relative", title="x plain loop")
SAME_PRICE = "all devices at one price"
EXCLUDED = "without storage, transfers, and the start of machines"


def sections(
    rows: Sequence[Row], header: Header, context: Context, pricing: Pricing, notes: Notes
) -> tuple[Section, ...]:
    """A table for each scaling curve: machines paid, and the price of a million images and of an epoch."""
    return tuple(_section(of_curve, header, context, pricing, notes) for of_curve in by_curve(rows))


def _section(rows: Sequence[Row], header: Header, context: Context, pricing: Pricing, notes: Notes) -> Section:
    bills = [bill(row, header, pricing) for row in rows]
    emulated = ", of the emulated cluster" if rows[0].hardware.profile else ""
    unit = rows[0].workload.unit
    known = [one for one in bills if isinstance(one, Bill)]
    relative = replace(RELATIVE, title=f"x {pricing.base.name}") if pricing.base else RELATIVE
    machines = (MACHINES, *_columns(known, unit)) if pricing.prices else ()
    return Section(
        title=f"Cost of {labels.title(rows, context)}, {pricing.currency or SAME_PRICE}{emulated}",
        columns=(catalogue.WORLD_SIZE, *machines, relative),
        lines=tuple(_line(row, of, notes) for row, of in zip(rows, bills, strict=True)),
        details=tuple(_knee(rows, header, pricing)),
        group=rows[0].group,
    )


def _columns(bills: Sequence[Bill], unit: str) -> tuple[Column, ...]:
    """One for each way in which any of them is bought; a table has room for one interval."""
    millions = dict.fromkeys(how for one in bills for how in one.per_million)
    epochs = dict.fromkeys(how for one in bills for how in one.per_epoch)
    return (
        *(_column("million", how, f"1e6 {unit}", first=how == next(iter(millions))) for how in millions),
        *(_column("epoch", how, "an epoch", first=False) for how in epochs),
    )


def _column(what: str, how: str, title: str, *, first: bool) -> Column:
    return Column(key=f"{what}_{how}", title=how.replace("_", " "), group=title, shows_interval=first)


def _line(row: Row, of: Bill | str, notes: Notes) -> Line:
    found: dict[str, Cell] = {catalogue.WORLD_SIZE.key: quantities.integer(row.world_size)}
    if isinstance(of, str):
        return Line(cells=found, says=of, flags=row.flags)
    found[MACHINES.key] = f"{of.machines} x {of.price}" if of.price else None
    # A bill is of samples, the table of what rates count: a sequence is many tokens.
    of_units = 1 / row.workload.units_per_sample
    found |= {f"million_{how}": _money(one.times(of_units)) for how, one in of.per_million.items()}
    found |= {f"epoch_{how}": _money(one) for how, one in of.per_epoch.items()}
    found[RELATIVE.key] = _times(of.relative) if of.relative else None
    return Line(cells=found, flags=row.flags, marks=notes.marks(_notes(row, of)))


def _notes(row: Row, of: Bill) -> tuple[str, ...]:
    """What is paid and not used, how old the price is."""
    count = row.world_size
    unused = f"{of.devices_paid} devices are paid, {count} used" if of.price and count < of.devices_paid else ""
    old = f"{of.price}: price of {of.price_is_old}" if of.price_is_old else ""
    excluded = f"cost: {EXCLUDED}" if of.price else ""
    return tuple(filter(None, (unused, old, excluded)))


def _money(of: Estimate) -> Quantity:
    """To three digits, and cents at least."""
    digits = max(2, 2 - floor(log10(of.mean))) if of.mean > 0 else 2
    return Quantity(value=of.mean, low=of.low, high=of.high, digits=digits, grouped=True)


def _times(of: Estimate) -> Quantity:
    return Quantity(value=of.mean, low=of.low, high=of.high, digits=2)


def _knee(rows: Sequence[Row], header: Header, pricing: Pricing) -> list[Detail]:
    """Up to where more devices are worth their price."""
    found = knee(rows, header, pricing)
    if found is None:
        return []
    said = f"added samples cost up to {pricing.knee:g} times the mean up to here"
    return [Detail(label="knee", values=(Value(world_size=found, phrase=(said,)),))]
