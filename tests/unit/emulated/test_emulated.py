"""Emulated devices as pure units: profiles, layers, the device's time, how far to shrink and to dilate."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from scaling import frameworks
from scaling.emulated import fits, layers, profiles, scale
from scaling.emulated.layers import Layer
from scaling.emulated.scale import Load, Setting
from scaling.emulated.timeline import Timeline
from scaling.errors import UsageError
from scaling.frameworks import limits
from scaling.workloads import models
from tests.support.paper_tasks import one_task

# ---------------------------------------------------------------- profiles


def test_every_figure_has_a_source_and_a_model_that_exists() -> None:
    file = profiles.read()
    assert {"p100", "k80", "v100"} <= set(file.profiles)
    used = set()
    for profile in file.profiles.values():
        assert len({(one.model, one.batch_size) for one in profile.rates}) == len(profile.rates)
        for one in profile.rates:
            assert one.samples_per_s > 0
            assert one.batch_size > 0
            assert one.model in models.CATALOGUE
            assert profiles.source(one)
            used.add(one.source)
        for shared in profile.in_node:
            assert any((one.model, one.source) == (shared.model, shared.source) for one in profile.rates)
        assert profile.inside is not None and profile.inside.bytes_per_s > 1e9
        used.add(profile.inside.source)
    assert used == set(file.sources)


def test_a_step_takes_its_batch_over_the_published_rate() -> None:
    one = profiles.rate("p100", "googlenet", 144, 256)
    assert one.samples_per_s == 220.0
    assert one.step_s == pytest.approx(144 / 220)


def test_the_first_batch_listed_is_the_default() -> None:
    assert profiles.rate("p100", "resnet50").batch_size == 64
    assert profiles.rate("p100", "googlenet").batch_size == 128
    assert profiles.rate("p100", "googlenet", image_size=256).batch_size == 144


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("p10", "resnet50", 64), "--device emulated:p10: unknown profile; did you mean 'p100'?"),
        (("p100", "resnet50", 8), "at batch 8 per device; it has batch 64, 32, fitted ones from 16 to 128"),
        (("p100", "vgg16", 256), "at batch 256 per device; it has batch 64, 32, fitted ones from 16 to 128"),
        (("k80", "vgg16", 16), "at batch 16 per device; it has batch 32"),
        (("v100", "alexnet", 64), "at batch 64 per device; it has batch 256, 512, 128"),
        (("k80", "digits-cnn", None), "--model digits-cnn: profile k80 has no images/s of it; it has resnet50"),
    ],
)
def test_what_was_never_published_is_refused_with_what_was(asked: tuple[Any, ...], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        profiles.rate(*asked)
    assert message in str(caught.value)


def test_only_emulated_devices_have_a_profile() -> None:
    assert profiles.name_of("emulated:p100") == "p100"
    assert profiles.name_of("cuda") == ""


# ---------------------------------------------------------------- rates that nobody published


def test_two_batches_give_the_law_and_a_third_tests_it() -> None:
    """Dell's GoogLeNet: 220 images/s on one device, 730 on four at 36 each; 411 were published of two at 72."""
    found = fits.fit(profiles.find("p100"), "googlenet")
    assert found is not None
    assert [found.c, found.h] == pytest.approx([236.2, 10.6], abs=0.05)
    assert found.samples_per_s(144) == pytest.approx(220.0)
    assert 4 * found.samples_per_s(36) == pytest.approx(730.0)
    assert 2 * found.samples_per_s(72) == pytest.approx(411.0, rel=2.5e-3)


def test_a_fitted_rate_says_so_and_a_published_one_does_not() -> None:
    fitted = profiles.rate("p100", "googlenet", 72, 256)
    assert fitted.fitted == "236.2 b / (b + 10.6), fitted to batch 144, and 36 as one of 4 in a node"
    assert fitted.step_s == pytest.approx((72 + 10.6) / 236.2, rel=1e-3)
    assert profiles.rate("p100", "googlenet", 36, 256).fitted, (
        "what four devices of a node do is not what one does alone"
    )
    assert profiles.rate("p100", "googlenet", 144, 256).fitted == ""
    assert profiles.rate("p100", "googlenet", 128).samples_per_s == 468.0, "published by another source"


