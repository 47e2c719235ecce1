"""Trainings to an accuracy (`--epochs`): checks, and their points.

One point for each strategy, world size, batch, learning-rate rule and seed. Each is measured alone and once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from scaling import frameworks
from scaling.errors import UsageError
from scaling.frameworks.base import Traits
from scaling.records.point import Device, LrScale, Point, Regime, Workload
from scaling.text import counted
from scaling.workloads import data, models, schedule
from scaling.workloads.data import Split
from scaling.workloads.layers import BatchNorm
from scaling.workloads.specs import Binary, Classes, ModelSpec

if TYPE_CHECKING:
    from scaling.plan.config import SweepConfig


def check(config: SweepConfig, device: Device, model: ModelSpec, feed: str) -> None:
    """Raise UsageError if the device, model or data of a training has no accuracy."""
    if config.epochs is None:
        return
    if device == "emulated":
        raise UsageError(f"--epochs {config.epochs}: emulated devices learn nothing; use --device cpu or cuda")
    if not isinstance(model.target, Classes | Binary):
        named = [one.name for one in models.CATALOGUE.values() if isinstance(one.target, Classes | Binary)]
        raise UsageError(
            f"--epochs {config.epochs}: --model {model.name} learns tokens and has no top-1; those that have: "
            f"{', '.join(named)}"
        )
    if data.spec(feed).format == "made":
        raise UsageError(f"--epochs {config.epochs}: --data {feed} is noise, which has nothing to learn")
    if config.augment_epochs and not data.spec(feed).augments:
        raise UsageError(f"--augment-epochs {config.augment_epochs}: --data {feed} has no augmentation")
    for split, count in parts(config).items():
        data.check_part(feed, split, count, data.spec(feed).splits.get(split))


def parts(config: SweepConfig) -> dict[Split, int]:
    """Return the sample limit of each split that has one."""
    asked: dict[Split, int | None] = {"train": config.train_samples, "test": config.test_samples}
    return {split: count for split, count in asked.items() if count is not None}


def points(config: SweepConfig, point: Point) -> Iterator[Point]:
    """Make the trainings of an exchange, one for each rule and seed."""
    for rule in config.lr_scale or (schedule.RULES[models.of(point.workload).recipe.optimizer],):
        for seed in config.seeds or (config.seed,):
            yield replace(point, kind="train", regime=_regime(config, point, rule, seed))


def _regime(config: SweepConfig, point: Point, rule: LrScale, seed: int) -> Regime:
    """A given rate is for the batch of one device, the recipe's rate for the recipe's batch."""
    assert config.epochs is not None
    recipe = models.of(point.workload).recipe
    base_rate = recipe.rate if config.lr is None else config.lr
    base_batch = recipe.at_batch if config.lr is None else point.reference.batch_size
    update_samples = point.global_batch_size if _traits(point).synchronous else point.workload.batch_size
    times = update_samples / base_batch
    return Regime(
        epochs=config.epochs,
        seed=seed,
        rate=schedule.scaled(base_rate, rule, times),
        base_rate=base_rate,
        base_batch=base_batch,
        optimizer=recipe.optimizer,
        lr_scale=rule if times != 1 else "none",
        warmup_epochs=config.warmup_epochs or 0,
        lr_steps=config.lr_steps or (),
        augment_epochs=config.augment_epochs or 0,
        # 98.4 / 100 is slightly more than 0.984.
        target_top1=None if config.target_top1 is None else round(config.target_top1 / 100, 12),
        weights=str(Path(config.weights).expanduser().absolute()) if config.weights else "",
        train_samples=config.train_samples or 0,
        test_samples=config.test_samples or 0,
    )


def refusal(point: Point) -> str | None:
    """Return why a strategy cannot train this point to an accuracy, naming the flag; None if it can."""
    regime = point.regime
    if regime is None:
        return None
    skills, name = _traits(point).accuracy, point.strategy
    if "evaluate" not in skills:
        able = [one for one in frameworks.NAMES if "evaluate" in frameworks.load(one).traits(one).accuracy]
        return f"--epochs {regime.epochs}: {name} cannot evaluate its model; {', '.join(able)} can"
    if schedule.varies(regime) and "rate" not in skills:
        flag = "--warmup-epochs" if regime.warmup_epochs else "--lr-steps"
        return f"{flag}: {name} has a constant learning rate; leave it out"
    if 0 < regime.train_samples < point.global_batch_size:
        return (
            f"--train-samples {regime.train_samples}: fewer than one step of {point.global_batch_size} samples "
            f"on {counted(point.world_size, 'device')}; use more, or a smaller --batch-size"
        )
    if not _has_batch_norm(point.workload):
        return None
    if point.world_size > 1 and "statistics" not in skills:
        return (
            f"--epochs {regime.epochs}: {point.workload.model} has batch norm, whose statistics {name} cannot "
            "average over ranks; choose another model or strategy"
        )
    if point.workload.batch_size < 2:
        return f"--batch-size {point.workload.batch_size}: batch norm needs 2 samples per device to learn from"
    return None


def _has_batch_norm(work: Workload) -> bool:
    return any(isinstance(placed.layer, BatchNorm) for placed in models.of(work).placed)


def _traits(point: Point) -> Traits:
    return frameworks.load(point.strategy).traits(point.strategy)


def check_saving(config: SweepConfig, cells: Sequence[Point]) -> None:
    """Raise UsageError if several trainings would write the same file of weights."""
    trained = [cell for cell in cells if cell.regime]
    if config.save_weights is None or len(trained) < 2:
        return
    what: dict[str, Sequence[object] | None] = {
        "--strategy": config.strategy,
        "--world-sizes": config.world_sizes,
        "--batch-sizes": config.batch_sizes,
        "--lr-scale": config.lr_scale,
        "--seeds": config.seeds,
        "--interconnect": config.interconnect,
    }
    counts = {flag: len(set(values or ())) for flag, values in what.items()}
    several = ", ".join(f"{count} of {flag}" for flag, count in counts.items() if count > 1)
    raise UsageError(
        f"--save-weights {config.save_weights}: {len(trained)} trainings would write it ({several}); ask for one"
    )
