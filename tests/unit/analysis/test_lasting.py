"""Whether an efficiency lasts: warm-ups that are longer than a process is measured, planted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import exp, log
from statistics import fmean

import pytest
from msgspec.structs import replace

from scaling.analysis.measured.lasting import LATE, Lasting, lasting
from scaling.analysis.measured.pools import drifts
from scaling.analysis.measured.step_time import Blocks
from scaling.analysis.table.analyse import rows
from scaling.analysis.table.rows import Row
from scaling.plan import defaults
from scaling.records.events import Window
from scaling.records.point import Kind
from scaling.records.run import LATER_WINDOWS, PointRecord, RankRecord
from scaling.sweep.turns import ORDERS_S
from tests.support.scripted_records import failed, point, record

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
    size = f"{100 * one.lasting.change.mean:.1f} % of itself higher"
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
    assert any("of itself lower" in note for note in one.footnotes)


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


def burdened(one: PointRecord, first: int, *, known: bool) -> PointRecord:
    """Somebody else has the core of the last rank from this later window on, which its canaries tell or not."""
    rank = one.ranks[-1]
    later = []
    for window in rank.later:
        is_first = window.index % LATER_WINDOWS == 0
        is_hit = window.index >= first
        canary_s = CANARY_S * (2 if is_hit and known else 1)
        seconds = window.end_s * (1.5 if is_hit else 1)
        later.append(replace(window, end_s=seconds, canary_s=canary_s if is_first else None))
    windows = tuple(replace(window, canary_s=CANARY_S) for window in rank.windows)
    return replace(one, ranks=(*one.ranks[:-1], replace(rank, windows=windows, later=tuple(later))))


@pytest.mark.parametrize("known", [True, False])
def test_turns_before_which_a_core_was_slow_say_nothing(known: bool) -> None:
    """Or whoever else had it for the last seconds would be taken for a warm-up's opposite."""
    records = sweep(0.0, 1.0, random.Random(11))
    first = LATER[len(LATER) * 4 // 5]
    found = soaked([burdened(one, first, known=known) if one.point.kind == "exchange" else one for one in records])
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