def test_at_another_image_size_a_device_does_as_many_operations_a_second() -> None:
    """And says so, whether what it does at the other was published or fitted."""
    for batch, before in ((144, ""), (72, "236.2 b / (b + 10.6), fitted")):
        there, here = (profiles.rate("p100", "googlenet", batch, size) for size in (256, 0))
        times = layers.operations("googlenet", 256) / layers.operations("googlenet")
        assert 1.19 < times < 1.20
        assert here.samples_per_s == pytest.approx(there.samples_per_s * times)
        assert here.fitted.startswith(f"{there.samples_per_s:.4g} images/s at 256 px x 1.193")
        assert before in here.fitted
        assert here.source == "dell-mxnet"
    larger = profiles.rate("p100", "resnet50", 64, 448)
    assert larger.samples_per_s == pytest.approx(219 / 4, rel=0.01)
    assert larger.fitted.startswith("219 images/s at its own size x 0.25")


def test_layers_grow_with_their_images_and_parameters_do_not() -> None:
    small, large = layers.of("googlenet"), layers.of("googlenet", 256)
    assert [one.sizes for one in small] == [one.sizes for one in large]
    assert large[0].forward / small[0].forward == pytest.approx((256 / 224) ** 2)
    assert layers.gradient_bytes("googlenet", 256) == layers.gradient_bytes("googlenet")


def test_a_size_that_the_network_cannot_have_names_its_flag() -> None:
    with pytest.raises(UsageError, match="^--image-size 8: googlenet: layer 7, Pool: "):
        profiles.rate("p100", "googlenet", None, 8)


def test_a_fit_to_many_batches_says_by_how_much_it_misses_them() -> None:
    found = fits.fit(profiles.find("v100"), "resnet50")
    assert found is not None
    assert found.off == pytest.approx(0.028, abs=0.001)
    assert str(found).endswith("which it misses by 2.8 % at most")
    assert (found.least, found.most) == (2, 256)


def test_what_grows_no_faster_with_its_batch_is_not_fitted() -> None:
    """A V100's AlexNet is slower at 512 than at 256."""
    assert fits.fit(profiles.find("v100"), "alexnet") is None
    assert fits.fit(profiles.find("p100"), "alexnet") is None, "one batch tells nothing of others"


# ---------------------------------------------------------------- layers

TWO = (
    Layer(name="conv", sizes=(80, 10), forward=100, backward=100),
    Layer(name="norm", sizes=(10, 10), forward=0, backward=0),
    Layer(name="dense", sizes=(1000,), forward=100, backward=200),
)


def test_a_step_is_shared_out_by_operations() -> None:
    first, second = layers.spans(TWO, step_s=1.0)
    assert (first.forward_s, first.backward_s) == pytest.approx((0.2, 0.2))
    assert (second.forward_s, second.backward_s) == pytest.approx((0.2, 0.4))
    assert first.sizes == (80, 10, 10, 10), "normalisation ends with the layer before it"
    assert second.sizes == (1000,)


def test_sizes_are_divided_and_their_sum_is_right() -> None:
    assert layers.shrunken((64, 64, 1000, 3, 3), 10) == [6, 7, 100, 1, 1]
    assert layers.shrunken((64, 1000), 1) == [64, 1000]
    assert layers.shrunken((1, 1, 1), 100) == [1, 1, 1], "no gradient is empty"


@pytest.mark.parametrize("name", sorted(models.CATALOGUE))
def test_the_layers_are_those_of_the_model(name: str) -> None:
    found = layers.of(name)
    assert sum(sum(one.sizes) for one in found) == models.spec(name).parameters
    assert layers.gradient_bytes(name) == 4 * models.spec(name).parameters
    assert sum(span.forward_s + span.backward_s for span in layers.spans(found, 2.0)) == pytest.approx(2.0)


def test_operations_are_those_of_the_literature() -> None:
    """Multiplications and additions of one image forward: ResNet-50 has 4.1e9 of each, VGG-16 15.5e9."""
    for name, expected in (("resnet50", 2 * 4.09e9), ("vgg16", 2 * 15.47e9)):
        assert sum(one.forward for one in layers.of(name)) == pytest.approx(expected, rel=0.01)


def test_a_model_that_was_not_counted_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--model resnet5: .*did you mean 'resnet50'"):
        layers.of("resnet5")


# ---------------------------------------------------------------- the device's time


class Clock:
    """Sleeping takes what it is told and `late_s` more."""

    def __init__(self, late_s: float = 0.0) -> None:
        self.now_s = 100.0
        self.late_s = late_s
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds + self.late_s


