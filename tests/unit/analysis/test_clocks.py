"""What GPUs' clocks say of a row: the power limit is no fault, heat is, and another clock than the baseline's."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from scaling.analysis.measured import device_use
from scaling.analysis.table.rows import Row
from scaling.records.run import PointRecord
from scaling.records.telemetry import POWER_CAP, Sample, Telemetry
from scaling.report import facts
from tests.support.scripted_records import by_size, point, record, sweep, warning


def sample(clock_mhz: float | None, *throttle: str, utilisation_percent: float | None = 98.0) -> Sample:
    return Sample(
        unix_s=1.0,
        sm_clock_mhz=clock_mhz,
        throttle=throttle,
        utilisation_percent=utilisation_percent,
        device_index=0,
    )


def with_samples(made: PointRecord, *samples: Sample, max_mhz: float | None = 1410.0) -> PointRecord:
    read = Telemetry(samples=samples, max_sm_clock_mhz=max_mhz)
    return replace(made, ranks=tuple(replace(rank, telemetry=read) for rank in made.ranks))


def swept(solo: tuple[Sample, ...], exchange: tuple[Sample, ...]) -> Row:
    """The row of two ranks; three rounds."""
    read = {"solo": solo, "exchange": exchange}
    records = [one for number in range(3) for one in sweep(number, 0.1, {2: 0.125})]
    return by_size([with_samples(one, *read.get(one.point.kind, ())) for one in records])[2]


def notes(row: Row) -> list[str]:
    return [note for note in row.footnotes if "throttled" in note.lower() or "clock" in note]


def test_a_card_at_its_power_limit_is_not_throttled() -> None:
    """As every V100 of 250 W, T4 and GeForce is under load."""
    row = swept((sample(1000.0, POWER_CAP),), (sample(1005.0, POWER_CAP), sample(1000.0)))
    assert (row.flags, notes(row)) == ((), [])
    assert row.clocks is not None
    assert (row.clocks.sm_mhz, row.clocks.power_limited, row.clocks.throttled) == (1002.5, 0.5, ())
    assert row.clocks.of_max == pytest.approx(1002.5 / 1410)
    assert row.clocks.of_baseline == pytest.approx(1.0025)


@pytest.mark.parametrize("reason", ["hw slowdown", "hw thermal", "sw thermal", "power brake"])
def test_heat_and_failing_power_throttle_a_row(reason: str) -> None:
    row = swept((sample(1000.0),), (sample(1000.0), sample(1000.0, POWER_CAP, reason)))
    assert (row.flags, notes(row)) == (("THROTTLED",), [f"THROTTLED: {reason}"])


@pytest.mark.parametrize(
    ("clock_mhz", "note"),
    [
        (1000.0, None),
        (985.0, None),
        (1019.0, None),
        (
            950.0,
            "THROTTLED: SM clock 950 MHz, 67 % of the highest, at the power limit in 100 % of readings; "
            "the clock is 5.0 % below its baseline's",
        ),
        (
            1100.0,
            "THROTTLED: SM clock 1100 MHz, 78 % of the highest, at the power limit in 100 % of readings; "
            "the clock is 10.0 % above its baseline's, so that the efficiency is too good",
        ),
    ],
)
def test_a_row_at_another_clock_than_its_baseline_says_so(clock_mhz: float, note: str | None) -> None:
    """Whatever lowered it: images/s of the two are then not those of one device."""
    row = swept((sample(1000.0, POWER_CAP),), (sample(clock_mhz, POWER_CAP),))
    assert row.flags == (("THROTTLED",) if note else ())
    assert notes(row) == ([note] if note else [])


def test_readings_of_an_idle_gpu_say_nothing_of_the_clock_it_works_at() -> None:
    idle = sample(210.0, utilisation_percent=0.0)
    row = swept((sample(1000.0),), (idle, sample(1000.0), sample(1000.0, utilisation_percent=None)))
    assert row.clocks is not None and (row.clocks.sm_mhz, row.flags) == (1000.0, ())


def test_where_nothing_was_read_nothing_is_said() -> None:
    row = by_size([record(point("solo"), 0.1), record(point("exchange", 2), 0.1)])[2]
    assert row.clocks is None
    unknown = swept((sample(None),), (sample(None),)).clocks
    assert unknown is not None and (unknown.sm_mhz, unknown.of_baseline, unknown.differ) == (None, None, False)


def test_older_records_tell_the_power_limit_among_the_reasons_and_no_highest_clock() -> None:
    old = b'{"samples":[[1.0,98.0,249.0,1000.0,1,60.0,["sw power cap"]]]}'
    read = msgspec.json.decode(old, type=Telemetry)
    made = record(point("exchange", 2), 0.1)
    found = device_use.clocks([replace(made, ranks=(replace(made.ranks[0], telemetry=read),))])
    assert found == device_use.Clocks(sm_mhz=1000.0, of_max=None, power_limited=1.0)


def test_a_report_tells_the_clock_of_the_whole_run_once() -> None:
    made = with_samples(record(point("exchange", 2), 0.1), sample(1005.0, POWER_CAP), sample(1005.0))
    found = device_use.clocks([made])
    assert found is not None
    assert (
        device_use.describe(found)
        == "SM clock 1005 MHz, 71 % of the highest, at the power limit in 50 % of readings"
    )
    assert facts._clocks([made]) == device_use.describe(found)
    assert facts._clocks([record(point("exchange", 2), 0.1)]) == ""


def test_older_sweeps_warned_of_the_power_limit() -> None:
    made = [one for number in range(3) for one in sweep(number, 0.1, {2: 0.125})]
    told = replace(
        with_samples(made[1], sample(1000.0, POWER_CAP)),
        warnings=(warning("rank 0 on node1 was throttled: sw power cap", "throttled"),),
    )
    assert notes(by_size([made[0], told, *made[2:]])[2]) == []
