"""Emulated devices as pure units: profiles, layers, what cannot be emulated."""

from __future__ import annotations

from typing import Any

import pytest

from scaling.emulated import layers, profiles
from scaling.emulated.layers import DEFAULT_BUCKET_MB, Layer, bucket_bytes
from scaling.errors import UsageError
from scaling.frameworks import options
from scaling.workloads import models
from tests.support.paper_tasks import one_task

MIB = 1 << 20


def test_buckets_by_hand() -> None:
    assert bucket_bytes([MIB - 1, 1, 26 * MIB, MIB], 25) == [MIB, 26 * MIB, MIB]
    assert bucket_bytes([MIB - 1, 1, 26 * MIB, MIB], 2) == [27 * MIB, MIB]
    assert bucket_bytes([MIB, MIB, MIB], 1) == [MIB, MIB, MIB]


@pytest.mark.parametrize("cap_mb", [DEFAULT_BUCKET_MB, 5.0])
def test_they_shrink_with_the_gradients(cap_mb: float) -> None:
    sizes = [4 * size for layer in layers.of("resnet50") for size in layer.sizes]
    small = [4 * size for size in layers.shrunken([size // 4 for size in sizes], 10)]
    whole = bucket_bytes(reversed(sizes), cap_mb)
    assert bucket_bytes(reversed(small), cap_mb, 10.0) == pytest.approx([each / 10 for each in whole], rel=0.02)


# ---------------------------------------------------------------- profiles


def test_every_figure_has_a_source_and_a_model_that_exists() -> None:
    file = profiles.read()
    assert {"p100", "k80", "v100"} <= set(file.profiles)
    used = set()
    for profile in file.profiles.values():
        assert len({(one.model, one.batch_size) for one in profile.rates}) == len(profile.rates)
        for one in profile.rates:
            assert one.samples_per_s > 0 and one.batch_size > 0 and one.model in models.CATALOGUE
            assert profiles.source(one)
            used.add(one.source)
        for shared in profile.in_node:
            assert any((one.model, one.source) == (shared.model, shared.source) for one in profile.rates)
        assert profile.inside is not None and profile.inside.bytes_per_s > 1e9
        used.add(profile.inside.source)
    assert used == set(file.sources)


def test_a_step_takes_its_batch_over_the_published_rate() -> None:
    assert profiles.rate("p100", "googlenet", 144, 256).step_s == pytest.approx(144 / 220)


def test_the_first_batch_listed_is_the_default() -> None:
    asked = (("resnet50", 0), ("googlenet", 0), ("googlenet", 256))
    assert [profiles.rate("p100", *one[:1], image_size=one[1]).batch_size for one in asked] == [64, 128, 144]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("p10", "resnet50", 64), "--device emulated:p10: unknown profile; did you mean 'p100'?"),
        (("p100", "resnet50", 8), "at batch 8 per device; it has batch 64, 32, fitted ones from 16 to 128"),
        (("p100", "vgg16", 256), "at batch 256 per device; it has batch 64, 32, fitted ones from 16 to 128"),
        (("k80", "vgg16", 16), "at batch 16 per device; it has batch 32"),
        (("v100", "alexnet", 64), "at batch 64 per device; it has batch 256, 512, 128"),
        (("k80", "digits-cnn", None), "--model digits-cnn: profile k80 has no images/s of it; it has resnet50"),
        (("p100", "googlenet", None, 8), "--image-size 8: googlenet: layer 7, Pool: "),
    ],
)
def test_what_was_never_published_is_refused_with_what_was(asked: tuple[Any, ...], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        profiles.rate(*asked)
    assert message in str(caught.value)


# ---------------------------------------------------------------- rates that nobody published


def test_two_batches_give_the_law_and_a_third_tests_it() -> None:
    """Dell's GoogLeNet: 220 images/s on one device, 730 on four at 36 each; 411 were published of two at 72."""
    found = profiles.fitted_rate(profiles.find("p100"), "googlenet")
    assert found is not None
    assert [found.c, found.h] == pytest.approx([236.2, 10.6], abs=0.05)
    assert found.samples_per_s(144) == pytest.approx(220.0)
    assert 4 * found.samples_per_s(36) == pytest.approx(730.0)
    assert 2 * found.samples_per_s(72) == pytest.approx(411.0, rel=2.5e-3)


def test_a_fitted_rate_says_so_and_a_published_one_does_not() -> None:
    fitted = profiles.rate("p100", "googlenet", 72, 256)
    assert fitted.fitted == "236.2 b / (b + 10.6), fitted to batch 144, and 36 as one of 4 in a node"
    assert fitted.step_s == pytest.approx((72 + 10.6) / 236.2, rel=1e-3)
    # What four devices of a node do is not what one does alone.
    assert profiles.rate("p100", "googlenet", 36, 256).fitted
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


def test_a_fit_to_many_batches_says_by_how_much_it_misses_them() -> None:
    found = profiles.fitted_rate(profiles.find("v100"), "resnet50")
    assert found is not None
    assert found.off == pytest.approx(0.028, abs=0.001)
    assert str(found).endswith("at most 2.8 % off")
    assert (found.least, found.most) == (2, 256)


def test_what_grows_no_faster_with_its_batch_is_not_fitted() -> None:
    """A V100's AlexNet is slower at 512 than at 256."""
    assert profiles.fitted_rate(profiles.find("v100"), "alexnet") is None
    assert profiles.fitted_rate(profiles.find("p100"), "alexnet") is None, "one batch tells nothing of others"


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
    emulated: dict[str, Any] = {"device": "emulated", "profile": "p100", "model": "resnet50"}
    emulated |= {"data": "synthetic", "batch_size": 64}
    assert (options.refuse(one_task(**emulated, **fields).point) or "").startswith(flag)
    assert options.refuse(one_task(**emulated).point) is None
    assert options.refuse(one_task(**fields).point) is None
