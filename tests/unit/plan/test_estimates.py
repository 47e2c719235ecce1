"""How long a plan takes on GPUs, against runs on an H200, and which of their points take turns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scaling.plan import config, defaults, placement, plan
from scaling.records.host import Nic
from tests.support.inline import enrol, host
from tests.support.plans import gpu, made

RECORDED = Path(__file__).parents[2] / "recorded"
# How the runs in `recorded` were made: each worker was fresh, warm-up had 16 windows.
AS_RECORDED: dict[str, Any] = {"fresh_workers": True, "soak_s": 0.0, "kinds": ["exchange", "solo"]}


def test_the_estimate_is_near_what_a_run_on_an_h200_took() -> None:
    _, *records = (RECORDED / "h200-default.jsonl").read_text().splitlines()
    took_s = sum(json.loads(record)["wall_s"] for record in records)
    found = made(
        gpu(), **AS_RECORDED, interleave=False, rounds=2, windows=3, window_s=0.5, warm_up_s=8.0, trace=True
    )
    assert took_s == pytest.approx(89.7, abs=0.1)
    assert found.estimate_s == pytest.approx(took_s, rel=0.3)


def test_the_estimate_is_near_what_points_in_turn_took_on_an_h200() -> None:
    """A printed run: 26 s for the first round, 17 and 17 s for the others."""
    found = made(gpu(), **AS_RECORDED, interleave=True, rounds=3, windows=5, window_s=0.3, warm_up_s=0.0)
    assert found.estimate_s == pytest.approx(26 + 17 + 17, rel=0.3)


GPUS = tuple(gpu(index=index) for index in range(8))


def nic(number: int) -> Nic:
    return Nic(name="eth0", address=f"10.0.0.{number + 1}", netmask="255.255.255.0", up=True, mtu=1500)


@pytest.mark.parametrize(("hosts", "most_s"), [(1, 4 * 60), (2, 5 * 60)])
def test_eight_gpus_answer_in_minutes(hosts: int, most_s: float) -> None:
    ranks = [
        enrol(host(f"n{number}", cores=96, memory_bytes=2 << 40, gpus=GPUS, nics=(nic(number),)))
        for number in range(hosts)
        for _ in range(8)
    ]
    found = plan.make(config.build({"strategy": ["torch:nccl"]}, source="test"), ranks)
    assert found.side_by_side
    assert found.estimate_s < most_s


def test_each_further_process_of_a_host_prolongs_the_start() -> None:
    """Contexts of a driver start one after another."""
    of_one, of_eight = (
        plan.make(
            config.build({"strategy": ["torch:nccl"], "world_sizes": [8], "kinds": ["exchange"]}, source="test"),
            [
                enrol(host(f"n{number}", cores=96, memory_bytes=2 << 40, gpus=GPUS, nics=(nic(number),)))
                for number in range(hosts)
                for _ in range(8 // hosts)
            ],
        )
        for hosts in (8, 1)
    )
    further = defaults.FURTHER_PROCESS_S * of_eight.rounds
    more_s = of_eight.seconds(of_eight.groups[0]) - of_one.seconds(of_one.groups[0])
    workers = [placement.most_of_a_host(one.groups[0].points, one.slots) for one in (of_one, of_eight)]
    assert more_s * of_eight.rounds == pytest.approx(further * (workers[1] - workers[0]))
    assert workers[1] >= 8 * workers[0]


def test_workers_that_compile_or_import_take_longer_to_start() -> None:
    plain = made(gpu()).estimate_s
    assert plain < made(gpu(), fresh_workers=True).estimate_s < made(gpu(), compile=True).estimate_s


def test_points_take_turns_on_gpus_if_their_framework_gives_back_memory() -> None:
    assert made(gpu()).side_by_side
    assert not made(gpu(), interleave=False).side_by_side
    assert not made(gpu(), strategy=["tensorflow:ring"]).side_by_side
    assert made(gpu(), strategy=["tensorflow:ring"], interleave=True).side_by_side
