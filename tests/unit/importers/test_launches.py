"""Logs of one launch: ranks' files and copies are no second launch; launches after each other are."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from random import Random

import pytest

from scaling.errors import UsageError
from scaling.tools.importers.logs import Given, Trace
from scaling.tools.importers.tools import Clock, is_together, read_all, time_of
from tests.support.imported_logs import written

GIVEN = Given(world_size=8, batch_size=2, model="gpt", precision="bf16")


def trace(rates: Sequence[float]) -> Trace:
    return Trace(array("q", range(len(rates))), array("d", rates))


def noisy(rates: Sequence[float], spread: float, seed: int) -> list[float]:
    random = Random(seed)
    return [rate * random.gauss(1, spread) for rate in rates]


# A launch with slow steps: each rank waits for the slowest.
STEPS = noisy([100.0] * 40, 0.01, 1)


@pytest.mark.parametrize("seed", range(20))
def test_ranks_of_one_launch_change_together(seed: int) -> None:
    assert is_together(trace(noisy(STEPS, 0.002, 100 + seed)), trace(noisy(STEPS, 0.002, 200 + seed)))


@pytest.mark.parametrize(
    "shape", [lambda step: 100.0, lambda step: 100 - step / 4, lambda step: 95 + 5 * (step > 5)]
)
@pytest.mark.parametrize("seed", range(20))
def test_launches_do_not_even_if_both_warm_up_or_slow_down(seed: int, shape: Callable[[int], float]) -> None:
    rates = [shape(step) for step in range(40)]
    assert not is_together(trace(noisy(rates, 0.003, 100 + seed)), trace(noisy(rates, 0.003, 200 + seed)))


def test_equal_rates_are_of_one_launch_unless_they_never_change() -> None:
    assert is_together(trace([1.0, 2.0, 2.1, 2.2]), trace([9.0, 2.0, 2.1, 2.2]))
    assert not is_together(trace([1.0, 2.0, 2.0, 2.0]), trace([1.0, 2.0, 2.0, 2.0]))
    assert not is_together(trace([1.0]), trace([1.0]))


@pytest.mark.parametrize(
    ("line", "time"),
    [
        ("[titan] 2026-01-31 10:00:01,123 - root - INFO - step", datetime(2026, 1, 31, 10, 0, 1)),
        ("2026/01/31 10:00:01 step", datetime(2026, 1, 31, 10, 0, 1)),
        ("Jan 31 10:00:01 node7 python[12]: step", datetime(2000, 1, 31, 10, 0, 1)),
        ("I0131 10:00:01.123456 140 keras_utils.py:145] TimeHistory", datetime(2000, 1, 31, 10, 0, 1)),
        ("2026-13-31 10:00:01 step", None),
        ("step 3: 10:00:01", None),
    ],
)
def test_the_time_of_a_line(line: str, time: datetime | None) -> None:
    assert time_of(line) == time


def clock(first: int, last: int) -> Clock:
    """Lines of data at two minutes, between lines without data."""
    found = Clock(["tps"])
    lines = ["2020-01-01 00:00:00 start", *(f"2026-01-31 10:{at:02}:00 tps" for at in (first, last)), "2029-01-01"]
    assert list(found.watch(["\n".join(lines) + "\n"]))
    return found


@pytest.mark.parametrize(
    ("first", "last", "overlaps"), [(1, 11, True), (8, 30, False), (10, 20, False), (4, 9, True)]
)
def test_logs_that_ran_most_of_their_time_together_overlap(first: int, last: int, overlaps: bool) -> None:
    assert clock(0, 10).overlaps(clock(first, last)) is overlaps
    assert not clock(0, 10).overlaps(Clock(["tps"]))


# ---------------------------------------------------------------- the command


def fsdp(folder: Path, name: str, rates: Sequence[float], start: str = "") -> Path:
    lines = [f"step: {at}  loss: 7.24  memory: 1GiB  tps: {rate:.2f}  mfu: 1%\n" for at, rate in enumerate(rates)]
    times = [f"2026-01-31 {start}:{at:02},123 " if start else "" for at in range(len(rates))]
    return written(folder, "".join(map("".join, zip(times, lines, strict=True))), name)


def refusal(*logs: Path) -> str:
    with pytest.raises(UsageError) as error:
        read_all((log, GIVEN) for log in logs)
    return str(error.value)


WAY = (
    "both are of one launch, which counts once; give one log of each launch, or all of its ranks in one file if "
    "each says its own rate alone"
)


def test_files_of_ranks_at_the_same_time_are_refused(tmp_path: Path) -> None:
    logs = [fsdp(tmp_path, f"{rank}.log", [9.0, 9.1, 9.2 + rank], "10:00") for rank in range(2)]
    time = "from 2026-01-31 10:00:00 to 2026-01-31 10:00:02"
    assert refusal(*logs) == f"LOG {logs[1]}: ran at the same time as {logs[0]}, {time}: {WAY}"


def test_files_of_ranks_without_times_are_refused_by_their_rates(tmp_path: Path) -> None:
    logs = [fsdp(tmp_path, f"{rank}.log", noisy(STEPS, 0.002, rank)) for rank in range(2)]
    assert refusal(*logs) == f"LOG {logs[1]}: has the rates of {logs[0]} step by step: {WAY}"


def test_launches_after_each_other_are_two(tmp_path: Path) -> None:
    logs = [fsdp(tmp_path, f"{hour}.log", noisy([9.0] * 40, 0.003, hour), f"{hour}:00") for hour in (10, 11)]
    assert len(read_all((log, GIVEN) for log in logs)) == 2


def test_logs_of_other_cells_may_run_at_the_same_time(tmp_path: Path) -> None:
    logs = [fsdp(tmp_path, f"{rank}.log", STEPS, "10:00") for rank in range(2)]
    logs[1].write_text(f"no copy\n{logs[1].read_text()}")
    assert len(read_all([(logs[0], GIVEN), (logs[1], Given(world_size=4))])) == 2
