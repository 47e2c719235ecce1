"""The optimisers of the models' recipes, with the constants that Keras gives them where a recipe says nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from scaling.records.point import Optimizer
from scaling.workloads.specs import Recipe

EPSILON = 1e-7
KINDS: dict[Optimizer, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {}),
    "rmsprop": (torch.optim.RMSprop, {"alpha": 0.9, "eps": EPSILON}),
    "adadelta": (torch.optim.Adadelta, {"rho": 0.95, "eps": EPSILON}),
    "adam": (torch.optim.Adam, {"eps": EPSILON}),
    "adamw": (torch.optim.AdamW, {"eps": EPSILON}),
}


def make(recipe: Recipe, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """One that updates what is trained."""
    kind, constants = KINDS[recipe.optimizer]
    if recipe.optimizer == "sgd":
        constants = {"momentum": recipe.momentum}
    trained = [each for each in parameters if each.requires_grad]
    return kind(trained, lr=recipe.rate, weight_decay=recipe.decay, **constants)  # type: ignore[call-arg]
