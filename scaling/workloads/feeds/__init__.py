"""The batches that models are trained on, as NumPy arrays. Strategies move them to their device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from scaling.records.point import Regime
from scaling.records.task import Task
from scaling.workloads import data, schedule
from scaling.workloads.data import TRAIN, DataSpec, Split
from scaling.workloads.specs import Classes, Images, Input, MaskedTokens, ModelSpec, Target, Tokens

if TYPE_CHECKING:
    # Imported with the feeds themselves: agents import this module without NumPy.
    from scaling.workloads.feeds.batches import Batch, Sampler, Samples
    from scaling.workloads.feeds.pictures import Pictures


class Feed(Protocol):
    """One rank's batches: a pure function of seed, rank, world size and step, the same for all frameworks. With
    `fixed`, all steps have one batch, which goes to the device once."""

    fixed: bool

    def batch(self, step: int) -> Batch:
        """Return the batch of step 0, 1, ...

        * inputs: normalised float32 images (batch, channels, height, width), or int64 tokens (batch, length)
        * labels: int64 (batch,), or (batch, length) if each token has one
        """


def feed(task: Task, spec: ModelSpec) -> Feed:
    """Return one rank's feed: its shard of the training data. For kind `held` it repeats the first batch."""
    from scaling.workloads.feeds.batches import Fixed

    found = _feed(task, spec)
    return Fixed(found.batch(0)) if task.point.kind == "held" else found


def _feed(task: Task, spec: ModelSpec) -> Feed:
    from scaling.workloads.feeds.batches import Fixed, Shuffled

    workload = task.point.workload
    if data.spec(workload.data).format == "made":
        from scaling.workloads.feeds import synthetic

        return Fixed(synthetic.batch(spec, batch_size=workload.batch_size, seed=task.seed, rank=task.rank))
    found = samples(task, spec, "train")
    shuffled = Shuffled(
        found,
        batch_size=workload.batch_size,
        seed=task.seed,
        rank=task.rank,
        world_size=task.point.world_size,
    )
    return _augmented(shuffled, task, len(found))


def _augmented(shuffled: Feed, task: Task, count: int) -> Feed:
    regime, augment = task.point.regime, data.spec(task.point.workload.data).augment
    if regime is None or augment is None or not regime.augment_epochs:
        return shuffled
    from scaling.workloads.feeds.augmented import Augmented

    first = schedule.steps_before(
        regime.epochs - regime.augment_epochs,
        samples=count,
        world_size=task.point.world_size,
        batch_size=task.point.workload.batch_size,
    )
    return Augmented(shuffled, augment, first_step=first, seed=task.seed, rank=task.rank)


def shard(task: Task, spec: ModelSpec, split: Split = "test", *, ranks: int | None = None) -> Iterator[Batch]:
    """Yield one rank's shard of a split in batches, each sample once. Shards of all ranks (`ranks`, by default one
    per device of the point) are disjoint and complete. The last batch may be smaller, and there may be none.
    Raises UsageError if the data has no such split."""
    from scaling.workloads.feeds.batches import once

    found = samples(task, spec, split)
    batch_size, world_size = task.point.workload.batch_size, ranks or task.point.world_size
    for indices in once(len(found), batch_size=batch_size, rank=task.rank, world_size=world_size):
        # Random choices are the same in each evaluation.
        yield found.take(indices, (0, *map(int, indices[:1])))


def samples(task: Task, spec: ModelSpec, split: Split) -> Samples:
    """Return the samples of a split over all ranks: `len()` of them, or the part that the point asks for, are an
    epoch. Raises UsageError if they are missing, or for generated data, which has no end."""
    count = part_of(task.point.regime, split)
    return _part(task.point.workload.data, task.data_dir, split, spec.input, spec.target, count)


def encoded_pictures(task: Task, spec: ModelSpec) -> Pictures:
    from scaling.workloads.feeds.pictures import Pictures

    found = _samples(task.point.workload.data, task.data_dir, "train", spec.input, spec.target)
    assert isinstance(found, Pictures)
    return found


