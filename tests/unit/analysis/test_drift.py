"""Warm-ups that reach into the measured windows: cut off, or stamped."""

from __future__ import annotations

import random
from collections.abc import Iterable
from math import exp, log
from statistics import fmean

import pytest
from msgspec.structs import replace

from scaling.analysis.measured.pools import Drift, drifts, slope
from scaling.analysis.measured.step_time import Blocks, step_time, truncation
from scaling.analysis.table.analyse import rows
from scaling.records.events import Window
from scaling.records.point import Kind
from scaling.records.run import PointRecord
from tests.support.scripted_records import point, record

WINDOW_S = 0.5
# By amplitude and seconds: the windows after which the warm-up's own rule took it for steady, by simulation.
WARM_UPS = {
    (0.5, 1.0): 8.2, (0.5, 2.5): 8.5, (0.3, 5.0): 4.9, (0.1, 2.5): 4.3, (0.1, 5.0): 4.3, (0.1, 10.0): 4.3,
    (0.1, 20.0): 4.3, (0.05, 10.0): 4.2,
}  # fmt: skip


def measured(amplitude: float, tau_s: float, warm: float, dice: random.Random, noise: float) -> list[float]:
    """ln of ten windows' step times after so many windows of warm-up."""
    ages_s = [(warm + index + 0.5) * WINDOW_S for index in range(10)]
    return [log(1 + amplitude * exp(-age_s / tau_s)) + dice.gauss(0, noise) for age_s in ages_s]


def alone(points: Iterable[Blocks]) -> list[list[Blocks]]:
    return [[one] for one in points]


@pytest.mark.parametrize(("amplitude", "tau_s"), WARM_UPS)
def test_a_warm_up_leaves_less_than_a_point_or_is_stamped(amplitude: float, tau_s: float) -> None:
    """36 points of a quiet machine (1.5 % between windows), 40 runs: at least 95 % of them."""
    dice, right = random.Random(7), 0
    for _ in range(40):
        points = [measured(amplitude, tau_s, WARM_UPS[amplitude, tau_s], dice, 0.015) for _ in range(36)]
        kept = [dict(list(enumerate(one))[truncation(one) :]) for one in points]
        bias = fmean(fmean(one.values()) for one in kept)
        right += bias < 0.01 or bool(drifts({"exchange": alone(kept)}))
    assert right >= 38


def test_steady_points_are_not_stamped() -> None:
    """One in a hundred is, and then only if the slope is worth it."""
    dice, stamped = random.Random(3), 0
    for _ in range(100):
        points = [dict(enumerate(measured(0.0, 1.0, 0, dice, 0.03))) for _ in range(12)]
        stamped += bool(drifts({"exchange": alone(points)}))
    assert stamped <= 3


def test_more_kinds_are_not_stamped_more_often() -> None:
    """At 1 % for all of them: by itself each of six would be stamped in 1 %, so that one is in 6 %."""
    dice, stamped = random.Random(5), 0
    kinds: tuple[Kind, ...] = ("exchange", "together", "solo", "each", "held", "feed")
    for _ in range(200):
        points = {
            kind: alone(dict(enumerate(measured(0.0, 1.0, 0, dice, 0.05))) for _ in range(12)) for kind in kinds
        }
        stamped += bool(drifts(points))
    assert stamped <= 7


def test_points_that_took_turns_are_one_look_at_the_machine() -> None:
    """Six epochs of ten points on cores that wander by 2 % from block to block, all of a block alike: by points
    more than every third run would be stamped."""
    dice, stamped = random.Random(9), 0
    for _ in range(200):
        epochs: list[list[Blocks]] = []
        for _ in range(6):
            wander = [dice.gauss(0, 0.02) for _ in range(6)]
            epochs.append([{i: one + dice.gauss(0, 0.005) for i, one in enumerate(wander)} for _ in range(10)])
        stamped += bool(drifts({"exchange": epochs}))
    assert stamped <= 7


def test_what_takes_turns_and_still_warms_up_is_stamped() -> None:
    """3 % at first, gone after two of ten windows, on cores that wander by 1 %."""
    dice = random.Random(11)
    epochs: list[list[Blocks]] = []
    for _ in range(6):
        wander = [dice.gauss(0, 0.01) for _ in range(10)]
        cold = [0.03 * exp(-index / 2) for index in range(10)]
        epochs.append([dict(enumerate(map(sum, zip(cold, wander, strict=True)))) for _ in range(3)])
    assert drifts({"exchange": epochs})


def test_less_than_half_a_percent_in_all_is_not_worth_a_stamp() -> None:
    """However sure it is: 0.03 % from window to window, 0.27 % over ten."""
    points = [{index: index * per_window for index in range(10)} for per_window in (3e-4, 3.1e-4, 3.2e-4, 3e-4)]
    assert not drifts({"exchange": alone(points)})
    assert drifts({"exchange": alone([{i: 3 * value for i, value in one.items()} for one in points])})


def test_slope_of_a_line() -> None:
    assert slope({0: 1.0, 1: 1.5, 2: 2.0, 5: 3.5}) == pytest.approx(0.5)
    assert slope({0: 1.0, 1: 1.5}) is None


def test_truncation_cuts_what_differs_and_no_noise() -> None:
    assert truncation([2.0, 1.5, 1.01, 1.0, 0.99, 1.0, 1.01, 1.0]) == 2
    assert truncation([1.0] * 8) == 0
    assert truncation([2.0, 1.0, 1.0]) == 0
    dice = random.Random(1)
    cut = [truncation([dice.gauss(0, 0.03) for _ in range(10)]) for _ in range(300)]
    assert sum(map(bool, cut)) <= 6


