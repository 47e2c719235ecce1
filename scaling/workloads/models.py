"""What can be trained: neutral descriptions. `vision.py` of each framework builds them."""

from __future__ import annotations

from scaling.errors import UsageError, near
from scaling.records.point import Device, Record, Unit


class ModelSpec(Record, frozen=True, kw_only=True):
    """A model as every framework must build it.

    `image` is (channels, height, width), `unit` what a sample is; `batch_size` the default per device, by kind of
    device; `learning_rate` goes with SGD of MOMENTUM and that batch. `parameters[framework]` are the trained
    ones, within 0.5 % of each other (tests hold every builder to them); frameworks without the model are absent.
    """

    name: str
    image: tuple[int, int, int]
    classes: int
    data: str
    batch_size: dict[str, int]
    learning_rate: float
    parameters: dict[str, int]
    source: str
    unit: Unit = "images"


# Of the SGD that every model is trained with, in every framework.
MOMENTUM = 0.9
FRAMEWORKS = ("torch", "tensorflow", "mxnet")


def _imagenet(
    name: str, parameters: int | dict[str, int], *, size: int = 224, cuda: int = 64, cpu: int = 4
) -> ModelSpec:
    return ModelSpec(
        name=name,
        image=(3, size, size),
        classes=1000,
        data="synthetic",
        batch_size={"cuda": cuda, "cpu": cpu},
        learning_rate=0.01,
        parameters=dict.fromkeys(FRAMEWORKS, parameters) if isinstance(parameters, int) else parameters,
        source=f"torchvision.models.{name}",
    )


CATALOGUE: dict[str, ModelSpec] = {
    spec.name: spec
    for spec in (
        # Batch 32 is a step of about 100 ms on one current core.
        ModelSpec(
            name="digits-cnn",
            image=(1, 32, 32),
            classes=10,
            data="digits",
            batch_size={"cpu": 32, "cuda": 256},
            learning_rate=0.005,
            parameters=dict.fromkeys(FRAMEWORKS, 813_546),
            source="3 x (2 x conv 3x3, ReLU, max-pool) to 32, 64, 128 channels, dense 256, dense 10; He init",
        ),
        _imagenet("resnet50", 25_557_032),
        _imagenet("resnet101", 44_549_160),
        _imagenet("resnet152", 60_192_808),
        _imagenet("alexnet", 61_100_840, cuda=256, cpu=16),
        _imagenet("vgg16", 138_357_544),
        _imagenet("googlenet", {"torch": 6_624_904}, cuda=128),
        _imagenet("inception_v3", {"torch": 23_834_568, "tensorflow": 23_817_352, "mxnet": 23_834_568}, size=299),
    )
}


def default_model(device: Device) -> str:
    """ResNet-50 where there are GPUs or what stands for them, as the field does; on CPU a small network on
    real images."""
    return "digits-cnn" if device == "cpu" else "resnet50"


def spec(name: str) -> ModelSpec:
    """Return the description; raises UsageError with the near match."""
    if name not in CATALOGUE:
        raise UsageError(f"--model {name}: unknown; {near(name, CATALOGUE)}")
    return CATALOGUE[name]
