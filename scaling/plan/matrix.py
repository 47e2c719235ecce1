"""The points of one round: strategies x world sizes, each with its controls, options and servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from scaling import frameworks
from scaling.emulated import profiles
from scaling.emulated.profiles import Rate
from scaling.errors import StrategyError, UsageError, near
from scaling.frameworks.base import read_options
from scaling.plan import refusals
from scaling.plan.config import SweepConfig, refuse
from scaling.plan.placement import Slot, first_slots, slots_of, whole_cpu
from scaling.plan.refusals import nodes_of, traits
from scaling.records.messages import Enrol
from scaling.records.network import Network
from scaling.records.point import (
    EXCHANGING,
    WANTED,
    Device,
    Hardware,
    Kind,
    LrScale,
    Point,
    Regime,
    Workload,
)
from scaling.text import counted
from scaling.workloads import data, models, schedule
from scaling.workloads.layers import BatchNorm
from scaling.workloads.specs import Images, ModelSpec, Tokens

# ---------------------------------------------------------------- kinds

USUAL: tuple[Kind, ...] = ("exchange", "solo", "each", "together", "comm")
# These kinds measure the time lost waiting for data: the feed alone, and plain loops on a batch that stays on the
# device.
OF_DATA: tuple[Kind, ...] = ("feed", "held")
OF_SCRIPT: tuple[Kind, ...] = ("exchange", "solo", "each", "together")
# Plain loops on all devices of a point.
ALL_DEVICES: tuple[Kind, ...] = ("each", "together")
# Emulated devices are alike, and one after the other they take long.
OF_EMULATED: tuple[Kind, ...] = tuple(kind for kind in USUAL if kind != "each")


def kinds_of(config: SweepConfig, device: Device, name: str) -> tuple[Kind, ...]:
    """Return the given kinds, else the usual ones, with OF_DATA if the data is decoded from files."""
    if config.kinds is not None:
        return config.kinds
    if device == "emulated":
        return OF_EMULATED
    return (*USUAL, *OF_DATA) if data.spec(name).format in data.DECODED else USUAL


# ---------------------------------------------------------------- batch rules
# weak      the batch of a device is fixed (Gustafson, "Reevaluating Amdahl's law", 1988)
# strong    the batch over all devices is fixed (Amdahl, 1967)
# node      the batch of a node is fixed: strong inside a node, weak between nodes (MXNet)


def each(config: SweepConfig) -> Iterator[SweepConfig]:
    """Yield one configuration for each batch and each pass of a sweep over these."""
    for size in config.batch_sizes or (config.batch_size,):
        for one in config.pass_:
            yield replace(config, batch_size=size, batch_sizes=None, pass_=(one,))


def workload(config: SweepConfig, size: int, slots: Sequence[Slot]) -> Workload:
    """Return the work of each device at this world size, for a configuration of one batch and one pass (`each`).
    Raises UsageError if the batch does not divide."""
    assert config.model is not None and config.data is not None
    assert config.precision is not None and config.memory_format is not None
    (pass_,), model = config.pass_, models.spec(config.model)
    shared_by = _node_devices(config, size, slots) if config.rule == "node" else 1
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
    if config.script:
        assert config.label is not None and config.unit is not None
        return replace(
            work, model=config.label, precision="own", unit=config.unit, script=config.script,
            samples_per_step=config.samples_per_step or 0, in_place=config.in_place,
        )  # fmt: skip
    try:
        _ = models.of(work).placed  # walks through the layers
    except UsageError as error:
        given = f"image-size {work.image_size}" if work.image_size else f"sequence-length {work.sequence_length}"
        raise UsageError(f"--{given}: {work.model}: {error}") from None
    return work


def image_size(config: SweepConfig, model: ModelSpec) -> int:
    """Return --image-size, 0 for the model's own. Raises UsageError for a model that reads no images."""
    if config.image_size is None:
        return 0
    if not isinstance(model.input, Images):
        raise UsageError(f"--image-size {config.image_size}: {model.name} reads tokens; use --sequence-length")
    return 0 if config.image_size == model.input.size else config.image_size


def _sequence_length(config: SweepConfig, model: ModelSpec) -> int:
    if isinstance(model.input, Tokens):
        return config.sequence_length or model.input.length
    if config.sequence_length is not None:
        raise UsageError(
            f"--sequence-length {config.sequence_length}: {model.name} reads images; use --image-size"
        )
    return 0


def _batch_size(config: SweepConfig, size: int, shared_by: int) -> int:
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
    counts = _by_node(config, size, slots)
    fewest, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
    if counts[fewest] != counts[most]:
        alike = [n for n in range(1, len(slots) + 1) if len(set(_by_node(config, n, slots).values())) == 1]
        raise UsageError(
            f"--world-sizes {size} with --batch-rule node: {counts[most]} devices of {most} and {counts[fewest]} "
            f"of {fewest} cannot share a node's batch equally; {','.join(map(str, alike))} can"
        )
    return counts[most]


