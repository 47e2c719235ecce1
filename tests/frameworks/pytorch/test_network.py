"""Networks in torch against their descriptions, and against those that libraries have."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from scaling.frameworks.pytorch import compute, network
from scaling.workloads import layers, models, weights
from scaling.workloads.specs import IGNORED, Binary, Classes, NextToken, Recipe, Tokens
from tests.support.matrix import cases

# Full size, on tensors without memory: also those with 1.2 thousand million parameters.
ALL = sorted(models.CATALOGUE)
# As torch calls what the description has one bias for.
LSTM = {"weight_ih_l0": "weight_input", "weight_hh_l0": "weight_state", "bias_ih_l0": "bias"}


@pytest.mark.parametrize("name", ALL)
def test_parameters_are_the_descriptions_in_its_order(name: str) -> None:
    """DDP's buckets follow that order."""
    spec = models.spec(name)
    wanted = layers.parameters(spec.layers, spec.input.shape)
    found = {_described(name): tuple(each.shape) for name, each in network.trained(network.empty(spec))}
    assert list(found.items()) == [(name, each.shape) for name, each in wanted.items()]
    assert sum(each.size for each in wanted.values()) == spec.parameters


def _described(name: str) -> str:
    for theirs, ours in LSTM.items():
        name = name.replace(theirs, ours)
    return name


def _inputs(name: str, batch: int) -> torch.Tensor:
    model = models.spec(name)
    if isinstance(model.input, Tokens):
        return torch.zeros(batch, model.input.length, dtype=torch.int64, device="meta")
    return torch.empty(batch, *model.input.shape, device="meta")


# torch counts nothing of an LSTM, and no product of heads that share keys.
@pytest.mark.parametrize("name", [name for name in ALL if "lstm" not in name and "llama" not in name])
def test_operations_are_those_that_torch_counts(name: str) -> None:
    spec = models.spec(name)
    built = network.empty(spec)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        built(_inputs(name, 2))
    counted = counter.get_total_flops()
    assert counted == 2 * sum(each.operations for each in spec.placed)


AGAINST = """
import json, sys, warnings
warnings.simplefilter("ignore")
import torch
from scaling.frameworks.pytorch import network
from scaling.workloads import models
from tests.support import networks
torchvision = networks.torchvision()
for name in sys.argv[1:]:
    spec = models.spec(name)
    extra = {"aux_logits": False, "init_weights": False} if name in ("googlenet-bn", "inception_v3") else {}
    library = torchvision.models.get_model(spec.alike["torchvision"], weights=None, **extra).eval().double()
    ours = network.build(spec, 1).eval().double()
    theirs = [one for one in library.parameters()]
    if name == "vit-b-16":
        theirs = [*theirs[1:3], theirs[0], *theirs[3:]]
    with torch.no_grad():
        for mine, (_, one) in zip(theirs, network.trained(ours), strict=True):
            mine.copy_(one.reshape(mine.shape))
        images = torch.randn(1, *spec.input.shape, generator=torch.Generator().manual_seed(1)).double()
        found, wanted = ours(images), library(images)
    print(json.dumps([name, float((found - wanted).abs().max() / wanted.abs().max())]))
"""


@pytest.mark.parametrize(
    "names", cases([SMALL := "alexnet resnet50 googlenet-bn vit-b-16", "inception_v3"], [SMALL])
)
def test_networks_compute_what_torchvisions_do(names: str) -> None:
    """With the same weights, in double precision: in single, kernels of some CPUs sum in another order (of ViT's
    largest output 1.1e-6). In a process of its own, since torchvision warns as it likes."""
    if find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    alike = names.split()
    done = subprocess.run([sys.executable, "-c", AGAINST, *alike], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = dict(json.loads(line) for line in done.stdout.splitlines())
    assert list(found) == alike
    assert max(found.values()) < 1e-13, found


def test_the_same_seed_gives_the_same_weights_and_another_others() -> None:
    spec = models.spec("imdb-lstm")
    first, again, other = (network.build(spec, seed) for seed in (1, 1, 2))
    for (name, one), (_, two), (_, three) in zip(*map(network.trained, (first, again, other)), strict=True):
        assert torch.equal(one, two), name
        assert torch.equal(one, three) == ("bias" in name)


def test_weights_of_another_network_are_refused() -> None:
    built = network.empty(models.spec("mnist-mlp")).to_empty(device="cpu")
    with pytest.raises(ValueError, match=r"0\.weight is \(32, 1, 3, 3\), and 1\.weight \(512, 784\)"):
        network.load(built, weights.draw(models.spec("mnist-cnn"), 1))


def test_losses_are_the_targets() -> None:
    logits = torch.tensor([[[2.0, 0.0], [0.0, 0.0]]])
    labels = torch.tensor([[0, IGNORED]])
    assert compute.loss_of(NextToken())(logits, labels).item() == pytest.approx(np.log1p(np.exp(-2.0)))
    assert compute.loss_of(Classes(count=2))(logits[0], torch.tensor([0, 1])).item() == pytest.approx(
        0.41, abs=0.01
    )
    binary = compute.loss_of(Binary())(torch.tensor([[0.0], [3.0]]), torch.tensor([1, 1]))
    assert binary.item() == pytest.approx((np.log(2) + np.log1p(np.exp(-3.0))) / 2)


@pytest.mark.parametrize("name", compute.OPTIMIZERS)
def test_every_optimizer_lowers_the_loss(name: str) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)
    optimizer = compute.optimizer_of(Recipe(optimizer=name, rate=0.01), [weight, frozen])  # type: ignore[arg-type]
    for _ in range(3):
        optimizer.zero_grad()
        weight.square().sum().backward()
        optimizer.step()
    assert weight.square().sum() < 3
    assert torch.equal(frozen, torch.ones(3))
