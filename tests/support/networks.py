"""What networks come to in one framework, in a process of its own: their OpenMPs are not made for one process.

python -m tests.support.networks torch|tensorflow|mxnet|jax FILE NAME...

FILE.npz then holds the logits of each network in inference, and for those of LEARNING the loss in training and all
its gradients, as `name/what`; weights, inputs and labels are the same in every framework.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace as changed
from importlib import import_module
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from scaling.errors import UsageError
from scaling.workloads import models, weights
from scaling.workloads.layers import Branches, Chain, Dropout, Layer, Residual
from scaling.workloads.sequences import Attention
from scaling.workloads.specs import IGNORED, Binary, Classes, Images, MaskedTokens, ModelSpec, NextToken

Array = NDArray[Any]
# Whose gradients are compared: together they have every kind of layer that is trained, and every loss.
LEARNING = ("fashion-cnn", "imdb-lstm", "nietzsche-lstm", "decoder-tiny", "gpt2-tiny", "bert-tiny", "vit-tiny")
SEQUENCE, BATCH = 16, 3


def small(name: str) -> ModelSpec:
    """The network at the least size at which its layers fit, with ten classes."""
    spec = models.spec(name)
    if not isinstance(spec.input, Images):
        return replace(spec, input=replace(spec.input, length=SEQUENCE))
    channels, spec = spec.input.channels, replace(spec, target=Classes(count=10))
    # Below 8 x 8 a ViT has a single patch, or none.
    for size in range(8 if "vit" in name else 1, spec.input.size + 1):
        tried = replace(spec, input=Images(channels=channels, height=size, width=size))
        try:
            assert tried.placed
        except UsageError:
            continue
        return tried
    raise AssertionError(name)


def undropped(spec: ModelSpec) -> ModelSpec:
    network = spec.network
    return replace(spec, network=lambda *sizes: tuple(map(_undropped, network(*sizes))))


def _undropped(layer: Layer) -> Layer:
    match layer:
        case Dropout():
            return Dropout(0.0)
        case Attention():
            return changed(layer, dropout=0.0)
        case Chain(body):
            return Chain(tuple(map(_undropped, body)))
        case Residual(body, shortcut):
            return Residual(tuple(map(_undropped, body)), tuple(map(_undropped, shortcut)))
        case Branches(branches):
            return Branches(tuple(tuple(map(_undropped, each)) for each in branches))
    return layer


def drawn(spec: ModelSpec) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """First weights, but with biases and scales that none could swap unseen."""
    random = np.random.default_rng(5)
    for name, array in weights.draw(spec, 3):
        noise = 0.1 * random.standard_normal(array.shape, dtype=np.float32) if array.ndim == 1 else 0
        yield name, array + noise


def batch(spec: ModelSpec) -> tuple[Array, Array]:
    """Images (channels first) or tokens, and labels; of masked tokens some, other in number in each sample."""
    random = np.random.default_rng(1)
    words = spec.outputs
    if isinstance(spec.input, Images):
        taken: Array = random.standard_normal((BATCH, *spec.input.shape), dtype=np.float32)
    else:
        taken = random.integers(words, size=(BATCH, spec.input.length))
    shape = taken.shape if isinstance(spec.target, NextToken | MaskedTokens) else (BATCH,)
    labels = random.integers(2 if isinstance(spec.target, Binary) else words, size=shape)
    if isinstance(spec.target, MaskedTokens):
        labels[np.arange(SEQUENCE) > np.arange(1, BATCH + 1)[:, None]] = IGNORED
    return taken, labels


def assert_same(found: Iterator[tuple[str, Array]], wanted: Iterator[tuple[str, Array]]) -> None:
    for (name, array), (drawn_name, given) in zip(found, wanted, strict=True):
        assert name == drawn_name
        np.testing.assert_array_equal(array, given)


def torchvision() -> Any:
    """Import torchvision, even a CUDA build next to a CPU build of torch. There the import fails over the operator
    `nms`, which is not used here. It succeeds once the name exists."""
    import torch

    try:
        return import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            raise
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        package: Any = import_module("torchvision")
        package.operators = library  # they live as long as this object
        return package


class Torch:
    def __init__(self) -> None:
        import torch

        from scaling.frameworks.pytorch import compute, network

        torch.set_num_threads(1)
        self._torch, self._losses, self._network = torch, compute, network

    def _built(self, spec: ModelSpec) -> Any:
        built = self._network.build(spec, 1)
        self._network.load(built, drawn(spec))
        return built

    def logits(self, spec: ModelSpec, taken: Array) -> Array:
        with self._torch.no_grad():
            found: Array = self._built(spec).eval()(self._torch.from_numpy(taken)).numpy()
        return found

    def learn(self, spec: ModelSpec, taken: Array, labels: Array) -> dict[str, Array]:
        built = self._built(spec)
        loss = self._losses.loss_of(spec.target)(
            built(self._torch.from_numpy(taken)), self._torch.from_numpy(labels)
        )
        loss.backward()
        names = (name for name, _ in drawn(spec))
        gradients: Any = (each.grad for _, each in self._network.trained(built))
        return {
            "loss": loss.detach().numpy(),
            **{name: each.numpy() for name, each in zip(names, gradients, strict=True)},
        }


class Keras:
    """TensorFlow."""

    def __init__(self) -> None:
        from scaling.frameworks.tf.strategies import ENVIRON

        os.environ.update(ENVIRON)
        import tensorflow as tf

        from scaling.frameworks.tf import loop, network

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        self._tf, self._losses, self._network = tf, loop, network

    def _built(self, spec: ModelSpec) -> Any:
        model = self._network.empty(spec)
        self._network.load(model, drawn(spec))
        return model

    def logits(self, spec: ModelSpec, taken: Array) -> Array:
        """Channels last."""
        return np.asarray(self._built(spec)(_last(taken), training=False))

    def learn(self, spec: ModelSpec, taken: Array, labels: Array) -> dict[str, Array]:
        """By a tape, with gradients turned to the description's shapes."""
        model, tf = self._built(spec), self._tf
        assert_same(self._network.read(model), drawn(spec))
        with tf.GradientTape() as tape:
            loss = self._losses.loss_of(spec.target)(model(_last(taken), training=True), tf.constant(labels))
        variables = [each.value for each in self._network.parameters(model)]
        gradients = [tf.convert_to_tensor(each).numpy() for each in tape.gradient(loss, variables)]
        return {"loss": loss.numpy(), **dict(self._network.as_described(model, gradients))}


