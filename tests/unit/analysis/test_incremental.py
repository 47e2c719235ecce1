"""The analysis of a sweep that goes on: the rows of the whole, for the work of what a point changes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.analysis.table.analyse import rows
from scaling.analysis.table.cell_rows import Analyser
from scaling.records.run import PointRecord
from scaling.records.telemetry import Telemetry
from tests.support.report_scenes import SCENES
from tests.support.scripted_records import (
    asynchronous,
    carried,
    failed,
    point,
    record,
    served,
    sweep,
    throttled,
    with_losses,
)

NODES = ["node1", "node2", "node3", "node4"]


def made(dice: random.Random) -> PointRecord:
    """Any record of a sweep of some strategies, networks, numbers of servers and rounds; or a failed one."""
    strategy = dice.choice(["torch:gloo", "torch:ps-sync", "torch:ps-async", "mxnet:dist_sync", "my.own:way"])
    kind = dice.choice(["exchange", "exchange", "exchange", "solo", "each", "together", "comm"])
    plain = kind in ("solo", "each", "together")
    size = 1 if kind == "solo" else dice.choice([1, 2, 2, 4]) if kind == "exchange" else dice.choice([2, 4])
    rule = dice.choice(["weak", "weak", "strong"]) if kind == "exchange" else "weak"
    fields: dict[str, Any] = {"batch_size": dice.choice([32, 64]), "batch_rule": rule}
    if plain:
        strategy = strategy.partition(":")[0].replace("my.own", "torch") + ":plain"
    else:
        fields["interconnect"] = dice.choice(["ib0", "eth0"])
        fields["servers"] = dice.choice([1, 1, 2]) if "ps" in strategy or "dist" in strategy else 0
        fields["server_hosts"] = dice.choice(["shared", "shared", "dedicated"]) if fields["servers"] else "shared"
        fields["options"] = dice.choice([{}, {}, {"cap_mb": "2"}])
    of = point(kind, size, dice.randrange(3), strategy=strategy, **fields)
    if dice.random() < 0.15:
        return failed(of, dice.choice(["oom", "hang"]))
    hosts = NODES[: dice.choice([1, 1, size])]
    found = record(
        of, *(dice.uniform(0.05, 0.2) for _ in range(size)), hosts=hosts, oversubscribed=dice.random() < 0.1
    )
    return _odd(found, dice)


def _odd(one: PointRecord, dice: random.Random) -> PointRecord:
    kind, size = one.point.kind, one.point.world_size
    if kind != "comm" and dice.random() < 0.3:
        one = with_losses(one, *(dice.choice([None, dice.random()]) for _ in range(3)))
    if kind == "exchange" and size > 1 and len({rank.host for rank in one.ranks}) == size:
        one = carried(one, dice.choice(["ib0", "eth0"]), slow=dice.choice(["", "node2"]))
    elif dice.random() < 0.1:
        one = throttled(one)
    if one.point.strategy == "torch:ps-async":
        one = asynchronous(one, dice.random())
    if dice.random() < 0.7:
        one = _told(replace(one, epoch=dice.choice([None, one.point.round])), dice)
    if one.point.servers:
        one = served(one, *(dice.choice([None, 40.0]) for _ in range(one.point.servers)))
    return replace(one, settled=dice.random() > 0.1)


def _told(one: PointRecord, dice: random.Random) -> PointRecord:
    """With what older records know of CPU time; in some of a plain loop's, a rank had no turn in a block."""
    ranks = tuple(replace(rank, telemetry=Telemetry(cpu_percent=dice.uniform(80, 100))) for rank in one.ranks)
    if one.point.kind == "each" and dice.random() < 0.5:
        ranks = tuple(replace(rank, windows=rank.windows[dice.randrange(3) :]) for rank in ranks)
    return replace(one, ranks=ranks)


@pytest.mark.parametrize("seed", range(5))
def test_after_each_record_the_rows_are_those_of_all_records(seed: int) -> None:
    """Cells come in any order, rounds too, keys again and again, baselines after what rests on them."""
    dice = random.Random(seed)
    analyser, records = Analyser(), list[PointRecord]()
    for _ in range(50):
        for _ in range(dice.choice([1, 1, 3])):
            records.append(dice.choice(records) if records and dice.random() < 0.1 else made(dice))
            analyser.add(records[-1])
        assert analyser.rows() == rows(records)


@pytest.mark.parametrize("scene", SCENES)
def test_a_scene_record_by_record(scene: str) -> None:
    """Looked at now and then: what is stale once stays so."""
    _, records = SCENES[scene]()
    dice = random.Random(scene)
    mixed = dice.sample(records, len(records))
    looks = {len(mixed), *dice.sample(range(len(mixed)), min(8, len(mixed)))}
    analyser = Analyser(mixed[:5])
    for number, one in enumerate(mixed[5:], start=6):
        analyser.add(one)
        if number in looks:
            assert analyser.rows() == rows(mixed[:number])


def test_nothing_has_no_rows() -> None:
    assert Analyser().rows() == ()


# ---------------------------------------------------------------- the work

READS = Counter[str]()


class Counted(PointRecord, frozen=True, kw_only=True, tag="point"):
    def __getattribute__(self, name: str) -> Any:
        if name == "ranks":
            READS[super().__getattribute__("point").key] += 1
        return super().__getattribute__(name)


def counted(one: PointRecord) -> PointRecord:
    return Counted(**{name: getattr(one, name) for name in PointRecord.__struct_fields__})


def looked_at(before: Sequence[PointRecord], last: PointRecord) -> dict[str, int]:
    analyser = Analyser(map(counted, before))
    analyser.rows()
    READS.clear()
    analyser.add(counted(last))
    analyser.rows()
    return dict(READS)


def models(count: int) -> list[PointRecord]:
    return [one for number in range(2) for model in range(count) for one in _of_model(number, f"model{model}")]


def _of_model(number: int, model: str) -> list[PointRecord]:
    exchanges = sweep(number, 0.1, {1: 0.1, 2: 0.12})
    return [
        replace(one, point=replace(one.point, workload=replace(one.point.workload, model=model)))
        for one in exchanges
    ]


@pytest.mark.parametrize("kind", ["exchange", "solo", "together", "comm"])
def test_the_work_after_a_point_does_not_grow_with_the_points_that_it_does_not_touch(kind: str) -> None:
    few, many = models(2), models(40)
    last = next(one for one in _of_model(2, "model1") if one.point.kind == kind)
    assert looked_at(many, last) == looked_at(few, last)
    assert {key.split("/")[1] for key in looked_at(many, last)} == {kind}  # what rests on it is not read again
