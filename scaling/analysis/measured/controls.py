"""The control runs of a sweep: plain loops alone, other controls, the check for less work; pools of cells.

A pool is the exchanges of one framework's work on one kind of device at all world sizes, and the plain loops
behind them. `comm` is not in it, because it does another work. Its cells share a test of drift and of the soak.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from math import exp, expm1, log, sqrt
from statistics import fmean
from typing import Any, NamedTuple

from scaling.analysis.measured.cell import Cell, by_round, cells
from scaling.analysis.measured.cpu import Use, mean_of
from scaling.analysis.measured.step_time import Blocks, StepTime, by_rate, harmonic, lock_step, step_time
from scaling.analysis.statistics.intervals import (
    Drift,
    Estimate,
    Lasting,
    Layout,
    additive,
    differences,
    least_squares,
    quantile,
    trimmed,
    variance,
    welch,
)
from scaling.quiet import notes as quiet
from scaling.records.events import Failed, Window
from scaling.records.point import BESIDE, Kind, Point, Record
from scaling.records.run import PointRecord
from scaling.records.telemetry import GpuTime

# ---------------------------------------------------------------- plain loops alone
#
# The ideal rate of a row is the sum of its seats' rates alone (`each`), so its ideal step time is their harmonic
# mean. Seats that a round lacks are filled by an additive fit of seats and rounds to logarithms. If only one seat
# was measured (`solo`), it represents all.


class AloneTime(Record, frozen=True, kw_only=True):
    """Seconds of a step of a row's seats, each alone, in one round: harmonic mean, mean, and by seat.

    `blocks` are logarithms by window (step_time.by_rate).
    """

    harmonic_s: float
    mean_s: float
    seats: Mapping[int, float]
    blocks: Blocks
    epoch: int | None
    use: Use | None


def by_seat(times: Mapping[int, StepTime]) -> dict[str, dict[int, float]]:
    """Return logarithms of step times by seat and round."""
    found: dict[str, dict[int, float]] = {}
    for number, time in sorted(times.items()):
        for seat, one in sorted(time.seats.items()):
            found.setdefault(str(seat), {})[number] = log(one.step_s)
    return found


class Alone:
    """Plain loops alone of one framework, work and kind of device; at least one record."""

    def __init__(self, records: Sequence[PointRecord]) -> None:
        self.records = records
        self.cells = cells(records)
        self._found: dict[tuple[frozenset[int], int], dict[int, AloneTime]] = {}

    @cached_property
    def whole(self) -> Cell:
        return Cell(self.records)

    def seats(self, world_size: int) -> frozenset[int]:
        """Return the seats measured at this world size, or else at any."""
        own = [cell for cell in self.cells if cell.point.world_size == world_size]
        times = (time for cell in own or self.cells for time in cell.times.values())
        return frozenset(seat for time in times for seat in time.seats)

    @cached_property
    def of_all_seats(self) -> Mapping[int, AloneTime]:
        return self.times(self.seats(0), 0)

    def times(self, seats: Collection[int], world_size: int) -> Mapping[int, AloneTime]:
        """Return the times of these seats by round, preferably measured at this world size."""
        key = (frozenset(seats), world_size)
        if key not in self._found:
            self._found[key] = self._times(key[0], world_size)
        return self._found[key]

    def by_seat(self, seats: Collection[int], world_size: int) -> dict[str, dict[int, float]]:
        """Return logarithms of the measured step times, by seat and round."""
        found = by_seat(self._sources(seats, world_size))
        return {seat: of for seat, of in found.items() if int(seat) in seats}

    def _sources(self, seats: Collection[int], world_size: int) -> dict[int, StepTime]:
        """By round, the nearest cell with any of these seats, or else the nearest cell. This world size is
        nearest, then the widest; `solo` is last."""
        found: dict[int, StepTime] = {}
        nearest = sorted(
            self.cells,
            key=lambda cell: (
                cell.point.kind != "each", cell.point.world_size != world_size, -cell.point.world_size, cell.name
            ),
        )  # fmt: skip
        for wanted in (frozenset(seats), None):
            for cell in nearest:
                for number, time in cell.times.items():
                    if wanted is None or wanted & time.seats.keys():
                        found.setdefault(number, time)
        return dict(sorted(found.items()))

    def _times(self, seats: frozenset[int], world_size: int) -> dict[int, AloneTime]:
        sources = self._sources(seats, world_size)
        if not sources:
            return {}
        layout: Layout = self.by_seat(seats, world_size)
        if not layout:  # another seat represents these
            layout = {"": {number: log(time.harmonic_s) for number, time in sources.items()}}
        columns, rows = additive(layout)
        found = {}
        for number, time in sources.items():
            if number not in rows:
                continue
            filled = {seat: exp(of.get(number, columns[seat] + rows[number])) for seat, of in layout.items()}
            known = {int(seat): value for seat, value in filled.items() if seat}
            found[number] = AloneTime(
                harmonic_s=harmonic(filled.values()),
                mean_s=fmean(filled.values()),
                seats=known,
                blocks=_blocks(time, columns) if known else time.blocks,
                epoch=time.epoch,
                use=self._use(number, time, known),
            )
        return found

    def _use(self, number: int, time: StepTime, seats: Collection[int]) -> Use | None:
        cpu = next((cell.cpu.get(number) for cell in self.cells if cell.times.get(number) is time), None)
        if cpu is None:
            return None
        found = [use for seat, use in cpu.seats.items() if seat in seats] or list(cpu.seats.values())
        return mean_of(found, len(found))


def _blocks(time: StepTime, columns: Mapping[str, float]) -> Blocks:
    """Corrects for the seats missing in a block: seats' differences are known from all rounds."""
    apart = {int(seat): exp(column) for seat, column in columns.items()}
    known = [(apart[seat], one.blocks) for seat, one in time.seats.items() if seat in apart]
    return by_rate(harmonic(apart.values()), known)


