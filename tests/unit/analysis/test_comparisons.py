"""Which rows are one curve, which are rivals, and what their servers used."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from scaling.analysis.table.analyse import comparisons, rows
from scaling.analysis.table.comparisons import curve_keys
from scaling.records.run import PointRecord
from tests.support.scripted_records import by_size, close, failed, loss_of, mean, point, record, served, sweep


def curves_of(*cells: tuple[int, int], **changes: Any) -> int:
    points = [point("exchange", n, servers=servers, **changes) for n, servers in cells]
    return len(set(curve_keys(points).values()))


# ---------------------------------------------------------------- curves


def test_servers_that_grow_with_the_nodes_are_one_curve() -> None:
    assert curves_of((1, 1), (2, 1), (4, 2), (8, 4)) == 1
    assert curves_of((1, 2), (2, 2), (4, 2)) == 1
    assert curves_of((1, 0), (2, 0)) == 1


def test_several_numbers_of_servers_at_one_size_are_several_curves() -> None:
    cells = ((1, 1), (2, 1), (1, 2), (2, 2))
    keys = curve_keys([point("exchange", n, servers=servers) for n, servers in cells])
    one, two = ([key for cell, key in keys.items() if f"{count} servers" in cell] for count in (1, 2))
    assert len(set(one)) == len(set(two)) == 1 and one[0] != two[0]


def test_servers_on_nodes_of_their_own_are_another_curve() -> None:
    points = [point("exchange", 2, servers=1), point("exchange", 4, servers=2, server_hosts="dedicated")]
    assert len(set(curve_keys(points).values())) == 2


def test_rows_of_a_curve_share_its_number() -> None:
    cells = [("fake:b", 1, 1), ("fake:a", 1, 0), ("fake:b", 2, 2), ("fake:a", 2, 0)]
    records = [record(point("exchange", n, strategy=name, servers=servers), 0.1) for name, n, servers in cells]
    assert [(row.strategy, row.curve) for row in rows(records)] == [
        ("fake:a", 0), ("fake:a", 0), ("fake:b", 1), ("fake:b", 1),
    ]  # fmt: skip


def test_a_strategys_own_rank_is_found_with_other_servers() -> None:
    records = sweep(0, 0.1, {1: 0.104}, servers=1)
    records += sweep(0, 0.1, {2: 0.16}, servers=2)
    assert mean(by_size(records)[2].strategy_efficiency) == close(0.65)


def test_comm_is_that_of_the_same_servers() -> None:
    records = [*sweep(0, 0.1, {2: 0.2}, servers=1), *sweep(0, 0.1, {2: 0.15}, servers=2)]
    quick = record(point("comm", 2, servers=2), 0.01)
    records = [quick if one.point.key == quick.point.key else one for one in records]
    found = {row.servers: loss_of(row).exposed for row in rows(records)}
    # together 0.104; the slower one may take 0.05 alone, the other 0.01
    assert found == {1: close(0.05 / 0.2), 2: close(0.01 / 0.15)}


# ---------------------------------------------------------------- rivals


def test_numbers_of_servers_are_rivals() -> None:
    cells = ((1, "shared", 0.2), (2, "shared", 0.1), (2, "dedicated", 0.08))
    records = [
        record(point("exchange", 2, number, servers=servers, server_hosts=hosts), step_s)
        for number in range(3)
        for servers, hosts, step_s in cells
    ]
    found = comparisons(records)
    assert {(one.best.servers, one.best.server_hosts) for one in found} == {(2, "dedicated")}
    assert {(one.other.servers, one.other.server_hosts) for one in found} == {(1, "shared"), (2, "shared")}


def test_difference_is_the_advantage_from_the_other_side() -> None:
    # b / a - 1 = 25 % in each round, a / b - 1 = -20 %
    times = (("a", 0.125), ("b", 0.1))
    records = [record(point("exchange", 2, n, strategy=f"fake:{name}"), t) for n in range(3) for name, t in times]
    (found,) = comparisons(records)
    assert (mean(found.advantage), mean(found.difference)) == (close(0.25), close(-0.2))
    work = found.workload
    assert (found.placement, work.batch_rule, work.batch_size, found.synchronous) == (
        "pack",
        "weak",
        32,
        True,
    )


# ---------------------------------------------------------------- the servers' use


def with_servers(number: int, *cpu_percent: float | None) -> PointRecord:
    at = point("exchange", 2, number, servers=2)
    return served(record(at, 0.1), *cpu_percent, hosts=("node1", "node2"))


def test_servers_have_a_place_and_a_use() -> None:
    (row,) = rows([with_servers(0, 30.0, 50.0), with_servers(1, 40.0, 60.0)])
    assert [(one.name, one.host, one.cpu_percent) for one in row.server_use] == [
        ("server-0", "node1", 35.0), ("server-1", "node2", 55.0),
    ]  # fmt: skip
    assert (row.servers, row.server_cpu_percent) == (2, 45.0)  # the scheduler is no server


def test_servers_whose_use_is_not_known() -> None:
    (row,) = rows([with_servers(0, None, None)])
    assert [one.cpu_percent for one in row.server_use] == [None, None]
    assert row.server_cpu_percent is None
    assert rows([record(point("exchange"), 0.1)])[0].server_use == ()


def test_servers_of_failed_rounds_do_not_count() -> None:
    lost = replace(failed(point("exchange", 2, 1, servers=2)), helpers=with_servers(1, 5.0, 5.0).helpers)
    (row,) = rows([with_servers(0, 30.0, 50.0), lost])
    assert row.server_cpu_percent == 40.0


# ---------------------------------------------------------------- nodes


def test_factors_across_nodes_are_over_the_rounds_that_have_both() -> None:
    """N=2 on one node at 0.8 and 0.9, N=4 on two at 0.6 and, in a round that lacks N=2, at 0.1."""
    records = []
    for number, inside, across in ((0, 0.8, 0.6), (1, 0.9, None), (2, None, 0.1)):
        records.append(record(point("solo", 1, number), 0.1))
        for size, value in ((2, inside), (4, across)):
            if value is not None:
                hosts = ("node1",) if size == 2 else ("node1", "node2")
                records.append(record(point("exchange", size, number), 0.1 / value, hosts=hosts))
    row = by_size(records)[4]
    assert (row.intra_node, row.inter_node) == (close(0.8), close(0.75))


def test_without_a_shared_round_there_are_no_factors() -> None:
    records = [
        record(point("solo", 1, 0), 0.1),
        record(point("solo", 1, 1), 0.1),
        record(point("exchange", 2, 0), 0.1),
        record(point("exchange", 4, 1), 0.1, hosts=("node1", "node2")),
    ]
    assert by_size(records)[4].intra_node is None
