"""Strategies on emulated devices, as real processes; the layers counted anew on the real models."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from scaling import frameworks
from scaling.emulated import layers
from scaling.workloads import models
from tests.support.matrix import cases
from tests.support.rank import Trained
from tests.support.ranks import one_task, run, tasks

pytest.importorskip("torch", exc_type=ImportError)

SHRINK = 50.0
EMULATED: dict[str, Any] = {
    "device": "emulated", "profile": "p100", "model": "resnet50", "data": "synthetic", "batch_size": 32,
    "shrink": SHRINK,
}  # fmt: skip
EXCHANGES = (
    "torch:gloo", "torch:horovod", "torch:ps-sync",
    "mxnet:dist_sync", "mxnet:dist_device_sync", "mxnet:horovod", "tensorflow:ring", "tensorflow:horovod",
)  # fmt: skip
FEW = ("torch:gloo", "torch:ps-sync", "mxnet:dist_sync", "mxnet:horovod", "tensorflow:ring")
ASYNCHRONOUS = ("torch:ps-async", "mxnet:dist_async")


def emulating(strategy: str, kind: Any, size: int, **changes: Any) -> list[Any]:
    """The tasks of a point, or a skip where the strategy is not installed or too old."""
    loaded = frameworks.load(strategy)
    if reason := loaded.missing(strategy):
        pytest.skip(reason)
    wanted = tasks(strategy, kind, size, **{**EMULATED, **changes})
    if reason := loaded.refuse(wanted[0].point):
        pytest.skip(reason)
    return wanted


@cache
def exchanged(strategy: str) -> list[Trained]:
    return run(emulating(strategy, "exchange", 2), steps=3)


@cache
def alone(baseline: str) -> Trained:
    (trained,) = run([one_task(baseline, "solo", **EMULATED)], steps=3)
    return trained


@pytest.mark.parametrize("strategy", cases(EXCHANGES, FEW))
def test_two_emulated_devices_exchange_the_real_gradients_shrunken(strategy: str) -> None:
    first, second = exchanged(strategy)
    assert first.digest == second.digest
    whole = models.spec("resnet50").parameters
    for one in (first, second):
        assert one.gradient_bytes == pytest.approx(4 * whole / SHRINK, rel=1e-3)
        assert one.samples == 3 * 32
        assert one.losses == [None] * 3
        assert "P100" in one.device_name
        assert all(np.any(one.after[name] != before) for name, before in one.before.items())


@pytest.mark.parametrize("strategy", ["torch:gloo", "mxnet:dist_sync", "mxnet:horovod", "tensorflow:ring"])
def test_a_rank_without_exchange_has_another_digest(strategy: str) -> None:
    """The digest sees whether gradients were exchanged: each rank's own are others."""
    first, _ = exchanged(strategy)
    assert alone(frameworks.load(strategy).baseline).digest != first.digest


@pytest.mark.parametrize("strategy", ["mxnet:local", "mxnet:device"])
def test_one_process_drives_the_emulated_devices_of_a_node(strategy: str) -> None:
    (both,) = exchanged(strategy)
    assert both.samples == 2 * 3 * 32
    assert both.digest != alone("mxnet:plain").digest


@pytest.mark.parametrize("strategy", cases([*EXCHANGES, *ASYNCHRONOUS], [*FEW, *ASYNCHRONOUS]))
def test_the_exchange_without_compute_trains_nothing(strategy: str) -> None:
    for one in run(emulating(strategy, "comm", 2), steps=2):
        assert (one.digest, one.samples, one.losses) == (None, 0, [None, None])
        assert one.gradient_bytes == pytest.approx(layers.gradient_bytes("resnet50") / SHRINK, rel=1e-3)


@pytest.mark.parametrize("strategy", ASYNCHRONOUS)
def test_an_asynchronous_emulated_rank_tells_its_staleness(strategy: str) -> None:
    for one in run(emulating(strategy, "exchange", 2), steps=2):
        assert one.staleness is not None
