"""What the Gluon models come to, in a process of its own: MXNet's OpenMP and torch's are not made for one process.

python -m tests.support.gluon NAME FOLDER
    parameters    the numbers of trained parameters, by model
    initial       the weights of digits-cnn
    a model's     logits and loss, with FOLDER's weights.npz on its images.npy
Arrays by name, in FOLDER's found.npz.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from scaling.frameworks.mx import vision
from scaling.frameworks.mx.library import mx
from scaling.workloads import models


def parameters() -> dict[str, NDArray[Any]]:
    """Trained parameters by model, from shapes alone."""
    counted = {}
    for name in vision.BUILDERS:
        spec = models.spec(name)
        net = vision.build(spec)
        vision.infer_shapes(net, spec)
        trained = (each for each in net.collect_params().values() if each.grad_req != "null")
        counted[name] = np.array(sum(np.prod(each.shape) for each in trained))
    return counted


def initial() -> dict[str, NDArray[Any]]:
    """The weights of digits-cnn, which are those of the seed."""
    spec, found = models.spec("digits-cnn"), []
    for seed in (1, 1, 2):
        mx.random.seed(seed)
        net = vision.build(spec)
        vision.initialize(net, spec, [mx.cpu(), mx.cpu(1)])
        named = net._collect_params_with_prefix()
        found.append({key: each.data(mx.cpu(1)).asnumpy() for key, each in named.items()})
    first, again, other = found
    assert all(np.array_equal(first[key], again[key]) for key in first)
    assert not np.array_equal(first["0.weight"], other["0.weight"])
    return first


def computed(name: str, folder: Path) -> dict[str, NDArray[Any]]:
    """The logits in inference, and the loss in training, with the given weights in the model's order."""
    images = np.load(folder / "images.npy")
    spec = replace(models.spec(name), image=images.shape[1:])
    net = vision.build(spec)
    vision.initialize(net, spec, [mx.cpu()])
    with np.load(folder / "weights.npz") as given:
        for each, value in zip(net._collect_params_with_prefix().values(), given.values(), strict=True):
            assert each.shape == value.shape
            each.set_data(mx.nd.array(value))
    net.hybridize(static_alloc=True, static_shape=True)
    batch = mx.nd.array(images)
    logits = net(batch).asnumpy()
    with mx.autograd.record():
        loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()(net(batch), mx.nd.arange(len(batch)))
    return {"logits": logits, "loss": loss.mean().asnumpy()}


def main() -> None:
    """Write what was asked for."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    match name:
        case "parameters":
            found = parameters()
        case "initial":
            found = initial()
        case _:
            found = computed(name, folder)
    np.savez(folder / "found.npz", **found)  # type: ignore[arg-type, unused-ignore]


if __name__ == "__main__":
    main()
