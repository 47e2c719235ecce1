"""When each point was measured: a lane per round. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import get_args

from scaling.records.events import Failed
from scaling.records.point import Kind
from scaling.records.run import PointRecord
from scaling.report.figures.parts import Figure, Lane, Lanes, Stretch, Table, stamps
from scaling.report.material import Material
from scaling.text import counted, duration

KINDS: tuple[Kind, ...] = get_args(Kind)
# Above this a point is drawn as one stretch, start-up included, and not window by window.
MOST_STRETCHES = 3000


def timeline(material: Material) -> Iterator[Figure]:
    """Of all points, controls too."""
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
        table=Table(("round", "points", "from", "to", "failed"), tuple(map(_line, lanes, by_round.values()))),
        stamps=stamps(_flags(records) | ({"FAILED"} if failures else set())),
        left_out="" if by_window else "points as a whole, start-up included; their windows have no room",
    )


def _flags(records: Iterable[PointRecord]) -> set[str]:
    """EMULATED, also where no exchange has ended: the seconds are those of the clock."""
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
    """The windows of the rank that has most."""
    rank = max(record.ranks, key=lambda one: len(one.windows), default=None)
    windows = rank.windows if rank else ()
    ends = ((window.end_unix_s - begin_s, window.seconds) for window in windows)
    return [Stretch(end_s - seconds, end_s) for end_s, seconds in ends]


def _whole(record: PointRecord, begin_s: float) -> Stretch:
    start_s = record.started_unix_s - begin_s
    return Stretch(start_s, start_s + record.wall_s)


def _joined(stretches: Sequence[Stretch]) -> Iterator[Stretch]:
    """Those that touch become one."""
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


def _line(lane: Lane, records: Sequence[PointRecord]) -> tuple[str, ...]:
    ends = [one for of in lane.stretches.values() for one in of]
    first, last = min((one.start_s for one in ends), default=0.0), max((one.end_s for one in ends), default=0.0)
    kinds = Counter(record.point.kind for record in records)
    points = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    return lane.label, points, duration(first), duration(last), str(len(lane.failures))