def test_what_is_cut_off_is_in_no_step_time() -> None:
    """Two cold windows of ten; where points took turns the mean over blocks leaves them out by itself."""
    dice = random.Random(2)
    seconds = [0.2, 0.15, *(0.1 + dice.gauss(0, 1e-4) for _ in range(8))]
    made = record(point("exchange"), 0.1)
    first = replace(made.ranks[0].windows[0], steps=1, start_s=0.0)
    windows = tuple(replace(first, index=index, end_s=end_s) for index, end_s in enumerate(seconds))
    cold = replace(made, ranks=(replace(made.ranks[0], windows=windows),))
    time = step_time(cold)
    assert time is not None
    assert time.step_s == pytest.approx(0.1, rel=1e-3)
    assert min(time.blocks) >= 2 and len(time.blocks) >= 6
    beside = step_time(replace(cold, epoch=0))
    assert beside is not None and len(beside.blocks) == 10


def test_points_of_one_epoch_are_one_look_at_it_in_rows_too() -> None:
    """Three epochs of four world sizes: twelve slopes would tell what three do not."""
    made = [
        replace(_faster(record(point("exchange", size, number), 0.1), part), epoch=number)
        for number, part in enumerate((0.03, 0.001, 0.02))
        for size in (1, 2, 3, 4)
    ]
    solos = [record(point("solo", number=number), 0.1, epoch=number) for number in range(3)]
    assert not any("DRIFTING" in row.flags for row in rows([*made, *solos]))
    apart = [replace(one, epoch=None) for one in (*made, *solos)]
    assert all("DRIFTING" in row.flags for row in rows(apart))


def test_the_stamp_has_its_size_and_kind() -> None:
    records = [record(point("solo", number=number), 0.1) for number in range(4)]
    records += [
        _faster(record(point("exchange", 2, number), 0.125), 0.01 + 0.0001 * number) for number in range(4)
    ]
    (row,) = rows(records)
    assert "DRIFTING" in row.flags
    (note,) = [note for note in row.footnotes if note.startswith("DRIFTING")]
    assert note == "DRIFTING: exchange became 1.02 % faster from window to window, 2.0 % in all (4 points)"


CANARY_S = 0.015


def _tried(
    made: PointRecord, *, first_s: float, then_s: float, canary_s: float, first_counts: bool
) -> PointRecord:
    """The same, whose first window took so long at first and then, after a canary of so long at first; the last of
    these tries counts, or the first."""
    usual = [tuple(replace(w, canary_s=CANARY_S) for w in rank.windows) for rank in made.ranks]

    def tries(window: Window) -> tuple[Window, Window]:
        at_first = replace(_ending(window, window.start_s + first_s), canary_s=canary_s)
        later_s = window.start_s + 60.0
        return at_first, replace(_ending(window, later_s + then_s), start_s=later_s)

    ranks = (
        replace(rank, windows=(tries(first)[not first_counts], *others), disturbed=(tries(first)[first_counts],))
        for rank, (first, *others) in zip(made.ranks, usual, strict=True)
    )
    return replace(made, ranks=tuple(ranks))


def _is_stamped(first: float, then: float, canary: float = 1.0, *, first_counts: bool = False) -> bool:
    """Whether four rounds are whose first window was so many times as long at first, and then."""
    made = [record(point("solo", number=number), 0.1) for number in range(4)]
    for number in range(4):
        one, part = record(point("exchange", 2, number), 0.125), 1 + 0.0005 * number
        whole_s, canary_s = one.ranks[0].windows[0].seconds * part, canary * CANARY_S
        first_s, then_s = first * whole_s, then * whole_s
        made.append(_tried(one, first_s=first_s, then_s=then_s, canary_s=canary_s, first_counts=first_counts))
    (row,) = rows(made)
    return "DRIFTING" in row.flags


@pytest.mark.parametrize(
    ("first", "then", "canary", "is_stamped"),
    [(1.0, 0.97, 1.0, False), (1.0, 0.97, 2.0, False), (0.97, 1.0, 1.0, True), (0.97, 1.0, 2.0, False)],
    ids=["quicker again", "slow at first, quicker again", "slower from the first on", "one of three was slow"],
)
def test_what_was_measured_again_was_not_when_its_block_says(
    first: float, then: float, canary: float, is_stamped: bool
) -> None:
    """First windows are measured again, last ones no more: the time for that is spent."""
    assert _is_stamped(first, then, canary) is is_stamped


@pytest.mark.parametrize(("first", "then", "is_stamped"), [(1.0, 0.97, False), (0.97, 1.0, True)])
def test_where_the_first_try_counts_later_ones_do_not_matter(first: float, then: float, is_stamped: bool) -> None:
    assert _is_stamped(first, then, first_counts=True) is is_stamped


def _ending(window: Window, end_s: float) -> Window:
    return replace(window, end_s=end_s, end_unix_s=window.end_unix_s + end_s - window.end_s)


def _faster(made: PointRecord, part: float) -> PointRecord:
    ranks = tuple(
        replace(
            rank,
            windows=tuple(_ending(w, w.start_s + w.seconds * exp(-part * w.index)) for w in rank.windows),
        )
        for rank in made.ranks
    )
    return replace(made, ranks=ranks)


def test_a_drift_says_what_it_is() -> None:
    one = Drift(kind="each", per_window=0.002, windows=6, points=12, units=6, t=5.0)
    assert str(one) == "each became 0.20 % slower from window to window, 1.0 % in all (12 points)"
