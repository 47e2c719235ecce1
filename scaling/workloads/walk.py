"""What a network is made of, layer by layer: shapes, parameters and operations. Pure; knows no framework."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from scaling.errors import UsageError
from scaling.workloads.layers import Branches, Chain, Layer, Parameter, Residual, Shape, ShapeError, need


@dataclass(frozen=True)
class Placed:
    """A layer in its place: `path` counts from 0 at each depth (`4.0.1`), `shape` comes in, `output` goes out."""

    path: str
    layer: Layer
    shape: Shape
    output: Shape

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """What it trains."""
        return self.layer.parameters(self.shape)

    @property
    def operations(self) -> int:
        """Floating-point operations of the forward pass of one sample."""
        return self.layer.operations(self.shape)


def walk(layers: Sequence[Layer], shape: Shape) -> tuple[Placed, ...]:
    """Every layer that holds no others, in the order of the forward pass, which is that of the parameters.

    Branches come one after the other, a residual's body before its shortcut. Raises UsageError that names the
    layer which cannot take what comes to it, and both shapes.
    """
    return tuple(_chain(layers, shape, ""))


def parameters(layers: Sequence[Layer], shape: Shape) -> dict[str, Parameter]:
    """All that is trained, by `path.name`, in order."""
    return {f"{one.path}.{each.name}": each for one in walk(layers, shape) for each in one.parameters}


def count(layers: Sequence[Layer], shape: Shape) -> int:
    """The trained parameters."""
    return sum(each.size for each in parameters(layers, shape).values())


def forward_operations(layers: Sequence[Layer], shape: Shape) -> int:
    """Floating-point operations of the forward pass of one sample."""
    return sum(one.operations for one in walk(layers, shape))


def training_operations(layers: Sequence[Layer], shape: Shape) -> int:
    """Floating-point operations of the forward and backward pass of one sample."""
    placed = walk(layers, shape)
    return sum(one.operations + backward for one, backward in zip(placed, backwards(placed), strict=True))


def backwards(placed: Sequence[Placed]) -> tuple[int, ...]:
    """The operations of each layer's backward pass.

    As many as forward for the gradients of its weights, and as many for those of its input, which the first layer
    with weights does not need.
    """
    needed, found = False, []
    for one in placed:
        found.append((1 + needed) * one.operations)
        needed = needed or bool(one.parameters)
    return tuple(found)


_Walk = Generator[Placed, None, Shape]


def _chain(layers: Sequence[Layer], shape: Shape, path: str) -> _Walk:
    for index, layer in enumerate(layers):
        shape = yield from _one(layer, shape, f"{path}{index}")
    return shape


def _one(layer: Layer, shape: Shape, path: str) -> _Walk:
    try:
        match layer:
            case Chain(body):
                return (yield from _chain(body, shape, f"{path}."))
            case Residual():
                return (yield from _residual(layer, shape, path))
            case Branches():
                return (yield from _branches(layer, shape, path))
        output = layer.output(shape)
    except ShapeError as error:
        raise UsageError(f"layer {path}, {type(layer).__name__}: {error}") from None
    yield Placed(path, layer, shape, output)
    return output


def _residual(layer: Residual, shape: Shape, path: str) -> _Walk:
    body = yield from _chain(layer.body, shape, f"{path}.body.")
    shortcut = yield from _chain(layer.shortcut, shape, f"{path}.shortcut.")
    if body != shortcut:
        raise ShapeError(f"cannot add {_text(body)} and {_text(shortcut)}")
    return body


def _branches(layer: Branches, shape: Shape, path: str) -> _Walk:
    outputs = []
    for index, branch in enumerate(layer.branches):
        outputs.append((yield from _chain(branch, shape, f"{path}.{index}.")))
    for each in outputs:
        need(each, 3, "branches of images")
        if each[1:] != outputs[0][1:]:
            raise ShapeError(f"cannot put {_text(each)} beside {_text(outputs[0])}")
    return sum(each[0] for each in outputs), *outputs[0][1:]


def _text(shape: Shape) -> str:
    return " x ".join(map(str, shape))
