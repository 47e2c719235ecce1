"""What may be asked of feeds, and what is refused before anything starts."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.plan import matrix, plan
from scaling.plan.config import SweepConfig
from scaling.run import flags, invocation
from tests.support.inline import enrol, host
from tests.support.paper_tasks import one_task

MINE = ("--device", "cpu", "--model", "cifar10-cnn", "--data", "folders")
GLOO = ("--strategy", "torch:gloo")
ENROLLED = [enrol(host(cores=4)) for _ in range(2)]


def planned(*argv: str) -> plan.Plan:
    strategy = () if "--strategy" in argv else GLOO
    return plan.make(invocation.resolve(flags.parse((*MINE, *strategy, *argv))), ENROLLED)


def test_the_feed_is_of_what_is_measured() -> None:
    found = planned("--feed", "native", "--feed-workers", "3", "--drop-caches").cells
    assert {(one.workload.feed, one.workload.feed_workers, one.workload.drop_caches) for one in found} == {
        ("native", 3, True)
    }
    names = {one.cell for one in found}
    assert not names & {one.cell for one in planned("--feed", "native").cells}
    # What it was before there were others is named as before.
    usual = {one.cell for one in planned().cells}
    assert not names & usual
    assert not any("reference" in name for name in usual)
    assert usual == {one.cell for one in planned("--feed", "reference").cells}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--feed", "native", "--data", "cifar10"), "--feed native: --data cifar10 is held in memory"),
        (("--drop-caches", "--data", "synthetic"), "--drop-caches: --data synthetic is held in memory"),
        (("--feed-workers", "2"), "--feed-workers 2: of the native feed alone; add --feed native"),
        (("--feed", "native", "--feed-workers", "-1"), "--feed-workers -1: must be a number above 0"),
        (("--feed", "native", "--feed-workers", "0"), "--feed-workers 0: must be a number above 0"),
        (("--feed", "nativ"), "feed: 'nativ' is not one of reference, native; did you mean 'native'"),
        (("--feed", "native", "--epochs", "1"), "--feed native: --epochs trains on the reference feed"),
        (("--feed", "native", "--strategy", "mxnet:dist_sync"), "which im2rec.py of MXNet packs a tree"),
        (("--feed", "native", "--strategy", "tensorflow:ring", "--data", "recordio"), "or take imagenet, "),
        (("--feed", "native", "--strategy", "tensorflow:ps"), "--feed native: it has no pipeline of its own"),
        (("--drop-caches", "--interleave"), "--interleave: points that take turns read the same pictures"),
        (("--drop-caches", "--strategy", "tensorflow:ps"), "--drop-caches: what computes for it holds"),
        (("--feed", "native", "--strategy", "fake:a"), "--strategy fake:a: --feed native: it has no pipeline"),
    ],
)  # fmt: skip
def test_what_cannot_be_fed_so_is_refused(argv: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        planned(*argv)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_points_whose_files_are_dropped_take_no_turns() -> None:
    assert planned().side_by_side
    assert not planned("--drop-caches").side_by_side


def test_workers_that_are_no_number() -> None:
    with pytest.raises(UsageError, match=r"--feed-workers': .*valid int"):
        planned("--feed", "native", "--feed-workers", "x")


def test_emulated_devices_are_not_fed() -> None:
    with pytest.raises(UsageError, match="--feed native: emulated devices are not fed"):
        matrix.check_feed(SweepConfig(feed="native"), "emulated", "imagenet")


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
    assert matrix.feed_refusal(point) is None
    native = replace(point, workload=replace(point.workload, feed="native"))
    assert (matrix.feed_refusal(native) is None) is reads
