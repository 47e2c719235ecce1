"""Warm-ups: longer than a process is measured, or into the measured windows."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from math import exp, log
from statistics import fmean

import pytest
from msgspec.structs import replace

from scaling.analysis.measured.controls import LATE, drifts, lasting
from scaling.analysis.measured.step_time import Blocks, step_time, truncation
from scaling.analysis.statistics.intervals import Lasting
from scaling.analysis.table.analyse import rows
from scaling.analysis.table.rows import Row
from scaling.plan import defaults
from scaling.records.events import Window
from scaling.records.point import Kind
from scaling.records.run import LATER_WINDOWS, PointRecord, RankRecord
from scaling.sweep.epoch import ORDERS_S
from tests.support.scripted_records import failed, point, record

# Whether an efficiency lasts: warm-ups that are longer than a process is measured, planted.

# Two steps a window, as of the default model; before each window one that is not counted; then others' turns.
STEP_S, STEPS, UNCOUNTED, WARM = 0.05, 2, 1, 4
BATCH = 32
WINDOWS = defaults.turns_in_round(STEP_S * (STEPS + UNCOUNTED) + ORDERS_S)
TURNS = round(defaults.SOAK_S / (STEP_S * (LATER_WINDOWS * STEPS + UNCOUNTED)))
# Of an exchange alone, 1 + A exp(-t / tau), by A and tau in seconds: the percentage of default runs on a quiet
# machine in which they must leave less than a point or be stamped. (By slopes of the measured windows alone it is
# 47, 11, 6, 1 and 3 % of the last five.)
WARM_UPS = {
    (0.5, 1.0): 95, (0.5, 2.5): 95, (0.3, 5.0): 95, (0.1, 2.5): 95, (0.1, 5.0): 95, (0.1, 10.0): 95,
    (0.1, 20.0): 95, (0.05, 10.0): 85,
}  # fmt: skip
ROUNDS, NOISE = 6, 0.015
FOR_GOOD_S = 1e9


class Process:
    """A rank that trains for a while: how long its windows take at its age, with noise."""

    def __init__(self, amplitude: float, tau_s: float, dice: random.Random) -> None:
        self._amplitude, self._tau_s, self._dice = amplitude, tau_s, dice
        self._age_s = WARM * STEP_S

    def window_s(self, uncounted: int = UNCOUNTED, steps: int = STEPS) -> float:
        self._age_s += uncounted * STEP_S
        seconds = steps * STEP_S * (1 + self._amplitude * exp(-(self._age_s + steps * STEP_S / 2) / self._tau_s))
        self._age_s += steps * STEP_S
        return seconds * exp(self._dice.gauss(0, NOISE))


def window(index: int, seconds: float, *, measured: bool = True) -> Window:
    return Window(
        index=index,
        measured=measured,
        steps=STEPS,
        samples=STEPS * BATCH,
        start_s=0.0,
        end_s=seconds,
        end_unix_s=seconds,
    )


def trained(rank: RankRecord, process: Process, number: int) -> RankRecord:
    """A rank at the shipped pace; in the first round it goes on."""
    windows = tuple(window(index, process.window_s()) for index in range(WINDOWS))
    if number > 0:
        return replace(rank, windows=windows)
    first, last = LATER_WINDOWS, LATER_WINDOWS * (TURNS + 1)
    later = tuple(following(index, process) for index in range(first, last))
    return replace(rank, windows=windows, later=later)


def following(index: int, process: Process) -> Window:
    """A window after the measured ones; before the first of a turn one step is not counted."""
    uncounted = 0 if index % LATER_WINDOWS else UNCOUNTED
    one = window(index, process.window_s(uncounted), measured=False)
    return replace(one, uncounted_samples=uncounted * BATCH)


def made(kind: Kind, number: int, *processes: Process) -> PointRecord:
    """A point of one rank for each; ranks of an exchange wait for each other, so that one tells of both."""
    one = record(point(kind, 1 if kind == "solo" else 2, number), 0.1)
    if kind == "exchange":
        rank = trained(one.ranks[0], processes[0], number)
        ranks = tuple(replace(rank, rank=other.rank, launch_rank=other.launch_rank) for other in one.ranks)
    else:
        both = zip(one.ranks, processes, strict=True)
        ranks = tuple(trained(rank, process, number) for rank, process in both)
    return replace(one, ranks=ranks, epoch=0)


def sweep(
    amplitude: float, tau_s: float, dice: random.Random, *, plain: float = 0.0, first: float | None = None
) -> list[PointRecord]:
    """Exchanges of two ranks that warm up, that of the first round perhaps by an amplitude of its own, and plain
    loops that do so by another."""
    found = []
    for number in range(ROUNDS):
        found.append(made("solo", number, Process(plain, tau_s, dice)))
        own = amplitude if number or first is None else first
        found.append(made("exchange", number, Process(own, tau_s, dice)))
    return found


def by_kind(records: Sequence[PointRecord], kind: Kind) -> list[PointRecord]:
    return [one for one in records if one.point.kind == kind]


def soaked(records: Sequence[PointRecord]) -> Lasting:
    found = lasting(by_kind(records, "exchange"), by_kind(records, "solo"))
    assert found is not None
    return found


def logs(one: PointRecord) -> Blocks:
    return {each.index: log(each.seconds / each.steps) for each in one.ranks[0].windows}


def bias(records: Sequence[PointRecord]) -> float:
    """By which fraction efficiency is below what it is in the long run."""
    both = zip(by_kind(records, "exchange"), by_kind(records, "solo"), strict=True)
    ratios = [logs(one)[index] - logs(other)[index] for one, other in both for index in logs(one)]
    return 1 - exp(-sum(ratios) / len(ratios))


@pytest.mark.parametrize(("amplitude", "tau_s"), WARM_UPS)
def test_a_warm_up_leaves_less_than_a_point_or_is_stamped(amplitude: float, tau_s: float) -> None:
    dice, right = random.Random(7), 0
    for _ in range(60):
        records = sweep(amplitude, tau_s, dice)
        slopes = drifts({"exchange": [[logs(one)] for one in by_kind(records, "exchange")]})
        right += bias(records) < 0.01 or soaked(records).is_told or bool(slopes)
    assert right >= 60 * WARM_UPS[amplitude, tau_s] / 100


def test_what_lasts_is_not_stamped() -> None:
    """One in a hundred is."""
    dice = random.Random(3)
    assert sum(soaked(sweep(0.0, 1.0, dice)).is_told for _ in range(400)) <= 10


@pytest.mark.parametrize("tau_s", [3.0, FOR_GOOD_S])
def test_a_start_that_ends_where_others_began_or_never_changes_is_not_stamped(tau_s: float) -> None:
    """The table rests on all rounds, and is right where the last windows agree with it."""
    dice = random.Random(13)
    many = [soaked(sweep(0.0, tau_s, dice, first=0.1)) for _ in range(40)]
    assert (sum(one.p < 0.01 for one in many) >= 10) is (tau_s < FOR_GOOD_S)
    assert (fmean(one.change.mean for one in many) < -0.05) is (tau_s == FOR_GOOD_S)
    assert sum(one.is_told for one in many) <= 2


def test_a_trend_away_from_the_change_is_none_towards_it() -> None:
    """It becomes quicker, and is slower yet than others were."""
    found = soaked(sweep(0.0, 20.0, random.Random(15), first=0.4))
    assert found.change.mean < -0.1 and found.p == 1.0


def test_plain_loops_that_warm_up_alike_leave_no_bias() -> None:
    dice = random.Random(4)
    told = [soaked(sweep(0.1, 10.0, dice, plain=0.1)).change.mean for _ in range(20)]
    assert abs(sum(told) / len(told)) < 0.005


def test_the_change_is_that_of_the_efficiency() -> None:
    """From 1 / 1.0925 of the long run to 1 / 1.032, by the ages at which it is measured; mean of twenty."""
    dice = random.Random(5)
    many = [soaked(sweep(0.1, 10.0, dice)) for _ in range(20)]
    assert fmean(one.change.mean for one in many) == pytest.approx(1.0925 / 1.032 - 1, abs=0.006)
    found = many[0]
    assert found.change.low is not None and found.change.high is not None
    assert found.change.low < found.change.mean < found.change.high
    assert found.after_s == pytest.approx(LATE * defaults.SOAK_S, rel=0.07)


def row(records: Sequence[PointRecord]) -> Row:
    return next(one for one in rows(records) if one.world_size == 2)


def test_a_row_is_stamped_and_says_by_how_much() -> None:
    one = row(sweep(0.3, 10.0, random.Random(6)))
    assert "DRIFTING" in one.flags and one.lasting is not None and one.lasting.is_told
    (note,) = [note for note in one.footnotes if "more of training" in note]
    size = f"{100 * one.lasting.change.mean:.1f} % higher"
    assert note.startswith(f"DRIFTING: after 9 s more of training its efficiency was {size}")


def test_each_exchange_that_goes_on_is_a_chance_for_noise() -> None:
    """One trend at 1 % for all of a work: with a second exchange 0.5 % is asked of each."""
    records = sweep(0.3, 10.0, random.Random(6))
    other = [
        replace(one, point=replace(one.point, strategy="fake:b"))
        for one in records
        if one.point.kind == "exchange"
    ]
    assert [one.lasting.among for one in rows([*records, *other]) if one.lasting] == [2, 2]
    found = soaked(records)
    assert replace(found, p=0.006).is_told and not replace(found, p=0.006, among=2).is_told
    assert replace(found, p=0.004, among=2).is_told


def test_a_plain_loop_that_still_warms_up_makes_it_lower() -> None:
    one = row(sweep(0.0, 10.0, random.Random(6), plain=0.3))
    assert any("% lower" in note for note in one.footnotes)


def test_without_either_of_them_nothing_is_said() -> None:
    records = sweep(0.1, 10.0, random.Random(8))
    exchanges, plain_loops = by_kind(records, "exchange"), by_kind(records, "solo")
    assert lasting(exchanges[1:], plain_loops) is None
    assert lasting(exchanges, plain_loops[1:]) is None
    assert lasting(exchanges, [replace(one, epoch=1) for one in plain_loops]) is None
    assert lasting([failed(exchanges[0].point)], plain_loops) is None
    early = replace(exchanges[0], ranks=(replace(exchanges[0].ranks[0], later=exchanges[0].ranks[0].later[:4]),))
    assert lasting([early], plain_loops) is None


def test_on_several_seats_it_is_held_against_the_one_that_went_on() -> None:
    """The plain loop of every seat, of which the first went on; the other is half as fast."""
    dice = random.Random(9)
    each = made("each", 0, Process(0.0, 1.0, dice), Process(1.0, FOR_GOOD_S, dice))
    alone = replace(each, ranks=(each.ranks[0], replace(each.ranks[1], later=())))
    exchange = made("exchange", 0, Process(0.0, 1.0, dice))
    found = lasting([exchange], [alone])
    assert found is not None and abs(found.change.mean) < 0.03


def test_a_stall_here_and_there_is_no_trend() -> None:
    """One of thirty windows takes twice as long, of the exchange or of its plain loop."""
    dice = random.Random(10)
    assert sum(soaked([stalling(one, dice) for one in sweep(0.0, 1.0, dice)]).is_told for _ in range(200)) <= 8


def stalling(one: PointRecord, dice: random.Random) -> PointRecord:
    rank = one.ranks[0]
    kept = {"windows": rank.windows, "later": rank.later}
    hit = {
        name: tuple(replace(w, end_s=w.end_s * (1 + (dice.random() < 1 / 30))) for w in windows)
        for name, windows in kept.items()
    }
    return replace(one, ranks=tuple(replace(each, **hit) for each in one.ranks))


CANARY_S = 0.016
LATER = range(LATER_WINDOWS, LATER_WINDOWS * (TURNS + 1))


@pytest.mark.parametrize("known", [True, False])
def test_turns_before_which_a_core_was_slow_say_nothing(known: bool) -> None:
    """Or whoever else had it for the last seconds would be taken for a warm-up's opposite. Somebody else has the
    core of the last rank from a later window on, which its canaries tell or not."""
    records, first = sweep(0.0, 1.0, random.Random(11)), LATER[len(LATER) * 4 // 5]

    def canaries(window: Window) -> Window:
        is_hit, is_first = window.index >= first, window.index % LATER_WINDOWS == 0
        canary_s = CANARY_S * (2 if is_hit and known else 1)
        end_s = window.end_s * (1.5 if is_hit else 1)
        return replace(window, end_s=end_s, canary_s=canary_s if is_first else None)

    def burdened(one: PointRecord) -> PointRecord:
        last = one.ranks[-1]
        windows = tuple(replace(window, canary_s=CANARY_S) for window in last.windows)
        return replace(
            one, ranks=(*one.ranks[:-1], replace(last, windows=windows, later=tuple(map(canaries, last.later))))
        )

    found = soaked([burdened(one) if one.point.kind == "exchange" else one for one in records])
    assert found.is_told is not known


def as_of_old(one: PointRecord) -> PointRecord:
    """As the first versions wrote it: a long window, then two a turn of which the first gave ranks a start."""
    if not one.ranks[0].later:
        return one
    long = replace(window(0, 8.0, measured=False), steps=160, samples=160 * BATCH)
    ranks = (replace(rank, later=(long, *(slower(each) for each in rank.later[-24:]))) for rank in one.ranks)
    return replace(one, ranks=tuple(ranks))


def slower(one: Window) -> Window:
    """Where it waits for the last rank to have heard."""
    return one if one.index % LATER_WINDOWS else replace(one, end_s=2 * one.end_s)


def test_records_of_the_first_versions_can_be_read() -> None:
    """They went on first, and had turns then."""
    found = soaked([as_of_old(one) for one in sweep(0.5, 10.0, random.Random(12))])
    assert found.is_told and found.after_s == pytest.approx(8.0, abs=1.5)
    assert 0.2 < found.change.mean < 0.5


# Warm-ups that reach into the measured windows: cut off, or stamped.

WINDOW_S = 0.5
# By amplitude and seconds: the windows after which the warm-up's own rule took it for steady, by simulation.
DRIFT_WARM_UPS = {
    (0.5, 1.0): 8.2, (0.5, 2.5): 8.5, (0.3, 5.0): 4.9, (0.1, 2.5): 4.3, (0.1, 5.0): 4.3, (0.1, 10.0): 4.3,
    (0.1, 20.0): 4.3, (0.05, 10.0): 4.2,
}  # fmt: skip


def measured(amplitude: float, tau_s: float, warm: float, dice: random.Random, noise: float) -> list[float]:
    """ln of ten windows' step times after so many windows of warm-up."""
    ages_s = [(warm + index + 0.5) * WINDOW_S for index in range(10)]
    return [log(1 + amplitude * exp(-age_s / tau_s)) + dice.gauss(0, noise) for age_s in ages_s]