def _by_node(config: SweepConfig, size: int, slots: Sequence[Slot]) -> Mapping[str, int]:
    return Counter(slot.host for slot in first_slots(size, config.placement, slots))


# ---------------------------------------------------------------- points


def make(config: SweepConfig, device: Device, slots: Sequence[Slot]) -> tuple[Point, ...]:
    """List every point of one round once: strategies of a framework share its controls.
    Raises UsageError for a point that no launch on these slots could run."""
    assert config.strategy is not None and config.world_sizes is not None
    by_cell: dict[str, Point] = {}
    for name in config.strategy:
        for size in config.world_sizes:
            for point in _points(config, device, name, size, slots):
                with suppress(StrategyError):  # reported by `refused`; other points can run
                    refuse(f"--strategy {name}: {reason}" for reason in _refusals(point))
                by_cell.setdefault(point.cell, point)
    return tuple(by_cell.values())


def _refusals(point: Point) -> Iterator[str]:
    """Yield why no launch can run a point. Raises StrategyError for a faulty strategy."""
    if reason := frameworks.load(point.strategy).refuse(point):
        yield reason
    yield from _of_regime(point)
    yield from refusals.of_feed(point)


def _of_regime(point: Point) -> Iterator[str]:
    """Yield why a strategy cannot train a point to an accuracy."""
    regime, work, name = point.regime, point.workload, point.strategy
    if regime is None:
        return
    skills = traits(name).accuracy
    if "evaluate" not in skills:
        able = [one for one in frameworks.NAMES if "evaluate" in traits(one).accuracy]
        yield f"--epochs {regime.epochs}: {name} cannot evaluate its model; {', '.join(able)} can"
    if schedule.varies(regime) and "rate" not in skills:
        flag = "--warmup-epochs" if regime.warmup_epochs else "--lr-steps"
        yield f"{flag}: {name} has a constant learning rate; leave it out"
    if 0 < regime.train_samples < point.global_batch_size:
        step = f"one step of {point.global_batch_size} samples on {counted(point.world_size, 'device')}"
        yield f"--train-samples {regime.train_samples}: fewer than {step}; use more, or a smaller --batch-size"
    if not any(isinstance(placed.layer, BatchNorm) for placed in models.of(work).placed):
        return
    if point.world_size > 1 and "statistics" not in skills:
        averages = f"has batch norm, whose statistics {name} cannot average over ranks"
        yield f"--epochs {regime.epochs}: {work.model} {averages}; choose another model or strategy"
    if work.batch_size < 2:
        yield f"--batch-size {work.batch_size}: batch norm needs 2 samples per device to learn from"


def _points(config: SweepConfig, device: Device, name: str, size: int, slots: Sequence[Slot]) -> Iterator[Point]:
    plain = frameworks.load(name).baseline
    own, shared = _options(config, name), _options(config, plain)
    # A plain loop whose passes or batches are measured is its own baseline.
    is_alone = name == plain and (config.has_passes or config.batch_sizes is not None)
    for one in each(config):
        work, point = workload(one, size, slots), partial(_point, one, device)
        exchange = point(name, "exchange", size, work, own)
        exchanges = [exchange] if config.epochs is None else [*_trainings(config, exchange)]
        if size > 1 and not is_alone and config.epochs is None and "comm" in (config.kinds or ()):
            exchanges.append(point(name, "comm", size, work, own))
        for of in exchanges:
            for word in config.interconnect:
                yield _with_servers(replace(of, interconnect=word), config, slots)
        if not is_alone and config.epochs is None:
            for kind, of_size, of_work in _controls(config, size, work):
                yield point(plain, kind, of_size, of_work, shared)
        if config.baseline_device is not None:
            # On a whole CPU, at the batch of one GPU, in fp32 and the framework's own memory format, as is usual.
            first = whole_cpu(first_slots(1, config.placement, slots)[0], slots)
            of_cpu = replace(work.reference(size), precision="fp32", memory_format="contiguous")
            hardware = Hardware(device="cpu", cores=first.threads)
            yield replace(point(plain, "solo", 1, of_cpu, shared), hardware=hardware)


def _controls(config: SweepConfig, size: int, work: Workload) -> Iterator[tuple[Kind, int, Workload]]:
    """Yield the control runs of an exchange: the kind, the world size and the work of each."""
    wanted, part = config.kinds or (), replace(work, node_devices=1)
    if "solo" in wanted:
        # If a rule divides the batch, efficiency is against the whole batch on one device. The part alone shows
        # what smaller batches cost.
        yield "solo", 1, work.reference(size)
        yield "solo", 1, part
    for kind in (kind for kind in ALL_DEVICES if kind in wanted and size > 1):
        yield kind, size, work
    for kind in (kind for kind in OF_DATA if kind in wanted):
        yield kind, 1, part
        if size > 1:
            yield kind, size, work


def _trainings(config: SweepConfig, point: Point) -> Iterator[Point]:
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
    update_samples = point.global_batch_size if traits(point.strategy).synchronous else point.workload.batch_size
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


