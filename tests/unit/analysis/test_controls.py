"""What control runs say about the rows that rest on them."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from scaling.analysis.measured import step_time
from scaling.analysis.table import analyse
from scaling.records.events import Failed
from scaling.records.point import Kind
from tests.support.inline import Launch
from tests.support.scripted_records import close, failed, point, record


def test_ranks_that_are_slow_in_turns_straggle(tmp_path: Path) -> None:
    """Seconds of two windows: rank 0 has 1 and 3, rank 1 has 3 and 1. No rank is slow on the whole (4 s
    each), but in lock-step each window would last 3 s."""
    (together,) = Launch(2).sweep(tmp_path, rounds=1).of("together", size=2)
    seconds = ((1.0, 3.0), (3.0, 1.0))
    ranks = []
    for rank, (first, second) in zip(together.ranks, seconds, strict=True):
        edges = (0.0, first, first + second)
        windows = [
            replace(window, steps=2, start_s=start, end_s=end)
            for window, start, end in zip(rank.windows[:2], edges, edges[1:], strict=False)
        ]
        ranks.append(replace(rank, windows=tuple(windows)))
    time = step_time.lock_step(replace(together, ranks=tuple(ranks)))
    assert time is not None
    assert (time.mean_s, time.step_s) == (1.0, 1.5)


def test_one_disturbed_window_without_the_exchange_does_not_count() -> None:
    made = record(point("exchange", 2), 0.16)
    ranks = [
        replace(rank, unsynced=tuple(replace(rank.windows[0], steps=2, start_s=0.0, end_s=end) for end in ends_s))
        for rank, ends_s in zip(made.ranks, ((0.20, 0.21), (0.21, 0.90)), strict=True)
    ]
    assert step_time.unsynced_s(replace(made, ranks=tuple(ranks))) == close(0.105)
    assert step_time.unsynced_s(made) is None
    assert step_time.unsynced_s(replace(failed(made.point, "crash"), ranks=tuple(ranks))) is None


def test_controls_in_doubt_are_noted_on_the_rows_that_rest_on_them(tmp_path: Path) -> None:
    found = Launch(2).sweep(tmp_path, rounds=2)
    doubtful = [
        replace(record, settled=False) if record.point.kind == "together" else record for record in found.records
    ]
    rows = {row.world_size: row for row in analyse.rows(doubtful)}
    assert any("its together control is UNSETTLED" in note for note in rows[2].footnotes)
    assert not any("control is" in note for note in rows[1].footnotes)
    assert not any("control is" in note for row in analyse.rows(found.records) for note in row.footnotes)


@pytest.mark.parametrize("kind", ["each", "together", "comm", "feed", "held"])
def test_a_control_that_failed_is_noted_with_its_cell_cause_and_log(kind: Kind) -> None:
    """Also where the row has no efficiency, and where its split does without that control."""
    why = Failed(cause="crash(SIGKILL)", message="ended by SIGKILL", rank=1, host="node2", log="logs/7.log")
    control = replace(failed(point(kind, 2), "x"), outcome=why)
    (row,) = analyse.rows([record(point("exchange", 2), 0.16), control])
    (told,) = (note for note in row.footnotes if note.startswith("its "))
    assert told.startswith(f"its {kind} control at n2: failed: crash(SIGKILL): ended by SIGKILL")
    assert told.endswith("(rank 1 on node2; log: logs/7.log)")
