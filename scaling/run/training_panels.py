"""The flags of a training to an accuracy, each with its type, its help, its metavar (panels.py)."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

PANEL = "Training to an accuracy"
_train = partial(typer.Option, rich_help_panel=PANEL)

Epochs = Annotated[
    int | None,
    _train(
        help="Train for so many epochs and tell top-1 on what is held out after each, in place of measuring "
        "rates; for each strategy, world size, batch, rule and seed.",
        metavar="N",
        show_default="none: measure rates",
    ),
]
TargetTop1 = Annotated[
    float | None,
    _train(
        help="Stop at this top-1, and tell how many seconds of training it took.",
        metavar="PERCENT",
        show_default="none: all epochs",
    ),
]
Lr = Annotated[
    float | None,
    _train(
        help="Learning rate of one device at its batch.",
        metavar="RATE",
        show_default="the model's, at the model's batch; see --list",
    ),
]
LrScale = Annotated[
    str | None,
    _train(
        help="How the rate grows with the batch of all devices: linear, sqrt, none; several are trained each.",
        metavar="RULE,...",
        show_default="linear for sgd, none for adadelta, else sqrt",
    ),
]
WarmupEpochs = Annotated[
    int | None,
    _train(help="Epochs in which the rate grows from that before scaling.", metavar="N", show_default="0"),
]
LrSteps = Annotated[
    str | None,
    _train(help="Epochs at whose beginning the rate falls to a tenth.", metavar="N,...", show_default="none"),
]
AugmentEpochs = Annotated[
    int | None,
    _train(
        help="The last so many of --epochs see images that are rotated, shifted, sheared, enlarged or mirrored, "
        "as the data allows.",
        metavar="N",
        show_default="0",
    ),
]
Weights = Annotated[
    str | None,
    _train(
        help="Begin with these weights: .pth, .safetensors or .npz, on every host. Of a network with other "
        "classes the last layer begins anew.",
        metavar="FILE",
        show_default="drawn by the seed",
    ),
]
SaveWeights = Annotated[
    str | None,
    _train(
        help="Write what was learnt to this .npz or .safetensors, for --weights, on the host of the training's "
        "rank 0. Of one training alone.",
        metavar="FILE",
        show_default="not kept",
    ),
]
TrainSamples = Annotated[
    int | None,
    _train(
        help="Train on so many samples of the data, always the same, as many of each class as there can be.",
        metavar="N",
        show_default="all",
    ),
]
TestSamples = Annotated[
    int | None,
    _train(help="Tell top-1 of so many held-out samples, chosen likewise.", metavar="N", show_default="all"),
]
Seeds = Annotated[
    str | None,
    _train(
        help="Train from each of these seeds, of weights and order, and tell the mean.",
        metavar="N,...",
        show_default="--seed's",
    ),
]
