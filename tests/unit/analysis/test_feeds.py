"""What a row says of its feed: how long ranks were blocked in it, where its files came from."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from scaling.analysis.measured import cell
from scaling.records.events import Ready
from scaling.records.run import PointRecord
from tests.support.scripted_records import point
from tests.support.scripted_records import record as recorded

READY = Ready(import_s=1.0, build_s=1.0, parameters=1, gradient_bytes=4, device_name="cpu")


def fed(record: PointRecord, waited_s: float | None, **ready: Any) -> PointRecord:
    ranks = [
        replace(
            rank,
            ready=replace(READY, **ready),
            windows=tuple(replace(window, waited_s=waited_s) for window in rank.windows),
        )
        for rank in record.ranks
    ]
    return replace(record, ranks=tuple(ranks))


def test_how_long_a_rank_is_blocked_in_a_step() -> None:
    record = recorded(point(), 0.1)
    steps = record.ranks[0].windows[0].steps
    assert cell.waited_s([fed(record, 0.5 * steps), fed(record, 1.5 * steps)]) == 1.0
    assert cell.waited_s([fed(record, None)]) is None
    assert list(cell.feed_notes([fed(record, None)])) == []


def test_where_its_files_came_from() -> None:
    record = recorded(point(), 0.1)
    (pipeline, cached) = cell.feed_notes(
        [fed(record, 1.0, fed_by="tf.data, 2 threads a rank", read_from="page cache")]
    )
    assert pipeline == "native feed: tf.data, 2 threads a rank"
    assert cached.startswith("files come from the page cache")
    dropped = [fed(record, 1.0, read_from="disk", cached_fraction=part) for part in (0.0, 0.125)]
    assert list(cell.feed_notes(dropped[:1])) == ["files were dropped from the page cache before each point"]
    assert next(cell.feed_notes(dropped)).endswith("; up to 12 % stayed there")
    (unknown,) = cell.feed_notes([fed(record, 1.0, read_from="disk")])
    assert "does not tell this user" in unknown
