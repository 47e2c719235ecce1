"""The points of one round: strategies x world sizes, each with its controls, options and servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from scaling import frameworks
from scaling.emulated import profiles
from scaling.emulated.profiles import Rate
from scaling.errors import StrategyError, UsageError, near
from scaling.frameworks.base import Traits, read_options
from scaling.plan import training
from scaling.plan.config import SweepConfig
from scaling.plan.placement import Slot, first_slots, slots_of, whole_cpu
from scaling.records.messages import Enrol
from scaling.records.network import Network
from scaling.records.point import EXCHANGING, WANTED, Device, Hardware, Kind, Placement, Point, Workload
from scaling.workloads import data, models
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
    """Return the given kinds, else the usual ones, with OF_DATA if the data is decoded from files.
    Raises UsageError if `feed` or `held` is given for data that is not read."""
    given, found = config.kinds, data.spec(name)
    if given is None:
        if device == "emulated":
            return OF_EMULATED
        return (*USUAL, *OF_DATA) if found.format in data.DECODED else USUAL
    for kind in (kind for kind in OF_DATA if kind in given):
        if device == "emulated":
            raise UsageError(f"--kinds {kind}: emulated devices read no data; leave it out")
        if found.format == "made":
            raise UsageError(
                f"--kinds {kind}: {name} is one batch that stays on the device, so no step waits for data; leave "
                "it out, or choose --data that is read"
            )
    return given


# ---------------------------------------------------------------- feed


def check_feed(config: SweepConfig, device: Device, name: str) -> None:
    """Raise UsageError for a native feed, --feed-workers or --drop-caches that would change nothing."""
    native = config.feed == "native"
    if config.feed_workers is not None and not native:
        raise UsageError(f"--feed-workers {config.feed_workers}: only for the native feed; add --feed native")
    if config.drop_caches:
        _check_files("--drop-caches", device, name)
        if config.interleave:
            raise UsageError(
                "--interleave: points that take turns read the same pictures, and the second finds them in the "
                "page cache; leave it out with --drop-caches"
            )
    if native:
        _check_files("--feed native", device, name)
        if config.epochs is not None:
            raise UsageError(
                "--feed native: --epochs trains on the reference feed, whose epochs are exact; leave it out"
            )


def _check_files(flag: str, device: Device, name: str) -> None:
    if device == "emulated":
        raise UsageError(f"{flag}: emulated devices read no data; leave it out")
    if data.spec(name).format not in data.DECODED:
        files = ", ".join(one.name for one in data.CATALOGUE.values() if one.format in data.DECODED)
        raise UsageError(
            f"{flag}: --data {name} is held in memory; leave it out, or choose --data that is decoded from files: "
            f"{files}"
        )


def feed_refusal(point: Point) -> str | None:
    """Return why the point's framework cannot feed it, naming the flag; None if it can."""
    work = point.workload
    strategy = frameworks.load(point.strategy)
    drives = strategy.traits(point.strategy).drives
    if work.drop_caches and drives == "point":
        return "--drop-caches: its helpers compute, and hold their samples in memory; leave it out"
    if work.feed != "native":
        return None
    read, found = strategy.native_formats, data.spec(work.data).format
    if not read:
        return "--feed native: its framework has no own pipeline; leave it out"
    if found in read:
        return None
    names = ", ".join(one.name for one in data.CATALOGUE.values() if one.format in read)
    hint = f", {strategy.native_hint}" if strategy.native_hint else ""
    return f"--feed native: its own pipeline does not read --data {work.data}; leave it out, or take {names}{hint}"


# ---------------------------------------------------------------- CPU baseline of GPUs
# The plain loop on all cores of the first host, with which GPUs are compared.


def check_baseline_device(config: SweepConfig, device: Device) -> None:
    """Raise UsageError if the launch is not on GPUs, or a framework does not run on CPUs."""
    if config.baseline_device is None:
        return
    if device != "cuda":
        raise UsageError(
            f"--baseline-device {config.baseline_device}: is compared with GPUs, and this launch measures on "
            f"{device}; leave it out"
        )
    for name in config.strategy or ():
        plain = frameworks.load(name).baseline
        if "cpu" not in frameworks.load(plain).devices(plain):
            raise UsageError(
                f"--baseline-device {config.baseline_device}: {plain} does not run on cpu; leave it out"
            )


