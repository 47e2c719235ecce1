"""The arithmetic of the benches."""

from __future__ import annotations

import random
from math import exp, inf, nan

import pytest

from scaling.agent import environment
from scaling.analysis.intervals import Estimate
from tests.bench import forks, intervals, paired
from tests.bench.environment import ONE_THREAD, with_heap
from tests.bench.paired import Answer, Start

# The arithmetic of two programs that take turns.


def start(ratios: list[float], drift: float = 1.0) -> Start:
    reference = [100.0 * drift**number for number in range(len(ratios))]
    return Start(4, [each * one for each, one in zip(ratios, reference, strict=True)], reference)


def test_ranks_that_wait_for_each_other_are_as_fast_as_the_slowest() -> None:
    answers = [Answer(64, 1.0, None), Answer(64, 2.0, None)]
    assert paired.samples_per_s(answers, asynchronous=False) == 64
    assert paired.samples_per_s(answers, asynchronous=True) == 96


@pytest.mark.parametrize(("step_s", "steps"), [(0.1, 4), (0.03, 13), (1.0, 2), (1e-6, 1000)])
def test_a_block_lasts_less_than_half_a_second_where_steps_allow(step_s: float, steps: int) -> None:
    assert paired.steps_per_block([step_s / 2, step_s]) == steps


def test_either_goes_first_by_chance_that_the_seed_decides() -> None:
    pairs = paired.order(100, "1/torch:gloo/0")
    assert {frozenset(pair) for pair in pairs} == {frozenset({"subject", "reference"})}
    assert 30 < sum(pair[0] == "subject" for pair in pairs) < 70
    assert pairs == paired.order(100, "1/torch:gloo/0") != paired.order(100, "1/torch:gloo/1")


def test_drift_of_the_machine_goes_out_of_a_pair() -> None:
    assert exp(paired.of_start(start([0.98] * 12, drift=1.5))) == pytest.approx(0.98)


def test_a_fifth_of_the_pairs_at_either_end_does_not_count() -> None:
    assert exp(paired.of_start(start([1.0] * 8 + [0.1, 9.0]))) == pytest.approx(1.0)
    assert exp(paired.of_start(start([1.0] * 7 + [0.1, 0.1, 0.1]))) < 0.9


def test_blocks_that_others_slow_down_are_not_the_quickest() -> None:
    chance = random.Random(1)
    subject, reference = ([rate / chance.choice((1.0, 1.4, 1.7)) for _ in range(24)] for rate in (98.0, 100.0))
    assert exp(paired.quickest_of_start(Start(4, subject, reference))) == pytest.approx(0.98)


def test_the_interval_is_over_starts() -> None:
    found = paired.ratio([start([each] * 12) for each in (0.98, 1.0, 1.02)])
    assert found.n == 3
    assert found.mean == pytest.approx(1.0, abs=1e-3)
    # t(2) = 4.303 times 2 % over the root of 3.
    assert found.half_width == pytest.approx(0.0497, abs=1e-3)


def test_two_programs_alike_but_for_their_starts_are_told_to_be_so() -> None:
    """Intervals over starts cover, though the blocks of a start share an error of their own."""
    chance, covered = random.Random(1), 0
    for _ in range(400):
        starts = []
        for _ in range(6):
            of_start = chance.gauss(0, 0.01)
            starts.append(start([exp(of_start + chance.gauss(0, 0.02)) for _ in range(12)]))
        found = paired.ratio(starts)
        assert found.low is not None and found.high is not None
        covered += found.low <= 1 <= found.high
    assert 0.92 < covered / 400 < 0.98


WIDE = "by all of a wider interval"


@pytest.mark.parametrize(
    ("estimate", "said"),
    [
        ((0.998, 0.992, 1.004), "ratio 0.998 (0.992 to 1.004), 6 starts x 12 blocks: reached"),
        ((0.985, 0.98, 0.99), "ratio 0.985 (0.980 to 0.990), 6 starts x 12 blocks: missed"),
        ((0.998, 0.98, 1.02), "ratio 0.998 (0.980 to 1.020), 6 starts x 12 blocks: too wide to tell"),
        ((1.22, 1.2, 1.24), f"ratio 1.220 (1.200 to 1.240), 6 starts x 12 blocks: reached {WIDE}"),
        ((0.9, 0.88, 0.92), f"ratio 0.900 (0.880 to 0.920), 6 starts x 12 blocks: missed {WIDE}"),
        ((0.998, None, None), "ratio 0.998, 6 starts x 12 blocks: too wide to tell"),
    ],
)
def test_the_last_line(estimate: tuple[float, float | None, float | None], said: str) -> None:
    mean, low, high = estimate
    assert paired.said(Estimate(mean=mean, low=low, high=high, n=6), 12) == said


@pytest.mark.parametrize(
    ("losses", "synchronous", "asynchronous"),
    [([1.0, 2.0], True, True), ([2.0, 2.5], False, True), ([nan, 1.0], False, False), ([inf], False, False),
     ([None], False, False)],
)  # fmt: skip
def test_a_program_that_learns_nothing_is_no_program(
    losses: list[float | None], synchronous: bool, asynchronous: bool
) -> None:
    answers = [Answer(64, 1.0, loss) for loss in losses]
    assert paired.learnt(answers, asynchronous=False) is synchronous
    assert paired.learnt(answers, asynchronous=True) is asynchronous


# What both programs of a comparison are started with.


def test_the_heap_is_that_of_scalings_workers_and_not_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(environment.KEPT_HEAP, "MALLOC_TOP_PAD_", "7")
    assert with_heap({}) == {**ONE_THREAD, **environment.KEPT_HEAP}


def test_what_the_environment_says_of_heap_and_threads_does_not_count() -> None:
    own = {"MALLOC_TOP_PAD_": "7", "OMP_NUM_THREADS": "2", "HOME": "/h"}
    assert with_heap(own) == {"HOME": "/h", **ONE_THREAD, **environment.KEPT_HEAP}
    assert with_heap(own, kept=False) == {"HOME": "/h", **ONE_THREAD}


# When forked workers count as fast as fresh ones.


@pytest.mark.parametrize(
    ("mean", "half", "verdict"),
    [
        (1.000, 0.009, "alike"),
        (0.991, 0.009, "alike"),
        (1.009, 0.009, "alike"),
        (0.985, 0.009, "not alike"),
        (1.015, 0.009, "not alike"),
        (1.000, 0.020, "too wide to tell"),
        (1.000, None, "too wide to tell"),
    ],
)
def test_the_bar_is_one_percent_to_either_side(mean: float, half: float | None, verdict: str) -> None:
    low, high = (None, None) if half is None else (mean - half, mean + half)
    assert forks.verdict(Estimate(mean=mean, low=low, high=high, n=4)) == verdict


# What `python -m tests.bench.intervals` is asked: numbers that it can simulate, and one line for any other.


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
