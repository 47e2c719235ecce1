"""What `python -m tests.bench.intervals` is asked: numbers that it can simulate, and one line for any other."""

from __future__ import annotations

import pytest

from tests.bench import intervals


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["abc"], "argument RUNS: abc: a whole number, 1 or more"),
        (["0"], "argument RUNS: 0: a whole number, 1 or more"),
        (["-5"], "argument RUNS: -5: a whole number, 1 or more"),
        (["1.5"], "argument RUNS: 1.5: a whole number, 1 or more"),
        (["10", "x"], "argument SEED: x: a whole number, 0 or more"),
        (["10", "-1"], "argument SEED: -1: a whole number, 0 or more"),
        (["10", "1", "2"], "unrecognized arguments: 2"),
    ],
)
def test_what_it_cannot_simulate_is_told_in_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        intervals.main(words)
    assert ended.value.code == 2
    assert capsys.readouterr() == ("", f"python -m tests.bench.intervals: {said}\n")


@pytest.mark.parametrize(
    ("words", "asked"), [([], (4000, 1)), (["300"], (300, 1)), (["300", "7"], (300, 7)), (["1", "0"], (1, 0))]
)
def test_runs_and_seed_have_defaults(words: list[str], asked: tuple[int, int]) -> None:
    found = intervals.parsed(words)
    assert (found.runs, found.seed) == asked
