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


def set_rate(optimizer: keras.Optimizer, rate: float, before: float) -> None:
    """Another learning rate than `before`.

    What SGD has gathered is in units of the old one and is turned to the new, as if the rate came last, as torch
    has it and the paper on large batches (Goyal 2017, remark 2, "momentum correction").
    """
    if isinstance(optimizer, keras.optimizers.SGD) and before and rate != before:
        for each in optimizer.momentums:
            each.assign(each * (rate / before))
    optimizer.learning_rate = rate
