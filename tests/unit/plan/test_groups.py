"""Which points of a round live side by side, and which seats run in which block."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from scaling.plan import config, defaults, groups, plan, validation
from scaling.plan.groups import Group
from scaling.plan.placement import first_slots
from scaling.plan.plan import Plan
from scaling.records.host import Gpu, HostInfo, Nic
from scaling.records.point import Placement
from tests.support.inline import enrol, host
from tests.support.points import POINT, changed

GIB = 1 << 30
FRAMEWORKS = ["torch:gloo", "torch:ps-sync", "tensorflow:ring", "mxnet:dist_sync"]


def made(*hosts: HostInfo, size: int = 4, **fields: Any) -> Plan:
    """A plan of so many ranks on these hosts, by default on one with room for all."""
    given = hosts or (host(cores=size, memory_bytes=512 * GIB),)
    enrolled = [enrol(given[rank * len(given) // size]) for rank in range(size)]
    wanted = config.build({"device": "cpu", "strategy": ["fake:a"], **fields}, source="test")
    validation.validate(wanted)
    return plan.make(wanted, enrolled)


def node(number: int, **fields: Any) -> HostInfo:
    nic = Nic(name="eth0", address=f"10.0.0.{number}", netmask="255.255.255.0", up=True, mtu=1500)
    return host(f"node{number}", cores=4, nics=(nic,), **fields)


def families(found: Plan) -> list[set[str]]:
    return [{point.strategy.partition(":")[0] for point in group.points} for group in found.groups]


def sizes(found: Plan) -> list[set[int]]:
    return [{point.world_size for point in group.points} for group in found.groups]


def kinds(group: Group) -> Counter[tuple[str, int]]:
    return Counter((point.kind, point.world_size) for point in group.points)


def needed_bytes(found: Plan) -> int:
    return sum(groups.worker_bytes(point) * point.world_size for point in found.cells)


def test_the_points_of_a_framework_live_side_by_side_with_all_its_strategies() -> None:
    found = made(strategy=FRAMEWORKS)
    assert families(found) == [{"torch"}, {"tensorflow"}, {"mxnet"}]
    assert sizes(found) == [{1, 2, 4}] * 3
    assert all(group.side_by_side for group in found.groups)
    assert found.side_by_side


@pytest.mark.parametrize(
    ("room", "expected"),
    [
        (1.01, [{1, 2, 4}]),
        (0.99, [{1}, {2}, {4}]),
        (0.5, [{1}, {2}, *[{4}] * 4]),
    ],
)
def test_memory_says_how_many(room: float, expected: list[set[int]]) -> None:
    all_bytes = needed_bytes(made())
    small = host(cores=4, memory_bytes=round(room * all_bytes / groups.MEMORY_PART))
    found = made(small)
    assert sizes(found) == expected
    assert [group.side_by_side for group in found.groups] == [len(group.points) > 1 for group in found.groups]
    # Nothing is lost but what others measure too.
    everything = {(point.kind, point.world_size) for point in made(interleave=False).cells}
    missing = everything - {(point.kind, point.world_size) for point in found.cells}
    assert missing <= {("solo", 1), ("each", 2)}


def batches(found: Plan) -> list[set[int]]:
    return [{point.workload.batch_size for point in group.points} for group in found.groups]


def test_batches_of_a_sweep_stay_together_or_each_with_its_own_baselines() -> None:
    fields: dict[str, Any] = {"batch_sizes": [16, 32], "world_sizes": [1, 2]}
    all_bytes = needed_bytes(whole := made(**fields))
    assert batches(whole) == [{16, 32}]
    small = host(cores=4, memory_bytes=round(0.99 * all_bytes / groups.MEMORY_PART))
    assert batches(found := made(small, **fields)) == [{16}, {32}]
    assert sizes(found) == [{1, 2}] * 2


def test_each_host_has_memory_of_its_own_but_nodes_of_one_machine_share_theirs() -> None:
    all_bytes = needed_bytes(made())
    part = round(0.7 * all_bytes / groups.MEMORY_PART)
    apart = [node(number, memory_bytes=part, boot_id=f"boot-{number}") for number in (1, 2)]
    assert len(made(*apart).groups) == 1
    lab = [node(number, memory_bytes=part, boot_id="same") for number in (1, 2)]
    assert len(made(*lab).groups) > 1


def test_a_larger_batch_and_model_take_more_memory() -> None:
    usual = groups.worker_bytes(POINT)
    assert groups.worker_bytes(changed(POINT, batch_size=64)) > usual
    assert groups.worker_bytes(changed(POINT, model="resnet50")) > 2 * usual
    assert groups.worker_bytes(changed(POINT, kind="comm")) < usual


def test_one_point_alone_is_no_group() -> None:
    found = made(size=1, kinds=["exchange"])
    assert [(len(group.points), group.side_by_side) for group in found.groups] == [(1, False)]
    assert not found.side_by_side


@pytest.mark.parametrize(
    ("fields", "turns"),
    [
        ({}, True),
        ({"interleave": False}, False),
        ({"device": "cuda", "strategy": ["torch:nccl"]}, False),
        ({"device": "cuda", "strategy": ["torch:nccl"], "interleave": True}, True),
        ({"device": "emulated:p100", "strategy": ["torch:gloo"]}, False),
        ({"strategy": ["torch:gloo", "mxnet:horovod"]}, True),
    ],
)
def test_by_default_points_take_turns_on_cpus_only(fields: dict[str, Any], turns: bool) -> None:
    gpus = tuple(Gpu(index=n, name="GPU", uuid=f"GPU-{n}", memory_bytes=80 * GIB) for n in range(4))
    found = made(host(cores=64, memory_bytes=512 * GIB, gpus=gpus), **fields)
    assert found.side_by_side is turns
    pace = (found.config.rounds, found.config.windows, found.config.window_s)
    alone = defaults.PACE_ON_GPUS if fields.get("device") == "cuda" else defaults.PACE_ALONE
    queues = fields.get("device") == "cuda" or "mxnet:horovod" in fields.get("strategy", ())
    assert pace == ((defaults.PACE_OF_QUEUES if queues else defaults.PACE_SIDE_BY_SIDE) if turns else alone)


@pytest.mark.parametrize(
    ("turn_s", "turns"), [(0.001, 12), (0.11, 10), (0.14, 8), (0.17, 7), (0.22, 5), (60.0, 5)]
)
def test_windows_that_take_turns_are_as_many_as_fit(turn_s: float, turns: int) -> None:
    assert defaults.turns_in_round(turn_s) == turns


def test_what_is_given_of_the_pace_stays() -> None:
    found = made(rounds=2, window_s=0.1)
    pace = (found.config.rounds, found.config.windows, found.config.window_s)
    assert pace == (2, defaults.PACE_SIDE_BY_SIDE[1], 0.1)


def test_groups_are_shuffled_by_round_and_seed() -> None:
    found = made(strategy=FRAMEWORKS)
    orders = [[group.points[0].strategy for group in found.round(number)] for number in range(8)]
    assert all(sorted(order) == sorted(orders[0]) for order in orders)
    assert len({tuple(order) for order in orders}) > 1
    assert orders == [[group.points[0].strategy for group in found.round(number)] for number in range(8)]
    assert {point.round for group in found.round(3) for point in group.points} == {3}


# ---------------------------------------------------------------- what others measure too


def test_the_largest_each_has_the_seats_of_the_smaller_ones_and_of_solo() -> None:
    (group,) = made().groups
    assert kinds(group) == {
        ("exchange", 1): 1, ("exchange", 2): 1, ("exchange", 4): 1, ("comm", 2): 1, ("comm", 4): 1,
        ("each", 4): 1, ("together", 2): 1, ("together", 4): 1,
    }  # fmt: skip


@pytest.mark.parametrize("placement", ["pack", "spread"])
def test_its_seats_are_those_of_the_smaller_ones_wherever_they_are(placement: Placement) -> None:
    slots = made(*map(node, (1, 2, 3)), size=6).slots
    largest = first_slots(6, placement, slots)
    for size in range(1, 6):
        assert first_slots(size, placement, slots) == largest[:size]


def test_without_each_solo_stays() -> None:
    (group,) = made(kinds=["exchange", "solo"]).groups
    assert kinds(group)[("solo", 1)] == 1


def test_other_work_is_no_double() -> None:
    """Under the strong rule each world size has a batch of its own per device."""
    (group,) = made(global_batch_size=64).groups
    found = {(point.kind, point.world_size, point.workload.batch_size) for point in group.points}
    alone = {one for one in found if one[0] in ("solo", "each")}
    assert ("each", 4, 16) in alone and ("each", 2, 32) in alone
    assert ("solo", 1, 64) in alone  # the whole batch on one device
    assert not {("solo", 1, 16), ("solo", 1, 32)} & alone


def test_by_themselves_nothing_is_measured_twice_either() -> None:
    found = made(interleave=False)
    assert len(found.groups) == len(found.cells) == 8
    assert not any(group.side_by_side for group in found.groups)


# ---------------------------------------------------------------- seats


@pytest.mark.parametrize("blocks", [1, 2, 3, 4, 6, 7, 10, 33])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 31, 64, 100])
def test_every_seat_runs_alone_twice_at_least(count: int, blocks: int) -> None:
    ran: Counter[int] = Counter()
    for block in range(blocks):
        of_block = groups.seats(count, block, blocks)
        assert len(set(of_block)) == len(of_block), "a seat twice in a block would have two windows of one index"
        ran.update(of_block)
    assert set(ran) == set(range(count))
    # A single block has each seat once, since no seat runs twice in a block.
    assert min(ran.values()) >= min(2, blocks)
    assert max(ran.values()) - min(ran.values()) <= 1


@pytest.mark.parametrize("count", [1, 2, 4])
def test_up_to_four_seats_all_run_in_every_block(count: int) -> None:
    assert all(groups.seats(count, block, 6) == tuple(range(count)) for block in range(6))


def test_the_time_of_a_round_counts_the_seats_that_run() -> None:
    assert plan.turns_of(changed(POINT, kind="each", world_size=2), 6) == 12
    assert plan.turns_of(changed(POINT, kind="each", world_size=16), 6) == 6 * 6
    assert plan.turns_of(changed(POINT, kind="together", world_size=16), 6) == 6
    assert made().estimate_s == made(windows=defaults.turns_in_round(0.1 + plan.UNCOUNTED_S)).estimate_s
    assert made(rounds=4, soak_s=0.0).estimate_s == pytest.approx(2 * made(rounds=2, soak_s=0.0).estimate_s)
    assert made().estimate_s > made(windows=3).estimate_s > made(windows=3, window_s=0.05).estimate_s