# ---------------------------------------------------------------- controls

Key = tuple[Any, ...]


def key_of(kind: Kind, point: Point, strategy: str, batch_size: int | None = None, world_size: int = 0) -> Key:
    """Return the key of a control of this point. By default it has the point's batch and world size."""
    if kind in ("solo", "each"):  # they use no network and no options
        return ("solo", strategy, point.workload.alone(batch_size), point.hardware)
    if kind in BESIDE:
        size = world_size or point.world_size
        return (kind, strategy, point.workload.alone(), point.hardware, size, point.placement)
    # The batch size does not matter for gradients.
    where = (point.interconnect, point.sorted_options, point.world_size, point.placement)
    work = point.workload.alone(0)
    return ("comm", strategy, work, point.hardware, *where, point.servers, point.server_hosts)


class Control(Cell):
    """One control over its rounds; of several records of a round the last by key counts."""

    def __init__(self, records: Sequence[PointRecord]) -> None:
        super().__init__(list({record.point.round: record for record in records}.values()))
        # Plain loops at once are timed in lock step.
        self.times = by_round(records, lock_step if self.point.kind in BESIDE else step_time)


class Controls:
    """The controls of a sweep by key; facts are cached until a new record of the key."""

    def __init__(self, records: Iterable[PointRecord] = ()) -> None:
        self._records: dict[Key, dict[str, PointRecord]] = defaultdict(dict)
        self._made: dict[Key, Alone | Control] = {}
        self.plains: set[str] = set()
        for record in records:
            if record.point.kind != "exchange" and not record.point.hosts:
                self.put(record)

    def put(self, record: PointRecord) -> None:
        """Add the record of a control, replacing an older one of its point."""
        point = record.point
        key = key_of(point.kind, point, point.strategy)
        self._records[key][point.key] = record
        self._made.pop(key, None)
        if key[0] == "solo":
            self.plains.add(point.strategy)

    def _sorted(self, key: Key) -> list[PointRecord]:
        found = self._records.get(key, {})
        return sorted(found.values(), key=lambda one: (one.point.round, one.point.key))

    def of_key(self, key: Key) -> Alone | Control | None:
        """Return a control; it is another object after a new record of its key."""
        if key not in self._made and key in self._records:
            self._made[key] = (Alone if key[0] == "solo" else Control)(self._sorted(key))
        return self._made.get(key)

    def _alone(self, key: Key) -> Alone | None:
        found = self.of_key(key)
        return found if isinstance(found, Alone) else None

    def baselines(self) -> list[Alone]:
        """Return all plain loops alone, in table order."""
        keys = sorted(key for key in self._records if key[0] == "solo")
        return [alone for key in keys if (alone := self._alone(key))]

    def plain(self, strategy: str) -> str:
        """Return the plain loop that is the strategy's baseline: its framework's.

        For an external strategy (`package.module:mode`) it is the sweep's only plain loop.
        """
        framework = strategy.partition(":")[0]
        return next(iter(self.plains)) if "." in framework and len(self.plains) == 1 else f"{framework}:plain"

    def is_plain(self, point: Point) -> bool:
        """Return whether an exchange is a plain loop without a baseline of its own."""
        return point.strategy == self.plain(point.strategy) and self.baseline(point) is None

    def alone(self, point: Point, batch_size: int) -> Alone | None:
        """Return the plain loops alone at `batch_size`, failed rounds included; None if not tried."""
        return self._alone(key_of("solo", point, self.plain(point.strategy), batch_size))

    def baseline(self, point: Point) -> Alone | None:
        return self.alone(point, point.reference.batch_size)

    def times_alone(self, cell: Cell, batch_size: int) -> Mapping[int, AloneTime]:
        """Return by round the times alone of a cell's devices at `batch_size`."""
        alone = self.alone(cell.point, batch_size)
        if alone is None:
            return {}
        size = cell.point.world_size
        return alone.times(cell.seats or alone.seats(size), size)

    def together(self, point: Point, kind: Kind = "together", world_size: int = 0) -> Control | None:
        """Return the plain loops on all devices at once, at the point's batch per device. Those of kind `held`
        have one batch that stays on the device, those of kind `feed` do not train."""
        found = self.of_key(key_of(kind, point, self.plain(point.strategy), world_size=world_size))
        return found if isinstance(found, Control) else None

    def comm(self, point: Point) -> Control | None:
        """Return the exchange of gradients without compute."""
        found = self.of_key(key_of("comm", point, point.strategy))
        return found if isinstance(found, Control) else None

    def gpu_times(self, point: Point) -> tuple[GpuTime, ...]:
        """Return by rank the GPU times of the plain loop on as many devices as the point has."""
        if point.world_size > 1:
            found: Cell | None = self.together(point)
        else:
            alone = self.alone(point, point.workload.batch_size)
            found = Control(alone.records) if alone else None
        return found.gpu_times if found else ()

    def keys_behind(self, point: Point) -> Mapping[Kind, Sequence[Key]]:
        """Return the keys of the controls behind a row's efficiency and losses, sorted."""
        plain, both = self.plain(point.strategy), {1, point.world_size}
        batches = (point.workload.batch_size, point.reference.batch_size)
        return {
            "solo": sorted({key_of("solo", point, plain, size) for size in batches}),
            "together": [key_of("together", point, plain)],
            "comm": [key_of("comm", point, point.strategy)],
            "held": sorted(key_of("held", point, plain, world_size=size) for size in both),
            "feed": sorted(key_of("feed", point, plain, world_size=size) for size in both),
        }

    def cells_behind(self, point: Point, kinds: Collection[Kind] = ()) -> list[Cell]:
        """Return the controls behind a row, of these kinds or of all."""
        behind = self.keys_behind(point)
        found = [self.of_key(key) for kind in kinds or behind for key in behind[kind]]
        return [cell for one in found if one for cell in (one.cells if isinstance(one, Alone) else (one,))]

    def why_missing(self, kind: Kind, point: Point, batch_size: int) -> str:
        """Return the first failure's cause of the control that `point` lacks; empty if not tried."""
        solo = key_of("solo", point, self.plain(point.strategy), batch_size)
        for key in [solo] if kind == "solo" else self.keys_behind(point)[kind]:
            records = self._sorted(key)
            failed = {one.point.round: one.outcome for one in records if isinstance(one.outcome, Failed)}
            if failed:
                return failed[min(failed)].cause
        return ""