def test_late_wake_ups_do_not_add_up() -> None:
    clock = Clock(late_s=0.004)
    device = Timeline(1.0, clock, clock.sleep)
    for _ in range(100):
        device.spend(0.010)
    assert clock.now_s == pytest.approx(100 + 100 * 0.010 + 0.004)


def test_times_are_dilated() -> None:
    clock = Clock()
    Timeline(4.0, clock, clock.sleep).spend(0.5)
    assert clock.now_s == pytest.approx(102.0)


def test_what_is_too_short_to_sleep_is_left_to_the_next() -> None:
    clock = Clock()
    device = Timeline(1.0, clock, clock.sleep)
    for _ in range(30):
        device.spend(0.00005)
    assert len(clock.slept) < 10
    device.finish()
    assert clock.now_s == pytest.approx(100 + 30 * 0.00005)


def test_a_device_that_waits_for_others_begins_later() -> None:
    clock = Clock()
    device = Timeline(1.0, clock, clock.sleep)
    device.spend(1.0)
    device.ask()
    clock.now_s += 0.5
    device.granted()
    device.spend(1.0)
    assert clock.now_s == pytest.approx(102.5)


def test_what_is_there_already_is_not_waited_for() -> None:
    clock = Clock(late_s=0.004)
    device = Timeline(1.0, clock, clock.sleep)
    for _ in range(10):
        device.ask()
        clock.now_s += 0.0001
        device.granted()
        device.spend(0.1)
    assert clock.now_s == pytest.approx(101.004)


def test_nobody_begins_before_all_have_met() -> None:
    clock = Clock()
    device = Timeline(1.0, clock, clock.sleep)
    clock.now_s += 0.0005
    device.meet()
    device.spend(1.0)
    assert clock.now_s == pytest.approx(101.0005)


def test_lateness_is_made_up_for_and_a_pause_is_not() -> None:
    clock = Clock()
    device = Timeline(2.0, clock, clock.sleep)
    clock.now_s += 0.9
    device.begin(1.0)
    device.spend(1.0)
    assert clock.now_s == pytest.approx(102.0)
    clock.now_s += 1.1
    device.begin(1.0)
    device.spend(1.0)
    assert clock.now_s == pytest.approx(105.1)


# ---------------------------------------------------------------- the choice

RESNET = Load(
    gradient_bytes=102_228_128, tail_bytes=9_700_000, layers=54, step_s=0.292, world_size=16, ranks=16, cores=2
)


def test_what_is_chosen_leaves_a_core_idle() -> None:
    for ranks, size, step_s in product((1, 2, 4, 8, 16, 64), (4e6, 102e6, 550e6), (0.05, 0.3, 1.2)):
        some = {"gradient_bytes": int(size), "tail_bytes": int(size / 5), "step_s": step_s}
        load = replace(RESNET, **some, world_size=ranks, ranks=ranks)
        found = scale.setting([load])
        assert load.cores_in_use(found.shrink, found.dilate) <= load.budget <= 1.0
        assert load.needed_dilate(found.shrink) <= found.dilate * (1 + 1e-6)
        assert 1 <= found.shrink <= scale.MOST_SHRINK


def test_the_last_bucket_is_not_moved_too_slowly() -> None:
    """It shows in full: a model whose gradients all go out at the end needs more of both."""
    at_the_end = replace(RESNET, tail_bytes=RESNET.gradient_bytes)
    assert scale.setting([at_the_end]).dilate > scale.setting([replace(RESNET, tail_bytes=1)]).dilate
    # Links that are slower than this machine hide that.
    assert replace(at_the_end, link_bits_per_s=1e9).needed_dilate(10.0) < at_the_end.needed_dilate(10.0)


def googlenet(link_bits_per_s: float, step_s: float) -> Load:
    """16 P100s on two cores."""
    return Load(
        gradient_bytes=layers.gradient_bytes("googlenet"), tail_bytes=layers.tail_bytes("googlenet"), layers=58,
        step_s=step_s, world_size=16, ranks=16, cores=2, link_bits_per_s=link_bits_per_s,
    )  # fmt: skip


