"""The catalogue of networks, each with its published number of parameters, and their recipes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

from msgspec.structs import replace

from scaling.errors import UsageError, near
from scaling.records.point import Device, Optimizer, Point, Workload
from scaling.workloads import networks
from scaling.workloads.layers import Layer
from scaling.workloads.specs import (
    Binary,
    Classes,
    Images,
    MaskedTokens,
    ModelSpec,
    NextToken,
    Recipe,
    Target,
    Tokens,
)

# The defaults of Keras; SGD has momentum.
RATES: dict[Optimizer, float] = {"sgd": 0.01, "rmsprop": 0.001, "adadelta": 1.0, "adam": 0.001, "adamw": 0.001}

Network = Callable[[int, int], tuple[Layer, ...]]
KERAS = "the Keras example as minimaxir/deep-learning-cpu-gpu-benchmark ran it, v2/test_files"
DEVLIN, RADFORD, HE = "Devlin 2018, masked words alone", "Radford 2019", "He 2015, v1.5"


def _imagenet(
    name: str, network: Network, parameters: int, source: str, *,
    size: int = 224, cuda: int = 64, cpu: int = 4, torchvision: str = "", recipe: Recipe | None = None,
) -> ModelSpec:  # fmt: skip
    return ModelSpec(
        name=name, network=network, parameters=parameters, source=source,
        recipe=recipe or Recipe(), input=Images(channels=3, height=size, width=size),
        target=Classes(count=1000),
        batch_size={"cuda": cuda, "cpu": cpu}, alike={"torchvision": torchvision} if torchvision else {},
    )  # fmt: skip


def _small(
    name: str, network: Network, side: int, parameters: int, recipe: Recipe, *,
    data: str, channels: int = 1, cpu: int = 0, cuda: int = 0, source: str = KERAS,
) -> ModelSpec:  # fmt: skip
    return ModelSpec(
        name=name, network=network, parameters=parameters, source=source, data=data, recipe=recipe,
        input=Images(channels=channels, height=side, width=side), target=Classes(count=10),
        batch_size={"cpu": cpu or recipe.at_batch, "cuda": cuda or recipe.at_batch},
    )  # fmt: skip


def _lstm(name: str, network: Network, tokens: Tokens, target: Target, parameters: int, recipe: Recipe, data: str
          ) -> ModelSpec:  # fmt: skip
    return ModelSpec(
        name=name, network=network, parameters=parameters, source=KERAS, data=data, recipe=recipe, unit="samples",
        input=tokens, target=target, batch_size={"cpu": recipe.at_batch, "cuda": recipe.at_batch},
    )  # fmt: skip


def _transformer(
    name: str, network: Network, length: int, vocabulary: int, parameters: int, source: str, *,
    masked: bool = False, cpu: int = 1, cuda: int = 8, alike: str = "",
) -> ModelSpec:  # fmt: skip
    return ModelSpec(
        name=name, network=network, parameters=parameters, source=source, data="synthetic-tokens", unit="tokens",
        input=Tokens(length=length, words=vocabulary), target=MaskedTokens() if masked else NextToken(),
        batch_size={"cpu": cpu, "cuda": cuda},
        recipe=Recipe(optimizer="adamw", rate=3e-4, at_batch=cuda, decay=0.01),
        alike={"transformers": alike} if alike else {},
    )  # fmt: skip


_rmsprop = Recipe(optimizer="rmsprop", rate=0.001, at_batch=128)
_adamw = Recipe(optimizer="adamw", rate=3e-4, at_batch=64, decay=0.01)
_base, _large = {"width": 768, "depth": 12, "heads": 12}, {"width": 1024, "depth": 24, "heads": 16}
_tiny = {"width": 128, "depth": 2, "heads": 4}
_llama = networks.llama

_ALL = (
    # A step of batch 32 takes about 100 ms on one current core.
    _small("digits-cnn", networks.digits_cnn, 32, 813_546, Recipe(rate=0.005, at_batch=32), data="digits",
           cuda=256,
           source="ours: 3 x (2 conv 3x3, ReLU, max-pool) to 32, 64, 128 channels, dense 256, dense 10; He init"),
    _small("fashion-cnn", networks.fashion_cnn, 28, 8_454_954, Recipe(optimizer="adam", rate=0.001, at_batch=512),
           data="fashion-mnist", cpu=32, source="Domino's study of Fashion-MNIST: the script behind its post"),
    _small("mnist-mlp", networks.mnist_mlp, 28, 669_706, _rmsprop, data="mnist"),
    _small("mnist-cnn", networks.mnist_cnn, 28, 1_199_882, Recipe(optimizer="adadelta", rate=1.0, at_batch=128),
           data="mnist"),
    # Keras's decay=1e-6 in that example lowers the rate, by 3 % in 20 epochs; it is no weight decay.
    _small("cifar10-cnn", networks.cifar10_cnn, 32, 1_250_858,
           Recipe(optimizer="rmsprop", rate=1e-4, at_batch=32), data="cifar10", channels=3),
    _imagenet("resnet50", partial(networks.resnet, stages=(3, 4, 6, 3)), 25_557_032, HE, torchvision="resnet50"),
    _imagenet("resnet101", partial(networks.resnet, stages=(3, 4, 23, 3)), 44_549_160, HE,
              torchvision="resnet101"),
    _imagenet("resnet152", partial(networks.resnet, stages=(3, 8, 36, 3)), 60_192_808, HE,
              torchvision="resnet152"),
    _imagenet("alexnet", networks.alexnet, 61_100_840,
              "Krizhevsky 2014, one column; convnet-benchmarks since 2015", cuda=256, cpu=16,
              torchvision="alexnet"),
    _imagenet("alexnet-towers", networks.alexnet_towers, 60_522_856,
              "convnet-benchmarks torch7, first version: two columns that never meet", cuda=256, cpu=16),
    _imagenet("overfeat", networks.overfeat, 145_920_872, "Sermanet 2013, fast: 145 million; convnet-benchmarks",
              size=231, cuda=128),
    _imagenet("overfeat-accurate", networks.overfeat_accurate, 144_656_488, "Sermanet 2013, accurate, table 3",
              size=221),
    _imagenet("vgg11", partial(networks.vgg, stages=(1, 1, 2, 2, 2)), 132_863_336,
              "Simonyan 2014, A; convnet-benchmarks' VGG", torchvision="vgg11"),
    _imagenet("vgg16", partial(networks.vgg, stages=(2, 2, 3, 3, 3)), 138_357_544, "Simonyan 2014, D",
              torchvision="vgg16"),
    _imagenet("vgg19", partial(networks.vgg, stages=(2, 2, 4, 4, 4)), 143_667_240, "Simonyan 2014, E",
              torchvision="vgg19"),
    _imagenet("googlenet", networks.googlenet, 6_998_552,
              "Szegedy 2014, main branch, as MXNet's and Caffe's without LRN; pools round up, from 256 px on down",
              cuda=128),
    _imagenet("googlenet-bn", networks.googlenet_bn, 6_624_904,
              "torchvision's googlenet: batch norm, 3x3 where the paper has 5x5", cuda=128,
              torchvision="googlenet"),
    _imagenet("inception-bn", networks.inception_bn, 11_295_240,
              "Ioffe 2015, as MXNet symbols/inception-bn.py: convolutions keep biases", cuda=128),
    _imagenet("inception_v3", networks.inception_v3, 23_834_568, "Szegedy 2015, without auxiliary classifier",
              size=299, torchvision="inception_v3"),
    _lstm("imdb-lstm", networks.imdb_lstm, Tokens(length=100, words=20_000), Binary(), 2_658_945,
          Recipe(optimizer="adam", rate=0.001, at_batch=32), "imdb"),
    _lstm("nietzsche-lstm", networks.nietzsche_lstm, Tokens(length=40, words=57), Classes(count=57), 102_585,
          Recipe(optimizer="rmsprop", rate=0.01, at_batch=128), "nietzsche"),
    _imagenet("vit-b-16", partial(networks.vit, patch=16, **_base), 86_567_656, "Dosovitskiy 2020", cpu=2,
              torchvision="vit_b_16", recipe=_adamw),
    _transformer("bert-base", partial(networks.bert, **_base), 128, 30_522, 109_514_298, DEVLIN, masked=True,
                 alike="BertForMaskedLM"),
    _transformer("bert-large", partial(networks.bert, **_large), 128, 30_522, 335_174_458, DEVLIN, masked=True,
                 alike="BertForMaskedLM"),
    _transformer("gpt2", partial(networks.gpt2, **_base), 1024, 50_257, 124_439_808, RADFORD,
                 alike="GPT2LMHeadModel"),
    _transformer("gpt2-medium", partial(networks.gpt2, **_large), 1024, 50_257, 354_823_168, RADFORD,
                 alike="GPT2LMHeadModel"),
    _transformer("llama-1b",
                 partial(_llama, width=2048, inside=8192, depth=16, heads=32, groups=8, rotary=5e5, tied=True),
                 2048, 128_256, 1_235_814_400, cuda=1, alike="LlamaForCausalLM",
                 source="Llama 3.2 1B, without its scaling of angles for more than 8,192 places"),
    _transformer("tinyllama-1.1b", partial(_llama, width=2048, inside=5632, depth=22, heads=32, groups=4),
                 2048, 32_000, 1_100_048_384, "Zhang 2024", cuda=1, alike="LlamaForCausalLM"),
    _transformer("decoder-tiny", partial(_llama, width=256, inside=688, depth=4, heads=8, groups=4, tied=True),
                 128, 256, 2_967_808, "ours: Llama's layers, of bytes", cpu=4, cuda=64),
    _transformer("gpt2-tiny", partial(networks.gpt2, places=128, **_tiny), 64, 256, 445_952,
                 "ours: GPT-2's layers, of bytes", cpu=8, cuda=64),
    _transformer("bert-tiny", partial(networks.bert, places=128, **_tiny), 64, 256, 463_232,
                 "ours: BERT's layers, of bytes", masked=True, cpu=8, cuda=64),
    _small("vit-tiny", partial(networks.vit, patch=4, **_tiny), 32, 408_714, _adamw, data="digits", cpu=32,
           cuda=256, source="ours: ViT's layers, for digits"),
)  # fmt: skip
CATALOGUE: dict[str, ModelSpec] = {spec.name: spec for spec in _ALL}
# A user's own training or model: nothing is known before it runs.
SCRIPT = ModelSpec(
    name="the script", network=lambda *_: (), input=Images(channels=1, height=1, width=1), target=Classes(count=1),
    parameters=0, source="", batch_size={"cpu": 1, "cuda": 1}, data="its own", unit="samples",
)  # fmt: skip


def default_model(device: Device) -> str:
    """Return ResNet-50 for GPUs and emulated devices, as is usual; on CPU a small network on real images."""
    return "digits-cnn" if device == "cpu" else "resnet50"


def is_own(name: str) -> bool:
    """Return whether a name is `FILE:NAME`, a model of a user's file."""
    return ".py:" in name


