"""Which of several tries of a window counts: the one that began on the quickest cores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from scaling.records.events import Window
from scaling.sweep.state import ChildState as RankState
from scaling.sweep.turns import quietest, set_aside
from tests.support.points import TASK


def window(index: int, canary_s: float | None, at_s: float) -> Window:
    return Window(
        index=index, measured=True, steps=2, samples=64, start_s=at_s, end_s=at_s + 1.0, end_unix_s=at_s,
        canary_s=canary_s,
    )  # fmt: skip


def rank(windows: Iterable[Window], disturbed: Iterable[Window] = ()) -> RankState:
    return RankState(task=TASK, windows=tuple(windows), disturbed=tuple(disturbed))


def tried(*canaries_s: float | None, index: int = 3) -> list[Window]:
    return [window(index, canary_s, 10.0 * number) for number, canary_s in enumerate(canaries_s)]


def settled(*canaries_s: Sequence[float | None]) -> list[tuple[float, list[float]]]:
    every = [tried(*of_rank) for of_rank in canaries_s]
    found = quietest([rank(one[-1:], one[:-1]) for one in every], {3})
    return [(one.windows[0].start_s, [other.start_s for other in one.disturbed]) for one in found]


@pytest.mark.parametrize(
    ("canaries_s", "place"),
    [((2.0, 1.0, 3.0), 1), ((1.0, 2.0, 3.0), 0), ((3.0, 2.0, 1.0), 2), ((2.0, 1.0, 1.0), 2), ((5.0,), 0)],
)
def test_the_quietest_try_counts_and_the_last_of_several(canaries_s: Sequence[float], place: int) -> None:
    ((kept_s, others_s),) = settled(canaries_s)
    assert kept_s == 10.0 * place
    assert others_s == [10.0 * number for number in range(len(canaries_s)) if number != place]


def test_all_ranks_keep_the_same_try_that_whose_slowest_core_was_quickest() -> None:
    """Each against its own quickest: the second rank's cores are ten times as fast."""
    found = settled((1.0, 1.2, 1.9), (0.19, 0.13, 0.10))
    assert [kept_s for kept_s, _ in found] == [10.0, 10.0]


def test_a_rank_without_canaries_has_no_say() -> None:
    assert [kept_s for kept_s, _ in settled((1.0, 2.0), (None, None))] == [0.0, 0.0]
    assert [kept_s for kept_s, _ in settled((None, None))] == [10.0]


def test_windows_that_run_in_one_go_stay_together() -> None:
    """The first of them has the canary of all."""
    tries = [[window(number, canary_s if number == 0 else None, 10.0 * at) for number in range(3)]
             for at, canary_s in enumerate((1.0, 2.0))]  # fmt: skip
    (found,) = quietest([rank(tries[1], tries[0])], range(12))
    assert found.windows == tuple(tries[0])
    assert sorted(found.disturbed, key=lambda one: one.index) == tries[1]


def test_other_windows_are_unchanged() -> None:
    first, second = tried(1.0, 2.0), tried(1.0, 2.0, index=4)
    (found,) = quietest([rank([first[1], second[1]], [first[0], second[0]])], {4})
    assert found.windows == (first[1], second[0])
    assert found.disturbed == (first[0], second[1])


def test_what_is_set_aside_is_tried_again() -> None:
    (first, again), other = tried(2.0, 1.0), window(4, 1.0, 30.0)
    aside = set_aside(rank([first, other]), {3})
    assert (aside.windows, aside.disturbed) == ((other,), (first,))
    (kept,) = quietest([rank([*aside.windows, again], aside.disturbed)], {3})
    assert set(kept.windows) == {other, again}
