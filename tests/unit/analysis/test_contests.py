"""Who competes with whom, and what is claimed: in a framework, among frameworks, of stale and crowded ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.analysis.table.analyse import analyse, comparisons, rows
from scaling.analysis.table.comparisons import contests, exchanges
from scaling.analysis.table.rows import Row, Standing
from scaling.records.run import PointRecord
from tests.support.scripted_records import asynchronous, carried, failed, mean, point, record, with_losses

ROUNDS = 4
# Noise of round and rival that does not cancel: hundredths of a step.
NOISE = ((0.0, 0.4, -0.4), (0.3, -0.5, 0.2), (-0.4, 0.1, 0.5), (0.1, 0.2, -0.3))


def contest(steps_s: Mapping[str, float], rounds: int = ROUNDS) -> list[PointRecord]:
    return [
        record(point("exchange", 2, number, strategy=name), step_s * (1 + NOISE[number][index % 3] / 100))
        for number in range(rounds)
        for index, (name, step_s) in enumerate(steps_s.items())
    ]


def by_name(records: Iterable[PointRecord]) -> dict[str, Row]:
    return {row.strategy: row for row in rows(records)}


def verdict(standing: Standing | None) -> str | None:
    return None if standing is None else standing.verdict


def verdicts(records: Iterable[PointRecord]) -> dict[str, tuple[str | None, str | None]]:
    found = by_name(records)
    return {name: (verdict(row.standing), verdict(row.framework_standing)) for name, row in found.items()}


# ---------------------------------------------------------------- who competes


def test_exchanges_compete_inside_their_framework_and_the_fastest_among_frameworks() -> None:
    records = contest({"torch:a": 0.1, "torch:b": 0.12, "mxnet:a": 0.07, "mxnet:b": 0.0701, "tensorflow:a": 0.09})
    assert verdicts(records) == {
        "torch:a": ("best", "slower"),
        "torch:b": ("slower", None),
        "mxnet:a": ("leading", "best"),
        "mxnet:b": ("leading", None),
        "tensorflow:a": (None, "slower"),
    }


def test_the_fastest_is_so_by_the_rate_of_its_row() -> None:
    """Rounds at 865 and 457 samples/s have a geometric mean of 629, though an arithmetic one of 661."""
    wavering = [record(point("exchange", 2, n, strategy="a:b"), 0.14 if n % 2 else 0.074) for n in range(ROUNDS)]
    found = by_name([*wavering, *(record(point("exchange", 2, n, strategy="a:a"), 0.1) for n in range(ROUNDS))])
    assert mean(found["a:a"].samples_per_s) > mean(found["a:b"].samples_per_s)
    assert found["a:a"].standing is not None and found["a:a"].standing.difference is None
    assert found["a:b"].standing is not None and mean(found["a:b"].standing.difference) < 0


def test_pairs_are_of_one_framework_or_of_the_fastest_of_two() -> None:
    records = contest({"torch:a": 0.1, "torch:b": 0.12, "mxnet:a": 0.07, "mxnet:b": 0.08})
    found = [(one.framework, one.best.strategy, one.other.strategy) for one in comparisons(records)]
    assert found == [("mxnet", "mxnet:a", "mxnet:b"), ("torch", "torch:a", "torch:b"), ("", "mxnet:a", "torch:a")]


@pytest.mark.parametrize(
    ("plains", "framework"),
    [((), "my.own"), (("torch:plain",), "torch"), (("torch:plain", "mxnet:plain"), "my.own")],
)
def test_a_strategy_from_outside_is_of_its_baselines_framework(plains: tuple[str, ...], framework: str) -> None:
    records = contest({"torch:a": 0.1, "my.own:way": 0.1})
    records += [record(point("solo", 1, strategy=name), 0.09) for name in plains]
    found = by_name(records)
    assert found["my.own:way"].framework == framework
    assert (found["my.own:way"].standing is not None) == (framework == "torch")
    assert (found["my.own:way"].framework_standing is not None) == (framework != "torch")


def test_oversubscribed_rows_claim_no_speedup_and_take_no_part() -> None:
    records = contest({"fake:a": 0.1, "fake:b": 0.12, "fake:c": 0.05})
    records = [replace(one, oversubscribed=one.point.strategy == "fake:c") for one in records]
    records += [record(point("solo", 1, number), 0.09) for number in range(ROUNDS)]
    found = by_name(records)
    crowded = found["fake:c"]
    assert (crowded.speedup, crowded.efficiency, crowded.standing) == (None, None, None)
    assert crowded.samples_per_s is not None and found["fake:a"].speedup is not None
    assert verdict(found["fake:a"].standing) == "best"


def test_mislabelled_rows_are_compared_with_nobody() -> None:
    """Its bytes took the first one's network: what is measured is not what the row is called."""
    records = []
    for number in range(3):
        records.append(record(point("solo", 1, number), 0.1))
        for network, step_s in (("ib0", 0.13), ("eth0", 0.12), ("ib1", 0.14)):
            made = record(point("exchange", 2, number, interconnect=network), step_s, hosts=("node1", "node2"))
            records.append(carried(made, "ib0" if network == "eth0" else network))
    found = {row.interconnect: row for row in rows(records)}
    assert "MISLABELLED" in found["eth0"].flags and found["eth0"].standing is None
    assert found["eth0"].efficiency is not None
    standings = [found[name].standing for name in ("ib0", "ib1")]
    assert [standing.best for standing in standings if standing] == [True, False]
    assert {(pair.best.interconnect, pair.other.interconnect) for pair in comparisons(records)} == {("ib0", "ib1")}


