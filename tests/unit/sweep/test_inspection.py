"""Which points end with steps that no figure counts, and a whole sweep with them."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from scaling.records.events import Finished, Window
from scaling.records.point import Kind
from scaling.records.task import Inspect
from scaling.sweep.attempt import Attempt, inspection_command, traced_keys
from scaling.sweep.state import ChildState as RankState
from scaling.sweep.state import PointState
from tests.support.inline import Launch
from tests.support.points import POINT, TASK, changed
from tests.support.scripted_records import failed
from tests.support.scripted_records import record as made


def state(kind: Kind = "exchange", world_size: int = 2, number: int = 0, device: str = "cpu") -> PointState:
    window = Window(index=0, measured=True, steps=7, samples=7, start_s=0.0, end_s=1.0, end_unix_s=0.0)
    point = changed(POINT, kind=kind, world_size=world_size, round=number, device=device)
    return PointState(
        point=point, ranks=(RankState(task=TASK, windows=(window,)),), expected=1, started_s=0.0,
        started_unix_s=0.0, phase="measuring",
    )  # fmt: skip


UNSYNCED = Inspect(windows=2, steps=3, traced_steps=0)
OVERLAPPED = replace(UNSYNCED, beside_windows=2)


@pytest.mark.parametrize(
    ("of", "untraced", "traced"),
    [
        (state(), UNSYNCED, replace(UNSYNCED, traced_steps=5)),
        (state(world_size=1), None, Inspect(windows=0, steps=3, traced_steps=5)),
        (state("together"), None, Inspect(windows=0, steps=3, traced_steps=5)),
        (state("solo", 1), None, Inspect(windows=0, steps=3, traced_steps=5)),
        (state("each", 1), None, Inspect(windows=0, steps=3, traced_steps=5)),
        (state(device="cuda"), OVERLAPPED, replace(OVERLAPPED, traced_steps=5)),
        (state(device="emulated"), None, Inspect(windows=0, steps=3, traced_steps=5)),
    ],
)
def test_who_is_looked_at_closer(of: PointState, untraced: Inspect | None, traced: Inspect | None) -> None:
    assert inspection_command(of) == untraced
    (rank,) = of.ranks
    assert (
        inspection_command(replace(of, ranks=(replace(rank, task=replace(rank.task, is_traced=True)),))) == traced
    )


def test_the_first_point_of_a_cell_that_ends_well_is_traced() -> None:
    points = [changed(POINT, kind=kind, round=1) for kind in ("exchange", "together", "comm")]
    records = [made(changed(one, round=0), 0.1) for one in points]
    assert traced_keys(points, []) == {one.key for one in points[:2]}
    assert traced_keys(points, records) == frozenset()
    assert traced_keys(points, [failed(records[0].point), *records[1:]]) == {points[0].key}


FIELDS: dict[str, Any] = {"kinds": ["exchange", "together", "solo", "comm"], "world_sizes": [1, 2], "rounds": 2}


def test_a_sweep_leaves_a_trace_per_rank_of_each_cell(tmp_path: Path) -> None:
    found = Launch(2).sweep(tmp_path, trace=True, **FIELDS)
    expected = sorted(path for record in found.records for rank in record.ranks for path in rank.traces)
    assert sorted(f"traces/{path.name}" for path in (found.folder / "traces").iterdir()) == expected
    assert len(expected) == 1 + 2 + 2 + 1  # exchange at 1 and 2, together at 2, solo
    for path in expected:
        assert msgspec.json.decode(gzip.decompress((found.folder / path).read_bytes()))["traceEvents"]
    assert all(not rank.traced for record in found.records if record.point.round for rank in record.ranks)


def test_seats_that_run_alone_are_looked_at_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[Kind, int | None, int]] = []

    def inspect(attempt: Attempt, rank: int | None) -> bool:
        told.append((attempt.state.point.kind, rank, attempt.state.inspected))
        return truly(attempt, rank)

    truly = Attempt.inspect
    monkeypatch.setattr(Attempt, "inspect", inspect)
    found = Launch(2).sweep(tmp_path, trace=True, kinds=["exchange", "each"], world_sizes=[2], rounds=1)
    assert [len(rank.traces) for rank in found.of("each", 2)[0].ranks] == [1, 1]
    assert sorted(told, key=str) == [("each", 0, 0), ("each", 1, 1), ("exchange", None, 0)]


def test_without_the_flag_there_are_no_traces_and_the_same_figures(tmp_path: Path) -> None:
    plain, traced = (Launch(2).sweep(tmp_path / str(trace), trace=trace, **FIELDS) for trace in (False, True))
    assert not (plain.folder / "traces").exists()
    seconds = [
        [[window.seconds for rank in record.ranks for window in rank.windows] for record in run.records]
        for run in (plain, traced)
    ]
    assert seconds[0] == [pytest.approx(each) for each in seconds[1]]


def test_the_exchanges_wrapper_is_timed_in_every_round(tmp_path: Path) -> None:
    option = ["step_s=0.01", "exchange_s=0.005"]
    found = Launch(2).sweep(tmp_path, option=option, **FIELDS)
    for record in found.records:
        for rank in record.ranks:
            assert len(rank.unsynced) == (2 if record.point.kind == "exchange" and len(record.ranks) == 2 else 0)
            for window in rank.unsynced:
                assert window.seconds / window.steps == pytest.approx(0.01)


def test_a_profiler_that_does_not_start_is_a_note_on_the_row(tmp_path: Path) -> None:
    found = Launch(2).sweep(tmp_path, trace=True, option=["fail=trace", "fail_world=2", "fail_rank=1"], **FIELDS)
    assert all(isinstance(record.outcome, Finished) for record in found.records)
    (record,) = (one for one in found.of("exchange", 2) if one.point.round == 0)
    (warning,) = record.warnings
    assert (
        warning.text
        == "rank 1: no trace: the profiler did not start: RuntimeError: a profiler that does not start"
    )
    assert [len(rank.traces) for rank in record.ranks] == [1, 0]
