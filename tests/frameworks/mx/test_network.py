"""Networks in Gluon against their descriptions; what they compute, test_networks.py compares."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from scaling.frameworks.mx import plain
from scaling.workloads import models, walk, weights
from scaling.workloads.specs import IGNORED

MISSING = plain.STRATEGY.missing("mxnet:plain")
pytestmark = pytest.mark.skipif(MISSING is not None, reason=MISSING or "")


def said(code: str) -> str:
    """In a process of its own: MXNet's OpenMP and torch's are not made for one process."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


COUNTED = """
from math import prod
from scaling.frameworks.mx import network
from scaling.workloads import models
for name, spec in models.CATALOGUE.items():
    net = network.Network(spec)
    named = network.parameters(net)
    every = {id(each) for each in net.collect_params().values() if each.grad_req != "null"}
    assert every == {id(each) for each in named.values()}, name
    for path, each in named.items():
        print(name, path, *each.shape)
"""


def test_networks_have_the_parameters_that_were_published() -> None:
    """At full size, in the description's order and shapes, and none beside."""
    wanted = []
    for name, spec in models.CATALOGUE.items():
        named = walk.parameters(spec.layers, spec.input.shape)
        assert sum(each.size for each in named.values()) == spec.parameters
        wanted += [" ".join(map(str, (name, path, *each.shape))) for path, each in named.items()]
    assert said(COUNTED).splitlines() == wanted


BUILT = """
from scaling.frameworks.mx import network
from scaling.frameworks.mx.library import mx
from scaling.workloads import models, weights
net = network.build(models.spec("imdb-lstm"), 2, [mx.cpu(), mx.cpu(1)])
for name, each in network.parameters(net).items():
    first, second = (each.data(context).asnumpy() for context in each.list_ctx())
    assert (first == second).all()
    print(name, float(first.astype("float64").sum()))
try:
    network.load(net, weights.draw(models.spec("mnist-cnn"), 1))
except ValueError as error:
    print(error)
"""


def test_weights_follow_the_seed_and_those_of_another_network_are_refused() -> None:
    *found, refused = said(BUILT).splitlines()
    drawn = dict(weights.draw(models.spec("imdb-lstm"), 2))
    assert [line.split()[0] for line in found] == list(drawn)
    for line, array in zip(found, drawn.values(), strict=True):
        assert float(line.split()[1]) == pytest.approx(float(array.astype(np.float64).sum()))
    assert refused == "0.weight is (32, 1, 3, 3), and the network has 0.weight (20000, 128)"


LOSSES = """
from scaling.frameworks.mx import loop
from scaling.frameworks.mx.library import mx
from scaling.workloads.specs import Binary, Classes, MaskedTokens, NextToken
array = mx.nd.array
logits, places = array([[[2.0, 0.0], [0.0, 0.0]]]), array([[0, IGNORED]])
for target, given, labels in (
    (MaskedTokens(), logits, places),
    (NextToken(), logits, array([[0, 1]])),
    (Classes(count=2), logits[0], array([0, 1])),
    (Binary(), array([[0.0], [3.0]]), array([1, 1])),
):
    block = loop.loss_of(target)
    block.hybridize(static_alloc=True, static_shape=True)
    print(block(given, labels).mean().asscalar())
"""


def test_losses_are_the_targets() -> None:
    one, even = np.log1p(np.exp(-2.0)), np.log(2)
    found = [float(line) for line in said(LOSSES.replace("IGNORED", str(IGNORED))).splitlines()]
    whole = (one + even) / 2
    # oneDNN approximates logarithms to 3e-5.
    assert found == pytest.approx([one, whole, whole, (even + np.log1p(np.exp(-3.0))) / 2], rel=1e-4)
