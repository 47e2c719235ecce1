"""Where the lost efficiency went: the controls of a round, and the split of a step by cause.

All pure. A step's time is that of one rank: from the common start to its last device synchronisation,
divided by its steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from msgspec.structs import replace

from scaling.records import Failed, Finished, Kind, Point, PointRecord, Record

Key = tuple[Any, ...]
CAUSES = ("contention", "straggling", "exposed", "small_batch")
# What a missing control leaves inside "unexplained".
LEFT_OVER = {
    "solo": "contention and small batch",
    "together": "contention, straggling and exposed communication",
    "comm": "exposed communication",
}


class StepTime(Record, frozen=True):
    """Seconds of one step of a point: the mean over its ranks, and the longest rank."""

    mean_s: float
    max_s: float


class Loss(Record, frozen=True):
    """Fractions of the exchange's step time, means over rounds; with `unexplained` they add up to
    1 - efficiency. None: the control that tells it was not measured (its part is in `unexplained`).

    contention: the plain loop is slower with all devices at work (`solo` -> mean of `together`);
    straggling: the slowest rank against the mean of `together`; exposed: communication that compute does
    not hide (`together` -> `exchange`, at most what `comm` takes alone); small_batch: a device's part
    of a fixed global batch costs more than its share of the whole (0 under the weak rule).
    """

    contention: float | None
    straggling: float | None
    exposed: float | None
    small_batch: float | None
    unexplained: float


def step_time(record: PointRecord) -> StepTime | None:
    """Return the step time over all ranks; None where a rank has no measured time or the point failed."""
    if not isinstance(record.outcome, Finished) or not record.ranks:
        return None
    times = []
    for rank in record.ranks:
        steps = sum(window.steps for window in rank.windows)
        if not steps or rank.measured_s <= 0:
            return None
        times.append(rank.measured_s / steps)
    return StepTime(mean_s=fmean(times), max_s=max(times))


def lock_step(record: PointRecord) -> StepTime | None:
    """Of plain loops side by side: the longest rank of each window, since ranks that exchange gradients wait
    for whoever is last this time, and not only for who is slowest on the whole."""
    time = step_time(record)
    if time is None:
        return None
    steps = sum(window.steps for window in record.ranks[0].windows)
    longest_s = sum(
        max(w.seconds for w in same) for same in zip(*(rank.windows for rank in record.ranks), strict=False)
    )
    return replace(time, max_s=max(time.max_s, longest_s / steps))


def conditions(point: Point) -> Key:
    """What a control and its exchange always share."""
    return (point.model, point.data, point.device, point.precision, point.memory_format, point.compile)


def options(point: Point) -> tuple[tuple[str, str], ...]:
    """The strategy's options in a fixed order, hashable."""
    return tuple(sorted(point.options.items()))


def reference_batch(point: Point) -> int:
    """The batch of the one device behind efficiency: per device (weak rule) or global (strong rule)."""
    return point.batch_size if point.batch_rule == "weak" else point.global_batch_size


def _key(point: Point) -> Key:
    """By which an exchange finds this control. A plain loop uses no network and no strategy's options."""
    if point.kind == "solo":
        return _solo_key(point, point.strategy, point.batch_size)
    if point.kind == "together":
        return _together_key(point, point.strategy)
    return _comm_key(point)


def _solo_key(point: Point, plain: str, batch_size: int) -> Key:
    return ("solo", plain, batch_size, *conditions(point))


def _together_key(point: Point, plain: str) -> Key:
    return ("together", plain, point.batch_size, point.world_size, point.placement, *conditions(point))


def _comm_key(point: Point) -> Key:
    where = (point.interconnect, options(point), point.world_size, point.placement)
    return ("comm", point.strategy, *where, *conditions(point))


class Controls:
    """The controls of a sweep by what an exchange asks for; each answer is round -> step time."""

    def __init__(self, records: Iterable[PointRecord]) -> None:
        self._times: dict[Key, dict[int, StepTime]] = defaultdict(dict)
        self._failed: dict[Key, dict[int, Failed]] = defaultdict(dict)
        self.solos: dict[Key, dict[int, PointRecord]] = defaultdict(dict)
        self._plains: set[str] = set()
        self._records: dict[Key, dict[int, PointRecord]] = defaultdict(dict)
        for record in records:
            if record.point.kind != "exchange":
                self._add(record)

    def _add(self, record: PointRecord) -> None:
        point, key = record.point, _key(record.point)
        self._records[key][point.round] = record
        if point.kind == "solo":
            self._plains.add(point.strategy)
            self.solos[key][point.round] = record
        time = lock_step(record) if point.kind == "together" else step_time(record)
        if time is not None:
            self._times[key][point.round] = time
        elif isinstance(record.outcome, Failed):
            self._failed[key][point.round] = record.outcome

    def plain(self, strategy: str) -> str:
        """The plain loop that is the strategy's baseline: its framework's, or the only one there is
        (a strategy from outside may rest on any framework)."""
        name = strategy.partition(":")[0] + ":plain"
        return next(iter(self._plains)) if name not in self._plains and len(self._plains) == 1 else name

    def solo(self, point: Point, batch_size: int) -> Mapping[int, StepTime]:
        """The plain loop alone, at `batch_size`."""
        return self._times.get(_solo_key(point, self.plain(point.strategy), batch_size), {})

    def solo_records(self, point: Point) -> Mapping[int, PointRecord]:
        """The records behind the baseline of `point`, failed ones too."""
        return self.solos.get(_solo_key(point, self.plain(point.strategy), reference_batch(point)), {})

    def together(self, point: Point) -> Mapping[int, StepTime]:
        """As many plain loops as the point has ranks, at once, at its batch per device."""
        return self._times.get(_together_key(point, self.plain(point.strategy)), {})

    def comm(self, point: Point) -> Mapping[int, StepTime]:
        """The exchange of the model's gradients without compute."""
        return self._times.get(_comm_key(point), {})

    def behind(self, point: Point) -> Mapping[Kind, Sequence[PointRecord]]:
        """The controls that a row's efficiency and losses rest on."""
        plain = self.plain(point.strategy)
        solos = {_solo_key(point, plain, size) for size in (point.batch_size, reference_batch(point))}
        return {
            "solo": [record for key in solos for record in self._records.get(key, {}).values()],
            "together": list(self._records.get(_together_key(point, plain), {}).values()),
            "comm": list(self._records.get(_comm_key(point), {}).values()),
        }

    def why_missing(self, kind: Kind, point: Point, batch_size: int) -> str:
        """The cause of the first failure of the control that `point` lacks; empty where it was not tried."""
        plain = self.plain(point.strategy)
        keys = {
            "solo": _solo_key(point, plain, batch_size),
            "together": _together_key(point, plain),
            "comm": _comm_key(point),
        }
        failed = self._failed.get(keys[kind], {})
        return failed[min(failed)].cause if failed else ""


