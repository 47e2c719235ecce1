"""What the command line asks for -> what is found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from scaling.analysis.joining import CODE
from scaling.analysis.rows import Row
from scaling.compare import sides, verdicts
from scaling.compare.found import Found
from scaling.compare.metrics import METRICS
from scaling.compare.sides import ENOUGH_RUNS, Side, Unit
from scaling.errors import UsageError

UNKNOWN = "launch-to-launch variation is unknown: run each three times, or a second launch may tell otherwise"


def compare(
    base: tuple[Path, ...], new: tuple[Path, ...], *, metric: str, fail_above: float, although_different: bool
) -> Found:
    """Read both sides and compare them cell by cell.

    Raises UsageError when runs cannot be read or are not alike, and when there is nothing to compare.
    """
    before = sides.read("BASE", base, although_different=although_different)
    after = sides.read("NEW", new, although_different=although_different)
    unit = sides.unit_of(before, after)
    serious, expected = sides.apart(before, after)
    apart = tuple(f"{what} {values}" for what, values in serious.items())
    rule = verdicts.Rule(
        next(one for one in METRICS.values() if one.name == metric), fail_above, unit, although_different, apart
    )
    rows = before.rows(unit), after.rows(unit)
    cells = verdicts.cells(*rows, rule)
    if not cells:
        raise UsageError("RUN: neither side has measured an exchange: there is nothing to compare")
    return Found(
        metric=rule.metric.name,
        unit=unit,
        fail_above=fail_above,
        base=before.names,
        new=after.names,
        notices=tuple(_notices(before, after, unit, apart if although_different else (), expected, rows[1])),
        cells=cells,
        means=verdicts.means(cells) if rule.metric.is_ratio else (),
    )


def _notices(
    base: Side,
    new: Side,
    unit: Unit,
    apart: tuple[str, ...],
    expected: dict[str, str],
    rows: tuple[tuple[Row, ...], ...],
) -> Iterator[str]:
    """What a reader must know before any verdict."""
    emulated = sorted({row.hardware.label for of_run in rows for row in of_run if row.hardware.profile})
    if emulated:
        yield f"EMULATED: no device computed anything: {'; '.join(emulated)}"
    yield from (f"compared although they differ: {what}" for what in apart)
    yield from (f"{what}: {values}" for what, values in expected.items() if what != CODE)
    if unit == "rounds":
        yield UNKNOWN
    folders = {folder.resolve() for folder in base.folders}
    if same := [folder.name for folder in new.folders if folder.resolve() in folders]:
        yield f"the same run on both sides: {', '.join(same)}"
    if unit == "rounds" and max(len(base.folders), len(new.folders)) > 1:
        yield f"fewer than {ENOUGH_RUNS} runs on a side: their rounds are the unit"
