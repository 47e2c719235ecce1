"""What all of TensorFlow's strategies share before a worker starts."""

from __future__ import annotations

import os
from importlib.machinery import ModuleSpec
from typing import Any

import pytest
from msgspec.structs import replace

from scaling import frameworks
from scaling.frameworks.base import PASSES, read_options
from scaling.frameworks.tf import plain
from scaling.records.point import Kind
from scaling.workloads import models
from tests.support.paper_tasks import one_task
from tests.support.points import changed

STRATEGY = frameworks.load("tensorflow:plain")
NAMES = ("tensorflow:plain", "tensorflow:ring", "tensorflow:nccl", "tensorflow:ps", "tensorflow:horovod")


def plain_task(**fields: Any) -> Any:
    return one_task("tensorflow:plain", **fields)


@pytest.mark.parametrize("kind", ["solo", "together"])
def test_the_plain_loop_asks_for_keras_settings_alone(kind: Kind) -> None:
    assert STRATEGY.environ(plain_task(kind=kind), {}) == {
        "KERAS_BACKEND": "tensorflow",
        "KERAS_HOME": os.devnull,
        "TF_CPP_MIN_LOG_LEVEL": "1",
    }


def test_it_is_a_loop_by_itself() -> None:
    assert STRATEGY.devices("tensorflow:plain") == ("cpu", "cuda", "emulated")
    assert STRATEGY.traits("tensorflow:plain") == PASSES
    assert STRATEGY.helpers(plain_task()) == []
    assert read_options(STRATEGY.options, {}) == {"accumulate": 1}


@pytest.mark.parametrize("spec", [None, ModuleSpec("a-folder", None)])
@pytest.mark.parametrize("name", NAMES)
def test_missing_tensorflow(name: str, spec: ModuleSpec | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "find_spec", lambda _: spec)
    assert frameworks.load(name).missing(name) == "tensorflow is not installed: ./launch/install tensorflow"


@pytest.mark.parametrize("name", NAMES)
def test_every_network_is_there(name: str) -> None:
    strategy, point = frameworks.load(name), plain_task().point
    for model in models.CATALOGUE:
        assert strategy.refuse(changed(point, model=model)) is None


@pytest.mark.parametrize("name", NAMES)
def test_micro_batches_must_divide_the_batch(name: str) -> None:
    strategy, point = frameworks.load(name), plain_task(batch_size=6, options={"accumulate": "4"}).point
    assert strategy.refuse(point) == "--option accumulate=4: does not divide the batch of 6 per device"
    assert strategy.refuse(replace(point, options={"accumulate": "3"})) is None
    assert strategy.refuse(changed(point, options={}, memory_format="channels_last")) is None


def test_xla_compiles_the_loop() -> None:
    assert STRATEGY.refuse(changed(plain_task().point, compile=True)) is None
