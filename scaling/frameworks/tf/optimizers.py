"""The optimisers of the models' recipes: Keras' own, with its constants where a recipe says nothing."""

from __future__ import annotations

import keras

from scaling.workloads.specs import Recipe


def make(recipe: Recipe) -> keras.Optimizer:
    """One that decays no weights but as AdamW does: others' decay is a part of the loss (loop.py)."""
    match recipe.optimizer:
        case "sgd":
            return keras.optimizers.SGD(recipe.rate, momentum=recipe.momentum)
        case "rmsprop":
            return keras.optimizers.RMSprop(recipe.rate)
        case "adadelta":
            return keras.optimizers.Adadelta(recipe.rate)
        case "adam":
            return keras.optimizers.Adam(recipe.rate)
        case "adamw":
            return keras.optimizers.AdamW(recipe.rate, weight_decay=recipe.decay)


def coupled_decay(recipe: Recipe) -> float:
    """The factor of half the sum of squares that the loss has beside it."""
    return 0.0 if recipe.optimizer == "adamw" else recipe.decay
