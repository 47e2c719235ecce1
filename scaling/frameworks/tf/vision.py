"""The catalogue's models in Keras 3, channels last (TensorFlow's CPU kernels know no other order), with
random weights from Keras' seed: torchvision's layers, paddings and initialisers, logits as output.

It does not know GoogLeNet. Inception v3 is that of keras.applications, whose batch normalisations have no
scale: 23,817,352 trained parameters against torchvision's 23,834,568.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
from keras import KerasTensor, applications, initializers, layers

from scaling.workloads.models import ModelSpec

# Torch writes it as 0.1, the share of the new value.
NORM = {"momentum": 0.9, "epsilon": 1e-5}
FAN_OUT = {"scale": 2.0, "mode": "fan_out", "distribution": "untruncated_normal"}


def build(spec: ModelSpec) -> keras.Model:
    """Return the model as a keras.Model from images (batch, height, width, channels) to logits
    (batch, classes), with float32 variables, computing in the global dtype policy.

    Raises NotImplementedError for a model that is not among the BUILDERS.
    """
    if spec.name not in BUILDERS:
        raise NotImplementedError(f"{spec.name} is not in Keras")
    keras.config.set_image_data_format("channels_last")
    channels, height, width = spec.image
    images = keras.Input((height, width, channels))
    return keras.Model(images, BUILDERS[spec.name](spec, images), name=spec.name.replace("-", "_"))


def notes(spec: ModelSpec) -> tuple[str, ...]:
    """How the model differs from what its name, or the point, promises."""
    layout = "TensorFlow computes in channels_last"
    if spec.name == "inception_v3":
        return (layout, "inception_v3 without its auxiliary classifier and the scales of its normalisations")
    return (layout,)


def _digits_cnn(spec: ModelSpec, x: KerasTensor) -> KerasTensor:
    for stage, width in enumerate((32, 64, 128), start=1):
        for index in (1, 2):
            x = layers.Conv2D(
                width, 3, padding="same", activation="relu", kernel_initializer=_he_normal(),
                name=f"conv{stage}_{index}",
            )(x)  # fmt: skip
        x = layers.MaxPool2D(2, name=f"pool{stage}")(x)
    x = layers.Flatten(name="flatten")(x)
    x = layers.Dense(256, activation="relu", kernel_initializer=_he_normal(), name="fc1")(x)
    return layers.Dense(spec.classes, kernel_initializer=_he_normal(), name="fc2")(x)


# ---------------------------------------------------------------- ResNet


def _resnet(blocks: tuple[int, ...]) -> Callable[[ModelSpec, KerasTensor], KerasTensor]:
    """ResNet v1.5 of bottleneck blocks: the 3 x 3 convolution of a stage's first block strides."""

    def layers_of(spec: ModelSpec, x: KerasTensor) -> KerasTensor:
        x = _convolved(x, 64, 7, strides=2, name="conv1")
        x = layers.ReLU(name="relu1")(x)
        # After a ReLU a border of zeros is as good as torch's of minus infinity.
        x = layers.ZeroPadding2D(1, name="pool_pad")(x)
        x = layers.MaxPool2D(3, 2, name="pool")(x)
        for stage, count in enumerate(blocks):
            for index in range(count):
                strides = 2 if stage and not index else 1
                x = _bottleneck(x, 64 << stage, strides=strides, name=f"layer{stage + 1}_{index}")
        x = layers.GlobalAveragePooling2D(name="average")(x)
        return _linear(x, spec.classes, name="fc")

    return layers_of


def _bottleneck(x: KerasTensor, width: int, *, strides: int, name: str) -> KerasTensor:
    """He et al. 2015, figure 5 right, with torchvision's place of the stride."""
    shortcut = x
    if x.shape[-1] != 4 * width:
        shortcut = _convolved(x, 4 * width, 1, strides=strides, name=f"{name}_downsample")
    x = layers.ReLU(name=f"{name}_relu1")(_convolved(x, width, 1, name=f"{name}_conv1"))
    x = layers.ReLU(name=f"{name}_relu2")(_convolved(x, width, 3, strides=strides, name=f"{name}_conv2"))
    x = _convolved(x, 4 * width, 1, name=f"{name}_conv3")
    return layers.ReLU(name=f"{name}_relu3")(layers.Add(name=f"{name}_add")([x, shortcut]))