def alone(points: Iterable[Blocks]) -> list[list[Blocks]]:
    return [[one] for one in points]


@pytest.mark.parametrize(("amplitude", "tau_s"), DRIFT_WARM_UPS)
def test_drift_a_warm_up_leaves_less_than_a_point_or_is_stamped(amplitude: float, tau_s: float) -> None:
    """36 points of a quiet machine (1.5 % between windows), 40 runs: at least 95 % of them."""
    dice, right = random.Random(7), 0
    for _ in range(40):
        points = [measured(amplitude, tau_s, DRIFT_WARM_UPS[amplitude, tau_s], dice, 0.015) for _ in range(36)]
        kept = [dict(list(enumerate(one))[truncation(one) :]) for one in points]
        bias = fmean(fmean(one.values()) for one in kept)
        right += bias < 0.01 or bool(drifts({"exchange": alone(kept)}))
    assert right >= 38


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
    assert not drifts({"exchange": alone({0: 0.0, 1: value} for value in (0.1, 0.11, 0.12))}), "two windows"


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


@pytest.mark.parametrize(
    ("first", "then", "canary", "first_counts", "is_stamped"),
    [
        (1.0, 0.97, 1.0, False, False),
        # slow at first, quicker again
        (1.0, 0.97, 2.0, False, False),
        # slower from the first on
        (0.97, 1.0, 1.0, False, True),
        # one of three was slow
        (0.97, 1.0, 2.0, False, False),
        # where the first try counts later ones do not matter
        (1.0, 0.97, 1.0, True, False),
        (0.97, 1.0, 1.0, True, True),
    ],
)
def test_what_was_measured_again_was_not_when_its_block_says(
    first: float, then: float, canary: float, first_counts: bool, is_stamped: bool
) -> None:
    """First windows took so many times as long at first and then; the last try counts, or the first. Last windows
    are measured again no more: the time for that is spent."""
    made = [record(point("solo", number=number), 0.1) for number in range(4)]
    for number in range(4):
        one = record(point("exchange", 2, number), 0.125)
        whole_s = one.ranks[0].windows[0].seconds * (1 + 0.0005 * number)
        ranks = []
        for rank in one.ranks:
            window, *others = (replace(each, canary_s=CANARY_S) for each in rank.windows)
            at_first = replace(_ending(window, window.start_s + first * whole_s), canary_s=canary * CANARY_S)
            later_s = window.start_s + 60.0
            later = replace(_ending(window, later_s + then * whole_s), start_s=later_s)
            counted, other = (at_first, later) if first_counts else (later, at_first)
            ranks.append(replace(rank, windows=(counted, *others), disturbed=(other,)))
        made.append(replace(one, ranks=tuple(ranks)))
    (row,) = rows(made)
    assert ("DRIFTING" in row.flags) is is_stamped


def _ending(window: Window, end_s: float) -> Window:
    return replace(window, end_s=end_s, end_unix_s=window.end_unix_s + end_s - window.end_s)


def _faster(made: PointRecord, part: float) -> PointRecord:
    ranks = tuple(
        replace(
            rank, windows=tuple(_ending(w, w.start_s + w.seconds * exp(-part * w.index)) for w in rank.windows)
        )
        for rank in made.ranks
    )
    return replace(made, ranks=ranks)
