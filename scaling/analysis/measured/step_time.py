"""The time of one step of a record: by its slowest rank, by the mean of its ranks, by seat and by block.

A rank's step time runs from the common start to its last device synchronisation, divided by its steps. A point's
is:

    synchronous   the longest rank's; side by side, at least the mean of the longest of each block
    asynchronous  N x batch / the sum of the ranks' own rates: the harmonic mean with equal batches
    each          the harmonic mean, since its ranks ran alone in turn

Slow windows are counted fully: ranks wait for steps that stall.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from math import exp, fsum, log, sqrt
from statistics import fmean, median
from typing import NamedTuple

from msgspec.structs import replace

from scaling.analysis.statistics.intervals import quantile, variance
from scaling.records.events import Failed, Finished, Window
from scaling.records.point import Record
from scaling.records.run import PointRecord

# ---------------------------------------------------------------- windows that belong to the warm-up

# With fewer windows nothing is left out.
LEAST_WINDOWS = 4
# High, because the kept windows are chosen to be alike.
SETTLED_CONFIDENCE = 0.999
# Smaller differences are rounding errors.
ROUNDING = 1e-9


def settled(ranks: Sequence[Mapping[int, float]]) -> int:
    """Return the index of the first window that counts; earlier ones are left out on all ranks.

    `ranks` are logarithms of step times by window, each taken about its own mean, since windows may differ.
    """
    by_index: dict[int, list[float]] = {}
    for rank in ranks:
        level = fmean(rank.values()) if rank else 0.0
        for index, value in rank.items():
            by_index.setdefault(index, []).append(value - level)
    indices = sorted(by_index)
    return indices[truncation([fmean(by_index[index]) for index in indices])] if indices else 0


def truncation(values: Sequence[float]) -> int:
    """Return how many leading values to leave out: the least standard error of the rest (White's MSER, 1997).

    At most half, and 0 unless they differ significantly (Student's t): MSER alone picks the quietest part of
    noise.
    """
    count = len(values)
    if count < LEAST_WINDOWS:
        return 0
    level = fmean(values)
    total = squares = 0.0
    errors: list[float] = []  # from the last value backwards
    for kept, value in enumerate(reversed(values), start=1):
        total += value - level
        squares += (value - level) ** 2
        errors.append((squares - total * total / kept) / kept**2)
    best = min(range(count // 2 + 1), key=lambda first: errors[count - first - 1])
    head, rest = values[:best], values[best:]
    if best == 0 or len(rest) < 3:
        return 0
    error = sqrt(variance(rest) * (1 / len(head) + 1 / len(rest)))
    apart = max(ROUNDING, quantile(len(rest) - 1, SETTLED_CONFIDENCE) * error)
    return best if abs(fmean(head) - fmean(rest)) > apart else 0


# ---------------------------------------------------------------- step time

# Window index -> natural logarithm of a step's seconds.
Blocks = Mapping[int, float]
NO_RESULT = Failed(cause="no-result", message="ended without measured windows")


class SeatTime(Record, frozen=True, kw_only=True):
    """Seconds of a step of the rank on one seat, and their logarithms by window."""

    step_s: float
    blocks: Blocks


class StepTime(Record, frozen=True, kw_only=True):
    """Seconds of one step of a point: its own (for rates and efficiency), and means of its ranks' times and rates.

    `seats` are by rank of the launch. `blocks` are comparable with those of another point of the same `epoch`.
    """

    step_s: float
    mean_s: float
    harmonic_s: float
    seats: Mapping[int, SeatTime] = {}
    blocks: Blocks = {}
    epoch: int | None = None


def step_time(record: PointRecord) -> StepTime | None:
    """Return the step time over all ranks; None if a rank has no measured time or the point failed.

    For emulated devices it is clock time / `dilate`. In kind `each`, ranks without a turn are left out.
    """
    if not isinstance(record.outcome, Finished):
        return None
    has_turns, dilate = record.point.kind == "each", record.point.hardware.dilate
    ranks = [rank for rank in record.ranks if rank.windows or not has_turns]
    # Side by side, all points are equally warm.
    logs = [_logs(rank.windows, dilate) for rank in ranks]
    kept = settled(logs) if record.epoch is None and logs else 0
    seats: dict[int, SeatTime] = {}
    for rank, blocks in zip(ranks, logs, strict=True):
        windows = [window for window in rank.windows if window.index >= kept]
        steps, seconds = sum(one.steps for one in windows), sum(one.seconds for one in windows)
        if not steps:
            return None
        counted = {index: value for index, value in blocks.items() if index >= kept}
        seats[rank.launch_rank] = SeatTime(step_s=seconds / steps / dilate, blocks=counted)
    by_rates = has_turns or not record.synchronous
    return _joined(seats, record.epoch, by_rates=by_rates) if seats else None


def _joined(seats: dict[int, SeatTime], epoch: int | None, *, by_rates: bool) -> StepTime:
    times = list(seats.values())
    harmonic_s = harmonic(seat.step_s for seat in times)
    if by_rates:
        blocks = by_rate(harmonic_s, [(seat.step_s, seat.blocks) for seat in times])
    else:
        shared = set(times[0].blocks).intersection(*(seat.blocks for seat in times))
        blocks = {index: max(seat.blocks[index] for seat in times) for index in sorted(shared)}
    longest_s = max(seat.step_s for seat in times)
    if epoch is not None and blocks:
        longest_s = max(longest_s, mean_s(blocks.values()))
    return StepTime(
        step_s=harmonic_s if by_rates else longest_s,
        mean_s=fmean(seat.step_s for seat in times),
        harmonic_s=harmonic_s,
        seats=seats,
        blocks=blocks,
        epoch=epoch,
    )


def lock_step(record: PointRecord) -> StepTime | None:
    """Return the step time of plain loops at once as if each step (or window) took that of its slowest rank."""
    time = step_time(record)
    if time is None or not time.blocks:
        return time
    blocks = zip(*([w for w in rank.windows if w.index in time.blocks] for rank in record.ranks), strict=True)
    late = [(_late(same), same[0].steps) for same in blocks]
    late_s = sum(seconds for seconds, _ in late) / sum(steps for _, steps in late)
    return replace(time, step_s=max(time.step_s, time.mean_s + late_s / record.point.hardware.dilate))


def unsynced_s(record: PointRecord) -> float | None:
    """Return seconds of a step in the wrapper without an exchange, median; None if not tried."""
    windows = chain.from_iterable(_inspected(record, [rank.unsynced for rank in record.ranks]))
    times = [window.seconds / window.steps for window in windows]
    return median(times) if times else None


class Unsynced(NamedTuple):
    """Seconds of a step without exchange: the fastest rank's, the ranks' mean, and that of each step's slowest."""

    first_s: float
    mean_s: float
    last_s: float


def script_unsynced(record: PointRecord) -> Unsynced | None:
    """Return a script's steps without exchange; None if not tried. Single copies of a script do not show what its
    ranks do differently."""
    of_ranks = _inspected(record, [rank.unsynced for rank in record.ranks])
    if len(of_ranks) < 2 or not record.point.workload.script:
        return None
    means = [_step_s(windows) for windows in of_ranks]
    same = list(zip(*of_ranks, strict=False))
    late_s = sum(map(_late, same)) / sum(windows[0].steps for windows in same)
    return Unsynced(first_s=min(means), mean_s=fmean(means), last_s=fmean(means) + late_s)


def beside_s(record: PointRecord) -> float | None:
    """Return the slowest rank's seconds of an exchange while the devices compute; None if not tried."""
    of_ranks = _inspected(record, [rank.beside for rank in record.ranks])
    return max((_step_s(windows) for windows in of_ranks), default=None)


def _inspected(record: PointRecord, by_rank: Iterable[Sequence[Window]]) -> list[Sequence[Window]]:
    return list(filter(None, by_rank)) if isinstance(record.outcome, Finished) else []


def _step_s(windows: Sequence[Window]) -> float:
    return sum(window.seconds for window in windows) / sum(window.steps for window in windows)


def _late(same: Sequence[Window]) -> float:
    """Seconds by which the slowest rank exceeds the mean, summed over the steps of one window."""
    by_step = [window.step_s for window in same]
    if len(set(map(len, by_step))) == 1 and by_step[0]:
        return float(sum(max(times) - fmean(times) for times in zip(*by_step, strict=True)))
    seconds = [window.seconds for window in same]
    return max(seconds) - fmean(seconds)


def _logs(windows: Iterable[Window], dilate: float) -> Blocks:
    timed = ((w.index, w.end_s - w.start_s, w.steps * dilate) for w in windows)
    return {index: log(seconds / steps) for index, seconds, steps in timed if steps}


def by_rate(harmonic_s: float, seats: Iterable[tuple[float, Blocks]]) -> Blocks:
    """Return the log step time of all seats together by window, weighted by rate.

    Each seat counts relative to its own step time, so the mean over windows is `harmonic_s` even with stalls.
    """
    found: dict[int, list[tuple[float, float]]] = {}
    for step_s, blocks in seats:
        for index, value in blocks.items():
            found.setdefault(index, []).append((1 / step_s, exp(value) / step_s))
    return {
        index: log(harmonic_s * fsum(rate * part for rate, part in parts) / fsum(rate for rate, _ in parts))
        for index, parts in sorted(found.items())
    }


def mean_s(blocks: Iterable[float]) -> float:
    """Return the mean step time in seconds over windows given as logarithms."""
    return fmean(map(exp, blocks))


def harmonic(times: Iterable[float]) -> float:
    """Return the harmonic mean."""
    return float(1 / fmean(1 / time for time in times))
