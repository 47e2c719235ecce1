"""Clusters whose truth is known: settings, constants, and runs as a prediction sees them."""

from __future__ import annotations

from math import exp
from typing import Any

import numpy as np

from scaling.tools.predict import model
from scaling.tools.predict.evidence import Case
from scaling.tools.predict.model import Fit, Floats, covariance, equations, fit
from scaling.tools.predict.setting import NORMAL_95, At, Measured, Priors, Setting

ONE = At(world_size=1, nodes=1)
# ResNet-50 at batch 64 on devices of 250 images/s.
RESNET50 = Setting(gradient_bytes=102e6, step_s=0.25, bus="pcie", link="rdma", line_bytes_per_s=12.5e9)


def at(world_size: int, each: int = 4) -> At:
    """Nodes of `each`, filled one after the other."""
    return At(world_size=world_size, nodes=-(-world_size // each))


def measured_at(point: At, efficiency: float, noise: float = 0.005) -> Measured:
    """An efficiency whose logarithm has this standard deviation."""
    off = exp(NORMAL_95 * noise)
    return Measured(at=point, efficiency=efficiency, low=efficiency / off, high=efficiency * off)


def exact(setting: Setting, **known: float) -> dict[str, Floats]:
    """Constants of a cluster as one draw; what is not said is 0."""
    return {role: np.array([[known.get(role, 0.0)]]) for role in model.keys(setting)}


def truth(setting: Setting, priors: Priors, points: list[At], seed: int) -> list[float]:
    """Efficiencies of one cluster drawn from the priors, with all that the equations lack."""
    rng = np.random.default_rng(seed)
    start = fit(setting, (), priors)
    drawn = start._replace(z=rng.standard_normal(len(start.z)))
    walked = np.linalg.cholesky(covariance(start, points, points) + 1e-12 * np.eye(len(points)))
    missed = walked @ rng.standard_normal(len(points))
    return [float(value) for value in np.minimum(np.exp(equations(drawn, points, setting)[0] + missed), 1.0)]


def learned(setting: Setting, priors: Priors, seen: dict[int, float]) -> Fit:
    """The fit of these efficiencies by world size."""
    observed = tuple(measured_at(at(size), value) for size, value in seen.items())
    return fit(setting, observed, priors)


def case(seen: dict[int, float], setting: Setting = RESNET50, **changes: Any) -> Case:
    """A run of nodes of four as a prediction sees it."""
    observed = tuple(measured_at(at(size), value) for size, value in seen.items())
    rate = 64 / setting.step_s
    measured = tuple(
        Measured(at=at(size), samples_per_s=size * rate * value, efficiency=value) for size, value in seen.items()
    )
    found = Case(
        title="torch:nccl over ib0, resnet50, batch 64 per device", setting=setting, observed=observed,
        rate=rate, batch_size=64, unit="images", devices_per_node=4, model="resnet50",
        measured=measured,
        rates=(("resnet50", 64, rate), ("resnet50", 128, rate * 1.05)),
        strategy="torch:nccl",
        command="python -m scaling.run --strategy torch:nccl --model resnet50 --device cuda --batch-size 64",
    )  # fmt: skip
    return found._replace(**changes)
