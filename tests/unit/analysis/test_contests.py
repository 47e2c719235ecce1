"""Who competes with whom, and what is claimed; ranks that do not wait; curves, feeds and servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.analysis.table.analyse import analyse, rows
from scaling.analysis.table.comparisons import curve_keys
from scaling.analysis.table.rows import Row, Standing
from scaling.records.events import Ready
from scaling.records.run import PointRecord
from tests.support.golden_rows import check_rows
from tests.support.scripted_records import (
    asynchronous,
    by_one_worker,
    carried,
    close,
    failed,
    loss_of,
    mean,
    numbered,
    point,
    record,
    served,
    sweep,
    with_losses,
    with_window,
)

ROUNDS = 4
# Noise of round and rival that does not cancel: hundredths of a step.
NOISE = ((0.0, 0.4, -0.4), (0.3, -0.5, 0.2), (-0.4, 0.1, 0.5), (0.1, 0.2, -0.3))


def contest(steps_s: Mapping[str, float], rounds: int = ROUNDS) -> list[PointRecord]:
    return [
        record(point("exchange", 2, number, strategy=name), step_s * (1 + NOISE[number][index % 3] / 100))
        for number in range(rounds)
        for index, (name, step_s) in enumerate(steps_s.items())
    ]


def exact(steps_s: Mapping[str, float], rounds: int = 3) -> list[PointRecord]:
    """Strategies at N=2 without noise; those whose mode begins with `async` do not wait."""
    made = [
        record(point("exchange", 2, number, strategy=name), step_s)
        for number in range(rounds)
        for name, step_s in steps_s.items()
    ]
    return [asynchronous(one) if ":async" in one.point.strategy else one for one in made]


def by_name(records: Iterable[PointRecord]) -> dict[str, Row]:
    return {row.strategy: row for row in rows(records)}


def verdict(standing: Standing | None) -> str | None:
    return None if standing is None else standing.verdict


# ---------------------------------------------------------------- who competes, and what is claimed


def crowded() -> list[PointRecord]:
    """The fastest shares cores: it claims no speedup and takes no part."""
    made = contest({"fake:a": 0.1, "fake:b": 0.12, "fake:c": 0.05})
    made += [record(point("solo", 1, number), 0.09) for number in range(ROUNDS)]
    return [replace(one, oversubscribed=one.point.strategy == "fake:c") for one in made]


def fewer_rounds() -> list[PointRecord]:
    whole = contest({"fake:a": 0.1, "fake:b": 0.11, "fake:c": 0.12})
    return [one for one in whole if one.point.strategy != "fake:c" or one.point.round == 0]


# By strategy: the verdict inside its framework, and among the fastest of each.
CONTESTS: dict[str, tuple[Sequence[PointRecord], dict[str, tuple[str | None, str | None]]]] = {
    "frameworks": (
        contest({"torch:a": 0.1, "torch:b": 0.12, "mxnet:a": 0.07, "mxnet:b": 0.0701, "tensorflow:a": 0.09}),
        {"torch:a": ("best", "slower"), "torch:b": ("slower", None), "mxnet:a": ("leading", "best"),
         "mxnet:b": ("not separated", None), "tensorflow:a": (None, "slower")},
    ),
    "near": (
        contest({"fake:a": 0.1, "fake:b": 0.1003, "fake:c": 0.12}),
        {"fake:a": ("leading", None), "fake:b": ("tied", None), "fake:c": ("slower", None)},
    ),
    "far": (
        contest({"fake:a": 0.1, "fake:b": 0.11, "fake:c": 0.12}),
        {"fake:a": ("best", None), "fake:b": ("slower", None), "fake:c": ("slower", None)},
    ),
    "crowded": (crowded(), {"fake:a": ("best", None), "fake:b": ("slower", None), "fake:c": (None, None)}),
    "a failed rival": (
        [*contest({"fake:a": 0.1, "fake:b": 0.12}),
         *(failed(point("exchange", 2, number, strategy="fake:c")) for number in range(ROUNDS))],
        {"fake:a": ("best", None), "fake:b": ("slower", None), "fake:c": (None, None)},
    ),
    # the first leads where one shares no round with it
    "no shared round": (
        [*contest({"fake:a": 0.1, "fake:b": 0.12}), record(point("exchange", 2, ROUNDS, strategy="fake:c"), 0.2)],
        {"fake:a": ("leading", None), "fake:b": ("slower", None), "fake:c": ("not compared", None)},
    ),
    # rounds that one lacks still count for the other pair
    "fewer rounds": (fewer_rounds(), {"fake:b": ("slower", None), "fake:c": ("not compared", None)}),
    # rounds at 865 and 457 samples/s have a geometric mean of 629, though an arithmetic one of 661
    "the fastest by its row's rate": (
        [*(record(point("exchange", 2, n, strategy="a:b"), 0.14 if n % 2 else 0.074) for n in range(ROUNDS)),
         *(record(point("exchange", 2, n, strategy="a:a"), 0.1) for n in range(ROUNDS))],
        {"a:a": ("leading", None), "a:b": ("not separated", None)},
    ),
    "one round": (
        exact({"fake:a": 0.1, "fake:b": 0.2}, rounds=1),
        {"fake:a": ("not compared", None), "fake:b": ("not compared", None)},
    ),
    "ranks that do not wait": (
        exact({"fake:a": 0.1, "fake:b": 0.125, "fake:async_c": 0.05, "fake:async_d": 0.08}),
        {"fake:a": ("best", None), "fake:b": ("slower", None), "fake:async_c": ("best", None),
         "fake:async_d": ("slower", None)},
    ),
    "no rival": (exact({"fake:a": 0.1}), {"fake:a": (None, None)}),
    "no rival that waits": (
        exact({"fake:a": 0.1, "fake:async_b": 0.05}), {"fake:a": (None, None), "fake:async_b": (None, None)},
    ),
    # a strategy from outside is of its baseline's framework
    "outside, no plain loop": (contest({"torch:a": 0.1, "my.own:way": 0.1}), {"my.own:way": (None, "tied")}),
    "outside, one plain loop": (
        [*contest({"torch:a": 0.1, "my.own:way": 0.1}), record(point("solo", strategy="torch:plain"), 0.09)],
        {"my.own:way": ("tied", None)},
    ),
    "outside, two plain loops": (
        [*contest({"torch:a": 0.1, "my.own:way": 0.1}),
         *(record(point("solo", strategy=name), 0.09) for name in ("torch:plain", "mxnet:plain"))],
        {"my.own:way": (None, "tied")},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTESTS)
def test_standings(name: str) -> None:
    records, expected = CONTESTS[name]
    found = by_name(records)
    told = {one: (verdict(found[one].standing), verdict(found[one].framework_standing)) for one in expected}
    assert told == expected


def test_rows_and_comparisons_are_those_of_the_golden_file() -> None:
    check_rows("contests", {name: records for name, (records, _) in CONTESTS.items()})


def test_a_difference_is_a_geometric_mean_and_the_advantage_from_the_other_side() -> None:
    """N=2 in three rounds, 25 % in each; N=4 with 0.2 / 0.1 and 0.1 / 0.1."""
    times = {2: ((0.125, 0.1),) * 3, 4: ((0.1, 0.2), (0.1, 0.1))}
    records = [
        record(point("exchange", size, number, strategy=f"fake:{name}"), time)
        for size, by_round in times.items()
        for number, pair in enumerate(by_round)
        for name, time in zip("ab", pair, strict=True)
    ]
    two, four = analyse(records).comparisons
    assert (two.best.strategy, mean(two.advantage), mean(two.difference)) == ("fake:b", close(0.25), close(-0.2))
    assert two.distinguishable and not four.distinguishable
    assert (mean(four.advantage), mean(four.difference)) == (close(2**0.5 - 1), close(2**-0.5 - 1))


def test_strategies_of_different_networks_and_options_are_compared_but_not_models() -> None:
    p = point("exchange", 2)
    of_model = replace(p, workload=replace(p.workload, model="resnet50"))
    records = [
        record(p, 0.1), record(replace(p, interconnect="ib0"), 0.09),
        record(replace(p, options={"bucket_cap_mb": "10"}), 0.11), record(of_model, 0.05),
    ]  # fmt: skip
    found = {(one.best.interconnect, tuple(one.other.options)) for one in analyse(records).comparisons}
    assert found == {("ib0", ()), ("ib0", ("bucket_cap_mb",))}


def test_mislabelled_rows_are_compared_with_no_other() -> None:
    """Its bytes took the first one's network: what is measured is not what the row is called."""
    records = []
    for number in range(3):
        records.append(record(point("solo", 1, number), 0.1))
        for network, step_s in (("ib0", 0.13), ("eth0", 0.12), ("ib1", 0.14)):
            made = record(point("exchange", 2, number, interconnect=network), step_s, hosts=("node1", "node2"))
            records.append(carried(made, "ib0" if network == "eth0" else network))
    found = {row.interconnect: row for row in rows(records)}
    assert "MISLABELLED" in found["eth0"].flags and found["eth0"].efficiency is not None
    assert [verdict(found[name].standing) for name in ("eth0", "ib0", "ib1")] == [None, "best", "slower"]


