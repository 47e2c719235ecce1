"""Networks in Keras against their descriptions; what they compute, test_networks.py compares."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from scaling.frameworks.tf.strategies import ENVIRON
from scaling.workloads import models
from scaling.workloads.specs import Tokens
from tests.support.ranks import one_task

pytest.importorskip("tensorflow")


@pytest.fixture(autouse=True)
def keras(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Keras with the threads that every test of this process asks for, and with nothing of the user's."""
    for key, value in ENVIRON.items():
        monkeypatch.setenv(key, value)
    import keras

    from scaling.frameworks.tf.rank import TensorFlowRank

    TensorFlowRank(one_task("tensorflow:plain"))
    keras.mixed_precision.set_dtype_policy("float32")
    yield keras
    keras.utils.clear_session()


@pytest.mark.parametrize("name", models.CATALOGUE)
def test_networks_have_the_parameters_that_were_published(name: str, keras: Any) -> None:
    """At full size, and none beside; that each is where it belongs is seen where logits are compared."""
    from scaling.frameworks.tf import network

    spec = models.spec(name)
    with keras.StatelessScope(initialize_variables=False):
        model = network.empty(spec)
    found = network.parameters(model)
    assert sum(math.prod(each.shape) for each in found) == spec.parameters
    assert {id(each) for each in found} == {id(each) for each in model.trainable_variables}
    sizes = [each.size for placed in spec.placed for each in placed.parameters]
    assert [math.prod(each.shape) for each in found] == sizes
    assert model.output_shape == (None, *spec.placed[-1].output)
    channels, *image = (1, spec.input.length) if isinstance(spec.input, Tokens) else spec.input.shape
    assert model.input_shape == (None, *image, *([] if isinstance(spec.input, Tokens) else [channels]))


@pytest.mark.parametrize(("precision", "kind"), [("bf16", "bfloat16"), ("fp16", "float16")])
@pytest.mark.parametrize("name", ["decoder-tiny", "bert-tiny", "imdb-lstm", "nietzsche-lstm", "vit-tiny"])
def test_half_precision_computes_in_it(name: str, precision: str, kind: str, keras: Any) -> None:
    """Nothing on the way is float32, which would be slow and nobody would see; and logits are near."""
    from scaling.frameworks.tf import network
    from scaling.frameworks.tf.rank import POLICIES
    from tests.support.networks import batch, small

    spec = small(name)
    taken, _ = batch(spec)
    taken = taken.transpose(0, 2, 3, 1) if taken.ndim == 4 else taken
    exact = np.asarray(network.build(spec, 1)(taken))
    keras.mixed_precision.set_dtype_policy(POLICIES[precision])
    model = network.build(spec, 1)
    assert {each.dtype for each in model.trainable_variables} == {"float32"}
    logits = model(taken)
    assert logits.dtype == kind
    assert np.abs(np.asarray(logits, np.float32) - exact).max() < 0.05 * np.abs(exact).max()
