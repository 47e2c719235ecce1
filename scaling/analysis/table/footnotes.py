"""Footnotes of rows and baselines: failures, the audit, the network, slow ranks, missing controls, warnings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import exp, log
from statistics import fmean, median
from typing import NamedTuple

from scaling.analysis.measured import traffic
from scaling.analysis.measured.cell import AUDIT, Cell, waited_s
from scaling.analysis.measured.controls import Alone, Controls, by_seat
from scaling.analysis.measured.device_use import difference
from scaling.analysis.measured.rounds import Round
from scaling.analysis.measured.step_time import NO_RESULT
from scaling.analysis.statistics.contrasts import tested
from scaling.analysis.statistics.intervals import Estimate, Layout, differences, interval, known_mean, variance
from scaling.analysis.table import catalogue
from scaling.analysis.table.catalogue import claimless_marks, marks_of_control
from scaling.analysis.table.rows import Found
from scaling.quiet.notes import joined
from scaling.records.events import Failed
from scaling.records.point import Kind, Point
from scaling.records.run import PointRecord, WarningKind
from scaling.text import counted, percent, plural

# ---------------------------------------------------------------- slow and fast ranks

# Smaller differences are not reported.
ODD_LEAST = 0.015
# If all seats are equal, one is reported with this probability.
ODD_ERROR = 0.01
# Ranks that one note names.
ODD_NAMED = 4


class Odd(NamedTuple):
    """A seat and its distance from the median of the others, as a fraction of their time."""

    seat: int
    apart: float


def slow_ranks(cell: Cell, controls: Controls) -> Iterator[str]:
    """Report ranks that are slower or faster than the others alone, or lose more while all run."""
    size = cell.point.world_size
    control = controls.together(cell.point)
    beside = by_seat(control.times) if control else {}
    alone = controls.alone(cell.point, cell.point.workload.batch_size)
    each = alone.by_seat(cell.seats, size) if alone and len(cell.seats) > 1 else {}
    known = len(each) > 1
    where = {**cell.where, **(control.where if control else {})}
    how = "when alone" if known else "when all run"
    yield from _apart(odd(each if known else beside), where, how, waits=cell.synchronous)
    if known:
        shared = {seat: differences(beside[seat], column) for seat, column in each.items() if seat in beside}
        more = odd({seat: column for seat, column in shared.items() if column})
        if lost := [one for one in more if one.apart > 0]:
            said = "loses {} more than the others when all run"
            yield f"contention: {_worst(lost, where, said, lambda one: percent(one.apart, 1))}"


def odd(layout: Layout) -> list[Odd]:
    """Return the seats that differ significantly from the median of the others; of two seats the slow one.

    Each seat's own differences are tested (contrasts.py), because a noisy seat or node must not blame another.
    """
    import numpy as np  # imported here, because every rank imports this module

    apart: dict[str, list[float]] = {}
    for seat, column in layout.items():
        others = [other for name, other in layout.items() if name != seat]
        by_round = [
            value - median(beside)
            for number, value in sorted(column.items())
            if (beside := [other[number] for other in others if number in other])
        ]
        if len(by_round) > 1:
            apart[seat] = by_round
    seats = list(apart)[: 1 if len(layout) == 2 else None]  # two seats have one difference: one test
    variances, rounds = ([of(apart[seat]) for seat in seats] for of in (variance, len))
    half = tested(np.array(variances), np.array(rounds, float), [""] * len(seats), ODD_ERROR).half
    means = {
        seat: fmean(apart[seat])
        for seat, beyond in zip(seats, half, strict=True)
        if abs(fmean(apart[seat])) > max(log(1 + ODD_LEAST), beyond)
    }
    if len(layout) == 2:
        means = {seat: mean if seat in means else -mean for mean in means.values() for seat in layout}
    found = [Odd(int(seat), exp(mean) - 1) for seat, mean in means.items() if mean > 0 or len(layout) > 2]
    return sorted(found)


def _apart(found: Sequence[Odd], where: Mapping[int, str], how: str, *, waits: bool) -> Iterator[str]:
    """Report `slow rank: rank 3 on node2 (CPU 3) takes 20.0 % longer than the others when alone`."""
    if not found:
        return
    kinds = [kind for kind, sign in (("slow", 1), ("fast", -1)) if any(sign * one.apart > 0 for one in found)]
    is_one = len(found) == 1
    waiting = "; it waits for the others" if is_one else "; the fast ranks wait"
    listed = _worst(
        found,
        where,
        f"takes {{}} than the others {how}",
        lambda one: f"{percent(abs(one.apart), 1)} {'longer' if one.apart > 0 else 'less'}",
    )
    aside = waiting if waits and "fast" in kinds else ""
    yield f"{' and '.join(kinds)} {'rank' if is_one else 'ranks'}: {listed}{aside}"


def _worst(found: Sequence[Odd], where: Mapping[int, str], said: str, more: Callable[[Odd], str]) -> str:
    """Name the ranks that are farthest apart; `said` is a sentence about the first."""
    ranked = sorted(found, key=lambda one: -abs(one.apart))
    texts = (said.format(more(ranked[0])), *map(more, ranked[1:ODD_NAMED]))
    names = [f"{where.get(one.seat, f'rank {one.seat}')} {text}" for one, text in zip(ranked, texts, strict=False)]
    sizes = [f"{100 * abs(one.apart):.0f}" for one in ranked[ODD_NAMED:]]
    if sizes:
        low, high = min(sizes, key=int), max(sizes, key=int)
        names.append(f"and {counted(len(sizes), 'other')}, by {low if low == high else f'{low} to {high}'} %")
    return ", ".join(names)


# ---------------------------------------------------------------- missing controls and CPU time


def _lacking(point: Point, measured: Sequence[Round], controls: Controls) -> Iterator[str]:
    """Report the controls and the CPU time that the split of the loss lacks. A single device needs none. `comm` is
    not needed if a round has CPU time."""
    if point.world_size == 1:
        return
    if any(one.is_own for one in measured):
        yield "small batch: contention included, because the script's copies have the whole batch"
        return
    with_cpu = any(one.grown is not None for one in measured)
    needs_comm = [one.together is not None and one.most_exposed_s is None and not with_cpu for one in measured]
    beside = f"contention{', straggling' if measured[0].synchronous else ''} and exposed communication"
    # Causes that are counted in the rest if a control is missing.
    missing: tuple[tuple[Kind, int, str], ...] = (
        ("solo", sum(one.alone is None for one in measured), "contention and small batch"),
        ("together", sum(one.together is None for one in measured), beside),
        ("comm", sum(needs_comm), "exposed communication"),
    )
    for kind, count, left in missing:
        if count:
            where, cause = _in(count, len(measured)), controls.why_missing(kind, point, point.workload.batch_size)
            said = "from the other rounds" if where else "counted in the rest"
            yield f"no {kind} control{where}{f' (failed: {cause})' if cause else ''}; {said}: {left}"
    if whose := [one.untold_cpu for one in measured if one.untold_cpu]:
        split = ": the loss is split into exposed communication and the rest"
        rounds = f" in {len(whose)} of {len(measured)} rounds"
        said = f"{rounds}; from the other rounds: exchange's CPU and waiting" if with_cpu else split
        yield f"no CPU time {whose[0]}{said}"
    count = sum(one.data is None for one in measured)
    if count and (cause := controls.why_missing("held", point, point.workload.batch_size)):
        where = _in(count, len(measured))
        said = "; from the other rounds: data wait" if where else ": data wait counts as contention"
        yield f"no held control{where} (failed: {cause}){said}"


def _in(count: int, whole: int) -> str:
    """Return the rounds; "" if these are all."""
    return "" if count == whole else f" in {count} of {whole} rounds"


# ---------------------------------------------------------------- emulated rows


# Largest error of the emulator as a fraction of a step; above it, comparisons of networks may be wrong.
MOST_LATE = 0.005


def emulation_notes(cell: Cell) -> Iterator[str]:
    """Report what an emulated row assumes and what it leaves out."""
    found, point, nodes = cell.emulation, cell.point, cell.nodes
    if found is None:
        return
    if found.fitted:
        work = point.workload
        yield (
            f"FITTED: {work.unit}/s of one device at batch {work.batch_size} are not published; their fit is "
            f"{found.fitted}"
        )
    if point.world_size == 1:
        return
    step_s = point.workload.batch_size / found.samples_per_s
    if found.error_fraction is not None and found.error_fraction > MOST_LATE * (1 + 1e-6):
        share = percent(found.error_fraction, 1)
        yield (
            f"the last bucket takes {_ms(found.tail_s)} here, {_ms(found.wire_s)} on the emulated links: the "
            f"emulator's error is up to {share} of the step; raise --dilate, or leave it out"
        )
    if point.world_size > nodes and not found.inside:
        yield "not emulated: the links inside a node; its profile has no bandwidth of them"
    elif found.inside_s > found.wire_s:
        beside = f"; {_ms(found.wire_s)} of it run while bytes pass between nodes" if found.wire_s else ""
        bucket = "the last bucket" if found.error_fraction is not None else "DDP's last bucket"
        yield (
            f"not emulated: {found.inside} inside a node; {bucket} takes at least {_ms(found.inside_s)} there, "
            f"{percent(found.inside_s / step_s, 1)} of a step{beside}"
        )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"


# ---------------------------------------------------------------- footnotes

# Smaller slowdowns of the exchange during compute are not reported.
SLOWER_BESIDE = 1.05


def of_row(found: Found, controls: Controls, rounds: Sequence[Round], flags: Sequence[str]) -> Iterator[str]:
    """Return the notes of a row, worst first; `rounds` are those with a baseline."""
    cell, point, efficiency, later = found.cell, found.cell.point, found.efficiency, found.later
    yield from _findings(cell, flags)
    if "SUPERLINEAR" in flags:
        yield f"SUPERLINEAR: {_superlinear(cell, controls.baseline(point))}"
    yield from _stamps(cell, flags)
    if found.clocks is not None and (text := difference(found.clocks)):
        yield f"THROTTLED: {text}"
    if "DRIFTING" in flags:
        yield from (f"DRIFTING: {one}" for one in found.drifts)
        if later is not None and later.is_told:
            size = f"{100 * abs(later.change.mean):.1f} % {'higher' if later.change.mean > 0 else 'lower'}"
            yield (
                f"DRIFTING: after {later.after_s:.0f} s more of training its efficiency was {size}, relative to "
                "the first seconds; the first seconds are not typical"
            )
    if cell.receipt is not None and cell.receipt.why:
        asked = " and ".join(cell.receipt.wanted) or "RDMA"
        yield f"{cell.receipt.verdict}: asked for {asked}; {cell.receipt.why}"
    yield from cell.nccl_notes
    if efficiency:
        yield from _lacking(point, rounds, controls)
    yield from _no_baseline(point, controls, len(cell.times) - len(rounds), len(cell.times))
    behind = controls.cells_behind(point)
    for control in behind:  # needed or not; `solo` has a note of its own
        if control.point.kind != "solo":
            name = f"{control.point.kind} control at n{control.point.world_size}"
            yield from (f"its {name}: {text}" for text in _failures(control))
    if efficiency:
        yield from _controls(behind)
        yield from slow_ranks(cell, controls)
    yield from _comm_beside(rounds)
    yield from emulation_notes(cell)
    yield from cell.feed_notes
    if point.workload.script:
        yield from _script_notes(cell, controls, efficiency)
    yield from _conditions(cell, controls if efficiency else None)
    yield from _warnings(cell)
    yield from filter(None, [traffic.slow_path(cell.paths)])


def of_baseline(cell: Cell) -> Iterator[str]:
    """Return the notes of a baseline, worst first."""
    flags = marks_of_control(cell)
    yield from _findings(cell, flags)
    yield from _stamps(cell, flags)
    yield from emulation_notes(cell)
    yield from cell.feed_notes
    yield from _conditions(cell, None)
    yield from _warnings(cell)


# ---------------------------------------------------------------- the cell's own records


def _findings(cell: Cell, flags: Sequence[str]) -> Iterator[str]:
    yield from _failures(cell)
    yield from _counted(cell, cell.audits)
    yield from filter(None, [cell.less_work])
    on_gpus = f"{cell.point.world_size} ranks on {counted(cell.gpus, 'GPU')}"
    sharing = on_gpus if cell.gpus else "more workers than cores"
    crowding = next((record.crowding for record in cell.records if record.crowding), sharing)
    for mark, reason in claimless_marks().items():
        # The receipt has a note of its own.
        if mark in flags and not (cell.receipt and cell.receipt.verdict == mark):
            why = crowding if mark == "OVERSUBSCRIBED" else reason
            yield f"{mark}: {why}; no speedup, efficiency, loss or rank is claimed"


def _failures(cell: Cell) -> Iterator[str]:
    """Report each cause of failure once, with its count, its place and the log. A baseline has the records of
    several points: then kind and world size are named."""
    by_cause: dict[tuple[str, str], list[tuple[Point, Failed]]] = {}
    for record in cell.records:
        point, outcome = record.point, record.outcome
        failed = outcome if isinstance(outcome, Failed) else None if point.round in cell.times else NO_RESULT
        if failed is not None:
            by_cause.setdefault((point.cell, failed.cause), []).append((point, failed))
    tried = Counter(record.point.cell for record in cell.records)
    for (name, _), failures in by_cause.items():
        point, failed = failures[0]
        which = f"{point.kind} N={point.world_size}: " if len(tried) > 1 else ""
        count, rounds = len(failures), tried[name]
        often = f"all {rounds}" if count == rounds else f"{count} of {rounds}"
        yield f"{which}{'failed' if rounds == count == 1 else f'{often} rounds failed'}: {describe(failed)}"


def describe(failed: Failed) -> str:
    """Format a failure: `oom: out of memory (rank 3 on node2; log: logs/...)`."""
    where = f"rank {failed.rank} on {failed.host}" if failed.host else ""
    log = f"log: {failed.log}" if failed.log else ""
    details = "; ".join(text for text in (where, log) if text)
    text = f"{failed.cause}: {failed.message}" if failed.message else failed.cause
    return f"{text} ({details})" if details else text


def _counted(cell: Cell, said: Iterable[tuple[int, str]]) -> Iterator[str]:
    rounds = len({record.point.round for record in cell.records})
    for text, count in Counter(text for _, text in dict.fromkeys(said)).items():
        yield text if rounds == 1 else f"{text} ({count} of {rounds} rounds)"


def _stamps(cell: Cell, flags: Sequence[str]) -> Iterator[str]:
    warned = {warning.kind for record in cell.records for warning in record.warnings}
    if "UNSETTLED" in flags and "unsettled" not in warned:
        yield "UNSETTLED: step times still drifted when the measured windows began"
    if cell.throttle_reasons and "throttled" not in warned:
        yield f"THROTTLED: {', '.join(cell.throttle_reasons)}"


def _comm_beside(rounds: Sequence[Round]) -> Iterator[str]:
    logs = [log(one.comm_beside_s / one.comm_s) for one in rounds if one.comm_beside_s and one.comm_s]
    found = interval(logs) if logs else None
    if found is not None and found.low is not None and found.low > log(SLOWER_BESIDE):
        yield f"communication takes {exp(found.mean):.2g} times as long during compute as alone"


def _warnings(cell: Cell) -> Iterator[str]:
    # The row has a note of its own for foreign load. Older records warn of the power limit too.
    is_fine = cell.clocks is not None and not cell.throttle_reasons
    told: tuple[WarningKind, ...] = ("foreign-load", "throttled") if is_fine else ("foreign-load",)
    said = []
    for record in cell.records:
        texts = [warning.text for warning in record.warnings if warning.kind not in told]
        said += [(record.point.round, text) for text in (*texts, *(f"retried: {text}" for text in record.retries))]
    yield from _counted(cell, said)


# ---------------------------------------------------------------- baseline and controls


def _superlinear(cell: Cell, alone: Alone | None) -> str:
    point, baseline = cell.point, alone.whole if alone else None
    if baseline is not None and baseline.throttle_reasons:
        return f"the baseline's device was throttled ({', '.join(baseline.throttle_reasons)})"
    if baseline is not None and baseline.devices and not cell.devices <= baseline.devices:
        names, own = (", ".join(sorted(devices)) for devices in (baseline.devices, cell.devices))
        return f"the baseline ran on {names}, the row also on {own}"
    if point.workload.share(point.world_size) > 1:
        batch = point.workload.batch_size
        return f"probably the smaller batch of {batch} per device: its data fit the caches better"
    return "probably the baseline's machine was busier or its clocks lower; measure on an idle machine"


def _conditions(cell: Cell, controls: Controls | None) -> Iterator[str]:
    yield from cell.kernel_notes
    beside = controls.together(cell.point) if controls else None
    yield from (f"its together control: {note}" for note in (beside.kernel_notes if beside else ()))
    yield from cell.load.notes()
    near = controls.cells_behind(cell.point, ("solo", "together")) if controls else ()
    behind = [one for one in near if one.load.kind]
    kinds = list(dict.fromkeys(one.point.kind for one in behind))
    whose = f"its {' and '.join(kinds)} {plural(len(kinds), 'control')}"
    yield from (f"{whose}: {note}" for note in joined(one.load for one in behind).notes())


def _no_baseline(point: Point, controls: Controls, count: int, measured: int) -> Iterator[str]:
    if count == 0 or controls.is_plain(point):
        return
    batch_size = point.reference.batch_size
    cause = controls.why_missing("solo", point, batch_size)
    why = f"failed: {cause}" if cause else "was not measured"
    if point.workload.script and not cause:
        why += ": a step on one device has other samples, neither as many (weak scaling) nor all ranks' (strong)"
    plain = controls.plain(point.strategy)
    yield f"no efficiency{_in(count, measured)}: the baseline {plain} at batch {batch_size} {why}"


def _controls(behind: Iterable[Cell]) -> Iterator[str]:
    marks: dict[str, set[str]] = {}
    for cell in behind:
        marks.setdefault(cell.point.kind, set()).update(marks_of_control(cell))
    for kind, found in marks.items():
        if doubts := [one.name for one in catalogue.MARKS if one.name in found and kind not in one.harmless_in]:
            yield f"its {kind} control is {', '.join(doubts)}"


# ---------------------------------------------------------------- scripts
#
# A user's own script: its pauses, its waiting for data, its baseline, what its ranks saw.

# A part of a step that one device waits for data is named from here on; so is a change by pauses.
LEAST_WAIT, LEAST_PAUSED = 0.05, 0.01
PAUSES = "pauses:"


def _script_notes(cell: Cell, controls: Controls, efficiency: Estimate | None) -> Iterator[str]:
    """Yield the notes of a script's exchange."""
    alone = controls.baseline(cell.point)
    own, of_one = _of_ranks(cell.records), _of_ranks(alone.records) if alone else {}
    yield from (note for note in of_one if not note.startswith(PAUSES))
    if alone is not None:
        # Waiting that one device has too is lost throughput, and no lost scaling.
        seconds = waited_s(alone.records)
        step_s = known_mean(time.harmonic_s for cell in alone.cells for time in cell.times.values())
        if seconds and step_s and seconds > LEAST_WAIT * step_s:
            part = min(seconds / step_s, 1.0)
            yield f"waiting for data: one device alone waits {100 * part:.0f} % of a step for its loader"
    for notes_, where in ((own, ""), (of_one, " (on one device)")):
        if pauses := max((note for note in notes_ if note.startswith(PAUSES)), key=len, default=""):
            yield f"{pauses}{where}{_with_pauses(cell, alone, efficiency)}"
            break
    yield from (note for note in own if not note.startswith(PAUSES))


