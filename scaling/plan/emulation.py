"""What a launch emulates: how far it shrinks and dilates, and how well each of its points is then told. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from scaling import frameworks
from scaling.emulated import layers, profiles, scale
from scaling.emulated.scale import Load
from scaling.plan import batches
from scaling.plan.config import SweepConfig
from scaling.plan.placement import Slot, first_slots, slots_of
from scaling.records.emulation import Emulation
from scaling.records.messages import Enrol
from scaling.records.point import Point, Workload


def settled(
    config: SweepConfig, slots: Sequence[Slot], enrolled: Sequence[Enrol], lab_bits_per_s: Sequence[float]
) -> SweepConfig:
    """The configuration of an emulated device with shrink and dilate: as given; else chosen in a lab for its
    fastest network and all world sizes, and 1 where links cannot be slowed. That of another device as it is."""
    if not profiles.name_of(config.device):
        return config
    if not lab_bits_per_s:
        return replace(config, shrink=config.shrink or 1.0, dilate=config.dilate or 1.0)
    loads = list(_loads(config, slots, cores(enrolled), max(lab_bits_per_s)))
    setting = scale.setting(loads, config.shrink, config.dilate)
    return replace(config, shrink=setting.shrink, dilate=setting.dilate)


def cores(enrolled: Sequence[Enrol]) -> int:
    """Of the machine that emulates; of the smallest, if there are several."""
    hosts = [enrol.host for enrol in enrolled]
    return min(max(1, int(min([len(host.cores), *host.cpu_quotas.values()]))) for host in hosts)


def _loads(config: SweepConfig, slots: Sequence[Slot], cores: int, link_bits_per_s: float) -> Iterator[Load]:
    """What each world size is for the machine, by the strategy that keeps it busiest."""
    polling = max((_polling_cores(name) for name in config.strategy or ()), default=0.0)
    profile = profiles.name_of(config.device)
    sizes = config.world_sizes or ()
    for work, size in (
        (batches.workload(one, size, slots), size) for one in batches.each(config) for size in sizes
    ):
        yield _load(work, profile, first_slots(size, config.placement, slots), cores, link_bits_per_s, polling)


def _load(
    work: Workload, profile: str, taken: Sequence[Slot], cores: int, link_bits_per_s: float | None, polling: float
) -> Load:
    return Load(
        gradient_bytes=layers.gradient_bytes(work.model, work.image_size),
        tail_bytes=layers.tail_bytes(work.model, work.image_size),
        layers=len(layers.spans(layers.of(work.model, work.image_size), 1.0)),
        step_s=profiles.rate(profile, work.model, work.batch_size, work.image_size).step_s,
        world_size=len(taken),
        ranks=max(Counter(slot.machine for slot in taken).values()),
        cores=cores,
        link_bits_per_s=link_bits_per_s if len({slot.host for slot in taken}) > 1 else None,
        polling=polling,
    )


def _polling_cores(name: str) -> float:
    """Cores that a strategy's own clock keeps busy beside a rank."""
    return frameworks.load(name).traits(name).polling_cores


# ---------------------------------------------------------------- of one point


def told(point: Point, slots: Sequence[Slot], cores: int, link_bits_per_s: float | None) -> Emulation | None:
    """How well a point is emulated over links of this rate between nodes; None where nothing is."""
    work, hardware = point.workload, point.hardware
    if not hardware.profile:
        return None
    rate = profiles.rate(hardware.profile, work.model, work.batch_size, work.image_size)
    if point.world_size == 1 or point.kind != "exchange":
        return Emulation(samples_per_s=rate.samples_per_s, fitted=rate.fitted)
    taken = slots_of(point, slots)
    by_node = Counter(slot.host for slot in taken)
    load = _load(work, hardware.profile, taken, cores, link_bits_per_s, _polling_cores(point.strategy))
    inside = profiles.find(hardware.profile).inside if max(by_node.values()) > 1 else None
    found = Emulation(
        samples_per_s=rate.samples_per_s,
        fitted=rate.fitted,
        tail_s=load.tail_s(hardware.shrink, hardware.dilate),
        wire_s=load.tail_wire_s,
        error_fraction=load.late(hardware.shrink, hardware.dilate),
        inside=inside.name if inside else "",
        inside_s=load.tail_sent_bytes / inside.bytes_per_s if inside else 0.0,
    )
    return found.of(point)