def test_a_resolution_per_contest() -> None:
    stale = map(asynchronous, contest({"fake:c": 0.1, "fake:d": 0.1}))
    records = [*contest({"fake:a": 0.1, "fake:b": 0.11}), *stale]
    found = analyse(records).resolutions
    assert [(one.world_size, one.synchronous, one.rivals) for one in found] == [(2, True, 2), (2, False, 2)]
    assert all(one.rounds == ROUNDS and one.more_rounds == 10 for one in found)
    assert analyse(contest({"fake:a": 0.1, "fake:b": 0.11}, rounds=1)).resolutions == ()


# ---------------------------------------------------------------- stale images


@pytest.mark.parametrize(
    ("losses", "others", "learnt_less"),
    [
        ((1.2, 1.21, 1.19), ((1.0, 1.01, 0.98),), True),
        ((1.2, 0.9, 1.0), ((1.0, 1.01, 0.98),), False),  # above, but by no more than rounds differ
        ((0.9, 0.91, 0.9), ((1.0, 1.01, 0.98),), False),
        ((1.2,), ((1.0,),), False),  # one round tells nothing
        ((1.2,) * 3, ((1.0,) * 3, (1.4,) * 3), False),  # less is less than all synchronous rows
        ((1.2,) * 3, (), False),
    ],
)
def test_stale_ranks_that_learnt_less_say_so(
    losses: Sequence[float], others: Sequence[Sequence[float]], learnt_less: bool
) -> None:
    made = []
    for number, loss in enumerate(losses):
        own = record(point("exchange", 2, number, strategy="fake:stale"), 0.05)
        made.append(asynchronous(with_losses(own, 2.0, 1.5, loss)))
        for place, of in enumerate(others):
            waits = record(point("exchange", 2, number, strategy=f"fake:{place}"), 0.1)
            made.append(with_losses(waits, 2.0, 1.5, of[number]))
    assert by_name(made)["fake:stale"].learnt_less is learnt_less


