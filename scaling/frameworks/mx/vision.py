"""The catalogue's models in Gluon (NCHW): torchvision's layers, paddings and initialisers, logits as output.

It does not know GoogLeNet. Gluon's own `resnet50_v1` strides in another convolution than torchvision's and
has biases, so ResNet is built here; VGG-16 and Inception v3 are Gluon's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TypeAlias

from scaling.frameworks.mx.library import mx
from scaling.workloads.models import ModelSpec

nn = mx.gluon.nn
Builder: TypeAlias = "Callable[[ModelSpec], mx.gluon.HybridBlock]"


def build(spec: ModelSpec) -> mx.gluon.HybridBlock:
    """Return the model from images (batch, channels, height, width) to logits (batch, classes), without weights
    (see `initialize`).

    Raises NotImplementedError for a model that is not in BUILDERS.
    """
    if spec.name not in BUILDERS:
        raise NotImplementedError(f"{spec.name} is not in Gluon")
    return BUILDERS[spec.name](spec)


def initialize(net: mx.gluon.HybridBlock, spec: ModelSpec, contexts: Sequence[mx.Context]) -> None:
    """Make the weights on all contexts, float32 and equal, from MXNet's seed.

    Where a layer brings no initialiser, U(-1, 1) / sqrt(inputs of a unit), as torch does.
    """
    infer_shapes(net, spec)
    net.initialize(_uniform(), ctx=list(contexts))


def infer_shapes(net: mx.gluon.HybridBlock, spec: ModelSpec) -> None:
    """Tell Gluon's own models how many inputs their dense layers have.

    A first forward pass would tell too. But outside of training oneDNN turns weights to its own layout in place,
    and the kvstore's `init` of such an array returns before the servers have it: the next pull ends a server.
    """
    net.infer_shape(mx.nd.zeros((1, *spec.image)))


def notes(spec: ModelSpec) -> tuple[str, ...]:
    """How the model differs from what its name promises."""
    if spec.name == "inception_v3":
        return ("inception_v3 without its auxiliary classifier",)
    return ()


def _digits_cnn(spec: ModelSpec) -> mx.gluon.HybridBlock:
    net = nn.HybridSequential()
    channels, height, width = spec.image
    for wider in (32, 64, 128):
        for _ in range(2):
            net.add(_conv(channels, wider, 3, padding=1, weight_initializer=_he("in")))
            net.add(nn.Activation("relu"))
            channels = wider
        net.add(nn.MaxPool2D(2))
    flat = channels * (height // 8) * (width // 8)
    net.add(nn.Dense(256, in_units=flat, weight_initializer=_he("in")), nn.Activation("relu"))
    net.add(nn.Dense(spec.classes, in_units=256, weight_initializer=_he("in")))
    return net


# ---------------------------------------------------------------- ResNet


def _resnet(blocks: tuple[int, ...]) -> Builder:
    """ResNet v1.5 of bottleneck blocks: the 3 x 3 convolution of a stage's first block strides."""

    def build_resnet(spec: ModelSpec) -> mx.gluon.HybridBlock:
        net = nn.HybridSequential()
        net.add(*_convolved(spec.image[0], 64, 7, strides=2), nn.Activation("relu"))
        net.add(nn.MaxPool2D(3, 2, 1))
        channels = 64
        for stage, count in enumerate(blocks):
            for index in range(count):
                strides = 2 if stage and not index else 1
                net.add(Bottleneck(channels, 64 << stage, strides))
                channels = 256 << stage
        net.add(nn.GlobalAvgPool2D(), nn.Dense(spec.classes, in_units=channels))
        return net

    return build_resnet


class Bottleneck(mx.gluon.HybridBlock):  # type: ignore[misc]
    """He et al. 2015, figure 5 right, with torchvision's place of the stride."""

    def __init__(self, channels: int, width: int, strides: int) -> None:
        super().__init__()
        self.body = nn.HybridSequential()
        self.body.add(*_convolved(channels, width, 1), nn.Activation("relu"))
        self.body.add(*_convolved(width, width, 3, strides=strides), nn.Activation("relu"))
        self.body.add(*_convolved(width, 4 * width, 1))
        self.downsample = nn.HybridSequential()
        if channels != 4 * width:
            self.downsample.add(*_convolved(channels, 4 * width, 1, strides=strides))

    def hybrid_forward(
        self, operators: ModuleType, x: mx.nd.NDArray | mx.sym.Symbol
    ) -> mx.nd.NDArray | mx.sym.Symbol:
        """Gluon calls it with its operators on arrays or on symbols."""
        return operators.relu(self.body(x) + self.downsample(x))


def _convolved(
    channels: int, width: int, size: int, *, strides: int = 1
) -> tuple[mx.gluon.HybridBlock, mx.gluon.HybridBlock]:
    """A convolution without bias, padded to keep the image's size, and its normalisation."""
    convolution = _conv(
        channels, width, size, strides=strides, padding=size // 2, use_bias=False, weight_initializer=_he("out")
    )
    return convolution, nn.BatchNorm(momentum=0.9, epsilon=1e-5, in_channels=width)


# ---------------------------------------------------------------- without normalisation


def _alexnet(spec: ModelSpec) -> mx.gluon.HybridBlock:
    """Krizhevsky 2014 ("One weird trick"), the single column that torchvision has; Gluon's own has its
    dropouts elsewhere."""
    net = nn.HybridSequential()
    sizes = ((spec.image[0], 64, 11, 2), (64, 192, 5, 2), (192, 384, 3, 1), (384, 256, 3, 1), (256, 256, 3, 1))
    for index, (channels, wider, size, padding) in enumerate(sizes):
        net.add(_conv(channels, wider, size, strides=1 if index else 4, padding=padding), nn.Activation("relu"))
        if index in (0, 1, 4):
            net.add(nn.MaxPool2D(3, 2))
    net.add(nn.Flatten())
    for inputs in (256 * 6 * 6, 4096):
        net.add(nn.Dropout(0.5), nn.Dense(4096, in_units=inputs), nn.Activation("relu"))
    net.add(nn.Dense(spec.classes, in_units=4096))
    return net


def _from_zoo(name: str) -> Builder:
    def build_from_zoo(spec: ModelSpec) -> mx.gluon.HybridBlock:
        return mx.gluon.model_zoo.vision.get_model(name, classes=spec.classes)

    return build_from_zoo


# ---------------------------------------------------------------- layers and initialisers


def _conv(channels: int, width: int, size: int, **options: Any) -> mx.gluon.HybridBlock:
    return nn.Conv2D(width, size, in_channels=channels, **options)


def _he(factor: str) -> mx.initializer.Initializer:
    """He et al. 2015 for a ReLU: a normal of variance 2 / fan, by fan `in` or `out`."""
    return mx.initializer.Xavier(rnd_type="gaussian", factor_type=factor, magnitude=2)


def _uniform() -> mx.initializer.Initializer:
    """U(-1, 1) / sqrt(fan in) for kernels; Gluon's biases start at zero."""
    return mx.initializer.Xavier(rnd_type="uniform", factor_type="in", magnitude=1)


BUILDERS: dict[str, Builder] = {
    "digits-cnn": _digits_cnn,
    "resnet50": _resnet((3, 4, 6, 3)),
    "resnet101": _resnet((3, 4, 23, 3)),
    "resnet152": _resnet((3, 8, 36, 3)),
    "alexnet": _alexnet,
    "vgg16": _from_zoo("vgg16"),
    "inception_v3": _from_zoo("inceptionv3"),
}
