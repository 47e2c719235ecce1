"""A run in one line: date, devices, settings, and the fastest exchange at its largest world size.

The full analysis takes ten times as long as reading a run. So only the shown values are computed, with the
report's functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp, log
from pathlib import Path
from statistics import fmean
from string import ascii_uppercase
from typing import NamedTuple

from msgspec.structs import fields, replace

from scaling import files
from scaling.analysis.measured.cell import Cell
from scaling.analysis.measured.controls import Controls, less_work
from scaling.analysis.measured.rounds import logs, rounds
from scaling.analysis.table.analyse import EXPECTED, kept, launch
from scaling.analysis.table.catalogue import claims, marks_of
from scaling.analysis.table.comparisons import exchanges
from scaling.analysis.table.imported import cells
from scaling.analysis.table.rows import Contender, Found
from scaling.errors import UsageError
from scaling.records.events import Failed
from scaling.records.point import Point, Record, Workload
from scaling.records.run import Header, ImportedUnit, PointRecord
from scaling.records.store import FILE, is_being_written, load
from scaling.text import readable, several

# fields of a workload with words of their own
_SAID = frozenset({
    "model", "data", "batch_rule", "batch_size", "precision", "memory_format", "compile", "unit", "node_devices",
})  # fmt: skip
# defaults of the other fields; computed once, because fields() is slow and there may be 1,000 runs
_USUAL = {one.name: one.default for one in fields(Workload) if one.name not in _SAID}


class Headline(Record, frozen=True, kw_only=True):
    """The fastest exchange at a run's largest world size, means over rounds. `efficiency` is a fraction of 1 over
    one device, None if not claimed. `flags` are its own records' (SUPERLINEAR and DRIFTING need the full
    analysis)."""

    strategy: str
    interconnect: str
    world_size: int
    samples_per_s: float
    unit: ImportedUnit
    efficiency: float | None
    flags: tuple[str, ...] = ()
    units_per_sample: int = 1


class Sight(NamedTuple):
    """Mean rate of one exchange at one world size. `work` is `digits-cnn, batch 32`."""

    contender: Contender
    work: str
    world_size: int
    units_per_s: float
    unit: ImportedUnit
    flags: tuple[str, ...] = ()


class RunLine(Record, frozen=True, kw_only=True):
    """One run.

    * headline: None before any exchange ended
    * failed: number of failed points
    * like: letter of the group of comparable runs, A for the oldest
    """

    run: str
    started_unix_s: float
    hosts: str
    devices: str
    work: str
    strategies: tuple[str, ...]
    world_sizes: tuple[int, ...]
    rounds: int
    version: str
    git: str
    headline: Headline | None
    failed: int = 0
    is_running: bool = False
    like: str = ""
    conditions: str = ""
    seen: tuple[Sight, ...] = ()


class Unreadable(Record, frozen=True, kw_only=True):
    run: str
    reason: str


def read(results: Path, *, all_exchanges: bool = False) -> tuple[list[RunLine], list[Unreadable]]:
    """Read every run of a folder, the oldest first. Raises UsageError if it is not a folder or has no run."""
    try:
        folders = sorted(filter(_may_be_run, results.iterdir()))
    except OSError as error:
        raise UsageError(f"RESULTS_DIR {results}: {error.strerror}; give the folder with the runs") from None
    if not folders:
        is_run = (results / FILE).is_file()
        own = f"it is a run itself: give {results.resolve().parent}" if is_run else "it has no run"
        raise UsageError(f"RESULTS_DIR {results}: {own}")
    lines, unreadable = [], []
    for folder in folders:
        try:
            lines.append(line(folder, *load(folder), all_exchanges=all_exchanges))
        except UsageError as error:
            unreadable.append(Unreadable(run=readable(folder.name), reason=readable(str(error))))
    return lettered(sorted(lines, key=lambda one: (one.started_unix_s, one.run))), unreadable


def lettered(lines: Iterable[RunLine]) -> list[RunLine]:
    """Give each line the letter of its group of comparable runs, "" if it measured no exchange."""
    letters: dict[str, str] = {}
    found = []
    for one in lines:
        like = letters.setdefault(one.conditions, letter(len(letters))) if one.world_sizes else ""
        found.append(replace(one, like=like))
    return found


def letter(place: int) -> str:
    """Return A to Z, then AA, AB, ..."""
    more, last = divmod(place, len(ascii_uppercase))
    return (letter(more - 1) if more else "") + ascii_uppercase[last]


def _may_be_run(path: Path) -> bool:
    """Unreadable folders of other users count, so that they are reported."""
    try:
        return files.is_file(path / FILE)
    except PermissionError:
        return True


def line(folder: Path, header: Header, records: Sequence[PointRecord], *, all_exchanges: bool = False) -> RunLine:
    if header.is_import:
        return _imported(folder, header)
    latest = kept(records)
    points = [record.point for record in latest if record.point.kind == "exchange"]
    launched = launch(header)
    largest = max((point.world_size for point in points), default=0)
    controls = Controls(one for one in latest if one.point.kind in ("solo", "each"))
    shown = exchanges(one for one in latest if all_exchanges or one.point.world_size == largest)
    measured = [cell for cell in shown if cell.times]
    ended = (_headline(cell, controls) for cell in measured if cell.point.world_size == largest)
    return RunLine(
        run=readable(folder.name),
        started_unix_s=header.created_unix_s,
        hosts=several(sorted({host.hostname for host in header.hosts}), shown=2),
        devices=launched["devices"],
        work=_first(map(_work, points), "no exchange"),
        strategies=tuple(dict.fromkeys(point.strategy for point in points)),
        world_sizes=tuple(sorted({point.world_size for point in points})),
        rounds=len({point.round for point in points}),
        version=header.version,
        git=header.git,
        headline=max(ended, key=_rank, default=None),
        failed=sum(isinstance(record.outcome, Failed) for record in latest),
        is_running=is_being_written(folder),
        conditions=_conditions(launched, points),
        seen=tuple(map(_sight, measured)) if all_exchanges else (),
    )


def _first(works: Iterable[str], none: str) -> str:
    first, *more = dict.fromkeys(works) or (none,)
    return f"{first} and {len(more)} more" if more else first


def _imported(folder: Path, header: Header) -> RunLine:
    found = cells(header.imported)
    rated = ((cell.world_size, cell.rate.mean, cell) for cell in found if cell.rate)
    fastest = None
    if best := max(rated, key=lambda one: one[:2], default=None):
        size, rate, cell = best
        fastest = Headline(
            strategy=f"imported:{cell.tool}",
            interconnect="auto",
            world_size=size,
            samples_per_s=rate,
            unit=cell.unit,
            efficiency=cell.efficiency if cell.base_world_size == 1 else None,
            flags=cell.flags,
        )
    tools = [*(row.tool for row in header.imported), *(one.tool for one in header.bandwidths)]
    works = (
        ", ".join(filter(None, (cell.model or cell.tool, f"batch {cell.batch_size}" if cell.batch_size else "")))
        for cell in found
    )
    return RunLine(
        run=readable(folder.name),
        started_unix_s=header.created_unix_s,
        hosts="-",
        devices="-",
        work=_first(works, "bandwidths of a network"),
        strategies=tuple(dict.fromkeys(f"imported:{tool}" for tool in tools)),
        world_sizes=(),
        rounds=0,
        version=header.version,
        git=header.git,
        headline=fastest,
    )


def _work(point: Point) -> str:
    """`digits-cnn, batch 32`; defaults are left out."""
    work, rules = point.workload, {"weak": "", "strong": " in all", "node": " per node"}
    batch = f"batch {point.reference.batch_size}{rules[work.batch_rule]}"
    precision = "" if work.precision == "fp32" else f", {work.precision}"
    return f"{work.model}, {batch}{precision}{', compiled' if work.compile else ''}{_beside(work)}"


def _beside(work: Workload) -> str:
    """`, image size 448`; defaults are left out."""
    return "".join(
        f", {value}" if name == "pass_" else f", {name.replace('_', ' ')}{'' if value is True else f' {value}'}"
        for name, usual in _USUAL.items()
        if (value := getattr(work, name)) != usual
    )


def _conditions(launched: dict[str, str], points: Iterable[Point]) -> str:
    works = sorted({(point.reference, point.hardware, point.placement) for point in points})
    said = [value if what == "devices" else f"{what.removeprefix('versions of ')} {value}"
            for what, value in sorted(launched.items()) if what not in EXPECTED]  # fmt: skip
    work = "; ".join(
        f"{work.model} on {work.data}, {work.batch_rule}, batch {work.batch_size}, {work.precision}, "
        f"{work.memory_format}, {'compiled' if work.compile else 'eager'}{_beside(work)}, {hardware.label}, "
        f"{placement}"
        for work, hardware, placement in works
    )
    return "; ".join(filter(None, (work, ", ".join(said))))


def _sight(cell: Cell) -> Sight:
    point, work = cell.point, cell.point.workload
    contender = Contender(
        strategy=point.strategy,
        interconnect=point.interconnect,
        options=point.options,
        servers=point.servers,
        server_hosts=point.server_hosts,
    )
    rate = geometric_mean(cell.rates) * work.units_per_sample
    return Sight(contender, _work(point), point.world_size, rate, work.unit, marks_of(Found(cell)))


def _rank(one: Headline) -> tuple[bool, float]:
    """Order as in report/labels.py."""
    claims = one.efficiency is not None and not {"ASYNC", "MISLABELLED"} & set(one.flags)
    return claims, one.samples_per_s


def _headline(cell: Cell, controls: Controls) -> Headline:
    cell.less_work = less_work(cell, controls)
    claimed = logs(rounds(cell, controls)) if claims(cell) else []
    return Headline(
        strategy=cell.point.strategy,
        interconnect=cell.point.interconnect,
        world_size=cell.point.world_size,
        samples_per_s=geometric_mean(cell.rates),
        unit=cell.point.workload.unit,
        efficiency=exp(fmean(claimed)) if claimed else None,
        flags=marks_of(Found(cell)),
        units_per_sample=cell.point.workload.units_per_sample,
    )


def geometric_mean(values: Iterable[float]) -> float:
    return exp(fmean(map(log, values)))
