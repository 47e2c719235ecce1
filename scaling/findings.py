"""What an analysis finds: rows, baselines, comparisons. Fractions are of 1, times in seconds."""

from __future__ import annotations

from scaling.losses import Loss
from scaling.records import BatchRule, Device, Failed, MemoryFormat, Placement, Precision, Record
from scaling.stats import Estimate, is_distinguishable


class Cell(Record, frozen=True):
    """What the records of a row, a baseline or a comparison share."""

    model: str
    data: str
    device: Device
    precision: Precision
    memory_format: MemoryFormat
    compile: bool


class Row(Cell, frozen=True):
    """One exchange at one world size, over its rounds. `batch_size` is per device.

    `rounds` counts those with a result, `rounds_tried` the failed ones too. `images_per_s` is None when
    every round failed (then `failed` says why); `efficiency`, `strategy_efficiency` (against the
    strategy's own single rank) and `loss` are None without a baseline, and when OVERSUBSCRIBED.
    `intra_node` is the efficiency at the largest world size on one node and `inter_node` what crossing
    nodes leaves of it, on rows that cross nodes. `first_loss` and `last_loss` are of the training,
    warm-up included. `flags` are of FAILED, AUDIT, OVERSUBSCRIBED, SUPERLINEAR, UNSETTLED, THROTTLED.
    """

    strategy: str
    interconnect: str
    options: dict[str, str]
    placement: Placement
    batch_rule: BatchRule
    batch_size: int
    global_batch_size: int
    world_size: int
    nodes: int
    rounds: int
    rounds_tried: int
    images_per_s: Estimate | None = None
    speedup: Estimate | None = None
    efficiency: Estimate | None = None
    strategy_efficiency: Estimate | None = None
    intra_node: float | None = None
    inter_node: float | None = None
    loss: Loss | None = None
    first_loss: float | None = None
    last_loss: float | None = None
    flags: tuple[str, ...] = ()
    failed: Failed | None = None
    footnotes: tuple[str, ...] = ()


class Baseline(Cell, frozen=True):
    """The plain loop on one device; `images_per_s` is None when every round failed."""

    strategy: str
    batch_size: int
    images_per_s: Estimate | None
    footnotes: tuple[str, ...] = ()


class Contender(Record, frozen=True):
    """Who is compared."""

    strategy: str
    interconnect: str
    options: dict[str, str]


class Comparison(Cell, frozen=True):
    """The best by mean images/s of a world size against one other.

    `advantage` is best / other - 1, paired by round, with its 99 % interval (stats.paired says why);
    None with fewer than two shared rounds.
    """

    world_size: int
    best: Contender
    other: Contender
    advantage: Estimate | None

    @property
    def distinguishable(self) -> bool:
        """Whether the two differ by more than the rounds do."""
        return self.advantage is not None and is_distinguishable(self.advantage)


class Analysis(Record, frozen=True):
    """All that the records say."""

    rows: tuple[Row, ...]
    baselines: tuple[Baseline, ...]
    comparisons: tuple[Comparison, ...]
