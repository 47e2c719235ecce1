"""Summaries of a burn-in and the rounds that it keeps: bounded, however long it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from scaling.errors import UsageError
from scaling.records import store
from scaling.records.burn_in import (
    MOST_ROUNDS,
    MOST_STRETCHES,
    LinkErrors,
    PointSummary,
    Stretches,
    asked_s,
    bin_of,
    is_kept,
    joined,
    spacing,
)
from tests.support.scripted_records import header, point, record, written

CELL = point().cell


def summary(number: int, **changes: Any) -> PointSummary:
    """The summary of one round that took 10 s, with ten steps of 0.1 s."""
    made: dict[str, Any] = {
        "cell": CELL, "first_round": number, "begin_s": 10.0 * number, "end_s": 10.0 * number + 10, "measured": 1,
        "samples": 320, "seconds": 1.0, "times": ((bin_of(0.1), 10),), "worst_s": 0.1, "worst_round": number,
    }  # fmt: skip
    return PointSummary(**{**made, **changes})


@pytest.mark.parametrize(
    ("rounds", "every"), [(1, 1), (MOST_ROUNDS, 1), (MOST_ROUNDS + 1, 2), (2 * MOST_ROUNDS + 1, 4), (10_000, 256)]
)
def test_rounds_are_spaced_by_a_power_of_two(rounds: int, every: int) -> None:
    assert spacing(rounds) == every


@pytest.mark.parametrize("rounds", [1, 2, 63, 64, 65, 128, 129, 1000, 10_000, 2**31])
def test_the_first_round_is_kept_and_never_more_than_so_many(rounds: int) -> None:
    some = min(rounds, 20_000)
    assert is_kept(0, rounds)
    assert sum(is_kept(number, rounds) for number in range(some)) <= MOST_ROUNDS


def test_a_round_that_is_dropped_is_never_wanted_again() -> None:
    for number in range(300):
        kept = [is_kept(number, rounds) for rounds in range(number + 1, 2000)]
        assert kept == sorted(kept, reverse=True)


def test_two_stretches_join_into_one() -> None:
    errors = LinkErrors(host="node1", card="eth0", counter="rx_errors", count=2)
    first = summary(0, repeated=1, link_errors=(errors,), readings=10, throttled=1, reasons=("hw thermal",))
    stalled = {
        "times": ((bin_of(0.1), 9), (bin_of(3.0), 1)),
        "worst_s": 3.0,
        "worst_host": "node2",
        "worst_rank": 1,
    }
    then = summary(1, **stalled, link_errors=(errors,), readings=10, failures={"hang": 1}, of_windows=True)
    found = joined(first, then)
    assert (found.first_round, found.rounds, found.begin_s, found.end_s, found.measured) == (0, 2, 0.0, 20.0, 2)
    assert (found.samples, found.seconds, found.repeated, found.readings) == (640, 2.0, 1, 20)
    assert found.times == ((bin_of(0.1), 19), (bin_of(3.0), 1))
    assert (found.worst_s, found.worst_host, found.worst_rank, found.worst_round) == (3.0, "node2", 1, 1)
    assert (found.throttled, found.reasons, found.failures) == (1, ("hw thermal",), {"hang": 1})
    assert [error.count for error in found.link_errors] == [4]
    assert found.of_windows
    assert joined(then, first) == found


@pytest.mark.parametrize("rounds", [3, MOST_STRETCHES, MOST_STRETCHES + 1, 5000])
def test_a_run_has_so_many_stretches_of_equal_length_and_loses_nothing(rounds: int) -> None:
    found = Stretches(map(summary, range(rounds))).all()
    assert len(found) <= MOST_STRETCHES
    assert len({one.rounds for one in found[:-1]}) <= 1
    assert sum(one.samples for one in found) == 320 * rounds
    assert [one.first_round for one in found] == sorted(one.first_round for one in found)


# ---------------------------------------------------------------- files


def burn_in(folder: Path, rounds: int) -> Path:
    """The file of a burn-in: summaries of all rounds, records of those that were kept when they were written."""
    lines: list[Any] = []
    for number in range(rounds):
        if is_kept(number, number + 1):
            lines.append(record(point(number=number), 0.1))
        lines.append(summary(number))
    return written(folder, (header(config={"for": "7d", "rounds": 2}), lines))


@pytest.mark.parametrize("rounds", [1, 64, 65, 500])
def test_a_reader_keeps_evenly_spaced_rounds_and_all_summaries(tmp_path: Path, rounds: int) -> None:
    run = burn_in(tmp_path / "run", rounds)
    found = store.read(run)
    assert [one.point.round for one in found.records] == [*range(0, rounds, spacing(rounds))]
    assert sum(one.measured for one in found.summaries) == rounds
    assert store.load(run) == (found.header, found.records)


def test_other_runs_keep_all_rounds(tmp_path: Path) -> None:
    run = written(tmp_path / "run", (header(), [record(point(number=number), 0.1) for number in range(150)]))
    assert len(store.read(run).records) == 150


@pytest.mark.parametrize("times", [[[9999, 1]], [[0, -1]], [[0]], "x"])
def test_a_damaged_summary_is_named_by_its_line(tmp_path: Path, times: Any) -> None:
    plain = {**msgspec.to_builtins(summary(0)), "times": times}
    run = written(tmp_path / "run", (header(config={"for": "2h"}), []))
    with (run / store.FILE).open("ab") as file:
        file.write(msgspec.json.encode(plain) + b"\n")
    with pytest.raises(UsageError, match=r"run\.jsonl:2: not a point record"):
        store.read(run)


@pytest.mark.parametrize(("asked", "seconds"), [("2h", 7200.0), (None, 0.0), (7, 0.0), ("x", 0.0), ({}, 0.0)])
def test_the_time_of_a_run_by_its_configuration(asked: Any, seconds: float) -> None:
    assert asked_s({"for": asked}) == seconds


def test_a_long_file_is_copied_from_its_open_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory holds no copy of a long run; the removed file exists while it is open."""
    monkeypatch.setattr(store, "MOST_COPY_BYTES", 1000)
    monkeypatch.setattr(store, "CHUNK_BYTES", 1000)
    run = burn_in(tmp_path / "run", 3)
    before = (run / store.FILE).read_bytes()
    with store.Store.resume(run) as opened:
        opened.append(summary(3))
        (run / store.FILE).unlink()
        run.rmdir()
        assert "was removed or moved: the run was written anew" in opened.append(summary(4))
        after = opened.path.read_bytes()
    assert after.startswith(before)
    assert after[len(before) :].count(b"\n") == 2