# ---------------------------------------------------------------- less work
#
# An honest exchange computes what the plain loop computes at the same batch. The evidence is CPU time on CPUs (it
# does not grow by waiting), step time elsewhere. Strategies whose ranks update only some parameters are skipped.

# Least part of the plain loop's time; a lower one in every round is reported. In a single round foreign load on
# the plain loop's cores alone makes a fifth: that one must be lower.
LEAST_PART, LEAST_PART_OF_ONE = 0.85, 0.65
# CPU time below this part of a step is not computing (a scripted step sleeps).
LEAST_BUSY = 0.2


def less_work(cell: Cell, controls: Controls) -> str:
    """Compare a cell with its plain loops; return how it does less, "" if it does not."""
    alone, on_cpu = controls.baseline(cell.point), cell.point.hardware.device == "cpu"
    if not cell.updates_all or alone is None or alone.whole.throttle_reasons:
        return ""
    if not cell.devices <= alone.whole.devices:
        return ""
    parts = list(_of_cpu_time(cell, controls) if on_cpu else _of_step_time(cell, controls))
    if not parts or max(parts) >= (LEAST_PART if len(parts) > 1 else LEAST_PART_OF_ONE):
        return ""
    what = "CPU time of a step" if on_cpu else "time of a step"
    return (
        f"audit: the {what} is at most {100 * max(parts):.0f} % of the plain loop's in all rounds: it computes "
        "less than its samples need, or uses other code than its baseline"
    )


