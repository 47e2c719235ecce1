"""The description of a model: its input, its target, and its recipe."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TypeAlias

from scaling.records.point import Optimizer, Record, Unit
from scaling.workloads.layers import Layer, Placed, Shape, walk


class Images(Record, frozen=True, kw_only=True):
    """Float images (channels, height, width)."""

    channels: int
    height: int
    width: int

    @property
    def shape(self) -> Shape:
        return self.channels, self.height, self.width

    @property
    def size(self) -> int:
        """Return the value that --image-size sets."""
        return self.height


class Tokens(Record, frozen=True, kw_only=True):
    """Sequences of `length` numbers below `words`."""

    length: int
    words: int

    @property
    def shape(self) -> Shape:
        return (self.length,)

    @property
    def size(self) -> int:
        """Return the value that --sequence-length sets."""
        return self.length


Input: TypeAlias = Images | Tokens


class Classes(Record, frozen=True, kw_only=True):
    """One of `count` classes, by cross-entropy of as many logits."""

    count: int


class Binary(Record, frozen=True, kw_only=True):
    """Yes or no, by cross-entropy of one logit's sigmoid."""


class NextToken(Record, frozen=True, kw_only=True):
    """The next token at each position, by cross-entropy."""


class MaskedTokens(Record, frozen=True, kw_only=True):
    """The hidden tokens, a `share` of all, by cross-entropy. Other positions have the label IGNORED."""

    share: float = 0.15


Target: TypeAlias = Classes | Binary | NextToken | MaskedTokens
# The label of positions that are not learnt, in every framework.
IGNORED = -100


class Recipe(Record, frozen=True, kw_only=True):
    """How a model is trained.

    * rate: learning rate at the batch `at_batch`
    * momentum: of SGD
    * decay: of weights; L2, decoupled with adamw
    """

    optimizer: Optimizer = "sgd"
    rate: float = 0.01
    at_batch: int = 64
    momentum: float = 0.9
    decay: float = 0.0


class ModelSpec(Record, frozen=True, kw_only=True, dict=True):
    """A model as every framework builds it.

    * network: returns the layers for a size and a number of classes, or of words for a language model.
    * parameters: the published number of trained ones at the model's own size; tests compare the layers with it.
    * source: where this number is published.
    * batch_size: the default per device, by kind of device.
    * unit: what a rate counts.
    * alike: by library, its name of the same network, for tests.
    * weights: a file with first weights; "" to draw them.
    """

    name: str
    network: Callable[[int, int], tuple[Layer, ...]]
    input: Input
    target: Target
    parameters: int
    source: str
    batch_size: dict[str, int]
    data: str = "synthetic"
    recipe: Recipe = Recipe()
    unit: Unit = "images"
    alike: dict[str, str] = {}
    weights: str = ""

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        return self.network(self.input.size, self.outputs)

    @property
    def reads_images(self) -> bool:
        return isinstance(self.input, Images)

    @property
    def outputs(self) -> int:
        if isinstance(self.target, Classes):
            return self.target.count
        assert isinstance(self.input, Tokens)
        return self.input.words

    @cached_property
    def placed(self) -> tuple[Placed, ...]:
        """Return its layers with shapes. Raises UsageError if its size is impossible."""
        return walk(self.layers, self.input.shape)