class Round(Record, frozen=True):
    """The step times of one round that explain an exchange, seconds; None where not measured.

    `ideal_s` is what a step would take at efficiency 1; `solo_s` one device alone at the point's batch.
    """

    number: int
    exchange_s: float
    ideal_s: float
    solo_s: float | None
    together: StepTime | None
    comm_s: float | None


def rounds(point: Point, exchange: Mapping[int, StepTime], controls: Controls) -> tuple[Round, ...]:
    """Join a cell's exchanges with the controls of their rounds; rounds without a baseline are left out."""
    share = 1 if point.batch_rule == "weak" else point.world_size
    reference = controls.solo(point, reference_batch(point))
    solo, together, comm = (
        controls.solo(point, point.batch_size),
        controls.together(point),
        controls.comm(point),
    )
    found = []
    for number, time in sorted(exchange.items()):
        if number not in reference:
            continue
        beside = together.get(number)
        if point.world_size == 1 and beside is None:
            beside = solo[number]  # one device beside none: the same thing
        one = Round(
            number=number,
            exchange_s=time.max_s,
            ideal_s=reference[number].max_s / share,
            solo_s=solo[number].max_s if number in solo else None,
            together=beside,
            comm_s=comm[number].max_s if number in comm else None,
        )
        found.append(one)
    return tuple(found)


def _causes(one: Round) -> dict[str, float | None]:
    """Fractions of the step by cause, None where a control is missing."""
    solo_s, together, step_s = one.solo_s, one.together, one.exchange_s
    seconds: dict[str, float | None] = dict.fromkeys(CAUSES)
    if solo_s is not None:
        seconds["small_batch"] = solo_s - one.ideal_s
    if solo_s is not None and together is not None:
        seconds["contention"] = together.mean_s - solo_s
    if together is not None:
        seconds["straggling"] = together.max_s - together.mean_s
    if together is not None and one.comm_s is not None:
        seconds["exposed"] = min(max(step_s - together.max_s, 0.0), one.comm_s)
    return {cause: None if value is None else value / step_s for cause, value in seconds.items()}


def split(measured: Sequence[Round]) -> Loss:
    """Return the loss by cause over rounds.

    A cause is the mean over the rounds that tell it; what is then left of 1 - efficiency, negative or
    not, is unexplained, so that the parts always add up to the whole.
    """
    by_round = [_causes(one) for one in measured]
    means: dict[str, float | None] = {}
    for cause in CAUSES:
        known = [value for causes in by_round if (value := causes[cause]) is not None]
        means[cause] = fmean(known) if known else None
    lost = 1 - fmean(one.ideal_s / one.exchange_s for one in measured)
    return Loss(unexplained=lost - sum(value for value in means.values() if value is not None), **means)


def missing_controls(point: Point, measured: Sequence[Round], controls: Controls) -> tuple[str, ...]:
    """Say which controls the split had to do without; a single device has none to miss."""
    if point.world_size == 1:
        return ()
    kinds: dict[Kind, int] = {
        "solo": sum(one.solo_s is None for one in measured),
        "together": sum(one.together is None for one in measured),
        # Without `together` nothing could be told from `comm` either.
        "comm": sum(one.comm_s is None and one.together is not None for one in measured),
    }
    return tuple(_missing(kind, count, point, measured, controls) for kind, count in kinds.items() if count)


def _missing(kind: Kind, count: int, point: Point, measured: Sequence[Round], controls: Controls) -> str:
    cause = controls.why_missing(kind, point, point.batch_size)
    failed = f" (failed: {cause})" if cause else ""
    left = LEFT_OVER[kind]
    if count == len(measured):
        return f"no {kind} control{failed}; counted as unexplained: {left}"
    return f"no {kind} control in {count} of {len(measured)} rounds{failed}; from the others: {left}"
