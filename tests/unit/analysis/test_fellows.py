"""Which ranks are named: who is apart from the others, and nobody by chance, however many there are."""

from __future__ import annotations

import random
from math import log

import pytest

from scaling.analysis.statistics.intervals import Layout
from scaling.analysis.table.footnotes import odd
from tests.support import planted
from tests.support.scripted_records import by_size, point, record

# Of one start's step time, as on shared virtual machines.
NOISE = 0.02


def seats(dice: random.Random, count: int, rounds: int = 4, **slower: float) -> Layout:
    """Logarithms of step times of so many seats, some of which take longer by a part."""
    return {
        str(seat): {n: log(1 + slower.get(f"_{seat}", 0.0)) + dice.gauss(0, NOISE) for n in range(rounds)}
        for seat in range(count)
    }


@pytest.mark.parametrize("count", [2, 4, 16, 64])
def test_of_equal_ranks_none_is_named_in_nearly_all_runs_however_many_they_are(count: int) -> None:
    """At 99 % for each of 16 by itself somebody would be named in every sixth run, of 64 in every second."""
    dice = random.Random(count)
    assert sum(bool(odd(seats(dice, count))) for _ in range(100)) <= 5


@pytest.mark.parametrize("count", [4, 16, 64])
def test_a_slow_rank_of_many_is_found_and_no_other(count: int) -> None:
    dice = random.Random(count)
    found = [odd(seats(dice, count, rounds=6, _3=0.06)) for _ in range(50)]
    assert sum([one.seat for one in named] == [3] for named in found) >= 45


def test_of_two_ranks_the_slow_one_is_named() -> None:
    (one,) = odd({"0": {0: 0.0, 1: 0.001}, "1": {0: log(1.1), 1: log(1.1)}})
    assert one.seat == 1
    assert one.apart == pytest.approx(0.1, abs=0.001)


def test_what_noise_explains_is_nobodys() -> None:
    """5 % apart on the mean, by one round in which all of it happened."""
    assert odd({"0": {0: 0.0, 1: 0.0, 2: 0.0}, "1": {0: 0.0, 1: 0.0, 2: 0.15}}) == []


def test_a_rank_that_loses_more_beside_the_others_is_named() -> None:
    """All take 0.1 s alone; beside each other 0.11, and the third 0.1265."""
    made = [
        one
        for number in range(3)
        for one in (
            record(point("each", 4, number), 0.1),
            record(point("together", 4, number), 0.11, 0.11, 0.1265, 0.11),
            record(point("exchange", 4, number), 0.13),
        )
    ]
    notes = [note for note in by_size(made)[4].footnotes if "rank" in note]
    assert notes == ["contention: rank 2 on node1 (CPU 2) loses 15.0 % more beside the others than they do"]


def named(alone: tuple[float, ...]) -> list[str]:
    row = by_size(planted.run(planted.Plan(size=len(alone), alone=alone)))[len(alone)]
    return [note for note in row.footnotes if "its fellows" in note]


def test_of_many_slow_ranks_the_worst_are_named_and_the_others_counted() -> None:
    (note,) = named((1.0,) * 9 + tuple(1 + 0.02 * number for number in range(1, 8)))
    first, *others = note.split(", ")
    assert first.startswith("slow ranks: rank 15 on node1 (CPU 15) takes 1")
    assert first.endswith(" % longer alone than its fellows")
    assert [one.partition(")")[0] for one in others[:3]] == [f"rank {n} on node1 (CPU {n}" for n in (14, 13, 12)]
    assert others[3:] == ["and 3 others", "by 2 to 6 %"]


def test_slow_and_fast_ranks_are_one_note() -> None:
    """16 seats in steps of 2 %: each differs from the median of the others."""
    (note,) = named(tuple(1 + 0.02 * number for number in range(16)))
    first, second, *_ = note.removeprefix("slow and fast ranks: ").split(", ")
    assert first == "rank 15 on node1 (CPU 15) takes 14.0 % longer alone than its fellows"
    assert second == "rank 0 on node1 (CPU 0) 13.9 % less"
    assert note.endswith(", and 12 others, by 2 to 11 %; the fast ones wait")


def test_one_more_than_are_named_is_one_other() -> None:
    (note,) = named((1.0,) * 11 + (1.1,) * 5)
    assert note.endswith(", and 1 other, by 10 %")


def test_ranks_that_lose_more_beside_the_others_are_one_note() -> None:
    """Seven of sixteen, by 10 to 16 %."""
    slowed = (0.1,) * 9 + tuple(0.11 + 0.001 * number for number in range(7))
    made = [
        one
        for number in range(3)
        for one in (
            record(point("each", 16, number), 0.1),
            record(point("together", 16, number), *slowed),
            record(point("exchange", 16, number), 0.13),
        )
    ]
    (note,) = [note for note in by_size(made)[16].footnotes if note.startswith("contention: ")]
    assert note == (
        "contention: rank 15 on node1 (CPU 15) loses 16.0 % more beside the others than they do, "
        "rank 14 on node1 (CPU 14) 15.0 %, rank 13 on node1 (CPU 13) 14.0 %, rank 12 on node1 (CPU 12) 13.0 %, "
        "and 3 others, by 10 to 12 %"
    )
