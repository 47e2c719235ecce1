"""Emulated devices in a sweep: flags, plan, the lab's links."""

from __future__ import annotations

from typing import Any

import pytest

from scaling.emulated.device import EmulatedDevice
from scaling.errors import UsageError
from scaling.hosts.networks import Entry
from scaling.plan import matrix, plan
from scaling.plan.plan import Plan
from scaling.records.host import Nic
from scaling.records.point import Hardware, Workload
from scaling.run import flags, invocation, listing
from scaling.tools.lab import slowdown, state, wires
from tests.support.inline import enrol, host
from tests.support.paper_tasks import tasks
from tests.support.points import changed
from tests.support.scripted_records import point

EMULATED: dict[str, Any] = {
    "device": "emulated", "profile": "p100", "model": "resnet50", "data": "synthetic", "batch_size": 64,
}  # fmt: skip


def scales(made: Plan) -> set[tuple[float, float]]:
    return {(one.hardware.shrink, one.hardware.dilate) for one in made.cells}


def planned(*argv: str, lab: tuple[float, ...] = (), nodes: int = 1, size: int = 4) -> Plan:
    """The plan of a launch of `size` ranks dealt out over `nodes` of one machine with two cores."""
    rate = {"ib": Entry(interface="ib0", rate_gbit=100.0)}
    hosts = [
        host(
            f"node{number}", cores=2, boot_id="one",
            nics=(Nic(name="ib0", address=f"10.10.0.{number}", netmask="255.255.255.0", up=True, mtu=1500),),
        )
        for number in range(1, nodes + 1)
    ]  # fmt: skip
    enrolled = [enrol(hosts[rank * nodes // size]) for rank in range(size)]
    return plan.make(invocation.resolve(flags.parse(argv)), enrolled, rate, lab_bits_per_s=lab)


# ---------------------------------------------------------------- flags and plan


def test_a_profile_brings_model_batch_and_strategy() -> None:
    made = planned("--device", "emulated:p100")
    assert made.device == "emulated"
    assert made.config.device == "emulated:p100"
    assert (made.config.model, made.config.batch_size, made.config.strategy) == ("resnet50", 64, ("torch:gloo",))
    assert {point.hardware.profile for point in made.cells} == {"p100"}
    assert all("p100" in point.cell for point in made.cells)


def test_on_a_real_network_nothing_is_shrunk_or_dilated() -> None:
    assert scales(planned("--device", "emulated:p100")) == {(1.0, 1.0)}
    assert scales(planned("--device", "emulated:p100", "--shrink", "10", "--dilate", "2")) == {(10.0, 2.0)}


def test_in_a_lab_both_are_chosen_for_the_machine_and_kept_for_a_resumed_run() -> None:
    made = planned("--device", "emulated:p100", lab=(1e11, 1e10), nodes=4, size=16)
    ((shrink, dilate),) = scales(made)
    assert (shrink, dilate) == (made.config.shrink, made.config.dilate)
    assert shrink > 1 and dilate > 1
    given = planned("--device", "emulated:p100", "--dilate", "30", lab=(1e11, 1e10), nodes=4, size=16)
    assert {one for _, one in scales(given)} == {30.0}


def test_settings_are_part_of_what_a_point_is() -> None:
    one = point(**EMULATED)
    assert len({one.cell, changed(one, shrink=2.0).cell, changed(one, dilate=2.0).cell, point().cell}) == 4
    assert "p100" not in point().cell


def test_the_estimate_counts_the_sleeps() -> None:
    short, long = (planned("--device", "emulated:p100", "--dilate", dilate) for dilate in ("1", "10"))
    assert long.estimate_s > 3 * short.estimate_s
    assert planned("--strategy", "fake:a").slept_s == 0.0


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--device", "emulated"), ("'emulated'", "emulated:p100")),
        (("--device", "emulated:"), ("'emulated:'", "emulated:p100")),
        (("--device", "emulated:p10"), ("emulated:p10", "'p100'")),
        (("--device", "emulated:P100"), ("emulated:P100", "did you mean 'p100'")),
        (("--device", "emulatd:p100"), ("'emulatd:p100'", "did you mean 'emulated:p100'")),
        (("--device", "emulated:p100", "--batch-size", "7"), ("batch 7", "batch 64, 32")),
        (
            ("--device", "emulated:p100", "--global-batch-size", "32"),
            ("resnet50 at batch 8", "64, 32", "16 to 128"),
        ),
        (("--device", "emulated:p100", "--model", "digits-cnn"), ("--model digits-cnn", "googlenet")),
        (("--device", "emulated:p100", "--precision", "bf16"), ("--precision bf16", "fp32")),
        (("--device", "emulated:p100", "--compile"), ("--compile",)),
        (("--device", "emulated:p100", "--shrink", "0.5"), ("--shrink 0.5", "from 1")),
        (("--device", "emulated:p100", "--dilate", "nan"), ("--dilate nan", "from 1")),
        (("--device", "emulated:p100", "--dilate", "inf"), ("--dilate inf", "from 1")),
        (("--device", "emulated:p100", "--dilate", "1e308"), ("--dilate 1e+308", "at most 4,294,967,296")),
        (("--dilate", "2"), ("--dilate 2", "--device emulated:PROFILE")),
        (("--device", "emulated:p100", "--strategy", "tensorflow:ps"), ("tensorflow:ps", "torch:gloo")),
        (("--device", "emulated:p100", "--strategy", "torch:nccl"), ("torch:nccl", "torch:ps-async")),
    ],
)
def test_what_cannot_be_emulated_gets_one_line(argv: tuple[str, ...], words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        planned(*argv)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


def test_another_model_or_device_displaces_the_settings_of_an_older_run() -> None:
    older = {"device": "emulated:p100", "model": "resnet50", "shrink": 20.0, "dilate": 4.0}
    assert not {"shrink", "dilate"} & set(invocation.merge(older, {"model": "vgg16"}))
    assert not {"shrink", "dilate"} & set(invocation.merge(older, {"device": "cpu"}))
    assert invocation.merge(older, {"rounds": 5})["dilate"] == 4.0


def test_emulated_ranks_take_no_cpus_of_their_own_and_are_never_oversubscribed() -> None:
    made = planned("--device", "emulated:p100", size=4)
    (exchange,) = (point for point in made.cells if point.kind == "exchange" and point.world_size == 4)
    assert not matrix.refused([exchange], made.slots)
    for task in tasks("torch:gloo", "exchange", 4, **EMULATED):
        assert task.cpus == ()


# ---------------------------------------------------------------- the lab's links


class Lab:
    """Stands for a lab with one card at 100 Gb/s."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shaped: list[dict[str, float]] = []
        self.is_up = True
        self.now_bits_per_s = 1e11
        monkeypatch.setattr(state, "load", self.load)
        monkeypatch.setattr(wires, "shape", self.shape)

    def load(self, name: str) -> state.Lab:
        if not self.is_up:
            raise UsageError(f"no lab {name!r} is up")
        nic = state.Nic(name="ib0", subnet="", rate_bits_per_s=1e11, shaped_bits_per_s=self.now_bits_per_s)
        return state.Lab(name=name, nodes=(), slots=1, nics=(nic,))

    def shape(self, _lab: state.Lab, rates: dict[str, float]) -> None:
        self.shaped.append(rates)
        self.now_bits_per_s = rates["ib0"]


def test_links_are_slowed_while_a_run_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch)
    with pytest.raises(KeyboardInterrupt), slowdown.shaped(40.0, {slowdown.VARIABLE: "one"}):
        assert lab.shaped == [{"ib0": 1e11 / 40}]
        raise KeyboardInterrupt
    assert lab.shaped[1:] == [{"ib0": 1e11}]


def test_what_a_broken_run_left_is_mended_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch)
    lab.now_bits_per_s = 1e9
    with slowdown.shaped(1.0, {slowdown.VARIABLE: "one"}):
        assert lab.shaped == [{"ib0": 1e11}]
    assert lab.shaped == [{"ib0": 1e11}], "nothing is shaped that is right already"


def test_a_lab_that_goes_down_meanwhile_is_no_further_error(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch)
    with slowdown.shaped(2.0, {slowdown.VARIABLE: "one"}):
        lab.is_up = False
    with slowdown.shaped(4.0, {}):  # without a lab no link is touched
        pass
    assert len(lab.shaped) == 1


def works(model: str, *sizes: int, image_size: int = 0) -> list[Workload]:
    return [changed(point(), model=model, batch_size=size, image_size=image_size).workload for size in sizes]


def test_the_header_tells_what_was_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    Lab(monkeypatch)
    hardware = Hardware(device="emulated", profile="p100", shrink=10, dilate=4)
    told = listing.emulation(hardware, works("resnet50", 64), {slowdown.VARIABLE: "one"})
    for words in ("NVIDIA Tesla P100", "219 images/s of resnet50 at batch 64", "https://", "/ 10", "x 4", "2.5"):
        assert words in told
    assert "40 times as fast" in listing.emulation(hardware, works("resnet50", 64), {})
    assert listing.emulation(Hardware(device="cpu"), works("resnet50", 64), {}) == ""


def test_the_header_tells_which_rates_nobody_published(monkeypatch: pytest.MonkeyPatch) -> None:
    Lab(monkeypatch)
    hardware = Hardware(device="emulated", profile="p100", shrink=10, dilate=4)
    told = listing.emulation(hardware, works("googlenet", 144, 36, image_size=256), {})
    assert "220 images/s of googlenet at batch 144 at 256 px (Dell EMC" in told
    fitted = "182.5 images/s of googlenet at batch 36 at 256 px (FITTED: 236.2 b / (b + 10.6), fitted to batch 144"
    assert fitted in told


# ---------------------------------------------------------------- how well

NODE_RULE = (
    "--device", "emulated:p100", "--model", "googlenet", "--image-size", "256", "--batch-rule", "node",
    "--batch-size", "144",
)  # fmt: skip


def test_the_studys_rule_runs_at_fitted_rates_and_one_setting() -> None:
    flags = "--world-sizes", "1,2,4,8,16", "--rounds", "5"
    made = planned(*NODE_RULE, *flags, lab=(1e11, 1e10), nodes=4, size=16)
    exchanges = {point.world_size: made.emulation(point) for point in made.cells if point.kind == "exchange"}
    assert {size: bool(found and found.fitted) for size, found in exchanges.items()} == {
        1: False, 2: True, 4: True, 8: True, 16: True,
    }  # fmt: skip
    for found in exchanges.values():
        assert found is not None and found.error_fraction is not None
        assert found.error_fraction <= 0.005 * (1 + 1e-9)
    largest, inside = exchanges[16], exchanges[4]
    assert largest is not None and inside is not None
    assert largest.wire_s == pytest.approx(3.58e-3, rel=0.01)
    assert inside.wire_s == 0.0
    # 23.9 MB in the last bucket, 2 x 3/4 of it from each device, at 15.75 GB/s
    assert inside.inside == "PCIe 3.0 x16"
    assert inside.inside_s == pytest.approx(2.28e-3, rel=0.01)


@pytest.mark.parametrize(
    ("flags", "bounded"),
    [
        (("--strategy", "torch:gloo"), True),
        (("--strategy", "torch:gloo", "--option", "bucket_cap_mb=5"), False),
        (("--strategy", "torch:horovod"), False),
    ],
)
def test_the_error_is_bounded_where_the_model_is_of_the_exchange(flags: tuple[str, ...], bounded: bool) -> None:
    made = planned(*NODE_RULE, *flags, "--world-sizes", "1,16", lab=(1e11,), nodes=4, size=16)
    found = {point.world_size: made.emulation(point) for point in made.cells if point.kind == "exchange"}
    alone, whole = found[1], found[16]
    assert alone is not None and alone.error_fraction == 0.0, "it exchanges nothing"
    assert whole is not None and (whole.error_fraction is not None) == bounded


def test_one_device_of_a_node_crosses_no_link_inside_it() -> None:
    made = planned(*NODE_RULE, "--placement", "spread", "--world-sizes", "1,4,8", lab=(1e11,), nodes=4, size=16)
    found = {point.world_size: made.emulation(point) for point in made.cells if point.kind == "exchange"}
    assert {size: one.inside for size, one in found.items() if one} == {1: "", 4: "", 8: "PCIe 3.0 x16"}


def test_another_image_size_is_fitted_everywhere() -> None:
    """256 px were published of the P100's GoogLeNet at 144: 224, its own, have fewer operations an image."""
    own = planned(*NODE_RULE, "--image-size", "224", "--world-sizes", "1")
    told = listing.emulation(own.hardware, works("googlenet", 144), {})
    assert "262.6 images/s of googlenet at batch 144 (FITTED: 220 images/s at 256 px" in told
    (whole,) = (one for one in own.cells if one.kind == "exchange")
    found = own.emulation(whole)
    assert found is not None
    assert found.samples_per_s == pytest.approx(262.6, abs=0.05)
    assert found.fitted.startswith("220 images/s at 256 px x 1.193")
    assert EmulatedDevice(whole).rate.step_s == pytest.approx(144 / 262.56, rel=1e-4)
    assert own.slept_s == pytest.approx(144 / 262.56 * own.hardware.dilate, rel=1e-4)


def test_a_batch_that_is_not_given_is_one_of_the_image_size() -> None:
    for size, batch in (("224", 128), ("256", 144)):
        flags = ("--device", "emulated:p100", "--model", "googlenet", "--image-size", size)
        assert planned(*flags).config.batch_size == batch


def test_a_real_device_has_nothing_to_tell() -> None:
    made = planned("--strategy", "fake:a", "--device", "cpu")
    assert {made.emulation(point) for point in made.cells} == {None}


def test_controls_tell_their_device_alone() -> None:
    made = planned(*NODE_RULE, lab=(1e11,), nodes=4, size=16)
    (small,) = (one for one in made.cells if one.kind == "solo" and one.workload.batch_size == 36)
    found = made.emulation(small)
    assert found is not None and found.fitted
    assert (found.tail_s, found.wire_s, found.error_fraction) == (0.0, 0.0, 0.0)
