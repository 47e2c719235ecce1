"""Networks in Gluon against their descriptions; what they compute, test_networks.py compares."""

from __future__ import annotations

from scaling.workloads import layers, models
from tests.frameworks.mx import needs_mxnet, said

pytestmark = needs_mxnet

COUNTED = """
from math import prod
from scaling.frameworks.mx import network
from scaling.workloads import models
for name, spec in models.CATALOGUE.items():
    net = network.Network(spec)
    named = net.trained
    every = {id(each) for each in net.collect_params().values() if each.grad_req != "null"}
    assert every == {id(each) for each in named.values()}, name
    for path, each in named.items():
        print(name, path, *each.shape)
"""


def test_networks_have_the_parameters_that_were_published() -> None:
    """At full size, in the description's order and shapes, and none beside."""
    wanted = []
    for name, spec in models.CATALOGUE.items():
        named = layers.parameters(spec.layers, spec.input.shape)
        assert sum(each.size for each in named.values()) == spec.parameters
        wanted += [" ".join(map(str, (name, path, *each.shape))) for path, each in named.items()]
    assert said(COUNTED).splitlines() == wanted