# ---------------------------------------------------------------- notes and audits by golden files


def three(*records: PointRecord) -> list[PointRecord]:
    return [one for number in range(3) for one in numbered(records, number)]


def fast_rank(size: int) -> PointRecord:
    return record(point("exchange", size), 0.1, *(0.12,) * (size - 1))


def fewer_steps() -> PointRecord:
    """Rank 1 did half of the windows' steps with half of the samples: right where ranks do not wait."""
    made = record(point("exchange", 2), 0.1)
    for index in range(3):
        made = with_window(made, 1, index, steps=5, samples=160)
    return made


def fed(waited_s: float | None, **ready: Any) -> PointRecord:
    """A record whose ranks were blocked for so long in each window's feed."""
    made = record(point(), 0.1)
    told = Ready(import_s=1.0, build_s=1.0, parameters=1, gradient_bytes=4, device_name="cpu", **ready)
    windows = tuple(replace(window, waited_s=waited_s) for window in made.ranks[0].windows)
    return replace(made, ranks=(replace(made.ranks[0], ready=told, windows=windows),))


def with_servers(number: int, *cpu_percent: float | None) -> PointRecord:
    at = point("exchange", 2, number, servers=2)
    return served(record(at, 0.1), *cpu_percent, hosts=("node1", "node2"))


