"""Walk through a network layer by layer: shapes, parameters and operations."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from scaling.errors import UsageError
from scaling.workloads.layers import Branches, Chain, Layer, Parameter, Residual, Shape, ShapeError, need


@dataclass(frozen=True)
class Placed:
    """A layer in its place.

    * path: counts from 0 at each depth (`4.0.1`).
    * shape, output: the shapes of its input and its output.
    * follows: its input depends on parameters, so the gradient of its input is needed.
    """

    path: str
    layer: Layer
    shape: Shape
    output: Shape
    follows: bool = False

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return self.layer.parameters(self.shape)

    @property
    def operations(self) -> int:
        """Return the operations of one sample's forward pass."""
        return self.layer.operations(self.shape)


def walk(layers: Sequence[Layer], shape: Shape) -> tuple[Placed, ...]:
    """Return every layer that holds no others, in the order of the forward pass, which is that of parameters.
    Branches come one after the other, and a residual's body before its shortcut. Raises UsageError with the layer
    that cannot take its input, and the shapes."""
    return tuple(_chain(layers, (shape, False), ""))


def parameters(layers: Sequence[Layer], shape: Shape) -> dict[str, Parameter]:
    return {f"{one.path}.{each.name}": each for one in walk(layers, shape) for each in one.parameters}


def count(layers: Sequence[Layer], shape: Shape) -> int:
    return sum(each.size for each in parameters(layers, shape).values())


def forward_operations(layers: Sequence[Layer], shape: Shape) -> int:
    return sum(one.operations for one in walk(layers, shape))


def training_operations(layers: Sequence[Layer], shape: Shape) -> int:
    """Return the floating-point operations of one sample's forward and backward pass."""
    placed = walk(layers, shape)
    return sum(one.operations + backward for one, backward in zip(placed, backwards(placed), strict=True))


def backwards(placed: Sequence[Placed]) -> tuple[int, ...]:
    """Return the operations of each layer's backward pass. Gradients of weights cost as much as the forward pass,
    and so do those of the input. A layer whose input is the sample needs only the first; an LSTM there also needs
    the gradients of its states."""
    return tuple(
        one.operations + (one.operations if one.follows else one.layer.recurrent_operations(one.shape))
        for one in placed
    )


# The shape of the output, and whether it depends on parameters.
_Flow = tuple[Shape, bool]
_Walk = Generator[Placed, None, _Flow]


def _chain(layers: Sequence[Layer], flow: _Flow, path: str) -> _Walk:
    for index, layer in enumerate(layers):
        flow = yield from _one(layer, flow, f"{path}{index}")
    return flow


def _one(layer: Layer, flow: _Flow, path: str) -> _Walk:
    shape, follows = flow
    try:
        match layer:
            case Chain(body):
                return (yield from _chain(body, flow, f"{path}."))
            case Residual():
                return (yield from _residual(layer, flow, path))
            case Branches():
                return (yield from _branches(layer, flow, path))
        output = layer.output(shape)
    except ShapeError as error:
        raise UsageError(f"layer {path}, {type(layer).__name__}: {error}") from None
    placed = Placed(path, layer, shape, output, follows)
    yield placed
    return output, follows or bool(placed.parameters)


def _residual(layer: Residual, flow: _Flow, path: str) -> _Walk:
    body, body_follows = yield from _chain(layer.body, flow, f"{path}.body.")
    shortcut, shortcut_follows = yield from _chain(layer.shortcut, flow, f"{path}.shortcut.")
    if body != shortcut:
        raise ShapeError(f"cannot add {_text(body)} and {_text(shortcut)}")
    return body, body_follows or shortcut_follows


def _branches(layer: Branches, flow: _Flow, path: str) -> _Walk:
    outputs: list[Shape] = []
    follows = False
    for index, branch in enumerate(layer.branches):
        output, learnt = yield from _chain(branch, flow, f"{path}.{index}.")
        outputs.append(output)
        follows = follows or learnt
    for each in outputs:
        need(each, 3, "branches of images")
        if each[1:] != outputs[0][1:]:
            raise ShapeError(f"cannot put {_text(each)} beside {_text(outputs[0])}")
    return (sum(each[0] for each in outputs), *outputs[0][1:]), follows


def _text(shape: Shape) -> str:
    return " x ".join(map(str, shape))
