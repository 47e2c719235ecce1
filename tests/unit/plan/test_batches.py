"""What each device trains at each world size, by the batch rule."""

from __future__ import annotations

from typing import Any

import pytest

from scaling.analysis.table.comparisons import comparable, curve_keys
from scaling.errors import UsageError
from scaling.plan import plan
from scaling.plan.plan import Plan
from scaling.records.host import Nic
from scaling.records.point import Point
from scaling.run import flags, invocation, listing
from tests.support.inline import enrol, host

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


def test_a_nodes_batch_is_shared_by_its_devices_in_use() -> None:
    made = planned(*NODE, "--world-sizes", "1,2,4,8,12,16")
    exchanges = {size: point for size, (point,) in of(made, "exchange").items()}
    assert {size: point.workload.batch_size for size, point in exchanges.items()} == {
        1: 144, 2: 72, 4: 36, 8: 36, 12: 36, 16: 36,
    }  # fmt: skip
    assert [point.global_batch_size for point in exchanges.values()] == [144, 144, 144, 288, 432, 576]
    assert {point.workload.batch_rule for point in made.cells} == {"node"}


def test_all_its_world_sizes_are_one_curve_against_one_device_at_the_nodes_batch() -> None:
    exchanges = [point for points in of(planned(*NODE), "exchange").values() for point in points]
    assert {point.reference.batch_size for point in exchanges} == {144}
    assert len({comparable(point) for point in exchanges}) == 1
    assert len(set(curve_keys(exchanges).values())) == 1
    assert len({point.cell for point in exchanges}) == len(exchanges)


def test_controls_are_measured_at_the_whole_batch_and_at_each_devices() -> None:
    made = planned(*NODE)
    assert sorted(point.workload.batch_size for point in of(made, "solo")[1]) == [144]
    each = {size: points[0].workload.batch_size for size, points in of(made, "each").items()}
    assert each == {2: 72, 16: 36}  # the largest has the seats of the smaller ones
    for kind in ("together", "comm"):
        assert {size: points[0].workload.batch_size for size, points in of(made, kind).items()} == {
            2: 72, 4: 36, 8: 36, 16: 36,
        }  # fmt: skip


def test_dealt_out_over_nodes_each_device_has_a_whole_batch_until_nodes_have_two() -> None:
    made = planned(*NODE, "--placement", "spread", "--world-sizes", "1,4,8")
    assert [points[0].workload.batch_size for points in of(made, "exchange").values()] == [144, 144, 72]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (
            ("--world-sizes", "1,6"),
            ("--world-sizes 6", "4 devices of node1 and 2 of node2", "1,2,3,4,8,12,16 can"),
        ),
        (("--world-sizes", "1,3", "--batch-size", "32"), ("--batch-size 32", "3 devices", "30 would be")),
        (("--world-sizes", "1,3", "--batch-size", "2"), ("--batch-size 2", "3 devices", "; 3 would be")),
    ],
)
def test_what_cannot_be_shared_alike_gets_one_line(argv: tuple[str, ...], words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        planned(*NODE[:2], "--batch-size", "144", *FAKE, *argv)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


def test_without_a_batch_a_node_has_the_models_own() -> None:
    made = planned("--batch-rule", "node", *FAKE, "--world-sizes", "1,4")
    assert [points[0].workload.batch_size for points in of(made, "exchange").values()] == [32, 8]


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
        (
            {"batch_rule": "node", "batch_size": 144},
            {"batch_size": 72},
            {"batch_rule": "node", "batch_size": 72},
        ),
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