def _of_cpu_time(cell: Cell, controls: Controls) -> Iterator[float]:
    own = controls.times_alone(cell, cell.point.workload.batch_size)
    together = controls.together(cell.point)
    for number, cpu in cell.cpu.items():
        alone = own.get(number)
        if alone is None or alone.use is None or alone.use.run_s < LEAST_BUSY * alone.mean_s:
            continue
        beside = together.cpu.get(number) if together else None
        yield cpu.mean.run_s / min(alone.use.run_s, beside.mean.run_s if beside else alone.use.run_s)


def _of_step_time(cell: Cell, controls: Controls) -> Iterator[float]:
    own = controls.times_alone(cell, cell.point.workload.batch_size)
    for number, time in cell.times.items():
        if number in own:
            yield time.step_s / min(own[number].harmonic_s, *own[number].seats.values())


# ---------------------------------------------------------------- drift
#
# The mean slope of many points of a kind is tested by Student's t, because one point's slope is mostly noise.
# A unit is a point measured alone or an epoch: the machine's drift hits all points of an epoch equally.
# The kinds of one work are tested at ERROR in all (Bonferroni).

ERROR = 0.01
LEAST_UNITS = 3
# Least change over the measured windows worth a stamp, as a fraction of a step.
LEAST = 0.005


def drifts(by_kind: Mapping[Kind, Iterable[Sequence[Blocks]]]) -> tuple[Drift, ...]:
    """Return the kinds of points with a significant drift; each unit is a sequence of points."""
    found = []
    for kind, units in sorted(by_kind.items()):
        # A slope needs three windows.
        known = [points for unit in units if (points := [windows for windows in unit if len(windows) > 2])]
        if len(known) >= LEAST_UNITS:
            found.append(_drift(kind, known))
    level = 1 - ERROR / max(1, len(found))
    return tuple(one for one in found if abs(one.t) > quantile(one.units - 1, level) and abs(one.whole) > LEAST)


def _drift(kind: Kind, units: Sequence[Sequence[Blocks]]) -> Drift:
    slopes = [fmean(least_squares(list(windows.items())).slope for windows in unit) for unit in units]
    error, mean = sqrt(variance(slopes) / len(slopes)), fmean(slopes)
    points = list(chain.from_iterable(units))
    return Drift(
        kind=kind,
        per_window=mean,
        windows=round(fmean(map(len, points))),
        points=len(points),
        units=len(units),
        t=mean / error if error else 0.0,
    )


class Shared(NamedTuple):
    """Facts of one pool: drifts, number of soaked exchanges."""

    drifts: tuple[Drift, ...]
    soaked: int


