"""What trainings to an accuracy have come to, and with it all that an analysis finds. Times in seconds."""

from __future__ import annotations

from scaling.analysis.rows import Baseline, Comparison, Contender, Minibatch, OverCpu, Resolution, Row
from scaling.records.events import Failed
from scaling.records.point import Hardware, Record, Regime, Workload


class Training(Record, frozen=True, kw_only=True):
    """A training to an accuracy, its seeds in one row: the regime's own seed says nothing.

    `update_samples` are those behind one update: of all ranks, or of one where these do not wait for each other.
    `top1` is by epoch, mean over the seeds that came to it, and `top1_by_seed` is in the order of `seeds`, which
    ended well; of `held_out` samples each. `data_samples` are all that the data has by split, {} where unknown.
    `train_s`, `evaluate_s` and `target_s` are seconds, means over seeds; `target_s` over those, `reached`, whose
    top-1 came to the target. `confusion` counts after the last epoch, a
    row for each class and a column for what its samples were taken for, over all seeds; () with too many classes.
    `less_than_samples`: the smallest update of the same task that this one has learnt less than, None where chance
    may explain it.
    """

    contender: Contender
    workload: Workload
    hardware: Hardware
    world_size: int
    regime: Regime
    synchronous: bool
    update_samples: int
    flags: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    held_out: int = 0
    data_samples: dict[str, int] = {}
    top1: tuple[float, ...] = ()
    top1_by_seed: tuple[tuple[float, ...], ...] = ()
    train_s: float | None = None
    evaluate_s: float | None = None
    target_s: float | None = None
    reached: int = 0
    samples_per_s: float | None = None
    confusion: tuple[tuple[int, ...], ...] = ()
    less_than_samples: int | None = None
    failed: Failed | None = None
    warnings: tuple[str, ...] = ()


class Analysis(Record, frozen=True, kw_only=True):
    """All that the records say."""

    rows: tuple[Row, ...]
    baselines: tuple[Baseline, ...]
    comparisons: tuple[Comparison, ...]
    resolutions: tuple[Resolution, ...] = ()
    minibatches: tuple[Minibatch, ...] = ()
    over_cpu: tuple[OverCpu, ...] = ()
    trainings: tuple[Training, ...] = ()
