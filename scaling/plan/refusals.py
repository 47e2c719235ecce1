"""Why this launch cannot run a configuration or a point. Each text names the flag and the fix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scaling import frameworks
from scaling.errors import StrategyError
from scaling.frameworks.base import Traits
from scaling.plan.config import SweepConfig
from scaling.plan.placement import Slot, slots_of
from scaling.records.point import EXCHANGING, Device, Point
from scaling.workloads import data, models
from scaling.workloads.data import Split
from scaling.workloads.specs import Binary, Classes

# ---------------------------------------------------------------- configurations


def of_config(config: SweepConfig, device: Device, slots: Sequence[Slot]) -> Iterator[str]:
    """Yield why devices of this kind cannot run a configuration whose strategies, model and data are filled in."""
    names = config.strategy or ()
    yield from _of_baseline_device(config, device, names)
    yield from _of_passes(config, names)
    yield from _of_servers(config, slots, names)
    yield from _of_data(config, device)


def traits(name: str) -> Traits:
    """Return the traits of a strategy."""
    return frameworks.load(name).traits(name)


def parts(config: SweepConfig) -> dict[Split, int]:
    """Return the sample limit of each split that has one."""
    asked: dict[Split, int | None] = {"train": config.train_samples, "test": config.test_samples}
    return {split: count for split, count in asked.items() if count is not None}


def _of_baseline_device(config: SweepConfig, device: Device, names: Sequence[str]) -> Iterator[str]:
    given = f"--baseline-device {config.baseline_device}"
    if config.baseline_device is None:
        return
    if device != "cuda":
        yield f"{given}: is compared with GPUs, and this launch measures on {device}; leave it out"
    for plain in (frameworks.load(name).baseline for name in names):
        if "cpu" not in frameworks.load(plain).devices(plain):
            yield f"{given}: {plain} does not run on cpu; leave it out"


def _of_passes(config: SweepConfig, names: Sequence[str]) -> Iterator[str]:
    """Forward and backward pass exchange nothing: the plain loop on one device measures them."""
    for name in names if config.has_passes else ():
        given, plain = f"--pass {','.join(config.pass_)}", frameworks.load(name).baseline
        if name != plain:
            yield f"{given}: {name} exchanges gradients, and passes do not; use --strategy {plain}"
        if lacking := [one for one in config.pass_ if one not in traits(name).passes]:
            yield f"{given}: {name} has no {lacking[0]} pass alone, only whole steps"


def _of_servers(config: SweepConfig, slots: Sequence[Slot], names: Sequence[str]) -> Iterator[str]:
    servers, is_dedicated = config.servers, config.server_hosts == "dedicated"
    if not any(traits(name).servers for name in names):
        for flag, given in (("--servers", servers != "per-node"), ("--server-hosts", is_dedicated)):
            if given:
                yield f"{flag}: none of {', '.join(names)} has parameter servers"
    hosts = len({slot.host for slot in slots})
    if is_dedicated and hosts < 2:
        yield "--server-hosts dedicated: this launch has one host; servers can only share it"
    if is_dedicated and servers != "per-node" and servers >= hosts:
        kept = f"of {hosts} hosts at most {hosts - 1} can be kept for servers"
        yield f"--servers {servers} --server-hosts dedicated: {kept}"


def _of_data(config: SweepConfig, device: Device) -> Iterator[str]:
    assert config.data is not None
    name, spec, is_emulated = config.data, data.spec(config.data), device == "emulated"
    for kind in (one for one in ("feed", "held") if one in (config.kinds or ())):
        if is_emulated:
            yield f"--kinds {kind}: emulated devices read no data; leave it out"
        if spec.format == "made":
            stays = "is one batch that stays on the device, so no step waits for data"
            yield f"--kinds {kind}: {name} {stays}; leave it out, or choose --data that is read"
    if config.epochs is not None:
        yield from _of_training(config, config.epochs, device)
    is_native = config.feed == "native"
    if config.feed_workers is not None and not is_native:
        yield f"--feed-workers {config.feed_workers}: only for the native feed; add --feed native"
    for flag in (
        flag for flag, given in (("--drop-caches", config.drop_caches), ("--feed native", is_native)) if given
    ):
        if is_emulated:
            yield f"{flag}: emulated devices read no data; leave it out"
        if spec.format not in data.DECODED:
            files = ", ".join(one.name for one in data.CATALOGUE.values() if one.format in data.DECODED)
            other = f"leave it out, or choose --data that is decoded from files: {files}"
            yield f"{flag}: --data {name} is held in memory; {other}"
    if config.drop_caches and config.interleave:
        yield (
            "--interleave: points that take turns read the same pictures, and the second finds them in the page "
            "cache; leave it out with --drop-caches"
        )
    if is_native and config.epochs is not None:
        yield "--feed native: --epochs trains on the reference feed, whose epochs are exact; leave it out"


def _of_training(config: SweepConfig, epochs: int, device: Device) -> Iterator[str]:
    """Yield why a training has no accuracy. Raises UsageError for more samples than its data has."""
    assert config.model is not None and config.data is not None
    model, spec = models.spec(config.model), data.spec(config.data)
    if device == "emulated":
        yield f"--epochs {epochs}: emulated devices learn nothing; use --device cpu or cuda"
    if not isinstance(model.target, Classes | Binary):
        named = [one.name for one in models.CATALOGUE.values() if isinstance(one.target, Classes | Binary)]
        no_top1 = f"--model {model.name} learns tokens and has no top-1"
        yield f"--epochs {epochs}: {no_top1}; those that have: {', '.join(named)}"
    if spec.format == "made":
        yield f"--epochs {epochs}: --data {config.data} is noise, which has nothing to learn"
    if config.augment_epochs and not spec.augments:
        yield f"--augment-epochs {config.augment_epochs}: --data {config.data} has no augmentation"
    for split, count in parts(config).items():
        data.check_part(config.data, split, count, spec.splits.get(split))


# ---------------------------------------------------------------- points


def of_feed(point: Point) -> Iterator[str]:
    """Yield why the framework of a point cannot feed it."""
    work, strategy = point.workload, frameworks.load(point.strategy)
    if work.drop_caches and traits(point.strategy).drives == "point":
        yield "--drop-caches: its helpers compute, and hold their samples in memory; leave it out"
    if work.feed != "native":
        return
    if not strategy.native_formats:
        yield "--feed native: its framework has no own pipeline; leave it out"
    if data.spec(work.data).format not in strategy.native_formats:
        names = ", ".join(one.name for one in data.CATALOGUE.values() if one.format in strategy.native_formats)
        hint = f", {strategy.native_hint}" if strategy.native_hint else ""
        reads = f"its own pipeline does not read --data {work.data}"
        yield f"--feed native: {reads}; leave it out, or take {names}{hint}"


def on_nodes(point: Point, slots: Sequence[Slot]) -> Iterator[tuple[str, str]]:
    """Yield why a point cannot run on its nodes, with the fix."""
    try:
        frameworks.load(point.strategy).refuse(point)
    except StrategyError as error:
        yield str(error), "mend its file"
    own, ranks, nodes = traits(point.strategy), slots_of(point, slots), nodes_of(point, slots)
    is_on_gpus = point.hardware.device == "cuda"
    if own.drives == "node" and nodes > 1:
        why = f"one process drives the devices of one node, {point.world_size} devices are on {nodes} nodes"
        yield why, "choose smaller --world-sizes"
    if own.drives == "node" and is_on_gpus and (why := _unseen(ranks)):
        yield why, "let every rank see all GPUs of its node (Slurm: --gpu-bind=none and no --gpus-per-task)"
    exchanges = point.kind in EXCHANGING and point.world_size > 1
    if own.nccl and is_on_gpus and exchanges and (why := _sliced(ranks)):
        yield why, "take one slice of each GPU, or a strategy without NCCL"


def nodes_of(point: Point, slots: Sequence[Slot]) -> int:
    """Return the number of nodes that a point uses."""
    return len({slot.host for slot in slots_of(point, slots)})


def _unseen(ranks: Sequence[Slot]) -> str:
    """Return why rank 0's process cannot drive the GPUs of all ranks of its node; "" if it can."""
    first = ranks[0]
    if len(ranks) > 1 and first.shown_gpu:
        return f"one process drives the devices of one node, and sees one slice of a GPU only ({first.host})"
    if all(rank.visible_gpus == first.visible_gpus for rank in ranks):
        return ""
    seen = len({rank.gpu for rank in ranks} & set(first.visible_gpus))
    return (
        f"one process drives the devices of one node, and rank {first.launch_rank} on {first.host} sees {seen} of "
        f"the {len(ranks)} GPUs, or in another order"
    )


def _sliced(ranks: Sequence[Slot]) -> str:
    """Return which two ranks are on slices of one GPU, which NCCL refuses
    (https://github.com/NVIDIA/nccl/issues/1716)."""
    owner: dict[tuple[str, str], Slot] = {}
    for rank in ranks:
        other = owner.setdefault((rank.host, rank.whole_gpu), rank)
        if other is not rank and rank.whole_gpu:
            on = f"ranks {other.launch_rank} and {rank.launch_rank} on {rank.host}"
            return f"{on} are on slices of one GPU ({rank.whole_gpu}), which NCCL takes for one device"
    return ""