def _last(taken: Array) -> Array:
    return taken.transpose(0, 2, 3, 1) if taken.ndim == 4 else taken


class Gluon:
    def __init__(self) -> None:
        from scaling.frameworks.mx import loop, network
        from scaling.frameworks.mx.library import mx

        self._mx, self._losses, self._network = mx, loop, network

    def _built(self, spec: ModelSpec, taken: Array) -> tuple[Any, Any]:
        net = self._network.empty(spec, [self._mx.cpu()])
        self._network.load(net, drawn(spec))
        net.hybridize(static_alloc=True, static_shape=True)
        return net, self._mx.nd.array(taken, dtype="float32" if taken.dtype == np.float32 else "int32")

    def logits(self, spec: ModelSpec, taken: Array) -> Array:
        net, given = self._built(spec, taken)
        found: Array = net(given).asnumpy()
        return found

    def learn(self, spec: ModelSpec, taken: Array, labels: Array) -> dict[str, Array]:
        """Gradients of the sum over the batch, divided by its size."""
        (net, given), mx = self._built(spec, taken), self._mx
        assert_same(self._network.read(net), drawn(spec))
        with mx.autograd.record():
            losses = self._losses.loss_of(spec.target)(net(given), mx.nd.array(labels))
        losses.backward()
        gradients = {name: each.grad().asnumpy() / BATCH for name, each in net.trained.items()}
        return {"loss": losses.mean().asnumpy()[0], **gradients}


class Functions:
    """JAX."""

    def __init__(self) -> None:
        import jax

        from scaling.frameworks.jax import loop, network

        self._jax, self._losses, self._network = jax, loop, network

    def logits(self, spec: ModelSpec, taken: Array) -> Array:
        """Channels last."""
        known: Any = self._network.statistics(spec)
        arrays: Any = dict(drawn(spec))
        found, _ = self._network.apply(spec, arrays, known, self._jax.numpy.asarray(_last(taken)), key=None)
        return np.asarray(found)

    def learn(self, spec: ModelSpec, taken: Array, labels: Array) -> dict[str, Array]:
        network, key = self._network, self._jax.random.key(0)

        def loss(arrays: dict[str, Array]) -> Any:
            logits, _ = network.apply(spec, arrays, network.statistics(spec), _last(taken), key=key)
            return self._losses.loss_of(spec.target)(logits, labels)

        found, gradients = self._jax.value_and_grad(loss)(dict(drawn(spec)))
        return {"loss": np.asarray(found), **{name: np.asarray(gradients[name]) for name, _ in drawn(spec)}}


# Each has `logits(spec, taken)`, in inference, and `learn(spec, taken, labels)`: the loss in training, and all
# gradients by the description's names.
FRAMEWORKS: dict[str, type[Torch | Keras | Gluon | Functions]] = {
    "torch": Torch, "tensorflow": Keras, "mxnet": Gluon, "jax": Functions,
}  # fmt: skip


def main() -> None:
    framework, found = FRAMEWORKS[sys.argv[1]](), {}
    for name in sys.argv[3:]:
        spec = small(name)
        taken, labels = batch(spec)
        found[f"{name}/logits"] = framework.logits(spec, taken)
        if name in LEARNING:
            learnt = framework.learn(undropped(spec), taken, labels)
            found |= {f"{name}/{what}": array for what, array in learnt.items()}
    np.savez(sys.argv[2], **found)  # type: ignore[arg-type, unused-ignore]


if __name__ == "__main__":
    main()