def _convolved(x: KerasTensor, width: int, size: int, *, strides: int = 1, name: str) -> KerasTensor:
    """A convolution without bias, padded by (size - 1) / 2 on each side, and its normalisation.

    Keras' "same" pads a strided convolution on the far side only, which moves the image by a pixel.
    """
    if strides > 1 and size > 1:
        x = layers.ZeroPadding2D(size // 2, name=f"{name}_pad")(x)
    x = layers.Conv2D(
        width,
        size,
        strides,
        padding="valid" if strides > 1 else "same",
        use_bias=False,
        kernel_initializer=initializers.VarianceScaling(**FAN_OUT),
        name=name,
    )(x)
    return layers.BatchNormalization(**NORM, name=f"{name}_norm")(x)


# ---------------------------------------------------------------- without normalisation


def _alexnet(spec: ModelSpec, x: KerasTensor) -> KerasTensor:
    """Krizhevsky 2014 ("One weird trick"), the single column that torchvision has."""
    x = _uniform(layers.Conv2D, x, 64, 11, strides=4, padding=2, name="conv1")
    x = layers.MaxPool2D(3, 2, name="pool1")(x)
    x = _uniform(layers.Conv2D, x, 192, 5, padding=2, name="conv2")
    x = layers.MaxPool2D(3, 2, name="pool2")(x)
    for index, width in enumerate((384, 256, 256), start=3):
        x = _uniform(layers.Conv2D, x, width, 3, padding=1, name=f"conv{index}")
    x = layers.MaxPool2D(3, 2, name="pool3")(x)
    x = layers.Flatten(name="flatten")(x)
    for index in (1, 2):
        x = layers.Dropout(0.5, name=f"dropout{index}")(x)
        x = layers.ReLU(name=f"fc{index}_relu")(_linear(x, 4096, name=f"fc{index}"))
    return _linear(x, spec.classes, name="fc3")


def _vgg16(spec: ModelSpec, x: KerasTensor) -> KerasTensor:
    """Simonyan and Zisserman 2014, configuration D, with dropout as torchvision has it."""
    for stage, (width, count) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)), start=1):
        for index in range(1, count + 1):
            kernel = initializers.VarianceScaling(**FAN_OUT)
            x = layers.Conv2D(
                width, 3, padding="same", activation="relu", kernel_initializer=kernel,
                name=f"conv{stage}_{index}",
            )(x)  # fmt: skip
        x = layers.MaxPool2D(2, name=f"pool{stage}")(x)
    x = layers.Flatten(name="flatten")(x)
    for index in (1, 2):
        normal = initializers.RandomNormal(stddev=0.01)
        x = layers.Dense(4096, activation="relu", kernel_initializer=normal, name=f"fc{index}")(x)
        x = layers.Dropout(0.5, name=f"dropout{index}")(x)
    return layers.Dense(spec.classes, kernel_initializer=initializers.RandomNormal(stddev=0.01), name="fc3")(x)


def _inception_v3(spec: ModelSpec, x: KerasTensor) -> KerasTensor:
    body = applications.InceptionV3(include_top=False, weights=None, input_tensor=x, pooling="avg")
    return _linear(layers.Dropout(0.5, name="dropout")(body.output), spec.classes, name="fc")


# ---------------------------------------------------------------- initialisers


def _he_normal() -> initializers.Initializer:
    """He et al. 2015 for a ReLU; Keras' own "he_normal" cuts the tails off, torch's does not."""
    return initializers.VarianceScaling(2.0, mode="fan_in", distribution="untruncated_normal")


def _uniform(
    layer: type[layers.Layer], x: KerasTensor, width: int, *size: int, padding: int = 0, name: str, **options: Any
) -> KerasTensor:
    """A layer of torch's default initialisers, U(-1, 1) / sqrt(inputs of a unit) for kernel and bias.

    A convolution is padded by `padding` on each side and ends in a ReLU.
    """
    inputs = x.shape[-1] * math.prod(size * 2)
    if size:
        x = layers.ZeroPadding2D(padding, name=f"{name}_pad")(x)
        options["activation"] = "relu"
    bound = 1 / math.sqrt(inputs)
    return layer(
        width,
        *size,
        **options,
        kernel_initializer=initializers.RandomUniform(-bound, bound),
        bias_initializer=initializers.RandomUniform(-bound, bound),
        name=name,
    )(x)


def _linear(x: KerasTensor, width: int, *, name: str) -> KerasTensor:
    return _uniform(layers.Dense, x, width, name=name)


BUILDERS: dict[str, Callable[[ModelSpec, KerasTensor], KerasTensor]] = {
    "digits-cnn": _digits_cnn,
    "resnet50": _resnet((3, 4, 6, 3)),
    "resnet101": _resnet((3, 4, 23, 3)),
    "resnet152": _resnet((3, 8, 36, 3)),
    "alexnet": _alexnet,
    "vgg16": _vgg16,
    "inception_v3": _inception_v3,
}