def baseline(
    name: str, work: Workload, options: dict[str, str], placement: Placement, slots: Sequence[Slot]
) -> Point:
    """Return the plain loop on a whole CPU, at the batch of one GPU.
    Always fp32 and the frameworks' own memory format, as is usual on CPUs."""
    (first,) = first_slots(1, placement, slots)
    return Point(
        strategy=frameworks.load(name).baseline,
        kind="solo",
        world_size=1,
        round=0,
        workload=replace(work, precision="fp32", memory_format="contiguous"),
        hardware=Hardware(device="cpu", cores=whole_cpu(first, slots).threads),
        placement=placement,
        options=options,
    )


# ---------------------------------------------------------------- passes
# Forward and backward pass exchange nothing: the plain loop on one device measures them.


def check_passes(config: SweepConfig) -> None:
    """Raise UsageError for strategies that exchange or lack one of the passes."""
    text = ",".join(config.pass_)
    for name in config.strategy or () if config.has_passes else ():
        strategy = frameworks.load(name)
        if name != strategy.baseline:
            raise UsageError(
                f"--pass {text}: {name} exchanges gradients, and passes do not; use --strategy {strategy.baseline}"
            )
        if lacking := [one for one in config.pass_ if one not in strategy.traits(name).passes]:
            raise UsageError(f"--pass {text}: {name} has no {lacking[0]} pass alone, only whole steps")


def pass_world_sizes(config: SweepConfig, defaults: Sequence[int]) -> tuple[int, ...]:
    """Return the world sizes: the given ones, else one device for passes and `defaults` for whole steps.
    Raises UsageError for passes on several devices."""
    if not config.has_passes:
        return config.world_sizes or tuple(defaults)
    sizes = config.world_sizes or (1,)
    if sizes != (1,):
        raise UsageError(
            f"--world-sizes {','.join(map(str, sizes))} with --pass {','.join(config.pass_)}: passes are timed on "
            "one device, since they exchange nothing; leave it out"
        )
    return sizes


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
    return _of_script(work, config) if config.script else _checked(work)


def _of_script(work: Workload, config: SweepConfig) -> Workload:
    assert config.script is not None and config.label is not None and config.unit is not None
    return replace(
        work, model=config.label, precision="own", unit=config.unit, script=config.script,
        samples_per_step=config.samples_per_step or 0, in_place=config.in_place,
    )  # fmt: skip


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


def _checked(work: Workload) -> Workload:
    try:
        _ = models.of(work).placed  # walks through the layers
    except UsageError as error:
        size = (
            f"--image-size {work.image_size}" if work.image_size else f"--sequence-length {work.sequence_length}"
        )
        raise UsageError(f"{size}: {work.model}: {error}") from None
    return work


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
    _check_servers(config, slots)
    check_passes(config)
    assert config.strategy is not None and config.world_sizes is not None
    by_cell: dict[str, Point] = {}
    for name in config.strategy:
        for size in config.world_sizes:
            for point in _points(config, device, name, size, slots):
                with suppress(StrategyError):  # reported by `refused`; other points can run
                    strategy = frameworks.load(point.strategy)
                    if reason := strategy.refuse(point) or training.refusal(point) or feed_refusal(point):
                        raise UsageError(f"--strategy {name}: {reason}")
                by_cell.setdefault(point.cell, point)
    return tuple(by_cell.values())


def _points(config: SweepConfig, device: Device, name: str, size: int, slots: Sequence[Slot]) -> Iterator[Point]:
    plain = frameworks.load(name).baseline
    # A plain loop whose passes or batches are measured is its own baseline.
    is_alone = name == plain and (config.has_passes or config.batch_sizes is not None)
    for one in each(config):
        work = workload(one, size, slots)
        own = replace(one, kinds=("exchange",)) if is_alone else one
        for point in _of_size(own, device, name, size, work):
            for word in config.interconnect if point.kind in EXCHANGING else (point.interconnect,):
                yield _with_servers(replace(point, interconnect=word), config, slots)
        if config.baseline_device is not None:
            yield baseline(name, work.reference(size), _options(config, plain), config.placement, slots)


