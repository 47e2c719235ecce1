"""Which kinds of points a round has, by the data that is trained on."""

from __future__ import annotations

from collections import Counter

import pytest

from scaling.errors import UsageError
from scaling.plan import matrix, plan
from scaling.plan.config import KINDS, SweepConfig
from scaling.plan.plan import Plan
from scaling.records.point import Device, Kind
from scaling.run import flags, invocation
from tests.support.inline import enrol, host

FAKE = ("--strategy", "fake:a", "--device", "cpu", "--interleave")
ENROLLED = [enrol(host(cores=4)) for _ in range(4)]


def planned(*argv: str) -> Plan:
    return plan.make(invocation.resolve(flags.parse((*argv, *FAKE))), ENROLLED)


def counted(made: Plan) -> Counter[tuple[str, int]]:
    return Counter((point.kind, point.world_size) for group in made.groups for point in group.points)


def test_every_kind_is_usual_or_the_datas() -> None:
    assert {*matrix.USUAL, *matrix.OF_DATA} <= set(KINDS)


@pytest.mark.parametrize("name", ["digits", "fashion-mnist", "synthetic", "cifar10", "tokens"])
def test_a_round_is_no_longer_where_data_lies_in_memory(name: str) -> None:
    assert matrix.kinds_of(SweepConfig(), "cpu", name) == matrix.USUAL
    assert counted(planned()).keys().isdisjoint({("held", 1), ("feed", 1), ("held", 4), ("feed", 4)})


@pytest.mark.parametrize("name", ["imagenet", "caltech256"])
def test_data_that_is_decoded_from_files_is_waited_for(name: str) -> None:
    assert matrix.kinds_of(SweepConfig(), "cpu", name) == (*matrix.USUAL, "feed", "held")
    assert matrix.kinds_of(SweepConfig(), "cuda", name) == (*matrix.USUAL, "feed", "held")
    assert matrix.kinds_of(SweepConfig(), "emulated", name) == matrix.USUAL
    assert matrix.kinds_of(SweepConfig(kinds=("exchange",)), "cpu", name) == ("exchange",)


def test_loops_that_hold_their_batch_and_feeds_are_measured_on_one_device_and_on_all() -> None:
    found = counted(planned("--kinds", "exchange,solo,together,held,feed", "--world-sizes", "1,2,4"))
    assert {key: count for key, count in found.items() if key[0] in matrix.OF_DATA} == {
        (kind, size): 1 for kind in ("held", "feed") for size in (1, 2, 4)
    }


def test_where_a_batch_is_shared_one_device_has_each_part_of_it() -> None:
    made = planned("--kinds", "exchange,solo,held", "--global-batch-size", "64", "--world-sizes", "1,2,4")
    held = [point for group in made.groups for point in group.points if point.kind == "held"]
    sizes = sorted((point.world_size, point.workload.batch_size) for point in held)
    assert sizes == [(1, 16), (1, 32), (1, 64), (2, 32), (4, 16)]


@pytest.mark.parametrize(
    ("asked", "device", "name", "said"),
    [
        ("held", "cpu", "synthetic", "--kinds held: synthetic is one batch that stays on the device"),
        (
            "feed",
            "cpu",
            "synthetic-tokens",
            "--kinds feed: synthetic-tokens is one batch that",
        ),
        ("feed", "emulated", "imagenet", "--kinds feed: emulated devices are not fed; leave it out"),
    ],
)
def test_what_nobody_waits_for_is_refused(asked: Kind, device: Device, name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        matrix.kinds_of(SweepConfig(kinds=("exchange", asked)), device, name)