def test_a_failed_row_takes_no_part() -> None:
    lost = [failed(point("exchange", 2, number, strategy="fake:c")) for number in range(ROUNDS)]
    found = by_name([*contest({"fake:a": 0.1, "fake:b": 0.12}), *lost])
    assert found["fake:c"].standing is None and verdict(found["fake:a"].standing) == "best"


# ---------------------------------------------------------------- what is claimed


def test_rivals_by_their_number_of_servers_have_noise_of_their_own() -> None:
    cells = {1: (3.0, 0.0, 1.5, -3.0), 2: (0.0, 0.4, -0.4, 0.1), 3: (0.3, -0.5, 0.2, 0.0)}
    records = [
        record(point("exchange", 2, number, servers=servers), 0.1 * servers * (1 + noise[number] / 100))
        for servers, noise in cells.items()
        for number in range(ROUNDS)
    ]
    (found,) = contests(exchanges(records))
    shares = [found.layout.shares[name] for name in found.layout.series]
    assert len(set(found.layout.series)) == 3
    assert shares[0] > 2 and max(shares[1:]) < 0.5


def test_best_is_told_from_all_and_leading_is_not() -> None:
    near = contest({"fake:a": 0.1, "fake:b": 0.1003, "fake:c": 0.12})
    assert {name: inside for name, (inside, _) in verdicts(near).items()} == {
        "fake:a": "leading", "fake:b": "leading", "fake:c": "slower",
    }  # fmt: skip
    far = contest({"fake:a": 0.1, "fake:b": 0.11, "fake:c": 0.12})
    assert {name: inside for name, (inside, _) in verdicts(far).items()} == {
        "fake:a": "best", "fake:b": "slower", "fake:c": "slower",
    }  # fmt: skip


def test_the_first_leads_where_one_shares_no_round_with_it() -> None:
    records = contest({"fake:a": 0.1, "fake:b": 0.12})
    records.append(record(point("exchange", 2, ROUNDS, strategy="fake:c"), 0.2))
    found = by_name(records)
    assert [verdict(row.standing) for row in found.values()] == ["leading", "slower", "not compared"]


def test_rounds_that_another_lacks_still_count_for_a_pair() -> None:
    whole = contest({"fake:a": 0.1, "fake:b": 0.11, "fake:c": 0.12})
    less = [one for one in whole if one.point.strategy != "fake:c" or one.point.round == 0]
    found = by_name(less)
    standing = found["fake:b"].standing
    assert standing is not None and standing.difference is not None and standing.difference.n == ROUNDS
    assert standing.verdict == "slower"
    alone = found["fake:c"].standing
    assert alone is not None and alone.difference is not None and alone.difference.low is None
    assert alone.difference.mean < -0.15


def test_a_difference_is_the_geometric_mean_over_rounds() -> None:
    times = ((0.1, 0.2), (0.1, 0.1))
    records = [
        record(point("exchange", 2, number, strategy=f"fake:{name}"), time)
        for number, pair in enumerate(times)
        for name, time in zip("ab", pair, strict=True)
    ]
    (found,) = comparisons(records)
    assert mean(found.difference) == pytest.approx(2**-0.5 - 1)
    assert mean(found.advantage) == pytest.approx(2**0.5 - 1)


def test_a_resolution_per_contest() -> None:
    stale = map(asynchronous, contest({"fake:c": 0.1, "fake:d": 0.1}))
    records = [*contest({"fake:a": 0.1, "fake:b": 0.11}), *stale]
    found = analyse(records).resolutions
    assert [(one.world_size, one.synchronous, one.rivals) for one in found] == [(2, True, 2), (2, False, 2)]
    assert all(one.rounds == ROUNDS and one.more_rounds == 10 for one in found)
    assert analyse(contest({"fake:a": 0.1, "fake:b": 0.11}, rounds=1)).resolutions == ()


# ---------------------------------------------------------------- stale images


def beside(losses: Iterable[float], others: Iterable[float]) -> Row:
    """An asynchronous row whose rounds end at `losses`, beside a synchronous one's."""
    made = []
    for number, (own, other) in enumerate(zip(losses, others, strict=True)):
        waits, runs = (point("exchange", 2, number, strategy=f"fake:{name}") for name in ("a", "stale"))
        made += [with_losses(record(waits, 0.1), 2.0, 1.5, other)]
        made += [asynchronous(with_losses(record(runs, 0.05), 2.0, 1.5, own))]
    return by_name(made)["fake:stale"]


@pytest.mark.parametrize(
    ("losses", "others", "learnt_less"),
    [
        ((1.2, 1.21, 1.19), (1.0, 1.01, 0.98), True),
        ((1.2, 0.9, 1.0), (1.0, 1.01, 0.98), False),  # above, but by no more than rounds differ
        ((0.9, 0.91, 0.9), (1.0, 1.01, 0.98), False),
        ((1.2,), (1.0,), False),  # one round tells nothing
    ],
)
def test_stale_ranks_that_learnt_less_say_so(losses: Any, others: Any, learnt_less: bool) -> None:
    assert beside(losses, others).learnt_less is learnt_less


def test_less_is_less_than_all_synchronous_rows() -> None:
    made = []
    for number in range(3):
        for name, loss in (("a", 1.0), ("b", 1.4), ("stale", 1.2)):
            one = with_losses(record(point("exchange", 2, number, strategy=f"fake:{name}"), 0.1), 2.0, 1.5, loss)
            made.append(asynchronous(one) if name == "stale" else one)
    assert not by_name(made)["fake:stale"].learnt_less


def test_without_synchronous_rows_nobody_learnt_less() -> None:
    records = [asynchronous(one) for one in contest({"fake:a": 0.1, "fake:b": 0.1})]
    assert not any(row.learnt_less for row in rows(records))
