"""What every device trains at a world size: the batch rule, and a batch that divides by it. Pure.

weak      the batch of a device is fixed (Gustafson, "Reevaluating Amdahl's law", 1988)
strong    the batch over all devices is fixed (Amdahl, 1967)
node      the batch of a node is fixed: strong inside a node, weak from node to node, as a process per node
          that is given a batch has it (MXNet's, and Dell EMC's study of 2016 with it)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.plan.config import SweepConfig
from scaling.plan.placement import Slot, first_slots
from scaling.records.point import Workload
from scaling.workloads import models
from scaling.workloads.specs import Images, ModelSpec, Tokens


def each(config: SweepConfig) -> Iterator[SweepConfig]:
    """The configuration of each batch and each pass of a sweep over these, as if only that were asked for."""
    for size in config.batch_sizes or (config.batch_size,):
        for one in config.pass_:
            yield replace(config, batch_size=size, batch_sizes=None, pass_=(one,))


def workload(config: SweepConfig, size: int, slots: Sequence[Slot]) -> Workload:
    """The work of each device at this world size, of a configuration of one batch and one pass (`each`).

    UsageError where the rule's batch cannot be shared alike.
    """
    assert config.model is not None and config.data is not None
    assert config.precision is not None and config.memory_format is not None
    (pass_,) = config.pass_
    shared_by = _node_devices(config, size, slots) if config.rule == "node" else 1
    model = models.spec(config.model)
    work = Workload(
        model=config.model,
        data=config.data,
        batch_rule=config.rule,
        batch_size=_batch_size(config, size, shared_by),
        precision=config.precision,
        memory_format=config.memory_format,
        compile=config.compile,
        unit=model.unit,
        node_devices=shared_by,
        image_size=image_size(config, model),
        sequence_length=_sequence_length(config, model),
        optimizer=config.optimizer or "",
        pass_=pass_,
        feed=config.feed,
        feed_workers=config.feed_workers or 0,
        drop_caches=config.drop_caches,
    )
    return _checked(work)


def image_size(config: SweepConfig, model: ModelSpec) -> int:
    """What --image-size says, 0 where that is the model's own; UsageError for a model that reads no images."""
    if config.image_size is None:
        return 0
    if not isinstance(model.input, Images):
        raise UsageError(
            f"--image-size {config.image_size}: {model.name} reads tokens; --sequence-length is theirs"
        )
    return 0 if config.image_size == model.input.size else config.image_size


def _sequence_length(config: SweepConfig, model: ModelSpec) -> int:
    """What --sequence-length says or the model's own; 0 for a model that reads no tokens, and has no such flag."""
    if isinstance(model.input, Tokens):
        return config.sequence_length or model.input.length
    if config.sequence_length is not None:
        raise UsageError(
            f"--sequence-length {config.sequence_length}: {model.name} reads images; --image-size is theirs"
        )
    return 0


def _checked(work: Workload) -> Workload:
    """The same, if the network can have its size; UsageError names the flag otherwise."""
    try:
        assert models.of(work).placed
    except UsageError as error:
        size = (
            f"--image-size {work.image_size}" if work.image_size else f"--sequence-length {work.sequence_length}"
        )
        raise UsageError(f"{size}: {work.model}: {error}") from None
    return work


def _batch_size(config: SweepConfig, size: int, shared_by: int) -> int:
    """Samples per device; UsageError where the batch that is shared does not divide."""
    if config.global_batch_size is not None:
        return _part(config.global_batch_size, size, "--global-batch-size", f"world size {size}")
    assert config.batch_size is not None
    devices = f"the {shared_by} devices that a node has at world size {size}"
    return _part(config.batch_size, shared_by, "--batch-size", devices)


def _part(batch_size: int, shared_by: int, flag: str, devices: str) -> int:
    if batch_size % shared_by:
        fits = batch_size // shared_by * shared_by or shared_by
        raise UsageError(f"{flag} {batch_size}: not divisible by {devices}; {fits} would be")
    return batch_size // shared_by


def _node_devices(config: SweepConfig, size: int, slots: Sequence[Slot]) -> int:
    """How many devices of each node take part; UsageError where nodes differ, as their batches would."""
    counts = _by_node(config, size, slots)
    fewest, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
    if counts[fewest] != counts[most]:
        alike = [n for n in range(1, len(slots) + 1) if len(set(_by_node(config, n, slots).values())) == 1]
        raise UsageError(
            f"--world-sizes {size} with --batch-rule node: {counts[most]} devices of {most} and {counts[fewest]} "
            f"of {fewest} cannot share a node's batch alike; {','.join(map(str, alike))} can"
        )
    return counts[most]


def _by_node(config: SweepConfig, size: int, slots: Sequence[Slot]) -> Mapping[str, int]:
    return Counter(slot.host for slot in first_slots(size, config.placement, slots))
