"""The walk through a network, layer by layer, and its result in shapes, parameters and operations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from scaling.errors import UsageError
from scaling.workloads.layers import Branches, Chain, Layer, Parameter, Residual, Shape, ShapeError

Value = TypeVar("Value")


class Walk(Generic[Value]):
    """One pass of a value through a network. A subclass says what its layers make of it."""

    def one(self, layer: Layer, x: Value, path: str) -> Value:
        """Apply a layer that holds no others. `path` counts from 0 at each depth (`4.0.1`)."""
        raise NotImplementedError

    def add(self, body: Value, shortcut: Value, path: str) -> Value:
        raise NotImplementedError

    def join(self, branches: list[Value], path: str) -> Value:
        """Concatenate the channels of branches."""
        raise NotImplementedError

    def chain(self, layers: Iterable[Layer], x: Value, path: str = "") -> Value:
        """Branches come one after the other, and a residual's body before its shortcut."""
        for index, layer in enumerate(layers):
            here = f"{path}{index}"
            match layer:
                case Chain(body):
                    x = self.chain(body, x, f"{here}.")
                case Residual(body, shortcut):
                    inside = self.chain(body, x, f"{here}.body.")
                    x = self.add(inside, self.chain(shortcut, x, f"{here}.shortcut."), here)
                case Branches(branches):
                    ways = [self.chain(each, x, f"{here}.{number}.") for number, each in enumerate(branches)]
                    x = self.join(ways, here)
                case _:
                    x = self.one(layer, x, here)
        return x


# ---------------------------------------------------------------- shapes


@dataclass(frozen=True)
class Placed:
    """A layer in its place.

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


# The shape of a layer's input, and whether it depends on parameters.
_Flow: TypeAlias = tuple[Shape, bool]


class _Shapes(Walk[_Flow]):
    def __init__(self) -> None:
        self.placed: list[Placed] = []

    def one(self, layer: Layer, x: _Flow, path: str) -> _Flow:
        shape, follows = x
        try:
            placed = Placed(path, layer, shape, layer.output(shape), follows)
        except ShapeError as error:
            raise UsageError(f"layer {path}, {type(layer).__name__}: {error}") from None
        self.placed.append(placed)
        return placed.output, follows or bool(placed.parameters)

    def add(self, body: _Flow, shortcut: _Flow, path: str) -> _Flow:
        if body[0] != shortcut[0]:
            raise UsageError(f"layer {path}, Residual: cannot add {_text(body[0])} and {_text(shortcut[0])}")
        return body[0], body[1] or shortcut[1]

    def join(self, branches: list[_Flow], path: str) -> _Flow:
        first = branches[0][0]
        for each, _ in branches:
            if len(each) != 3:
                raise UsageError(f"layer {path}, Branches: takes branches of images, and gets {_text(each)}")
            if each[1:] != first[1:]:
                raise UsageError(f"layer {path}, Branches: cannot put {_text(each)} beside {_text(first)}")
        return (sum(each[0] for each, _ in branches), *first[1:]), any(follows for _, follows in branches)


def _text(shape: Shape) -> str:
    return " x ".join(map(str, shape))


def walk(layers: Sequence[Layer], shape: Shape) -> tuple[Placed, ...]:
    """Return every layer that holds no others, in the order of the forward pass, which is that of parameters.
    Raises UsageError with the layer that cannot take its input, and the shapes."""
    shapes = _Shapes()
    shapes.chain(layers, (shape, False))
    return tuple(shapes.placed)


def parameters(layers: Sequence[Layer], shape: Shape) -> dict[str, Parameter]:
    return {f"{one.path}.{each.name}": each for one in walk(layers, shape) for each in one.parameters}


def forward_operations(layers: Sequence[Layer], shape: Shape) -> int:
    return sum(one.operations for one in walk(layers, shape))


def training_operations(layers: Sequence[Layer], shape: Shape) -> int:
    """Return the floating-point operations of one sample's forward and backward pass."""
    return forward_operations(layers, shape) + sum(backwards(walk(layers, shape)))


def backwards(placed: Sequence[Placed]) -> tuple[int, ...]:
    """Return the operations of each layer's backward pass. Gradients of weights cost as much as the forward pass,
    and so do those of the input. A layer whose input is the sample needs only the first; an LSTM there also needs
    the gradients of its states."""
    return tuple(
        one.operations + (one.operations if one.follows else one.layer.recurrent_operations(one.shape))
        for one in placed
    )