def of_pool(cells: Iterable[Cell], controls: Controls) -> Shared:
    """Return the facts of one pool of exchanges, each of which claims an efficiency.

    Drift is of first tries: repeated windows would make the first blocks of a round look faster than the last.
    """
    measured = [cell for cell in cells if cell.times]
    behind = (controls.cells_behind(cell.point, ("solo", "together")) for cell in measured)
    found = {one.name: one for one in chain(measured, *behind)}
    # By kind: points of one epoch and round together, others alone.
    units: dict[Kind, dict[Key, list[Blocks]]] = defaultdict(lambda: defaultdict(list))
    for name, cell in sorted(found.items()):
        for number, time in cell.at_first:
            units[cell.point.kind][number, name if time.epoch is None else time.epoch].append(time.blocks)
    by_kind = {kind: of.values() for kind, of in units.items()}
    return Shared(drifts(by_kind), sum(cell.soaked for cell in measured))


# ---------------------------------------------------------------- soak
#
# Whether an efficiency lasts while the same processes train on (soak).
#
# The ratio of plain loop and exchange, which take turns (sweep/epoch.py), is tested block by block for a trend by
# rank (Mann, "Nonparametric tests against trend", Econometrica 13, 1945; Kendall's tau). The change is the trimmed
# mean of the last blocks less that of the measured ones of all rounds, with Welch's degrees of freedom (Yuen &
# Dixon, "The approximate behaviour and performance of the two-sample trimmed t", Biometrika 60, 1973).

LEAST_BLOCKS = 3
# Blocks after this part of the extra time show the changed efficiency.
LATE = 2 / 3


def lasting(exchanges: Sequence[PointRecord], plain_loops: Sequence[PointRecord]) -> Lasting | None:
    """Return the change of an exchange in the round that was soaked with its plain loop; None without one."""
    pairs = [
        (exchange, plain)
        for exchange in exchanges
        for plain in plain_loops
        if (plain.point.round, plain.epoch) == (exchange.point.round, exchange.epoch)
    ]
    found = (_compared(*pair, pairs) for pair in pairs if all(any(r.soaked for r in one.ranks) for one in pair))
    return next((one for one in found if one), None)


def _compared(
    exchange: PointRecord, plain: PointRecord, pairs: Iterable[tuple[PointRecord, PointRecord]]
) -> Lasting | None:
    """Uses the seat of the soaked plain loop; `pairs` are of all rounds."""
    from scipy.stats import kendalltau  # type: ignore[import-untyped]

    after = step_time(quiet.later(plain))
    if after is None:
        return None
    seat, late_s, own = min(after.seats), _late_s(exchange.ranks[0].later), step_time(quiet.later(exchange))
    measured, later = _measured(exchange, plain, seat), differences(after.blocks, own.blocks) if own else {}
    late = [ratio for index, ratio in later.items() if index in late_s]
    if min(len(measured), len(late)) < LEAST_BLOCKS:
        return None
    by_round = [trimmed(found).mean for pair in pairs if (found := _measured(*pair, seat))]
    apart = welch(trimmed(by_round if len(by_round) > 1 else measured), trimmed(late))
    df = max(1, int(apart.df)) if apart.se else apart.n - 1
    half = quantile(df) * (apart.se or 0.0)
    low, high = apart.mean - half, apart.mean + half
    change = Estimate(mean=apart.mean, low=low, high=high, n=apart.n, df=df).each(expm1)
    ratios = (*measured, *later.values())
    trend = kendalltau(range(len(ratios)), ratios)
    # A trend against the change is none towards it.
    p = float(trend.pvalue) if trend.statistic * change.mean > 0 else 1.0
    return Lasting(change=change, after_s=min(late_s.values()), p=p)


def _measured(exchange: PointRecord, plain: PointRecord, seat: int) -> Sequence[float]:
    """Logarithms of plain loop over exchange, block by block; empty if one failed."""
    own, alone = step_time(exchange), step_time(plain)
    if not (own and alone) or seat not in alone.seats:
        return ()
    return list(differences(alone.seats[seat].blocks, own.blocks).values())


def _late_s(later: Iterable[Window]) -> dict[int, float]:
    """Window index -> seconds of training before it, for the last third of the extra time."""
    ages_s, age_s = {}, 0.0
    for window in later:
        age_s += window.seconds * window.uncounted_samples / window.samples if window.samples else 0.0
        ages_s[window.index] = age_s
        age_s += window.seconds
    return {index: before_s for index, before_s in ages_s.items() if before_s >= LATE * age_s}
