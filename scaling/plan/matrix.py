"""The points of one round: strategies x world sizes, each with its controls, options and servers. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from msgspec.structs import replace

from scaling import frameworks
from scaling.errors import StrategyError, UsageError, near
from scaling.frameworks.base import Traits, read_options
from scaling.plan import batches, beside, feeding, kinds, passes, training
from scaling.plan.config import SweepConfig
from scaling.plan.placement import Slot, slots_of
from scaling.records import other_code
from scaling.records.point import EXCHANGING, WANTED, Device, Hardware, Kind, Point, Workload
from scaling.tools.emulated import profiles


def make(config: SweepConfig, device: Device, slots: Sequence[Slot]) -> tuple[Point, ...]:
    """Every point of one round, once: strategies of a framework share its `solo` and `together`.

    Raises UsageError for what no launch on these slots could run.
    """
    _check_servers(config, slots)
    passes.check(config)
    assert config.strategy is not None and config.world_sizes is not None
    by_cell: dict[str, Point] = {}
    for name in config.strategy:
        for size in config.world_sizes:
            for point in _points(config, device, name, size, slots):
                with suppress(StrategyError):  # `refused` tells it: other points can run
                    strategy = frameworks.load(point.strategy)
                    if reason := strategy.refuse(point) or training.refusal(point) or feeding.refusal(point):
                        raise UsageError(f"--strategy {name}: {reason}")
                by_cell.setdefault(point.cell, point)
    return tuple(by_cell.values())


def _points(config: SweepConfig, device: Device, name: str, size: int, slots: Sequence[Slot]) -> Iterator[Point]:
    """Those of a strategy at a world size, for each batch and each pass, over each network."""
    for one in batches.each(config):
        work = batches.workload(one, size, slots)
        own = replace(one, kinds=("exchange",)) if passes.is_own_baseline(config, name) else one
        for serverless in _over_networks(config, _of_size(own, device, name, size, work)):
            yield _with_servers(serverless, config, slots)
        if config.baseline_device is not None:
            plain = _options(config, frameworks.load(name).baseline)
            yield beside.baseline(name, work.reference(size), plain, config.placement, slots)


def _of_size(config: SweepConfig, device: Device, name: str, size: int, work: Workload) -> Iterable[Point]:
    """The exchange of a strategy at a world size, and the controls that are asked for."""
    plain = frameworks.load(name).baseline
    assert config.kinds is not None
    wanted = config.kinds
    own, shared = _options(config, name), _options(config, plain)
    exchange = _point(config, device, name, "exchange", size, work, own)
    if config.epochs is not None:
        yield from training.points(config, exchange)
        return
    yield exchange
    if "comm" in wanted and size > 1:
        yield _point(config, device, name, "comm", size, work, own)
    if "solo" in wanted:
        # Where a batch is shared, the whole of it on one device is compared with, and what a part of it costs more
        # is split off.
        yield _point(config, device, plain, "solo", 1, work.reference(size), shared)
        yield _point(config, device, plain, "solo", 1, replace(work, node_devices=1), shared)
    if "each" in wanted and size > 1:
        yield _point(config, device, plain, "each", size, work, shared)
    if "together" in wanted and size > 1:
        yield _point(config, device, plain, "together", size, work, shared)
    for kind in (kind for kind in kinds.OF_DATA if kind in wanted):
        # What one device waits for data is in its own step time.
        yield _point(config, device, plain, kind, 1, replace(work, node_devices=1), shared)
        if size > 1:
            yield _point(config, device, plain, kind, size, work, shared)


def _over_networks(config: SweepConfig, points: Iterable[Point]) -> Iterable[Point]:
    """What exchanges is measured over each network; the plain loop uses none."""
    for point in points:
        if point.kind in EXCHANGING:
            yield from (replace(point, interconnect=word) for word in config.interconnect)
        else:
            yield point


def _point(
    config: SweepConfig, device: Device, name: str, kind: Kind, size: int, work: Workload, options: dict[str, str]
) -> Point:
    profile = profiles.name_of(config.device)
    if profile:
        profiles.rate(profile, work.model, work.batch_size, work.image_size)
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


def _options(config: SweepConfig, name: str) -> dict[str, str]:
    """The `--option [STRATEGY.]key=value` that concern a strategy, checked against its own list.

    A key without a strategy concerns each that knows it; one that none knows is refused.
    """
    strategy = frameworks.load(name)
    own: dict[str, str] = {}
    for text in config.option:
        whole, equals, value = text.partition("=")
        target, _, key = whole.rpartition(".")
        target, whose = frameworks.ALIASES.get(target, target), other_code.own(name)
        if not equals or not key:
            raise UsageError(f"--option {text}: write key=value or STRATEGY.key=value")
        if target and target not in (*(config.strategy or ()), strategy.baseline):
            raise UsageError(f"--option {text}: {target} is not measured; {near(target, config.strategy or ())}")
        concerned = target == whose if target else key in strategy.options or not _is_known(config, key)
        if concerned:
            own[key] = value
    try:
        read_options(strategy.options, own)
    except UsageError as error:
        raise UsageError(f"{error} (of {name})") from None
    return own


def _is_known(config: SweepConfig, key: str) -> bool:
    return any(key in frameworks.load(name).options for name in config.strategy or ())


# ---------------------------------------------------------------- nodes and servers


def refused(
    points: Sequence[Point],
    slots: Sequence[Slot],
    on_network: Callable[[Point], tuple[str, str] | None] = lambda _: None,
) -> dict[str, str]:
    """By cell, why a point cannot run on these nodes or on its network; raises UsageError if no exchange could."""
    found = {point.cell: _refusal(point, slots) or on_network(point) for point in points}
    reasons = {cell: one for cell, one in found.items() if one is not None}
    if not any(point.kind in WANTED and point.cell not in reasons for point in points):
        first = next(point for point in points if point.cell in reasons)
        why, mend = reasons[first.cell]
        raise UsageError(f"--strategy {first.strategy} at n{first.world_size}: {why}; {mend}")
    return {cell: why for cell, (why, _) in reasons.items()}


def _refusal(point: Point, slots: Sequence[Slot]) -> tuple[str, str] | None:
    """Why a point cannot run on these nodes, and what would help; None where it can."""
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
    """Why rank 0's process cannot drive the GPUs of all ranks of its node; "" where it can."""
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
    """Which two ranks are on slices of one GPU: NCCL tells GPUs apart by their bus, and ends with "Duplicate GPU
    detected" (https://github.com/NVIDIA/nccl/issues/1716); "" where none are."""
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
    """Without controls that cannot run; an exchange that cannot stays, and says why."""
    return [point for point in points if point.kind in WANTED or point.cell not in reasons]


def _with_servers(point: Point, config: SweepConfig, slots: Sequence[Slot]) -> Point:
    """The point with the number of its parameter servers, if its strategy has any."""
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
