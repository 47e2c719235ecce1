"""Failures, flags, footnotes and the audit of rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from msgspec.structs import replace

from scaling.analysis.table import catalogue, cost
from scaling.analysis.table.analyse import rows
from scaling.records.events import Failed, Result, Window
from scaling.records.run import PointRecord, WarningKind
from scaling.records.telemetry import Sample, Telemetry
from tests.support.planted import Plan, run
from tests.support.scripted_records import (
    STRONG,
    by_size,
    close,
    failed,
    header,
    host,
    mean,
    point,
    record,
    served,
    sweep,
    throttled,
    warning,
    with_window,
)

# ---------------------------------------------------------------- failures and flags


def test_a_row_whose_rounds_all_failed() -> None:
    message = "torch:nccl needs a GPU; install the CUDA build: pip install torch"
    (row,) = rows([failed(point("exchange", 2, number=n), "missing", message) for n in range(3)])
    assert row.failed == Failed(cause="missing", message=message, rank=1, host="node1", log="logs/a.log")
    assert (row.samples_per_s, row.efficiency, row.rounds, row.rounds_tried) == (None, None, 0, 3)
    assert row.flags == ("FAILED",)
    assert row.footnotes == (f"all 3 rounds failed: missing: {message} (rank 1 on node1; log: logs/a.log)",)


def test_partial_failure() -> None:
    records = [*sweep(0, 0.1, {2: 0.125}), *sweep(1, 0.1, {2: 0.125}), *sweep(2, 0.1, {2: 0.125})]
    lost = [point("exchange", 2, 0).key, point("exchange", 2, 2).key]
    row = by_size([failed(one.point) if one.point.key in lost else one for one in records])[2]
    assert row.failed is None and row.rounds == 1 and row.flags == ("ONE-ROUND",)
    slow = "slow rank: rank 1 on node1 (CPU 1) takes 2.0 % longer than the others when all run"
    assert row.footnotes == ("2 of 3 rounds failed: oom: out of memory (rank 1 on node1; log: logs/a.log)", slow)
    assert mean(row.efficiency) == close(0.8)


def without_windows(made: PointRecord) -> PointRecord:
    return replace(made, ranks=tuple(replace(rank, windows=()) for rank in made.ranks))


def test_finished_without_windows_is_a_failure() -> None:
    (row,) = rows([without_windows(record(point("exchange", 2), 0.1))])
    assert row.failed is not None and row.failed.cause == "no-result"
    assert row.footnotes[0] == "failed: no-result: ended without measured windows"


@pytest.mark.parametrize("kind", ["exchange", "together", "each"])
def test_finished_without_windows_beside_good_rounds_is_a_round_that_failed(kind: str) -> None:
    """Records that tell CPU time, of which that one has none."""
    made = run(Plan(size=2, rounds=3, server_s=0.01))
    lost = [without_windows(one) if (one.point.kind, one.point.round) == (kind, 1) else one for one in made]
    fewer = [failed(one.point) if (one.point.kind, one.point.round) == (kind, 1) else one for one in made]
    row, expected = by_size(lost)[2], by_size(fewer)[2]
    assert (row.rounds, row.rounds_tried) == (2 if kind == "exchange" else 3, 3)
    assert (row.efficiency, row.breakdown, row.samples_per_s) == (
        expected.efficiency, expected.breakdown, expected.samples_per_s
    )  # fmt: skip
    said = "1 of 3 rounds failed: no-result: ended without measured windows"
    assert (said in row.footnotes) == (kind == "exchange")
    assert row.failed is None and "FAILED" not in row.flags


def test_oversubscribed_claims_nothing() -> None:
    records = sweep(0, 0.1, {1: 0.1, 2: 0.125})
    records = [
        replace(one, oversubscribed=True) if one.point.key == point("exchange", 2).key else one for one in records
    ]
    row = by_size(records)[2]
    assert row.flags == ("OVERSUBSCRIBED", "ONE-ROUND")
    assert (row.efficiency, row.strategy_efficiency, row.speedup, row.breakdown) == (None, None, None, None)
    assert mean(row.samples_per_s) == close(512.0)
    assert row.footnotes == (
        "OVERSUBSCRIBED: more workers than cores; no speedup, efficiency, loss or rank is claimed",
    )
    assert by_size(records)[1].flags == ("ONE-ROUND",)


def test_a_row_that_fails_its_audit_claims_nothing_and_is_not_ranked() -> None:
    """Half of the samples in half of the time: the fastest by its own count."""
    honest = sweep(0, 0.1, {2: 0.125})
    made = record(point("exchange", 2, strategy="fake:b"), 0.0625)
    false = replace(made, ranks=tuple(replace(rank, windows=_halved(rank.windows)) for rank in made.ranks))
    found = {row.strategy: row for row in rows([*honest, false]) if row.world_size == 2}
    row = found["fake:b"]
    assert row.flags == ("AUDIT", "ONE-ROUND") and found["fake:a"].efficiency is not None
    assert (row.efficiency, row.strategy_efficiency, row.speedup, row.breakdown) == (None, None, None, None)
    assert (row.standing, found["fake:a"].standing) == (None, None)
    assert cost.bill(row, header([host()]), cost.Pricing(None)) == "AUDIT: its own counts disagree"


@pytest.mark.parametrize(("first", "said"), [("a", True), ("b", False), (None, False)])
def test_parameters_that_never_changed_are_an_audit(first: str | None, said: bool) -> None:
    """A constant digest agrees on all ranks whatever was exchanged."""
    result = Result(digest="a", peak_memory_bytes=0, peak_rss_bytes=1, first_digest=first)
    made = record(point("exchange", 2), 0.125)
    (row,) = rows([replace(made, ranks=tuple(replace(rank, result=result) for rank in made.ranks))])
    assert ("audit: the parameters never changed" in row.footnotes) is said
    assert ("AUDIT" in row.flags) is said


def _halved(windows: Iterable[Window]) -> tuple[Window, ...]:
    return tuple(replace(one, samples=one.samples // 2) for one in windows)


@pytest.mark.parametrize(("step_s", "flagged"), [(0.1 / 1.019, False), (0.1 / 1.021, True)])
def test_superlinear_above_102_percent(step_s: float, flagged: bool) -> None:
    row = by_size(twice(sweep(0, 0.1, {2: step_s})))[2]
    assert ("SUPERLINEAR" in row.flags) is flagged


def twice(records: Iterable[PointRecord]) -> list[PointRecord]:
    """The same in a second round: without an interval nothing is above 100 %."""
    made = list(records)
    return [*made, *(replace(one, point=replace(one.point, round=1)) for one in made)]


def superlinear_note(records: Iterable[PointRecord]) -> str:
    row = by_size(twice(records))[2]
    assert "SUPERLINEAR" in row.flags
    return next(note for note in row.footnotes if note.startswith("SUPERLINEAR"))


def test_noise_is_not_superlinear() -> None:
    # efficiencies 0.98, 1.05, 1.12: the mean is 1.05, the interval reaches below 1
    records = [one for n, solo in enumerate((0.098, 0.105, 0.112)) for one in sweep(n, solo, {2: 0.1})]
    row = by_size(records)[2]
    assert row.efficiency is not None and row.efficiency.low is not None
    assert row.efficiency.mean > 1.04 and row.efficiency.low < 1
    assert "SUPERLINEAR" not in row.flags


@pytest.mark.parametrize(
    ("steps_s", "is_noisy"),
    [
        ((0.12, 0.121, 0.122), False),  # a loss of 17 points, known to less than one
        ((0.12, 0.16, 0.11), True),  # half the interval is above 10 points
        ((0.1, 0.106, 0.1), True),  # a loss of 2 points, known to 8: above the least of 5
        ((0.1, 0.102, 0.101), False),  # a loss of 1 point, known to 3
    ],
)
def test_noisy_is_an_interval_wider_than_the_loss(steps_s: Sequence[float], is_noisy: bool) -> None:
    row = by_size(one for n, step_s in enumerate(steps_s) for one in sweep(n, 0.1, {2: step_s}))[2]
    assert ("NOISY" in row.flags) is is_noisy


@pytest.mark.parametrize(("steps_s", "is_noisy"), [((0.1, 0.2, 0.1), True), ((0.1, 0.101, 0.1), False)])
def test_a_rate_without_efficiency_is_noisy_from_a_tenth_on(steps_s: Sequence[float], is_noisy: bool) -> None:
    (row,) = rows([record(point("exchange", 2, n), step_s) for n, step_s in enumerate(steps_s)])
    assert row.efficiency is None and ("NOISY" in row.flags) is is_noisy


def test_one_round_over_100_percent_claims_nothing() -> None:
    row = by_size(sweep(0, 0.1, {2: 0.08}))[2]
    assert {"SUPERLINEAR", "ONE-ROUND"} <= {*row.flags} and "125%" in catalogue.unclaimed(row)


def test_superlinear_by_a_throttled_baseline() -> None:
    records = [throttled(one) if one.point.kind == "solo" else one for one in sweep(0, 0.1, {2: 0.08})]
    assert superlinear_note(records) == "SUPERLINEAR: the baseline's device was throttled (hw thermal)"


def test_superlinear_by_a_slower_baseline_device() -> None:
    records = sweep(0, 0.1, {2: 0.08})
    ready = records[1].ranks[1].ready
    assert ready is not None
    fast = replace(ready, device_name="Fast CPU")
    records[1] = replace(records[1], ranks=(records[1].ranks[0], replace(records[1].ranks[1], ready=fast)))
    assert "the baseline ran on Test CPU, the row also on Fast CPU, Test CPU" in superlinear_note(records)


def test_superlinear_by_caches_and_by_a_busy_baseline() -> None:
    small = [
        record(point("solo", batch_size=64, **STRONG), 0.2),
        record(point("exchange", 2, batch_size=32, **STRONG), 0.08),
    ]
    assert "smaller batch of 32 per device" in superlinear_note(small)
    assert "busier" in superlinear_note(sweep(0, 0.1, {2: 0.08}))


def test_a_throttled_helper_throttles_its_row() -> None:
    records = sweep(0, 0.1, {2: 0.125})
    hot = Telemetry(samples=(Sample(unix_s=1.0, throttle=("sw thermal",)),))
    (helper, *others) = served(records[1], 50.0).helpers
    records[1] = replace(records[1], helpers=(replace(helper, telemetry=hot), *others))
    row = by_size(records)[2]
    assert (row.flags, row.footnotes) == (("ONE-ROUND", "THROTTLED"), ("THROTTLED: sw thermal",))


def test_unsettled_and_throttled() -> None:
    records = sweep(0, 0.1, {2: 0.125})
    records[1] = throttled(replace(records[1], settled=False))
    row = by_size(records)[2]
    assert row.flags == ("ONE-ROUND", "UNSETTLED", "THROTTLED")
    assert [note.split(":")[0] for note in row.footnotes] == ["UNSETTLED", "THROTTLED"]


@pytest.mark.parametrize("kind", ["unsettled", "throttled"])
def test_what_a_record_warns_of_is_not_said_twice(kind: WarningKind) -> None:
    records = sweep(0, 0.1, {2: 0.125})
    records[1] = throttled(replace(records[1], settled=False, warnings=(warning("in its own words", kind),)))
    notes = by_size(records)[2].footnotes
    assert "in its own words" in notes
    assert [note.split(":")[0] for note in notes if ":" in note] == [
        flag for flag in ("UNSETTLED", "THROTTLED") if flag.lower() != kind
    ]


def test_a_warning_of_another_kind_hides_no_stamp_whatever_it_says() -> None:
    records = sweep(0, 0.1, {2: 0.125})
    records[1] = throttled(
        replace(records[1], settled=False, warnings=(warning("neither settled nor throttled"),))
    )
    notes = by_size(records)[2].footnotes
    assert [note.split(":")[0] for note in notes[:2]] == ["UNSETTLED", "THROTTLED"]


def test_warnings_and_retries_become_footnotes() -> None:
    records = [*sweep(0, 0.1, {2: 0.125}), *sweep(1, 0.1, {2: 0.125})]
    warned = replace(records[1], warnings=(warning("rank 0 had 1 CPUs"),), retries=("port-taken",))
    row = by_size([records[0], warned, *records[2:]])[2]
    assert row.footnotes[1:] == ("rank 0 had 1 CPUs (1 of 2 rounds)", "retried: port-taken (1 of 2 rounds)")


# ---------------------------------------------------------------- audit


def test_audit_counts_the_samples() -> None:
    # 2 ranks x 3 windows x 10 steps x 32 = 1920; one window of 320 fed only 300: 1900 is 1.04 % short
    made = record(point("exchange", 2), 0.125)
    (row,) = rows([with_window(made, 0, 1, samples=300)])
    assert row.flags == ("AUDIT", "ONE-ROUND")
    assert "audit: images/s x time gives 1920 samples, but the ranks fed 1900" in row.footnotes
    # 1910 is 0.5 % short
    assert rows([with_window(made, 0, 1, samples=310)])[0].flags == ("ONE-ROUND",)


def test_audit_compares_the_clocks() -> None:
    # Ends of the first and the last window lie 20 steps = 2.5 s apart.
    made = record(point("exchange", 2), 0.125)
    last = made.ranks[1].windows[-1].end_unix_s
    (row,) = rows([with_window(made, 1, -1, end_unix_s=last + 0.05)])
    assert row.flags == ("AUDIT", "ONE-ROUND")
    assert "audit: rank 1 on node1 measured 2.50 s while its wall clock moved by 2.55 s" in row.footnotes
    assert rows([with_window(made, 1, -1, end_unix_s=last + 0.02)])[0].flags == ("ONE-ROUND",)


def test_audit_compares_a_devices_clock_with_its_hosts() -> None:
    made = record(point("exchange", 2), 0.125)
    (row,) = rows([with_window(made, 1, -1, turn_s=4.0, turn_device_s=4.05)])
    assert row.flags == ("AUDIT", "ONE-ROUND")
    assert "audit: rank 1 on node1 measured 4.05 s by its device's clock, 4.00 s by its host's" in row.footnotes
    assert rows([with_window(made, 1, -1, turn_s=4.0, turn_device_s=4.03)])[0].flags == ("ONE-ROUND",)


def test_audit_of_the_clocks_needs_a_second() -> None:
    made = record(point("exchange", 2), 0.01)  # 0.2 s
    last = made.ranks[1].windows[-1].end_unix_s
    assert rows([with_window(made, 1, -1, end_unix_s=last + 0.1)])[0].flags == ("ONE-ROUND",)