def _of_size(config: SweepConfig, device: Device, name: str, size: int, work: Workload) -> Iterable[Point]:
    plain = frameworks.load(name).baseline
    assert config.kinds is not None
    wanted, point = config.kinds, partial(_point, config, device)
    own, shared, part = _options(config, name), _options(config, plain), replace(work, node_devices=1)
    exchange = point(name, "exchange", size, work, own)
    if config.epochs is not None:
        yield from training.points(config, exchange)
        return
    yield exchange
    if "comm" in wanted and size > 1:
        yield point(name, "comm", size, work, own)
    if "solo" in wanted:
        # If a rule divides the batch, efficiency is against the whole batch on one device. The part alone shows
        # what smaller batches cost.
        yield point(plain, "solo", 1, work.reference(size), shared)
        yield point(plain, "solo", 1, part, shared)
    for kind in (kind for kind in ALL_DEVICES if kind in wanted and size > 1):
        yield point(plain, kind, size, work, shared)
    for kind in (kind for kind in OF_DATA if kind in wanted):
        yield point(plain, kind, 1, part, shared)
        if size > 1:
            yield point(plain, kind, size, work, shared)


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
    found = {point.cell: _refusal(point, slots) or on_network(point) for point in points}
    reasons = {cell: one for cell, one in found.items() if one is not None}
    if not any(point.kind in WANTED and point.cell not in reasons for point in points):
        first = next(point for point in points if point.cell in reasons)
        why, mend = reasons[first.cell]
        raise UsageError(f"--strategy {first.strategy} at n{first.world_size}: {why}; {mend}")
    return {cell: why for cell, (why, _) in reasons.items()}


def _refusal(point: Point, slots: Sequence[Slot]) -> tuple[str, str] | None:
    """Return the reason and the fix; None if the point can run."""
    try:
        frameworks.load(point.strategy).refuse(point)
    except StrategyError as error:
        return str(error), "mend its file"
    traits, ranks = _traits(point.strategy), slots_of(point, slots)
    is_on_gpus = point.hardware.device == "cuda"
    if traits.drives == "node" and (nodes := _nodes(point, slots)) > 1:
        why = f"one process drives the devices of one node, {point.world_size} devices are on {nodes} nodes"
        return why, "choose smaller --world-sizes"
    if traits.drives == "node" and is_on_gpus and (why := _unseen(ranks)):
        return why, "let every rank see all GPUs of its node (Slurm: --gpu-bind=none and no --gpus-per-task)"
    exchanges = point.kind in EXCHANGING and point.world_size > 1
    if traits.nccl and is_on_gpus and exchanges and (why := _sliced(ranks)):
        return why, "take one slice of each GPU, or a strategy without NCCL"
    return None


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
            return (
                f"ranks {other.launch_rank} and {rank.launch_rank} on {rank.host} are on slices of one GPU "
                f"({rank.whole_gpu}), which NCCL takes for one device"
            )
    return ""


def kept(points: Iterable[Point], reasons: Mapping[str, str]) -> list[Point]:
    """Drop controls that cannot run. Exchanges that cannot run stay, with their reason."""
    return [point for point in points if point.kind in WANTED or point.cell not in reasons]


def _with_servers(point: Point, config: SweepConfig, slots: Sequence[Slot]) -> Point:
    if not _traits(point.strategy).servers:
        return point
    count = _nodes(point, slots) if config.servers == "per-node" else config.servers
    return replace(point, servers=count, server_hosts=config.server_hosts)


def _check_servers(config: SweepConfig, slots: Sequence[Slot]) -> None:
    defaults = SweepConfig()
    asked = {
        "--servers": config.servers != defaults.servers,
        "--server-hosts": config.server_hosts != defaults.server_hosts,
    }
    names = config.strategy or ()
    if not any(_traits(name).servers for name in names):
        for flag in (flag for flag, given in asked.items() if given):
            raise UsageError(f"{flag}: none of {', '.join(names)} has parameter servers")
    hosts = len({slot.host for slot in slots})
    if config.server_hosts == "dedicated" and hosts < 2:
        raise UsageError("--server-hosts dedicated: this launch has one host; servers can only share it")
    if config.server_hosts == "dedicated" and config.servers != "per-node" and config.servers >= hosts:
        raise UsageError(
            f"--servers {config.servers} --server-hosts dedicated: of {hosts} hosts at most {hosts - 1} can be "
            "kept for servers"
        )


def _nodes(point: Point, slots: Sequence[Slot]) -> int:
    return len({slot.host for slot in slots_of(point, slots)})


def _traits(name: str) -> Traits:
    return frameworks.load(name).traits(name)


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
