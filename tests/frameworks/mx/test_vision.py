"""The Gluon models: as many parameters as torch's, and with torch's weights the same logits and losses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from scaling.frameworks.mx import plain
from scaling.workloads import models
from scaling.workloads.models import ModelSpec

# Sums in another order differ by about 1e-6 of a logit in each layer; another stride or padding by all of it.
TOLERANCE = 1e-3
# At 64 x 64 a ResNet is quick, and every layer of it still strides.
SIZES = {"digits-cnn": 32, "resnet50": 64, "alexnet": 224, "inception_v3": 299}
WITHOUT_DROPOUT = ("digits-cnn", "resnet50")

MISSING = plain.STRATEGY.missing("mxnet:plain")
pytestmark = pytest.mark.skipif(MISSING is not None, reason=MISSING or "")


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", np.zeros((1, 3, 8, 8)))
    assert "NotImplementedError: googlenet is not in Gluon" in started("googlenet", tmp_path).stderr


def test_models_have_the_catalogues_numbers_of_parameters(tmp_path: Path) -> None:
    """Those that the agent believes to be there are, in this order."""
    counted = in_mxnet("parameters", tmp_path)
    wanted = [(name, models.spec(name).parameters["mxnet"]) for name in plain.MODELS]
    assert [(name, int(count)) for name, count in counted.items()] == wanted


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
    np.save(tmp_path / "images.npy", batch)
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
    done = started(name, folder)
    assert done.returncode == 0, done.stderr
    with np.load(folder / "found.npz") as found:
        return dict(found)


def started(name: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """MXNet's half, which has ended."""
    command = [sys.executable, "-m", "tests.support.gluon", name, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)
