"""Windows far longer than the others of their rank are named; none is left out."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from msgspec.structs import replace

from scaling.analysis.measured import cell
from scaling.records.run import PointRecord
from tests.support.scripted_records import by_size, point, record, with_window


def stalled(*ranks: int, by_s: float = 6.0, hosts: tuple[str, ...] = ("node1", "node2")) -> PointRecord:
    made = record(point("exchange", 2), 0.1, hosts=hosts)
    for rank in ranks:
        made = with_window(made, rank, 2, end_s=made.ranks[rank].windows[2].end_s + by_s)
    return made


def still(made: PointRecord, ranks: Collection[int], still_s: float = 6.0) -> PointRecord:
    told = (
        replace(one, telemetry=replace(one.telemetry, still_s=still_s)) if one.rank in ranks else one
        for one in made.ranks
    )
    return replace(made, ranks=tuple(told))


@pytest.mark.parametrize(("ranks", "whose"), [((1,), "rank 1 on node2"), ((0, 1), "all 2 ranks")])
def test_a_window_far_outside_is_named_with_its_length_and_the_usual_one(
    ranks: tuple[int, ...], whose: str
) -> None:
    (note,) = cell.stall_notes([stalled(*ranks)])
    assert whose in note
    assert "7 s" in note
    assert "1 s is the median" in note
    assert "stood still" not in note
    assert note in by_size([stalled(*ranks)])[2].footnotes


@pytest.mark.parametrize("by_s", [0.0, 1.9])
def test_what_noise_does_to_a_window_is_not_named(by_s: float) -> None:
    assert not list(cell.stall_notes([stalled(0, by_s=by_s)]))


@pytest.mark.parametrize(
    ("ranks", "still_s", "said"),
    [
        ((0, 1), 6.0, "the whole job stood still for 6.0 s"),
        ((0,), 6.0, "node1 stood still for 6.0 s"),
        ((0, 1), 1.5, ""),  # not for most of what was too long
    ],
)
def test_who_stood_still_is_said(ranks: tuple[int, ...], still_s: float, said: str) -> None:
    (note,) = cell.stall_notes([still(stalled(0, 1), ranks, still_s)])
    assert said in note
    assert ("stood still" in note) == bool(said)


def test_on_one_host_all_of_its_ranks_must_have_stood_still() -> None:
    (note,) = cell.stall_notes([still(stalled(1, hosts=("node1",)), (1,))])
    assert "stood still" not in note


def test_the_longest_of_several_is_told_and_the_others_counted() -> None:
    second = replace(stalled(0, by_s=9.0), point=point("exchange", 2, 1))
    (note,) = cell.stall_notes([stalled(0), second])
    assert "round 2" in note
    assert "1 other like it" in note


def test_a_machine_that_was_suspended_is_named() -> None:
    made = record(point("exchange", 2), 0.1, hosts=("node1", "node2"))
    first = replace(made.ranks[0], telemetry=replace(made.ranks[0].telemetry, suspended_s=6.0))
    (note,) = cell.stall_notes([replace(made, ranks=(first, made.ranks[1]))])
    assert note.startswith("node1 was suspended for 6.0 s")
