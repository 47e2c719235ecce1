"""What is inferred: seeds, the residual that is carried, coverage, and what own measurements are worth."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from scaling.tools.predict import infer
from scaling.tools.predict.infer import Posterior
from scaling.tools.predict.known import Exchange, Known, Share
from scaling.tools.predict.priors import read
from scaling.tools.predict.setting import Setting
from tests.support.scripted_clusters import ONE, RESNET50, at, learned, truth

PRIORS = read()


def ends(found: Posterior, world_size: int) -> tuple[float, float, float]:
    predicted = infer.predict(found, [at(world_size)])
    low, middle, high = np.exp(infer.quantiles(predicted.log_efficiency, predicted.weights, [0.1, 0.5, 0.9]))[:, 0]
    return float(low), float(middle), float(high)


def test_the_same_twice() -> None:
    assert ends(learned(RESNET50, PRIORS, {4: 0.9}), 64) == ends(learned(RESNET50, PRIORS, {4: 0.9}), 64)


def test_what_was_measured_is_predicted_as_measured() -> None:
    low, middle, high = ends(learned(RESNET50, PRIORS, {4: 0.83}), 4)
    assert middle == pytest.approx(0.83, abs=0.01)
    assert high - low < 0.03


def test_what_the_model_lacks_at_the_last_point_is_carried_on() -> None:
    """A cluster that is 10 points worse than another stays so."""
    good, bad = (ends(learned(RESNET50, PRIORS, {4: 0.98 - off, 8: 0.97 - off}), 64)[1] for off in (0.0, 0.10))
    assert 0.07 < good - bad < 0.15


def test_intervals_widen_with_the_distance_and_narrow_with_points() -> None:
    def width(seen: dict[int, float], size: int) -> float:
        low, _, high = ends(learned(RESNET50, PRIORS, seen), size)
        return high - low

    assert width({4: 0.95}, 16) < width({4: 0.95}, 256)
    assert width({4: 0.95, 8: 0.92}, 64) < width({4: 0.95}, 64) < width({}, 64)


@pytest.mark.parametrize(("seen", "highest"), [({}, 1.02), ({4: 0.99, 8: 0.98}, 1.02), ({4: 1.05}, 1.05 * 1.02)])
def test_no_device_does_more_than_superlinear_rows_begin_at(seen: dict[int, float], highest: float) -> None:
    """Steps of a minute: next to nothing is lost, and ends of 106 % and more were drawn."""
    found = learned(replace(RESNET50, step_s=60.0), PRIORS, seen)
    for size in (8, 64, 1024):
        low, middle, high = ends(found, size)
        assert low < middle < high <= highest + 1e-9


def test_the_exchange_alone_at_two_sizes_narrows_the_interval() -> None:
    """`comm` on one node and on two, beside one node's efficiency, where nothing hides the exchange."""
    serial = replace(RESNET50, gradient_bytes=440e6, link="tcp", overlap="serial", messages="one")
    without = learned(serial, PRIORS, {4: 0.75})
    known = Known(ONE, without.known.observed, (Exchange(at(4), 0.083, 0.05), Exchange(at(8), 0.35, 0.05)))
    low, _, high = ends(without, 64)
    told_low, _, told_high = ends(infer.posterior(serial, known, PRIORS), 64)
    assert told_high - told_low < 0.85 * (high - low)


def test_controls_say_what_is_contention() -> None:
    share = Share(at(4), "contention", 0.08, 0.01)
    for known, least, most in ((Known(ONE), 0.0, 0.06), (Known(ONE, shares=(share,)), 0.06, 0.1)):
        found = infer.posterior(RESNET50, known, PRIORS)
        predicted = infer.predict(found, [at(4)])
        told = float(predicted.weights @ (predicted.parts.contention_s / predicted.parts.alone_s)[:, 0])
        assert least < told < most


def test_evidence_far_from_the_priors_leaves_draws_enough() -> None:
    """An exchange forty times slower than any published bus."""
    known = Known(ONE, exchanges=(Exchange(at(4), 1.2, 0.05),))
    found = infer.posterior(RESNET50, known, PRIORS)
    assert found.even > 50
    predicted = infer.predict(found, [at(4)])
    assert float(predicted.weights @ predicted.parts.exchange_s[:, 0]) == pytest.approx(1.2, rel=0.2)


@pytest.mark.parametrize("seen", [(), (4, 8)])
def test_80_of_100_clusters_are_inside(seen: tuple[int, ...]) -> None:
    """Clusters drawn from the priors themselves; of 40, 32 are expected, and 25 to 39 are within 3 sd."""
    points = [*(at(size) for size in seen), at(64)]
    inside = 0
    for seed in range(40):
        drawn = truth(RESNET50, PRIORS, points, seed)
        low, _, high = ends(learned(RESNET50, PRIORS, dict(zip(seen, drawn, strict=False)), draws=1200), 64)
        inside += low <= drawn[-1] <= high
    assert 25 <= inside <= 39


@pytest.mark.parametrize("line_bytes_per_s", [1.25e9, 12.5e9])
def test_devices_that_sleep_lose_what_the_wire_takes_beyond_backward(line_bytes_per_s: float) -> None:
    """AlexNet on P100s of 2,987 images/s at batch 512, of which a node of four was measured: by hand, two thirds
    of a step hide the ring's bytes at the line's rate less TCP's framing. Real devices lose more."""
    alone_s, gradient_bytes, world_size = 512 / 2987, 244.4e6, 16
    emulated = Setting(
        gradient_bytes=gradient_bytes, step_s=alone_s, bus="loopback", link="tcp10",
        line_bytes_per_s=line_bytes_per_s, overlap="ddp", emulated=True,
    )  # fmt: skip
    seen, inside = {2: 0.999, 4: 0.997}, (Exchange(at(2), 0.005, 0.05), Exchange(at(4), 0.0075, 0.05))
    moved_s = 2 * (world_size - 1) / world_size * gradient_bytes / (0.949 * line_bytes_per_s)
    expected = alone_s / (alone_s + max(0.0, moved_s - 0.66 * alone_s))
    low, middle, high = ends(learned(emulated, PRIORS, seen, exchanges=inside), world_size)
    assert middle == pytest.approx(expected, abs=0.02)  # sleeps end late, too
    assert low < expected < high
    real = learned(replace(emulated, emulated=False), PRIORS, seen, exchanges=inside)
    assert ends(real, world_size)[1] < expected - 0.03
