"""What holds for the rows of any sweep: order and unit of time do not matter, and causes add up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from msgspec.structs import asdict, replace

from scaling.analysis.table.rows import Row
from scaling.records.events import Window
from scaling.records.run import PointRecord
from tests.support.scripted_records import asynchronous, by_size, loss_of, mean, point, record

Records = list[PointRecord]
STEP_S = st.floats(0.05, 0.3)


@st.composite
def sweeps(draw: st.DrawFn) -> Records:
    """Rounds of a plain loop, an exchange of two ranks, which may not wait, and some other controls."""
    found, waits = [], draw(st.booleans())
    for number in range(draw(st.integers(1, 4))):
        kinds = [kind for kind in ("each", "together", "held", "feed", "comm") if draw(st.booleans())]
        for kind in ("solo", "exchange", *kinds):
            size = 1 if kind == "solo" else 2
            made = record(point(kind, size, number), *(draw(STEP_S) for _ in range(size)))
            found.append(made if waits or kind not in ("exchange", "comm") else asynchronous(made))
            if kind in ("held", "feed"):
                found.append(record(point(kind, 1, number), draw(STEP_S)))
    return found


def figures(row: Row) -> dict[str, Any]:
    """The numbers of a row, which rounding may change."""
    estimates = ("efficiency", "speedup", "strategy_efficiency")
    found = {
        f"{name}.{end}": getattr(one, end)
        for name in estimates
        for end in ("mean", "low", "high")
        if (one := getattr(row, name))
    }
    return {name: value for name, value in (found | asdict(loss_of(row))).items() if value is not None}


def same(one: Records, other: Sequence[PointRecord]) -> None:
    first, second = by_size(one)[2], by_size(other)[2]
    assert figures(first) == pytest.approx(figures(second), rel=1e-8, abs=1e-9)
    assert first.flags == second.flags


@settings(deadline=None, derandomize=True, max_examples=60)
@given(sweeps())
def test_causes_and_efficiency_add_up_to_1(records: Records) -> None:
    row = by_size(records)[2]
    assert sum(value or 0.0 for value in asdict(loss_of(row)).values()) == pytest.approx(
        1 - mean(row.efficiency), abs=1e-9
    )


@settings(deadline=None, derandomize=True, max_examples=40)
@given(sweeps(), st.randoms(use_true_random=False))
def test_the_order_of_records_and_rounds_does_not_matter(records: Records, dice: Any) -> None:
    numbers = list(range(4))
    dice.shuffle(numbers)
    moved = [replace(one, point=replace(one.point, round=numbers[one.point.round])) for one in records]
    dice.shuffle(moved)
    same(records, moved)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(sweeps())
def test_the_order_of_ranks_does_not_matter(records: Records) -> None:
    """`solo` is of one seat, so that the seats of all points change places."""

    def turned(one: PointRecord) -> PointRecord:
        ranks = zip(one.ranks, reversed(one.ranks), strict=True)
        return replace(one, ranks=tuple(replace(own, windows=other.windows) for own, other in ranks))

    without_each = [one for one in records if one.point.kind != "each"]
    same(without_each, [turned(one) for one in without_each])


@settings(deadline=None, derandomize=True, max_examples=40)
@given(sweeps(), st.floats(0.1, 10))
def test_the_unit_of_time_does_not_matter(records: Records, factor: float) -> None:
    def scaled(window: Window) -> Window:
        wall_s = window.end_unix_s + (factor - 1) * window.end_s
        return replace(window, start_s=factor * window.start_s, end_s=factor * window.end_s, end_unix_s=wall_s)

    slower = [
        replace(one, ranks=tuple(replace(rank, windows=tuple(map(scaled, rank.windows))) for rank in one.ranks))
        for one in records
    ]
    same(records, slower)
    rates = (mean(by_size(of)[2].samples_per_s) for of in (records, slower))
    assert next(rates) == pytest.approx(factor * next(rates))