@pytest.mark.parametrize("step_s", [144 / 220.0, 36 / 182.5])
def test_a_fast_network_is_told_from_a_slow_one(step_s: float) -> None:
    """GoogLeNet's last bucket takes 3.6 ms at 100 Gb/s, 35.8 ms at 10 Gb/s; this machine took 32 ms once."""
    fast, slow = googlenet(1e11, step_s), googlenet(1e10, step_s)
    assert [fast.tail_wire_s, slow.tail_wire_s] == pytest.approx([3.58e-3, 35.8e-3], rel=0.01)
    found = scale.setting([fast])
    emulated = [max(load.tail_wire_s, load.tail_s(found.shrink, found.dilate)) / step_s for load in (fast, slow)]
    wired = [load.tail_wire_s / step_s for load in (fast, slow)]
    for one, true in zip(emulated, wired, strict=True):
        assert 0 <= one - true <= 0.005
    assert fast.late(found.shrink, found.dilate) <= 0.005
    assert slow.late(found.shrink, found.dilate) == 0.0


def test_what_is_given_may_be_too_little_and_then_the_error_is_told() -> None:
    load = googlenet(1e11, 144 / 220.0)
    assert load.late(8.5, 3.0) == pytest.approx(0.0453, abs=1e-3)


def test_a_setting_serves_all_world_sizes() -> None:
    short, long = replace(RESNET, step_s=0.05), replace(RESNET, world_size=2, ranks=2)
    assert scale.setting([short, long]) == scale.setting([short])
    assert scale.setting([long]).dilate < scale.setting([short]).dilate


def test_a_device_alone_need_not_shrink() -> None:
    alone = Load(
        gradient_bytes=102_228_128, tail_bytes=10_000_000, layers=54, step_s=0.3, world_size=1, ranks=1, cores=2
    )
    assert scale.setting([alone]) == Setting(shrink=1.0, dilate=1.0)


def test_both_are_used_where_one_would_not_do() -> None:
    found = scale.setting([RESNET])
    assert found.shrink > 1
    assert found.dilate > 1


def test_the_one_that_is_given_stands_and_the_other_follows() -> None:
    assert scale.setting([RESNET], shrink=3.0, dilate=7.0) == Setting(shrink=3.0, dilate=7.0)
    unshrunken = scale.setting([RESNET], shrink=1.0)
    assert unshrunken.dilate > scale.setting([RESNET]).dilate
    assert RESNET.cores_in_use(1.0, unshrunken.dilate) <= RESNET.budget
    slow = scale.setting([RESNET], dilate=80.0)
    assert slow.shrink < scale.setting([RESNET]).shrink
    assert RESNET.cores_in_use(slow.shrink, 80.0) <= RESNET.budget


def test_a_slow_link_leaves_the_machine_more_time() -> None:
    assert scale.setting([replace(RESNET, link_bits_per_s=1e8)]) == Setting(shrink=1.0, dilate=1.0)


def test_a_strategy_that_polls_needs_more_time() -> None:
    """Where the average counts, and not the last bucket: over links that take long for it."""
    cores = frameworks.load("torch:horovod").traits("torch:horovod").polling_cores
    slow = replace(RESNET, tail_bytes=RESNET.gradient_bytes, link_bits_per_s=5e9)
    polling = replace(slow, polling=cores)
    found = scale.setting([polling])
    assert found.dilate > scale.setting([slow]).dilate
    assert polling.cores_in_use(found.shrink, found.dilate) <= polling.budget


@pytest.mark.parametrize(
    ("value", "expected"), [(1.0, 1.0), (1.01, 1.5), (3.1, 3.5), (10.0, 10.0), (123.0, 130.0)]
)
def test_settings_are_round_numbers(value: float, expected: float) -> None:
    assert scale.rounded_up(value) == pytest.approx(expected)


# ---------------------------------------------------------------- what cannot be emulated


@pytest.mark.parametrize(
    ("fields", "flag"),
    [
        ({"precision": "bf16"}, "--precision bf16"),
        ({"memory_format": "channels_last"}, "--memory-format channels_last"),
        ({"compile": True}, "--compile"),
        ({"options": {"accumulate": "2"}}, "--option accumulate=2"),
    ],
)
def test_what_changes_only_computing_is_refused(fields: dict[str, Any], flag: str) -> None:
    emulated: dict[str, Any] = {
        "device": "emulated",
        "profile": "p100",
        "model": "resnet50",
        "data": "synthetic",
        "batch_size": 64,
    }
    assert (limits.refuse(one_task(**emulated, **fields).point) or "").startswith(flag)
    assert limits.refuse(one_task(**emulated).point) is None
    assert limits.refuse(one_task(**fields).point) is None
