"""The Gluon models: as many parameters as torch's, and with torch's weights the same logits and losses.

python -m tests.frameworks.mx.test_vision NAME WEIGHTS RESULT   (MXNet's half, in a process of its own: its OpenMP
and torch's are not made for one process)
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from scaling.frameworks.mx import rank, vision
from scaling.workloads import models
from scaling.workloads.models import ModelSpec

# Sums in another order differ by about 1e-6 of a logit in each layer; another stride or padding by all of it.
TOLERANCE = 1e-3
# At 64 x 64 a ResNet is quick, and every layer of it still strides.
SIZES = {"digits-cnn": 32, "resnet50": 64, "alexnet": 224, "inception_v3": 299}
WITHOUT_DROPOUT = ("digits-cnn", "resnet50")

pytestmark = pytest.mark.skipif(rank.missing() is not None, reason=rank.missing() or "")


def test_all_but_googlenet_are_there() -> None:
    assert [*models.CATALOGUE.keys() - vision.BUILDERS.keys()] == ["googlenet"]
    assert all(map(vision.available, vision.BUILDERS))
    assert not vision.available("googlenet")
    with pytest.raises(NotImplementedError, match="googlenet is not in Gluon"):
        vision.build(models.spec("googlenet"))


def test_the_catalogue_has_the_numbers_of_parameters(tmp_path: Path) -> None:
    counted = in_mxnet("parameters", tmp_path)
    wanted = {name: models.spec(name).parameters["mxnet"] for name in vision.BUILDERS}
    assert {name: int(count) for name, count in counted.items()} == wanted


def test_weights_follow_the_seed_and_he(tmp_path: Path) -> None:
    """Each kernel's standard deviation is that of torch's initialiser, within what its sample allows."""
    found = in_mxnet("initial", tmp_path)
    for index, (name, kernel) in enumerate(found.items()):
        if kernel.ndim == 1:
            assert not kernel.any(), name
            continue
        fan_in = kernel[0].size
        wanted = (2 / fan_in) ** 0.5
        assert kernel.std() == pytest.approx(wanted, abs=4 * wanted / (2 * kernel.size) ** 0.5), (index, name)


@pytest.mark.parametrize("name", list(SIZES))
def test_with_torchs_weights_it_computes_what_torch_computes(name: str, tmp_path: Path) -> None:
    import torch

    net = random_net(name)
    batch = images(name)
    # Before the training pass, which moves the running means.
    np.savez(tmp_path / "weights.npz", **{key: each for key, each in net.state_dict().items() if each.ndim})
    with torch.no_grad():
        logits = net.eval()(torch.from_numpy(batch)).numpy()
        training = net.train()(torch.from_numpy(batch))
        loss = torch.nn.functional.cross_entropy(training, torch.arange(len(batch))).item()
    found = in_mxnet(name, tmp_path)
    assert logits.std() > 0.01
    assert np.linalg.norm(found["logits"] - logits) < TOLERANCE * np.linalg.norm(logits)
    if name in WITHOUT_DROPOUT:
        assert found["loss"].item() == pytest.approx(loss, rel=TOLERANCE)


def random_net(name: str) -> Any:
    """Torch's model for images of this test's size, its normalisations as if trained."""
    import torch

    from scaling.frameworks.pytorch.vision import build

    torch.manual_seed(1)
    net = build(sized(name))
    for layer in net.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            assert layer.running_mean is not None and layer.running_var is not None
            for each, low in ((layer.weight, 0.5), (layer.bias, -0.1), (layer.running_mean, -0.1)):
                torch.nn.init.uniform_(each, low, low + 0.2)
            torch.nn.init.uniform_(layer.running_var, 0.5, 1.5)
    return net


def sized(name: str) -> ModelSpec:
    spec = models.spec(name)
    return msgspec.structs.replace(spec, image=(spec.image[0], SIZES[name], SIZES[name]))


def images(name: str) -> NDArray[np.float32]:
    return np.random.default_rng(1).standard_normal((2, *sized(name).image), dtype=np.float32)


def in_mxnet(name: str, folder: Path) -> dict[str, NDArray[Any]]:
    """What MXNet's half found."""
    files = [str(folder / "weights.npz"), str(folder / "found.npz")]
    command = [sys.executable, "-m", "tests.frameworks.mx.test_vision", name, *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with np.load(folder / "found.npz") as found:
        return dict(found)


# ---------------------------------------------------------------- MXNet's half


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


def initial(mx: Any) -> dict[str, NDArray[Any]]:
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


def computed(mx: Any, name: str, weights: Path) -> dict[str, NDArray[Any]]:
    """The logits in inference, and the loss in training, with the given weights in the model's order."""
    net = vision.build(sized(name))
    vision.initialize(net, sized(name), [mx.cpu()])
    with np.load(weights) as given:
        for each, value in zip(net._collect_params_with_prefix().values(), given.values(), strict=True):
            assert each.shape == value.shape
            each.set_data(mx.nd.array(value))
    net.hybridize(static_alloc=True, static_shape=True)
    batch = mx.nd.array(images(name))
    logits = net(batch).asnumpy()
    with mx.autograd.record():
        loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()(net(batch), mx.nd.arange(len(batch)))
    return {"logits": logits, "loss": loss.mean().asnumpy()}


def main() -> None:
    name, weights, result = sys.argv[1:]
    mx = rank.load_mxnet()
    match name:
        case "parameters":
            found = parameters()
        case "initial":
            found = initial(mx)
        case _:
            found = computed(mx, name, Path(weights))
    np.savez(result, **found)  # type: ignore[arg-type, unused-ignore]


if __name__ == "__main__":
    main()
