"""Batches, kinds of points and feeds of a plan."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.analysis.table.comparisons import comparable, curve_keys
from scaling.plan import matrix, plan, refusals
from scaling.plan.config import KINDS, SweepConfig
from scaling.plan.plan import Plan
from scaling.records.host import Nic
from scaling.records.point import Point
from scaling.run import flags, invocation, listing
from tests.support.inline import enrol, host
from tests.support.paper_tasks import one_task

# What each device trains at each world size, by the batch rule.

FAKE = ("--strategy", "fake:a", "--device", "cpu")
NODE = ("--batch-rule", "node", "--batch-size", "144", *FAKE)
NICS = [
    (Nic(name="eth0", address=f"10.20.0.{node}", netmask="255.255.255.0", up=True, mtu=1500),)
    for node in range(1, 5)
]
ENROLLED = [enrol(host(f"node{1 + rank // 4}", cores=4, nics=NICS[rank // 4])) for rank in range(16)]


def planned(*argv: str) -> Plan:
    return plan.make(invocation.resolve(flags.parse(argv)), ENROLLED)


def of(made: Plan, kind: str) -> dict[int, list[Point]]:
    """The points of a kind by world size."""
    found: dict[int, list[Point]] = {}
    for point in made.cells:
        if point.kind == kind:
            found.setdefault(point.world_size, []).append(point)
    return found


def test_all_its_world_sizes_are_one_curve_against_one_device_at_the_nodes_batch() -> None:
    exchanges = [point for points in of(planned(*NODE), "exchange").values() for point in points]
    assert {point.reference.batch_size for point in exchanges} == {144}
    assert len({comparable(point) for point in exchanges}) == 1
    assert len(set(curve_keys(exchanges).values())) == 1
    assert len({point.cell for point in exchanges}) == len(exchanges)


@pytest.mark.parametrize(
    ("argv", "rule"),
    [
        ((), "weak"),
        (("--batch-size", "8"), "weak"),
        (("--global-batch-size", "64"), "strong"),
        (("--batch-rule", "strong", "--global-batch-size", "64"), "strong"),
        (("--batch-rule", "weak", "--batch-size", "8"), "weak"),
        (("--batch-rule", "node"), "node"),
    ],
)
def test_the_batch_says_the_rule_where_no_flag_does(argv: tuple[str, ...], rule: str) -> None:
    made = planned(*argv, *FAKE)
    assert made.config.rule == rule
    assert {point.workload.batch_rule for point in made.cells} == {rule}
    told = {"weak": "per device", "strong": "global batch", "node": "per node"}[rule]
    assert told in listing.dry_run(made, ENROLLED)


@pytest.mark.parametrize(
    ("older", "given", "left"),
    [
        ({"batch_rule": "node", "batch_size": 144}, {"global_batch_size": 64}, {"global_batch_size": 64}),
        ({"global_batch_size": 64}, {"batch_rule": "node"}, {"batch_rule": "node"}),
        ({"batch_rule": "node", "batch_size": 144}, {"batch_size": 72}, {"batch_rule": "node", "batch_size": 72}),
        ({"batch_size": 144}, {"batch_rule": "node"}, {"batch_rule": "node", "batch_size": 144}),
    ],
)
def test_one_rule_displaces_what_another_counted(
    older: dict[str, Any], given: dict[str, Any], left: dict[str, Any]
) -> None:
    assert invocation.merge(older, given) == left


def test_the_rule_is_kept_for_a_resumed_run_and_comes_from_a_file(tmp_path: Any) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text('batch_rule = "node"\nbatch_size = 144\nstrategy = ["fake:a"]\ndevice = "cpu"')
    made = planned("--config", str(file))
    again = plan.make(made.config, ENROLLED)
    assert again.config == made.config
    assert [point.cell for point in again.cells] == [point.cell for point in made.cells]
    assert made.config.batch_rule == "node"


# Which kinds of points a round has, by the data that is trained on.

KINDS_FAKE = ("--strategy", "fake:a", "--device", "cpu", "--interleave")
KINDS_ENROLLED = [enrol(host(cores=4)) for _ in range(4)]


def kinds_planned(*argv: str) -> Plan:
    return plan.make(invocation.resolve(flags.parse((*argv, *KINDS_FAKE))), KINDS_ENROLLED)


def counted(made: Plan) -> Counter[tuple[str, int]]:
    return Counter((point.kind, point.world_size) for group in made.groups for point in group.points)


def test_every_kind_is_usual_or_the_datas() -> None:
    assert {*matrix.USUAL, *matrix.OF_DATA} <= set(KINDS)


@pytest.mark.parametrize("name", ["digits", "fashion-mnist", "synthetic", "cifar10", "tokens"])
def test_a_round_is_no_longer_where_data_lies_in_memory(name: str) -> None:
    assert matrix.kinds_of(SweepConfig(), "cpu", name) == matrix.USUAL
    assert counted(kinds_planned()).keys().isdisjoint({("held", 1), ("feed", 1), ("held", 4), ("feed", 4)})


@pytest.mark.parametrize("name", ["imagenet", "caltech256"])
def test_data_that_is_decoded_from_files_is_waited_for(name: str) -> None:
    assert matrix.kinds_of(SweepConfig(), "cpu", name) == (*matrix.USUAL, "feed", "held")
    assert matrix.kinds_of(SweepConfig(), "cuda", name) == (*matrix.USUAL, "feed", "held")
    assert matrix.kinds_of(SweepConfig(), "emulated", name) == matrix.OF_EMULATED
    assert matrix.kinds_of(SweepConfig(kinds=("exchange",)), "cpu", name) == ("exchange",)


# What may be asked of feeds, and what is refused before anything starts.

MINE = ("--device", "cpu", "--model", "cifar10-cnn", "--data", "folders")
GLOO = ("--strategy", "torch:gloo")
FEEDING_ENROLLED = [enrol(host(cores=4)) for _ in range(2)]


def feeding_planned(*argv: str) -> plan.Plan:
    strategy = () if "--strategy" in argv else GLOO
    return plan.make(invocation.resolve(flags.parse((*MINE, *strategy, *argv))), FEEDING_ENROLLED)


def test_the_feed_is_of_what_is_measured() -> None:
    found = feeding_planned("--feed", "native", "--feed-workers", "3", "--drop-caches").cells
    assert {(one.workload.feed, one.workload.feed_workers, one.workload.drop_caches) for one in found} == {
        ("native", 3, True)
    }
    names = {one.cell for one in found}
    assert not names & {one.cell for one in feeding_planned("--feed", "native").cells}
    # What it was before there were others is named as before.
    usual = {one.cell for one in feeding_planned().cells}
    assert not names & usual
    assert not any("reference" in name for name in usual)
    assert usual == {one.cell for one in feeding_planned("--feed", "reference").cells}


@pytest.mark.parametrize(
    ("strategy", "data", "reads"),
    [
        ("torch:gloo", "imagenet-rec", True), ("torch:plain", "imagenet-tfrecord", True),
        ("tensorflow:ring", "imagenet-tfrecord", True), ("tensorflow:plain", "imagenet-rec", False),
        ("mxnet:local", "imagenet-rec", True), ("mxnet:plain", "imagenet", False),
        ("mxnet:plain", "imagenet-tfrecord", False),
    ],
)  # fmt: skip
def test_which_files_a_frameworks_own_pipeline_reads(strategy: str, data: str, *, reads: bool) -> None:
    point = one_task(strategy, "solo", model="resnet50", data=data).point
    assert not [*refusals.of_feed(point)]
    native = replace(point, workload=replace(point.workload, feed="native"))
    assert (not [*refusals.of_feed(native)]) is reads