def spec(name: str) -> ModelSpec:
    """Return the description at the model's own size. Raises UsageError with the nearest match."""
    if name == SCRIPT.name:
        return SCRIPT
    if is_own(name):
        return replace(SCRIPT, name=name, batch_size={"cpu": 32, "cuda": 32})
    if name.endswith(".py"):
        raise UsageError(f"--model {name}: write {name}:NAME, with the function or class that returns the model")
    if name not in CATALOGUE:
        raise UsageError(f"--model {name}: unknown; {near(name, CATALOGUE)}")
    return CATALOGUE[name]


def sized(name: str, size: int) -> ModelSpec:
    """Return the description at an image size, 0 for the model's own."""
    found = spec(name)
    if not size or not isinstance(found.input, Images):
        return found
    return replace(found, input=replace(found.input, height=size, width=size))


def of(workload: Workload) -> ModelSpec:
    """Return the description at the point's size. Raises UsageError for an unknown model."""
    found = SCRIPT if workload.script else sized(workload.model, workload.image_size)
    if workload.sequence_length and isinstance(found.input, Tokens):
        found = replace(found, input=replace(found.input, length=workload.sequence_length))
    return replace(found, recipe=recipe(found, workload.optimizer))


def at(point: Point) -> ModelSpec:
    """Return the description at the point's size, with the learning rate and first weights of its regime."""
    found, regime = of(point.workload), point.regime
    if regime is None:
        return found
    return replace(found, recipe=replace(found.recipe, rate=regime.rate), weights=regime.weights)


def recipe(found: ModelSpec, optimizer: Optimizer | Literal[""]) -> Recipe:
    """Return the model's own recipe, or that of another optimiser at its usual rate."""
    if not optimizer or optimizer == found.recipe.optimizer:
        return found.recipe
    return Recipe(optimizer=optimizer, rate=RATES[optimizer], at_batch=found.recipe.at_batch)