FREE = asynchronous(record(point("exchange", 2), 0.1, 0.2))
CASES: dict[str, Sequence[PointRecord]] = {
    # of three the slow ones, too, are apart from the median of the others
    **{
        f"a fast rank of {size}{waits}": three(
            replace(fast_rank(size), point=point("each", size)), asynchronous(fast_rank(size)) if waits else
            fast_rank(size),
        )
        for size in (4, 3)
        for waits in ("", ", which do not wait")
    },
    "ranks that do not wait, no together": [record(point("solo"), 0.1), FREE],
    "ranks that do not wait, all controls": [
        asynchronous(one) if one.point.kind in ("exchange", "comm") else one for one in sweep(0, 0.1, {2: 0.2})
    ],
    # the first rank is done in half of the time; its other steps are in no window
    "lingering": [FREE],
    "each rank's own samples, 310 of 320": [with_window(FREE, 0, 1, samples=310)],
    "each rank's own samples, 300 of 320": [with_window(FREE, 0, 1, samples=300)],
    "fewer steps": [fewer_steps()],
    "fewer steps of ranks that do not wait": [asynchronous(fewer_steps())],
    # 3 x 1280 less 960
    "one worker that feeds one device": [
        with_window(by_one_worker(record(point("exchange", 4), 0.125)), 0, 0, samples=320)
    ],
    "no round of ranks that do not wait": [replace(failed(point("exchange", 2)), synchronous=False)],
    # a step waits 1.0 s on average
    "a feed": [fed(5.0), replace(fed(15.0), point=point("exchange", 1, 1))],
    "an unknown feed": [fed(None)],
    "a native feed from the page cache": [fed(1.0, fed_by="tf.data, 2 threads a rank", read_from="page cache")],
    "files dropped from the page cache": [fed(1.0, read_from="disk", cached_fraction=0.0)],
    "files of which 12 % stayed": [
        fed(1.0, read_from="disk", cached_fraction=0.0),
        replace(fed(1.0, read_from="disk", cached_fraction=0.125), point=point("exchange", 1, 1)),
    ],
    "files of another user": [fed(1.0, read_from="disk")],
    # the scheduler is no server
    "servers": [with_servers(0, 30.0, 50.0), with_servers(1, 40.0, 60.0)],
    "servers of unknown use": [with_servers(0, None, None)],
    "servers of a failed round": [
        with_servers(0, 30.0, 50.0),
        replace(failed(point("exchange", 2, 1, servers=2)), helpers=with_servers(1, 5.0, 5.0).helpers),
    ],
}  # fmt: skip


def test_notes_are_those_of_the_golden_file() -> None:
    check_rows("notes", CASES)


# ---------------------------------------------------------------- curves and servers


@pytest.mark.parametrize(
    ("cells", "curves"),
    [
        (((1, 1), (2, 1), (4, 2), (8, 4)), 1),  # servers grow with the nodes
        (((1, 2), (2, 2), (4, 2)), 1),
        (((1, 0), (2, 0)), 1),
        (((1, 1), (2, 1), (1, 2), (2, 2)), 2),  # several numbers of servers at one size
    ],
)
def test_numbers_of_servers_of_one_size_are_curves(cells: Sequence[tuple[int, int]], curves: int) -> None:
    keys = curve_keys([point("exchange", n, servers=servers) for n, servers in cells])
    assert len(set(keys.values())) == curves
    dedicated = point("exchange", 16, servers=2, server_hosts="dedicated")
    assert len({*keys.values(), *curve_keys([dedicated]).values()}) == curves + 1


def test_comm_is_that_of_the_same_servers() -> None:
    records = [*sweep(0, 0.1, {2: 0.2}, servers=1), *sweep(0, 0.1, {2: 0.15}, servers=2)]
    quick = record(point("comm", 2, servers=2), 0.01)
    records = [quick if one.point.key == quick.point.key else one for one in records]
    found = {row.servers: loss_of(row).exposed for row in rows(records)}
    # together 0.104; the slower one may take 0.05 alone, the other 0.01
    assert found == {1: close(0.05 / 0.2), 2: close(0.01 / 0.15)}


def test_numbers_of_servers_are_rivals() -> None:
    cells = ((1, "shared", 0.2), (2, "shared", 0.1), (2, "dedicated", 0.08))
    records = [
        record(point("exchange", 2, number, servers=servers, server_hosts=hosts), step_s)
        for number in range(3)
        for servers, hosts, step_s in cells
    ]
    found = analyse(records).comparisons
    assert {(one.best.servers, one.best.server_hosts) for one in found} == {(2, "dedicated")}
    assert {(one.other.servers, one.other.server_hosts) for one in found} == {(1, "shared"), (2, "shared")}
