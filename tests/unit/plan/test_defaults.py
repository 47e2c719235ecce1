"""Defaults, groups of points that run together, and the refusal of a second kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.plan import config, defaults, groups, plan, rules, validation
from scaling.plan.groups import Group
from scaling.plan.placement import crowding, first_slots, place_ranks
from scaling.plan.plan import Plan
from scaling.records.host import Gpu, HostInfo, Nic
from scaling.records.point import Placement
from scaling.records.task import BatchFit
from scaling.run import listing
from scaling.workloads import models
from tests.support.inline import enrol, host
from tests.support.plans import GB, gpu, made
from tests.support.points import POINT, TASK, changed

# What tests/golden/plans.txt cannot show of defaults.


def test_the_list_tells_of_all_of_them() -> None:
    told = listing.everything({}, [])
    assert " batch 256, 128 or 64 by memory on cuda, 4 on cpu; sgd 0.01 at batch 64; counts images;" in told
    assert "alexnet-towers       60,522,856  3x224x224, 1,000 classes; 3.69 GFLOP; convnet-benchmarks" in told


def test_a_run_that_goes_on_has_what_it_began_with() -> None:
    """Its header holds what was chosen, which a resumed run gives itself."""
    first = made(gpu()).config
    fields = {name: getattr(first, name) for name in ("precision", "memory_format", "batch_size")}
    again = made(gpu((6, 0), 8 * GB), **fields).config
    assert fields == {name: getattr(again, name) for name in fields} and again.precision == "bf16"


@pytest.mark.parametrize(
    ("fields", "fit", "batch", "why"),
    [
        ({}, BatchFit(batch_size=64, used_bytes=55 * GB), 64, "batch 64: a step uses 55 GB"),
        ({}, "the trial failed", None, "the trial failed"),
        ({}, "", None, "a trial before the run chooses the largest that fits"),
        ({"batch_size": 4}, BatchFit(batch_size=64, used_bytes=55 * GB), 4, None),
    ],
)
def test_transformers_take_the_batch_that_a_trial_found(
    fields: dict[str, Any], fit: BatchFit | str, batch: int | None, why: str | None
) -> None:
    wanted = config.build({"strategy": ["torch:nccl"], "model": "gpt2", **fields}, source="test")
    ranks = [enrol(host(cores=16, memory_bytes=1 << 40, gpus=(gpu(),)))]
    found = plan.make(wanted, ranks, fit=fit)
    assert found.config.batch_size == (batch or models.spec("gpt2").batch_size["cuda"])
    assert (why or "") in found.why
    assert rules.grows_batch(wanted, "cuda") == ("batch_size" not in fields)
    assert not rules.grows_batch(wanted, "cpu")


def test_a_dry_run_names_each_host_once() -> None:
    told = enrol(host("n1", gpus=(gpu(),)))
    lines = listing.dry_run(plan.make(config.build({"strategy": ["torch:nccl"]}, source="test"), [told]), [told])
    assert [line.split(",")[0] for line in lines.splitlines() if line.startswith("  n1")] == ["  n1: Test"]


# ---------------------------------------------------------------- torch.compile


def test_compile_needs_a_compiler_on_every_host() -> None:
    hosts = [enrol(host(compile_lacks=lacks)) for lacks in ("", "C compiler and Python.h")]
    wanted = {"device": "cpu", "compile": True, "strategy": ["torch:gloo"]}
    with pytest.raises(UsageError, match=r"^--compile: node1 has no C compiler and Python\.h, .* leave it out$"):
        plan.make(config.build(wanted, source="test"), hosts)
    for fields in ({"strategy": ["fake:a"]}, {"compile": False}):
        plan.make(config.build({**wanted, **fields}, source="test"), hosts)


# Which points of a round live side by side, and which seats run in which block.

GIB = 1 << 30
FRAMEWORKS = ["torch:gloo", "torch:ps-sync", "tensorflow:ring", "mxnet:dist_sync"]


def groups_made(*hosts: HostInfo, size: int = 4, **fields: Any) -> Plan:
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
    found = groups_made(strategy=FRAMEWORKS)
    assert families(found) == [{"torch"}, {"tensorflow"}, {"mxnet"}]
    assert sizes(found) == [{1, 2, 4}] * 3
    assert all(group.side_by_side for group in found.groups)
    assert found.side_by_side


@pytest.mark.parametrize(
    ("room", "expected"), [(1.01, [{1, 2, 4}]), (0.99, [{1}, {2}, {4}]), (0.5, [{1}, {2}, *[{4}] * 4])]
)
def test_memory_says_how_many(room: float, expected: list[set[int]]) -> None:
    all_bytes = needed_bytes(groups_made())
    small = host(cores=4, memory_bytes=round(room * all_bytes / groups.MEMORY_PART))
    found = groups_made(small)
    assert sizes(found) == expected
    assert [group.side_by_side for group in found.groups] == [len(group.points) > 1 for group in found.groups]
    # Nothing is lost but what others measure too.
    everything = {(point.kind, point.world_size) for point in groups_made(interleave=False).cells}
    missing = everything - {(point.kind, point.world_size) for point in found.cells}
    assert missing <= {("solo", 1), ("each", 2)}


def batches(found: Plan) -> list[set[int]]:
    return [{point.workload.batch_size for point in group.points} for group in found.groups]


def test_batches_of_a_sweep_stay_together_or_each_with_its_own_baselines() -> None:
    fields: dict[str, Any] = {"batch_sizes": [16, 32], "world_sizes": [1, 2]}
    all_bytes = needed_bytes(whole := groups_made(**fields))
    assert batches(whole) == [{16, 32}]
    small = host(cores=4, memory_bytes=round(0.99 * all_bytes / groups.MEMORY_PART))
    assert batches(found := groups_made(small, **fields)) == [{16}, {32}]
    assert sizes(found) == [{1, 2}] * 2


def test_each_host_has_memory_of_its_own_but_nodes_of_one_machine_share_theirs() -> None:
    all_bytes = needed_bytes(groups_made())
    part = round(0.7 * all_bytes / groups.MEMORY_PART)
    apart = [node(number, memory_bytes=part, boot_id=f"boot-{number}") for number in (1, 2)]
    assert len(groups_made(*apart).groups) == 1
    lab = [node(number, memory_bytes=part, boot_id="same") for number in (1, 2)]
    assert len(groups_made(*lab).groups) > 1


def test_a_larger_batch_and_model_take_more_memory() -> None:
    usual = groups.worker_bytes(POINT)
    assert groups.worker_bytes(changed(POINT, batch_size=64)) > usual
    assert groups.worker_bytes(changed(POINT, model="resnet50")) > 2 * usual
    assert groups.worker_bytes(changed(POINT, kind="comm")) < usual


@pytest.mark.parametrize(
    ("fields", "turns"),
    [
        ({}, True),
        ({"interleave": False}, False),
        ({"device": "cuda", "strategy": ["torch:nccl"]}, True),
        ({"device": "cuda", "strategy": ["torch:nccl"], "interleave": False}, False),
        ({"device": "emulated:p100", "strategy": ["torch:gloo"]}, False),
        ({"strategy": ["torch:gloo", "mxnet:horovod"]}, True),
    ],
)
def test_points_take_turns_on_cpus_and_gpus_by_default(fields: dict[str, Any], turns: bool) -> None:
    gpus = tuple(Gpu(index=n, name="GPU", uuid=f"GPU-{n}", memory_bytes=80 * GIB) for n in range(4))
    found = groups_made(host(cores=64, memory_bytes=512 * GIB, gpus=gpus), **fields)
    assert found.side_by_side is turns
    pace = (found.config.rounds, found.config.windows, defaults.window_s(found.config, found.cells))
    on_gpus, queues = fields.get("device") == "cuda", "mxnet:horovod" in fields.get("strategy", ())
    rounds, windows, window_s = defaults.PACE_SIDE_BY_SIDE
    in_turns = (rounds, windows, defaults.WINDOW_OF_QUEUES_S if queues else window_s)
    side_by_side = defaults.PACE_OF_GPUS_IN_TURNS if on_gpus else in_turns
    assert pace == (side_by_side if turns else defaults.PACE_ALONE)


def test_windows_are_as_long_as_their_own_framework_needs() -> None:
    found = groups_made(strategy=["torch:gloo", "mxnet:horovod"])
    lengths = {group.points[0].strategy.partition(":")[0]: defaults.window_s(found.config, group.points)
               for group in found.groups}  # fmt: skip
    assert lengths == {"torch": defaults.PACE_SIDE_BY_SIDE[2], "mxnet": defaults.WINDOW_OF_QUEUES_S}


@pytest.mark.parametrize(
    ("turn_s", "turns"), [(0.001, 12), (0.11, 10), (0.14, 8), (0.17, 7), (0.22, 5), (60.0, 5)]
)
def test_windows_that_take_turns_are_as_many_as_fit(turn_s: float, turns: int) -> None:
    assert defaults.turns_in_round(turn_s) == turns


def test_what_is_given_of_the_pace_stays() -> None:
    found = groups_made(rounds=2, window_s=0.1)
    pace = (found.config.rounds, found.config.windows, defaults.window_s(found.config, found.cells))
    assert pace == (2, defaults.PACE_SIDE_BY_SIDE[1], 0.1)


def test_groups_are_shuffled_by_round_and_seed() -> None:
    found = groups_made(strategy=FRAMEWORKS)
    orders = [[group.points[0].strategy for group in found.round(number)] for number in range(8)]
    assert all(sorted(order) == sorted(orders[0]) for order in orders)
    assert len({tuple(order) for order in orders}) > 1
    assert orders == [[group.points[0].strategy for group in found.round(number)] for number in range(8)]
    assert {point.round for group in found.round(3) for point in group.points} == {3}


# ---------------------------------------------------------------- what others measure too


@pytest.mark.parametrize("placement", ["pack", "spread"])
def test_its_seats_are_those_of_the_smaller_ones_wherever_they_are(placement: Placement) -> None:
    slots = groups_made(*map(node, (1, 2, 3)), size=6).slots
    largest = first_slots(6, placement, slots)
    for size in range(1, 6):
        assert first_slots(size, placement, slots) == largest[:size]


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
    assert defaults.turns_of(changed(POINT, kind="each", world_size=2), 6) == 12
    assert defaults.turns_of(changed(POINT, kind="each", world_size=16), 6) == 6 * 6
    assert defaults.turns_of(changed(POINT, kind="together", world_size=16), 6) == 6
    assert (
        groups_made().estimate_s
        == groups_made(windows=defaults.turns_in_round(0.1 + defaults.UNCOUNTED_S)).estimate_s
    )
    assert groups_made(rounds=4, soak_s=0.0).estimate_s == pytest.approx(
        2 * groups_made(rounds=2, soak_s=0.0).estimate_s
    )
    assert (
        groups_made().estimate_s
        > groups_made(windows=3).estimate_s
        > groups_made(windows=3, window_s=0.05).estimate_s
    )


# Hosts of one kernel: containers, pods and nodes of a lab. Those that share cores share them out.

FIRST, SECOND = tuple((core,) for core in range(8)), tuple((core,) for core in range(8, 16))


@pytest.mark.parametrize(
    ("pods", "ranks", "machines", "shared"),
    [
        ((FIRST, SECOND), 8, 2, False),  # a cpuset each
        ((FIRST, FIRST), 4, 1, False),  # the same cpuset
        ((FIRST, FIRST), 8, 1, True),
        ((FIRST, FIRST[:4]), 4, 1, False),  # one within the other
        ((FIRST, FIRST[:4]), 8, 1, True),
        ((FIRST[:4], FIRST[3:6], SECOND), 2, 2, False),
    ],
)
def test_pods_that_share_cores_are_one_machine(
    pods: Sequence[tuple[tuple[int, ...], ...]], ranks: int, machines: int, shared: bool
) -> None:
    hosts = [host(f"pod{index}", boot_id="kernel", cores=0) for index in range(len(pods))]
    enrolled = [
        enrol(replace(one, cores=cores)) for one, cores in zip(hosts, pods, strict=True) for _ in range(ranks)
    ]
    slots = place_ranks(enrolled, None)
    assert [slot.launch_rank for slot in slots] == list(range(len(enrolled)))
    assert len({slot.machine for slot in slots}) == machines
    point = replace(TASK.point, world_size=len(enrolled), kind="exchange")
    assert bool(crowding(point, slots)) is shared


@pytest.mark.parametrize(
    ("threads", "shared", "cpus"),
    [
        # mpirun --bind-to hwthread: cores of two threads, of which every rank may use one.
        ((0, 1), False, {(0,), (1,)}),
        ((0, 2), True, {(0, 2)}),
        ((0, 1, 2, 3), True, {(0, 2), (1, 3)}),
    ],
)
def test_hardware_threads_of_one_core_are_no_cores(
    threads: Sequence[int], shared: bool, cpus: set[tuple[int, ...]]
) -> None:
    enrolled = [
        enrol(replace(host("node", cores=0), cores=((thread,),), core_ids=(thread % 2,))) for thread in threads
    ]
    slots = place_ranks(enrolled, None)
    point = replace(TASK.point, world_size=len(threads), kind="exchange")
    assert bool(crowding(point, slots)) is shared
    assert {slot.cpus for slot in slots} == cpus


@pytest.mark.parametrize(
    ("quotas", "threads", "crowded"),
    [
        # Two ranks, each bound to a core of its own of eight: a cgroup's quota caps their sum.
        (({"a": 1.0}, {"a": 1.0}), 1, {1: False, 2: True}),
        (({"a": 0.5}, {"a": 0.5}), 1, {1: True, 2: True}),
        (({"a": 1.9}, {"a": 1.9}), 1, {1: False, 2: True}),
        (({"a": 2.0}, {"a": 2.0}), 1, {1: False, 2: False}),
        (({"a": 6.0}, {"a": 6.0}), 3, {1: False, 2: False}),
        (({"a": 1.0}, {"b": 1.0}), 1, {1: False, 2: False}),  # a container each
        (({"a": 1.0, "pod": 1.5}, {"b": 1.0, "pod": 1.5}), 1, {1: False, 2: True}),  # in one pod
        (({}, {}), 4, {1: False, 2: False}),
    ],
)
def test_ranks_of_a_cgroup_share_its_quota(
    quotas: tuple[dict[str, float], ...], threads: int, crowded: dict[int, bool]
) -> None:
    cores = (FIRST[:4], FIRST[4:])
    enrolled = [
        enrol(replace(host("node", cores=0), cores=own, cpu_quotas=quota))
        for own, quota in zip(cores, quotas, strict=True)
    ]
    slots = place_ranks(enrolled, None)
    assert {slot.threads for slot in slots} == {threads}
    for size, expected in crowded.items():
        point = replace(TASK.point, world_size=size, kind="exchange")
        assert bool(crowding(point, slots[:size])) is expected
    each = replace(TASK.point, world_size=2, kind="each")
    assert bool(crowding(each, slots)) is crowded[1]


def test_a_row_says_the_quota_that_its_ranks_exceed() -> None:
    enrolled = [enrol(replace(host("node", cores=0), cores=(core,), cpu_quotas={"a": 1.0})) for core in FIRST[:2]]
    slots = place_ranks(enrolled, None)
    assert "quota" in crowding(replace(TASK.point, world_size=2, kind="exchange"), slots)


# A burn-in has rounds until its time is over.


def test_a_burn_in_has_two_rounds_at_least_and_the_soak_of_a_long_run() -> None:
    found = made(**{"for": "2h"}, strategy=["fake:a"])
    assert (found.rounds, found.burn_in_s, found.estimate_s) == (2, 7200.0, 7200.0)
    assert found.soak_s == defaults.SOAK_S
    assert made(strategy=["fake:a"]).burn_in_s == 0