def _of_ranks(records: Iterable[PointRecord]) -> dict[str, None]:
    """The notes of all ranks, each once."""
    told = (one for record in records for rank in record.ranks for one in (rank.ready, rank.result) if one)
    return dict.fromkeys(note for one in told for note in one.notes if not note.startswith(AUDIT))


def _with_pauses(cell: Cell, alone: Alone | None, efficiency: Estimate | None) -> str:
    """Return the efficiency with the pauses of all steps, which windows leave out."""
    if alone is None or efficiency is None or not cell.times:
        return ""
    step_s = fmean(time.step_s for time in cell.times.values())
    share = cell.point.workload.share(cell.point.world_size)
    found = (efficiency.mean * step_s + _paused_s(alone.records) / share) / (step_s + _paused_s(cell.records))
    if abs(found - efficiency.mean) < LEAST_PAUSED:
        return ""
    return f"; with its pauses the efficiency is {100 * found:.0f} %"


def _paused_s(records: Iterable[PointRecord]) -> float:
    """Return the seconds of pauses of a step, mean over ranks and rounds."""
    windows = [
        window
        for record in records
        for rank in record.ranks
        for window in (*rank.warmup, *rank.windows, *rank.disturbed, *rank.later)
    ]
    steps = sum(window.steps for window in windows)
    return sum(window.paused_s for window in windows) / steps if steps else 0.0
