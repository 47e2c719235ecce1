"""The Keras models are torch's: as many parameters, and the same outputs with the same weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from scaling.frameworks.tf.plain import ENVIRON, MODELS
from scaling.workloads import models
from tests.support.ranks import one_task

pytest.importorskip("torch")
pytest.importorskip("tensorflow")

# Sums in another order, through up to fifty layers.
TOLERANCE = 1e-3


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


# ---------------------------------------------------------------- sizes


@pytest.mark.parametrize("name", MODELS)
def test_models_have_the_sizes_of_the_catalogue(name: str, keras: Any) -> None:
    from scaling.frameworks.tf import vision

    spec = models.spec(name)
    with keras.StatelessScope(initialize_variables=False):
        model = vision.build(spec)
    count = sum(int(np.prod(each.shape)) for each in model.trainable_variables)
    assert count == spec.parameters["tensorflow"]
    assert count == pytest.approx(spec.parameters["torch"], rel=0.005)
    assert model.output_shape == (None, spec.classes)
    assert model.input_shape == (None, *spec.image[1:], spec.image[0])


def test_what_the_catalogue_says_of_keras_is_what_there_is() -> None:
    from scaling.frameworks.tf import vision

    assert set(vision.BUILDERS) == set(MODELS)
    with pytest.raises(NotImplementedError, match="googlenet is not in Keras"):
        vision.build(models.spec("googlenet"))


def test_notes_say_what_differs() -> None:
    from scaling.frameworks.tf import vision

    layout = "TensorFlow computes in channels_last"
    assert vision.notes(models.spec("resnet50")) == (layout,)
    notes = vision.notes(models.spec("inception_v3"))
    assert notes[0] == layout
    assert "without its auxiliary classifier" in notes[1]


# ---------------------------------------------------------------- the same function as torch's


def pair(name: str, size: int | None = None) -> tuple[Any, Any]:
    """The model in torch, with all its numbers random, and in Keras with the same ones."""
    import torch

    from scaling.frameworks.pytorch.vision import build
    from scaling.frameworks.tf import vision

    spec = models.spec(name)
    spec = replace(spec, image=(spec.image[0], size, size)) if size else spec
    torch.manual_seed(3)
    theirs, ours = build(spec), vision.build(spec)
    for module in theirs.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            numbers: Any = (module.weight, module.bias, module.running_mean, module.running_var)
            for each in numbers:
                torch.nn.init.uniform_(each, 0.5, 1.5)
    for layer, module in matched(name, ours, theirs):
        layer.set_weights(converted(layer, module))
    return theirs, ours


def matched(name: str, ours: Any, theirs: Any) -> list[tuple[Any, Any]]:
    """The layers that have weights, each with torch's: by name in ResNets, by order elsewhere."""
    layers = [layer for layer in ours.layers if layer.weights]
    modules = {key: each for key, each in theirs.named_modules() if each._parameters}
    assert len(layers) == len(modules)
    if name.startswith("resnet"):
        return [(layer, modules[torch_name(layer.name)]) for layer in layers]
    return list(zip(layers, modules.values(), strict=True))


def torch_name(name: str) -> str:
    """`layer2_0_conv1_norm` -> `layer2.0.bn1`."""
    *block, last = name.removesuffix("_norm").split("_")
    if last == "downsample":
        last += ".1" if name.endswith("_norm") else ".0"
    elif name.endswith("_norm"):
        last = last.replace("conv", "bn")
    return ".".join((*block, last))


def converted(layer: Any, module: Any) -> list[NDArray[Any]]:
    """Torch's weights of a layer in the shapes and the order of Keras'."""
    arrays = {key: each.detach().numpy() for key, each in module.state_dict().items()}
    weight, bias = arrays["weight"], [arrays["bias"]] if "bias" in arrays else []
    if "running_mean" in arrays:
        return [weight, *bias, arrays["running_mean"], arrays["running_var"]]
    if weight.ndim == 4:
        return [weight.transpose(2, 3, 1, 0), *bias]
    return [flattened_otherwise(layer, weight), *bias]


def flattened_otherwise(layer: Any, weight: NDArray[Any]) -> NDArray[Any]:
    """A dense kernel; behind a Flatten its inputs come as (height, width, channels) and not channels first."""
    before = layer.input._keras_history.operation
    if before.__class__.__name__ == "Dropout":
        before = before.input._keras_history.operation
    if before.__class__.__name__ == "Flatten":
        height, width, channels = before.input.shape[1:]
        weight = weight.reshape(-1, channels, height, width).transpose(0, 2, 3, 1).reshape(len(weight), -1)
    return weight.T


def batch(model: Any, count: int) -> NDArray[np.float32]:
    """Images (count, channels, height, width)."""
    _, height, width, channels = model.input_shape
    return np.random.default_rng(5).standard_normal((count, channels, height, width), dtype=np.float32)


def assert_same(ours: Any, theirs: Any) -> None:
    found, wanted = np.asarray(ours), theirs.detach().numpy()
    assert found.shape == wanted.shape
    assert np.linalg.norm(found - wanted) < TOLERANCE * np.linalg.norm(wanted)


@pytest.mark.parametrize(
    ("name", "size", "count"), [("digits-cnn", None, 8), ("resnet50", 64, 2), ("alexnet", None, 1)]
)
def test_the_same_weights_give_the_same_logits(name: str, size: int | None, count: int) -> None:
    import torch

    theirs, ours = pair(name, size)
    images = batch(ours, count)
    with torch.no_grad():
        wanted = theirs.eval()(torch.from_numpy(images))
    assert wanted.std() > 0
    assert_same(ours(images.transpose(0, 2, 3, 1), training=False), wanted)


@pytest.mark.parametrize(("name", "size", "count"), [("digits-cnn", None, 8), ("resnet50", 64, 2)])
def test_they_train_alike(name: str, size: int | None, count: int) -> None:
    """The loss, the gradient of the first and of the last layer, and the running means."""
    import tensorflow as tf
    import torch

    theirs, ours = pair(name, size)
    images = batch(ours, count)
    labels = np.arange(count, dtype=np.int64)
    outputs = theirs.train()(torch.from_numpy(images))
    wanted: Any = torch.nn.functional.cross_entropy(outputs, torch.from_numpy(labels))
    wanted.backward()
    with tf.GradientTape() as tape:
        logits = ours(images.transpose(0, 2, 3, 1), training=True)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
    gradients = tape.gradient(loss, [each.value for each in ours.trainable_variables])
    assert float(loss) == pytest.approx(wanted.item(), rel=TOLERANCE)
    parameters = list(theirs.parameters())
    assert_same(gradients[-1], parameters[-1].grad)
    first = parameters[0].grad.permute(2, 3, 1, 0)
    assert np.linalg.norm(gradients[0] - first.numpy()) < 0.02 * torch.linalg.norm(first)
    for key, mean in theirs.named_buffers():
        if key == "bn1.running_mean":
            assert_same(ours.get_layer("conv1_norm").moving_mean.numpy(), mean)


def test_convolutions_are_initialised_as_torchs() -> None:
    """Their spread, layer by layer: He et al. 2015 over the outputs for ResNet, over the inputs for digits."""
    from scaling.frameworks.pytorch.vision import build
    from scaling.frameworks.tf import vision

    for name in ("digits-cnn", "resnet50"):
        theirs, ours = build(models.spec(name)), vision.build(models.spec(name))
        for layer, module in matched(name, ours, theirs):
            if module.weight.numel() > 10_000:
                spread = layer.kernel.numpy().std()
                assert spread == pytest.approx(module.weight.std().item(), rel=0.05), layer.name
