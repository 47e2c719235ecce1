"""The batches that models are trained on, as NumPy arrays. Strategies move them to their device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from scaling.errors import UsageError
from scaling.records.task import Task
from scaling.workloads import data, schedule
from scaling.workloads.data import TRAIN, DataSpec, Split
from scaling.workloads.specs import Classes, Images, Input, ModelSpec, Target, Tokens

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
    from scaling.workloads.feeds.batches import Fixed, Shuffled

    point, workload = task.point, task.point.workload
    known, size, rank = data.spec(workload.data), workload.batch_size, {"seed": task.seed, "rank": task.rank}
    if known.format == "made":
        from scaling.workloads.feeds.batches import synthetic

        return Fixed(synthetic(spec, batch_size=size, **rank))
    found = samples(task, spec, "train")
    fed: Feed = Shuffled(found, batch_size=size, world_size=point.world_size, **rank)
    if (regime := point.regime) and regime.augment_epochs and known.augment is not None:
        from scaling.workloads.feeds.pictures import Augmented

        epochs = regime.epochs - regime.augment_epochs
        first = schedule.steps_before(epochs, samples=len(found), world_size=point.world_size, batch_size=size)
        fed = Augmented(fed, known.augment, first_step=first, **rank)
    return Fixed(fed.batch(0)) if point.kind == "held" else fed


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
    regime, count = task.point.regime, 0
    if regime is not None:
        count = regime.train_samples if split == "train" else regime.test_samples
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
    import numpy as np

    place = data.locate(found, data_dir, splits)
    for split in splits:
        read = _samples(name, data_dir, split, spec.input, spec.target)
        # The first and the last sample show most errors.
        read.take(np.array([0, len(read) - 1]), (0,))
        data.check_part(name, split, parts.get(split, 0), len(read))
    forget()
    return str(place)


def forget() -> None:
    _samples.cache_clear()
    _part.cache_clear()


@lru_cache(maxsize=4)
def _part(name: str, data_dir: str, split: Split, given: Input, target: Target, count: int) -> Samples:
    from scaling.workloads.feeds.batches import Part

    found = _samples(name, data_dir, split, given, target)
    return Part(found, count) if count else found


# All feeds of a process share the samples.
@lru_cache(maxsize=4)
def _samples(name: str, data_dir: str, split: Split, given: Input, target: Target) -> Samples:
    found = data.spec(name)
    if not isinstance(given, Images):
        return _sequences(found, data.locate(found, data_dir, (split,)), split, given, target)
    from scaling.workloads.data import images, records
    from scaling.workloads.feeds.pictures import Digits, Pictures, Pixels

    if found.format == "digits":
        return Digits(given, split)
    place = data.locate(found, data_dir, (split,))
    if found.format in ("idx", "cifar"):
        read = images.read_idx if found.format == "idx" else images.read_cifar
        return Pixels(*read(place, found, split), found, given)
    assert isinstance(target, Classes)
    if found.format != "folders":
        return Pictures(records.records(place, found, split), found, given, target.count)
    tree = images.listing(place, found, split)
    data.check_classes(found.name, len(tree.classes), target.count)
    return Pictures(tree, found, given, target.count)


def _sequences(found: DataSpec, place: Path, split: Split, tokens: Tokens, target: Target) -> Samples:
    from scaling.workloads.data import texts
    from scaling.workloads.feeds.batches import Labelled, Windows

    if found.format == "acl":
        return Labelled(*texts.read_reviews(place, found, split, length=tokens.length, words=tokens.words))
    row, kinds = texts.read_tokens(place, found, split)
    if kinds > tokens.words:
        raise UsageError(f"--data {found.name}: has {kinds} kinds of tokens, the model has {tokens.words} words")
    return Windows(row, tokens, target)
