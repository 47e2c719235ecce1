"""What the description of a model says: its input, what it learns, and by which recipe."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TypeAlias

from scaling.records.point import Optimizer, Record, Unit
from scaling.workloads import walk
from scaling.workloads.layers import Layer, Shape


class Images(Record, frozen=True, kw_only=True):
    """Float images (channels, height, width)."""

    channels: int
    height: int
    width: int

    @property
    def shape(self) -> Shape:
        """Of one sample."""
        return self.channels, self.height, self.width

    @property
    def size(self) -> int:
        """What --image-size sets."""
        return self.height


class Tokens(Record, frozen=True, kw_only=True):
    """Sequences of `length` numbers below `words`."""

    length: int
    words: int

    @property
    def shape(self) -> Shape:
        """Of one sample."""
        return (self.length,)

    @property
    def size(self) -> int:
        """What --sequence-length sets."""
        return self.length


Input: TypeAlias = Images | Tokens


class Classes(Record, frozen=True, kw_only=True):
    """One of `count`, by cross-entropy of as many logits."""

    count: int


class Binary(Record, frozen=True, kw_only=True):
    """Yes or no, by cross-entropy of one logit's sigmoid."""


class NextToken(Record, frozen=True, kw_only=True):
    """At each place the token that follows, by cross-entropy."""


class MaskedTokens(Record, frozen=True, kw_only=True):
    """The tokens that were hidden, a `share` of all, by cross-entropy; other places have the label IGNORED."""

    share: float = 0.15


Target: TypeAlias = Classes | Binary | NextToken | MaskedTokens
# Label of places that are not learnt, in every framework.
IGNORED = -100


class Recipe(Record, frozen=True, kw_only=True):
    """How a model is trained: the optimiser and its `rate` at the batch `at_batch`; `momentum` of SGD, `decay` of
    weights (L2; decoupled with adamw)."""

    optimizer: Optimizer = "sgd"
    rate: float = 0.01
    at_batch: int = 64
    momentum: float = 0.9
    decay: float = 0.0


class ModelSpec(Record, frozen=True, kw_only=True, dict=True):
    """A model as every framework builds it, of the layers that `network` gives for a size and so many classes.

    A model that writes has its words for classes. `parameters` are the trained ones at the model's own size, as
    `source` publishes them; tests hold the layers to them. `batch_size` is the default per device, by kind of
    device, `unit` what a rate counts. `alike` names the same network in a library, by library: only tests build
    that. `weights` is a file to begin with, "" where they are drawn.
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
        """What it is built of."""
        return self.network(self.input.size, self.outputs)

    @property
    def reads_images(self) -> bool:
        """Whether its samples are images, and not tokens."""
        return isinstance(self.input, Images)

    @property
    def outputs(self) -> int:
        """Classes or words, as the network is told them."""
        if isinstance(self.target, Classes):
            return self.target.count
        assert isinstance(self.input, Tokens)
        return self.input.words

    @cached_property
    def placed(self) -> tuple[walk.Placed, ...]:
        """Its layers with shapes; UsageError where its size is impossible."""
        return walk.walk(self.layers, self.input.shape)