def _point(
    config: SweepConfig, device: Device, name: str, kind: Kind, size: int, work: Workload, options: dict[str, str]
) -> Point:
    profile = profiles.name_of(config.device)
    if profile:
        emulated_rate(profile, work)
    return Point(
        strategy=name,
        kind=kind,
        world_size=size,
        round=0,
        workload=work,
        hardware=Hardware(
            device=device, profile=profile, shrink=config.shrink or 1.0, dilate=config.dilate or 1.0
        ),
        placement=config.placement,
        options=options,
    )


def emulated_rate(profile: str, work: Workload) -> Rate:
    """Return the rate of an emulated device at this work. Raises UsageError if none is published or fitted."""
    return profiles.rate(profile, work.model, work.batch_size, work.image_size)


def _options(config: SweepConfig, name: str) -> dict[str, str]:
    """Return the options of a strategy (`--option [STRATEGY.]key=value`).
    A key without a strategy applies to each strategy that knows it. Raises UsageError for a key that none
    knows."""
    strategy = frameworks.load(name)
    own: dict[str, str] = {}
    for text in config.option:
        whole, equals, value = text.partition("=")
        target, _, key = whole.rpartition(".")
        target = frameworks.ALIASES.get(target, target)
        if not equals or not key:
            raise UsageError(f"--option {text}: write key=value or STRATEGY.key=value")
        if target and target not in (*(config.strategy or ()), strategy.baseline):
            raise UsageError(f"--option {text}: {target} is not measured; {near(target, config.strategy or ())}")
        is_known = any(key in frameworks.load(one).options for one in config.strategy or ())
        if target == name if target else key in strategy.options or not is_known:
            own[key] = value
    try:
        read_options(strategy.options, own)
    except UsageError as error:
        raise UsageError(f"{error} (of {name})") from None
    return own


# ---------------------------------------------------------------- nodes and servers


def refused(
    points: Sequence[Point],
    slots: Sequence[Slot],
    on_network: Callable[[Point], tuple[str, str] | None] = lambda _: None,
) -> dict[str, str]:
    """Return by cell why a point cannot run on its nodes or network. Raises UsageError if no exchange can."""
    found = {point.cell: next(refusals.on_nodes(point, slots), None) or on_network(point) for point in points}
    reasons = {cell: one for cell, one in found.items() if one is not None}
    if not any(point.kind in WANTED and point.cell not in reasons for point in points):
        first = next(point for point in points if point.cell in reasons)
        why, mend = reasons[first.cell]
        raise UsageError(f"--strategy {first.strategy} at n{first.world_size}: {why}; {mend}")
    return {cell: why for cell, (why, _) in reasons.items()}


def kept(points: Iterable[Point], reasons: Mapping[str, str]) -> list[Point]:
    """Drop controls that cannot run. Exchanges that cannot run stay, with their reason."""
    return [point for point in points if point.kind in WANTED or point.cell not in reasons]


def _with_servers(point: Point, config: SweepConfig, slots: Sequence[Slot]) -> Point:
    if not traits(point.strategy).servers:
        return point
    count = nodes_of(point, slots) if config.servers == "per-node" else config.servers
    return replace(point, servers=count, server_hosts=config.server_hosts)


# ---------------------------------------------------------------- addresses of names
# Check strategies whose ranks listen at the address of the host's name, whatever network is chosen.


def name_refusal(
    point: Point, slots: Sequence[Slot], enrolled: Sequence[Enrol], networks: Iterable[Network]
) -> tuple[str, str] | None:
    """Return why a point would not be measured on its network, and the fix; None if it would."""
    network = next((one for one in networks if one.word == point.interconnect), None)
    if network is None or point.kind not in EXCHANGING:
        return None
    told = {one.host.hostname: one.name_addresses.get(point.strategy) for one in enrolled}
    hosts = dict.fromkeys(slot.host for slot in slots_of(point, slots))
    obeying = frameworks.load(point.strategy).obeying
    return name_fault({host: told[host] for host in hosts}, network, point.hardware.device, obeying)


def name_fault(
    addresses: Mapping[str, str | None], network: Network, device: Device, obeying: str
) -> tuple[str, str] | None:
    """Return what is wrong with the addresses of these hosts' names, and the fix (with `obeying`), or None.
    One host reaches itself at any address; NCCL (GPUs) needs any address that others reach."""
    if len(addresses) < 2:
        return None
    for host, address in addresses.items():
        wanted = network.places[host].address
        is_own = (address or "127.").startswith(("127.", "::1"))
        if address not in (None, wanted) and (is_own or device != "cuda"):
            why = f"it listens at the address of the host's name: {host} is {address}, on {network.word} {wanted}"
            ways = ["take the network of that address", f"write `{wanted} {host}` into /etc/hosts there"]
            return why, f"{', '.join(ways)}, or {obeying}" if obeying else " or ".join(ways)
    return None
