"""What a larger batch gains, from planted step times: against the fastest, and against twice the smaller one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from msgspec.structs import replace

from scaling.analysis.table.analyse import analyse
from scaling.analysis.table.rows import Minibatch
from scaling.records.run import PointRecord
from tests.support.scripted_records import carried, failed, mean, point, record

# A GTX 1080 with VGG in Addfor's study of 2017, milliseconds by batch; 16 and 32 are made up.
VGG = {16: 0.110, 32: 0.211, 64: 0.42028, 128: 0.89986}
DRIFTS = (0.998, 1.0, 1.003, 1.001)


def swept(times: Mapping[int, float], drifts: Sequence[float] = DRIFTS, **fields: object) -> list[PointRecord]:
    return [
        record(point("exchange", 1, number, strategy="fake:plain", batch_size=size, **fields), drift * step_s)
        for number, drift in enumerate(drifts)
        for size, step_s in times.items()
    ]


def by_batch(records: Sequence[PointRecord]) -> dict[int, Minibatch]:
    found = analyse(records).minibatches
    assert [one.workload.batch_size for one in found] == sorted(one.workload.batch_size for one in found)
    return {one.workload.batch_size: one for one in found}


def test_twice_the_batch_in_more_than_twice_the_time_is_found() -> None:
    found = by_batch(swept(VGG))
    assert [size for size, one in found.items() if one.is_worse] == [128]
    assert mean(found[128].over_smaller) == pytest.approx(899.86 / 420.28)
    assert (found[128].smaller_batch_size, found[128].linear) == (64, 2.0)
    assert mean(found[128].step_s) == pytest.approx(0.89986, rel=1e-2)
    assert found[16].over_smaller is None


def test_the_fastest_batch_is_the_whole_and_others_a_part_of_it() -> None:
    found = by_batch(swept(VGG))
    rates = {size: size / step_s for size, step_s in VGG.items()}
    best = max(rates.values())
    for size, rate in rates.items():
        assert mean(found[size].efficiency) == pytest.approx(rate / best)
    assert mean(found[64].efficiency) == 1.0


def test_what_noise_explains_is_not_claimed() -> None:
    noisy = [
        one
        for number, off in enumerate((0.9, 1.1, 0.95, 1.05))
        for size, step_s in ((64, 0.42), (128, 0.86 * off))
        for one in [record(point("exchange", 1, number, strategy="fake:plain", batch_size=size), step_s)]
    ]
    found = by_batch(noisy)
    assert mean(found[128].over_smaller) > 2
    assert not found[128].is_worse


def test_a_single_round_claims_nothing() -> None:
    found = by_batch(swept(VGG, drifts=(1.0,)))
    assert not any(one.is_worse for one in found.values())
    assert found[128].over_smaller is not None and found[128].over_smaller.low is None


def test_batches_are_compared_over_one_that_ran_out_of_memory() -> None:
    lost = [
        failed(point("exchange", 1, number, strategy="fake:plain", batch_size=64)) for number in range(len(DRIFTS))
    ]
    found = by_batch([*swept({16: 0.1, 32: 0.2, 128: 0.9}), *lost])
    assert found[64].failed is not None and found[64].failed.cause == "oom"
    assert found[64].efficiency is None
    assert (found[128].smaller_batch_size, found[128].linear) == (32, 4.0)
    assert found[128].is_worse


def test_a_batch_whose_ranks_share_cores_is_compared_with_none() -> None:
    """64 is the fastest as measured: the others are compared as if nobody had measured it."""
    made = swept(VGG)
    shared = [replace(one, oversubscribed=one.point.workload.batch_size == 64) for one in made]
    found = by_batch(shared)
    assert found[64].flags == ("OVERSUBSCRIBED",)
    assert (found[64].efficiency, found[64].over_smaller, found[64].is_worse) == (None, None, False)
    assert mean(found[64].samples_per_s) == pytest.approx(64 / 0.42028, rel=1e-2)
    assert mean(found[64].step_s) == pytest.approx(0.42028, rel=1e-2)
    del found[64]
    assert found == by_batch([one for one in made if one.point.workload.batch_size != 64])
    assert mean(found[32].efficiency) == 1.0


def test_a_sweep_whose_ranks_all_share_cores_claims_nothing() -> None:
    found = by_batch([replace(one, oversubscribed=True) for one in swept(VGG)])
    assert {(one.efficiency, one.over_smaller, one.flags) for one in found.values()} == {
        (None, None, ("OVERSUBSCRIBED",))
    }


def test_a_batch_whose_bytes_took_another_network_is_compared_with_none() -> None:
    asked = [
        record(point("exchange", 2, number, batch_size=size, interconnect="ib0"), step_s, hosts=("node1", "node2"))
        for number in range(3)
        for size, step_s in {32: 0.1, 64: 0.21}.items()
    ]
    found = by_batch([carried(one, "ib0" if one.point.workload.batch_size == 64 else "eth0") for one in asked])
    assert (found[32].flags, found[32].efficiency) == (("MISLABELLED",), None)
    assert (found[64].flags, mean(found[64].efficiency), found[64].over_smaller) == ((), 1.0, None)


def test_each_pass_is_a_sweep_of_its_own_and_one_batch_of_it_enough() -> None:
    found = analyse([*swept({32: 0.1}, pass_="forward"), *swept({32: 0.3}, pass_="backward")]).minibatches
    assert [(one.workload.pass_, one.over_smaller) for one in found] == [("forward", None), ("backward", None)]
    assert all(mean(one.efficiency) == 1.0 for one in found)
    assert analyse(swept({32: 0.1})).minibatches == ()


def test_plain_loops_are_swept_beside_the_exchanges_that_rest_on_them() -> None:
    records = [
        record(point(kind, size, number, batch_size=batch), 0.01 * batch)
        for number in range(3)
        for batch in (16, 32)
        for kind, size in (("solo", 1), ("exchange", 1), ("exchange", 2))
    ]
    found = analyse(records).minibatches
    assert [(one.alone, one.world_size, one.workload.batch_size) for one in found] == [
        (False, 1, 16), (False, 1, 32), (False, 2, 16), (False, 2, 32), (True, 1, 16), (True, 1, 32),
    ]  # fmt: skip


def test_shared_batches_are_no_sweep() -> None:
    """Under the strong rule the baselines have several batches, which nobody asked to compare."""
    strong = [
        record(point(kind, size, number, batch_rule="strong", batch_size=64 // size), 0.1)
        for number in range(2)
        for kind, size in (("solo", 1), ("exchange", 1), ("exchange", 2), ("each", 2))
    ]
    assert analyse(strong).minibatches == ()
