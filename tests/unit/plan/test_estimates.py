"""How long a plan takes on GPUs, against runs on an H200, and which of their points take turns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.plan import config, defaults, placement, plan
from scaling.plan.groups import Group
from scaling.records.host import Nic
from scaling.run import listing
from tests.support.inline import enrol, host
from tests.support.plans import GB, gpu, made

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


def lab(**fields: Any) -> plan.Plan:
    """The lab of README.md: 16 emulated ranks on four nodes and two networks, on a machine of two cores."""
    ranks = []
    for number in range(1, 5):
        nics = tuple(
            Nic(name=name, address=f"10.{net}.0.{number}", netmask="255.255.255.0", up=True, mtu=1500)
            for name, net in (("ib0", 10), ("eth0", 20))
        )
        ranks += [enrol(host(f"node{number}", cores=2, boot_id="machine", nics=nics))] * 4
    given = {"device": "emulated:p100", "interconnect": ["ib0", "eth0"], **fields}
    return plan.make(config.build(given, source="test"), ranks, lab_bits_per_s=(100e9, 10e9))


def test_a_lab_on_two_cores_answers_in_a_quarter_of_an_hour() -> None:
    found = lab()
    assert found.estimate_s <= 15 * 60
    assert (found.rounds, found.config.windows) == (2, 3) and {point.kind for point in found.cells} == {
        "exchange", "solo", "together", "comm",
    }  # fmt: skip
    assert "instead of" in found.why and "rounds 2, not 5" in found.why and "--dilate" in found.why
    assert found.emulation_error is not None and found.emulation_error < 0.03


@pytest.mark.parametrize("fields", [{"rounds": 5}, {"windows": 5}, {"dilate": 25.0}])
def test_a_lab_takes_as_long_as_the_flags_ask_for(fields: dict[str, Any]) -> None:
    found = lab(**fields)
    assert found.estimate_s > 30 * 60 and "instead of" not in found.why
    assert found.hardware.dilate == 25.0


def test_a_small_lab_keeps_its_rounds() -> None:
    found = lab(world_sizes=[1, 2])
    assert found.rounds == 5 and "instead of" not in found.why


def on_cpus(**fields: Any) -> plan.Plan:
    ranks = [enrol(host(cores=2, memory_bytes=16 << 30))] * 2
    return plan.make(config.build({"strategy": ["torch:gloo"], "device": "cpu", **fields}, source="test"), ranks)


def test_the_estimate_knows_what_is_trained() -> None:
    small, large = on_cpus(), on_cpus(model="vgg16", batch_size=64)
    assert large.estimate_s > 20 * small.estimate_s
    assert on_cpus(model="vgg16", batch_size=128).estimate_s > 1.5 * large.estimate_s


def test_a_measured_step_corrects_the_estimate() -> None:
    made_ = on_cpus(model="vgg16", batch_size=64)
    (group,) = {len(group.points): group for group in made_.groups}.values()
    assert made_.seconds(group, step_s=0.05) < 0.1 * made_.seconds(group) < made_.seconds(group, step_s=1000.0)


@pytest.mark.parametrize(
    ("fields", "gpus", "where"),
    [
        ({"strategy": ["torch:gloo"], "device": "cpu", "model": "llama-1b", "batch_size": 512}, (), "host "),
        ({"model": "llama-1b", "batch_size": 512}, (gpu(),), "a GPU, "),
        ({"model": "resnet50"}, (gpu(),), ""),
    ],
)
def test_a_foreseen_lack_of_memory_is_in_the_plan(
    fields: dict[str, Any], gpus: tuple[Any, ...], where: str
) -> None:
    ranks = [enrol(host(cores=2, memory_bytes=64 << 30, gpus=gpus))] * max(1, len(gpus))
    found = plan.make(config.build({"strategy": ["torch:nccl"], **fields}, source="test"), ranks)
    text = listing.dry_run(found, ranks)
    assert ("out of memory: " in text) == bool(where)
    assert where in " ".join(found.memory_doubts)


def group_of(found: plan.Plan, kind: str) -> Group:
    return next(one for one in found.groups if any(point.kind == kind for point in one.points))


def test_seats_of_gpus_that_take_one_process_are_measured_one_after_another() -> None:
    """Then no points take turns, and each of four seats has windows of its own."""
    single = replace(gpu(), compute_mode="Exclusive_Process")
    found = made(
        *(replace(single, index=n, uuid=f"GPU-{n}") for n in range(4)), kinds=["exchange", "each", "solo"]
    )
    each, other = found.seconds(group_of(found, "each")), found.seconds(group_of(found, "exchange"))
    assert found.config.windows is not None and found.config.window_s is not None and not found.side_by_side
    assert each - other >= 2.9 * found.config.windows * found.config.window_s


def test_seats_that_share_something_are_estimated_one_after_another() -> None:
    """The first block of a run has them so in any case, each of them once."""
    few, many = (made(*GPUS[:size], world_sizes=[size], kinds=["exchange", "each"], rounds=1) for size in (2, 8))
    group = group_of(many, "each")
    assert many.seconds(group, seats_apart=True) > many.seconds(group) + 2
    assert many.seconds(group) - few.seconds(group_of(few, "each")) > 12 * defaults.FURTHER_PROCESS_S + 1


def test_points_that_do_not_fit_beside_each_other_start_in_epochs() -> None:
    """By the plan's guess of what they hold, or by what the GPUs held until memory ran out."""
    large, small = (made(*(gpu(memory_bytes=gb * GB, index=n) for n in (0, 1)), batch_size=128) for gb in (80, 9))
    (group,) = large.groups
    assert large.seconds(group, fits=1) > large.seconds(group, fits=3) > large.seconds(group)
    assert large.seconds(group, fits=99) == large.seconds(group)
    assert small.estimate_s > large.estimate_s + defaults.ON_GPU_S
