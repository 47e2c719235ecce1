"""The compare command, `python -m scaling compare BASE NEW`, and its exit codes."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from scaling.analysis.table.analyse import CODE, EXPECTED, differing
from scaling.analysis.table.cost import ON_DEMAND, Bill, Pricing, bill, read_prices
from scaling.analysis.table.rows import Row
from scaling.command import deliver, has_color, obey
from scaling.errors import UsageError
from scaling.report.archive import unpacked
from scaling.report.formats import markdown, terminal
from scaling.text import readable
from scaling.tools.compare import flags, launches, verdicts
from scaling.tools.compare import found as comparison
from scaling.tools.compare.flags import NAME, Asked
from scaling.tools.compare.found import ENOUGH_RUNS, METRICS, Found, Metric, Side, Unit, cost

Sides = tuple[tuple[Row, ...], ...]
ASSUMED = (
    "launches are assumed to differ by {:.1f} % (standard deviation): run each side three times, or keep older "
    "runs next to the base, to measure this"
)


def compare(asked: Asked) -> Found:
    """Compare both sides by cell. Raises UsageError if runs are unreadable, not alike, or measured no exchange."""
    anyway = asked.although_different
    before = comparison.read("BASE", asked.base, although_different=anyway)
    after = comparison.read("NEW", asked.new, although_different=anyway)
    counts = len(before.folders), len(after.folders)
    unit: Unit = "runs" if min(counts) >= ENOUGH_RUNS else "rounds"
    differences = differing((*before.headers, *after.headers))
    apart = tuple(f"{what} {values}" for what, values in differences.items() if what not in EXPECTED)
    expected = [f"{what}: {values}" for what, values in differences.items() if what in EXPECTED - {CODE}]
    rows = before.rows(unit), after.rows(unit)
    of_cost = asked.metric == "cost" and asked.prices
    by = _cost((before, after), rows, of_cost) if of_cost else METRICS[asked.quantity]
    older = launches.groups(before, after, asked.history) if unit == "rounds" else ()
    cells = verdicts.cells(*rows, verdicts.Rule(by, asked.loss, unit, anyway, apart, counts, older))
    if not cells:
        raise UsageError("RUN: neither side has measured an exchange: there is nothing to compare")
    return Found(
        metric=by.name,
        unit=unit,
        fail_above=asked.loss,
        base=before.names,
        new=after.names,
        notices=(
            *_notices(before, after, unit, apart if anyway else (), expected, rows[1]),
            *_of_launches([cell.launch_sd for cell in cells if cell.launch_sd and cell.launch_sd_is_assumed]),
        ),
        cells=cells,
        means=verdicts.means(cells) if by.is_ratio else (),
        learnt_from=sum(map(len, older)),
    )


def _cost(both: tuple[Side, Side], rows: tuple[Sides, Sides], path: Path) -> Metric:
    pricing = Pricing(read_prices(path))
    found = {
        id(row): of.per_million[how]
        for side, of_runs in zip(both, rows, strict=True)
        for header, of_run in zip(side.headers, of_runs, strict=False)
        for row in of_run
        if isinstance(of := bill(row, header, pricing), Bill)
        for how in ([ON_DEMAND] if ON_DEMAND in of.per_million else list(of.per_million)[:1])
    }
    return cost(found, pricing.currency)


def _notices(
    base: Side, new: Side, unit: Unit, apart: tuple[str, ...], expected: Iterable[str], rows: Sides
) -> Iterator[str]:
    emulated = sorted({row.hardware.label for of_run in rows for row in of_run if row.hardware.profile})
    if emulated:
        yield f"EMULATED: no device computed anything: {'; '.join(emulated)}"
    yield from (f"compared although they differ: {what}" for what in apart)
    yield from expected
    folders = {folder.resolve() for folder in base.folders}
    if same := [readable(folder.name) for folder in new.folders if folder.resolve() in folders]:
        yield f"the same run on both sides: {', '.join(same)}"
    if unit == "rounds" and max(len(base.folders), len(new.folders)) > 1:
        yield f"fewer than {ENOUGH_RUNS} runs on a side: their rounds are the unit"


def _of_launches(sds: Sequence[float]) -> Iterator[str]:
    """Tell what is assumed of how launches differ, and if the cells scatter more."""
    if sds:
        yield ASSUMED.format(100 * launches.ASSUMED_SD)
    if sds and max(sds) > launches.ASSUMED_SD:
        scatter = f"the changes of the cells scatter as if launches differed by {100 * max(sds):.1f} %"
        yield f"{scatter}: intervals are wider by that"


SLOWER, MISTAKE, UNTOLD = 1, UsageError.exit_code, 3
EMPTY = "RUN: no cell could be compared, so no slowdown could be detected; the table has the reasons"


def exit_code(found: Found, *, require_proof: bool) -> int:
    """Return 0: nothing slower, 1: slower, 2: nothing comparable, 3: a cell undecided with --require-proof."""
    if any(cell.is_lost for cell in found.cells):
        return SLOWER
    if all(cell.change is None and cell.verdict != "mended" for cell in found.cells):
        return MISTAKE  # no cell was compared, so no loss could be detected
    return UNTOLD if require_proof and any(cell.is_untold for cell in found.cells) else 0


def rendered(found: Found, asked: Asked, code: int) -> str:
    match asked.format:
        case "table":
            return terminal.draw(comparison.document(found), color=has_color(asked.output))
        case "markdown":
            return markdown.draw(comparison.document(found, verdict_first=True))
        case "json":
            return comparison.json(found, code)
        case "junit":
            return comparison.junit(found, require_proof=asked.require_proof)
        case "github-action-benchmark":
            return comparison.benchmark(found)


def _act(argv: Sequence[str]) -> int:
    if (asked := flags.parse(argv)) is None:
        return 0
    with unpacked((*asked.base, *asked.new)) as folders:
        base, new = ([folders[run] for run in runs] for runs in (asked.base, asked.new))
        found = compare(replace(asked, against=base, runs=new))
    code = exit_code(found, require_proof=asked.require_proof)
    deliver(rendered(found, asked, code), asked.output)
    if code == MISTAKE:
        raise UsageError(EMPTY)
    return code


def main(argv: Sequence[str] | None = None) -> int:
    try:
        return obey(_act, argv, NAME)
    except Exception:  # a bug: Python's own exit code, 1, would mean "slower"
        traceback.print_exc()
        return MISTAKE


if __name__ == "__main__":
    raise SystemExit(main())