def sampler_of(task: Task, count: int) -> Sampler:
    from scaling.workloads.feeds.batches import Sampler

    size = task.point.workload.batch_size
    return Sampler(count, batch_size=size, seed=task.seed, rank=task.rank, world_size=task.point.world_size)


def whole(task: Task, spec: ModelSpec, split: Split) -> int:
    """Return how many samples a split has, whatever part is taken. Raises as `samples` does."""
    return len(_samples(task.point.workload.data, task.data_dir, split, spec.input, spec.target))


def part_of(regime: Regime | None, split: Split) -> int:
    """Return how many samples of a split are requested; 0 for all."""
    if regime is None:
        return 0
    return regime.train_samples if split == "train" else regime.test_samples


def check(
    name: str,
    data_dir: str,
    spec: ModelSpec,
    splits: Sequence[Split] = TRAIN,
    parts: Mapping[Split, int] = MappingProxyType({}),
) -> str:
    """Open and check the data. Return its place on this host, "" for data without files. The files must be as
    published, fit the model, and have the requested `parts`. Raises UsageError with the flag or the file."""
    found = data.fits(name, spec)
    if not found.is_read:
        return ""
    place = data.locate(found, data_dir, splits)
    for split in splits:
        found_of = _samples(name, data_dir, split, spec.input, spec.target)
        _look_at(found_of)
        data.check_part(name, split, parts.get(split, 0), len(found_of))
    forget()
    return str(place)


def _look_at(found: Samples) -> None:
    """Take the first and the last sample, which shows most errors."""
    import numpy as np

    found.take(np.array([0, len(found) - 1]), (0,))


def forget() -> None:
    _samples.cache_clear()
    _part.cache_clear()


@lru_cache(maxsize=4)
def _part(name: str, data_dir: str, split: Split, given: Input, target: Target, count: int) -> Samples:
    from scaling.workloads.feeds import batches

    found = _samples(name, data_dir, split, given, target)
    return batches.Part(found, count) if count else found


# All feeds of a process share the samples.
@lru_cache(maxsize=4)
def _samples(name: str, data_dir: str, split: Split, given: Input, target: Target) -> Samples:
    found = data.spec(name)
    if found.format == "digits":
        from scaling.workloads.feeds.digits import Digits

        assert isinstance(given, Images)
        return Digits(given, split)
    place = data.locate(found, data_dir, (split,))
    if isinstance(given, Images):
        assert isinstance(target, Classes)
        if found.format in ("folders", "tfrecord", "recordio"):
            return _pictures(found, place, split, given, target.count)
        return _images(found, place, split, given)
    return _sequences(found, place, split, given, target)


def _images(found: DataSpec, place: Path, split: Split, images: Images) -> Samples:
    from scaling.workloads.data.images import read_cifar, read_idx
    from scaling.workloads.feeds.pixels import Pixels

    read = read_idx if found.format == "idx" else read_cifar
    pixels, labels = read(place, found, split)
    return Pixels(pixels, labels, images, mean=found.mean, deviation=found.deviation)


def _pictures(found: DataSpec, place: Path, split: Split, images: Images, classes: int) -> Samples:
    from scaling.workloads.data import folders, recordio, tfrecord
    from scaling.workloads.feeds.pictures import Pictures

    if found.format == "folders":
        tree = folders.listing(place, found, split)
        data.check_classes(found.name, len(tree.classes), classes)
        return Pictures(tree, found, images, classes)
    read = tfrecord.records if found.format == "tfrecord" else recordio.records
    return Pictures(read(place, found, split), found, images, classes)


def _sequences(found: DataSpec, place: Path, split: Split, tokens: Tokens, target: Target) -> Samples:
    from scaling.workloads.data import texts
    from scaling.workloads.feeds import sequences

    if found.format == "acl":
        return sequences.Labelled(
            *texts.read_reviews(place, found, split, length=tokens.length, words=tokens.words)
        )
    row, kinds = texts.read_tokens(place, found, split)
    sequences.check_kinds(kinds, found.name, tokens)
    if isinstance(target, MaskedTokens):
        return sequences.Masked(row, tokens, target.share)
    if isinstance(target, Classes):
        return sequences.NextToken(row, tokens, stride=sequences.STRIDE)
    return sequences.NextTokens(row, tokens)
