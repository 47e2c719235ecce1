"""From a SweepConfig and the launch's hosts to ordered, interleaved points. Pure; every refusal names its flag.

All points, baselines included, are measured in each round, in an order shuffled anew per round, so
that drift hits all alike.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from scaling import frameworks
from scaling.hosts.fabric import Entry
from scaling.hosts.networks import choose
from scaling.plan import batches, beside, defaults, devices, matrix, name_address, resolving, training
from scaling.plan.config import SweepConfig
from scaling.plan.groups import Group, apart, seats, together
from scaling.plan.placement import Slot, first_slots, place_ranks, slots_of
from scaling.records import other_code
from scaling.records.emulation import Emulation
from scaling.records.messages import Enrol
from scaling.records.network import Network
from scaling.records.point import Device, Hardware, Point, Record, Workload
from scaling.tools.emulated import layers, profiles, scale
from scaling.tools.emulated.scale import Load

# ---------------------------------------------------------------- emulation
#
# What a launch emulates: how far it shrinks and dilates, and how well each of its points is then told.


def emulation_settled(
    config: SweepConfig, slots: Sequence[Slot], enrolled: Sequence[Enrol], lab_bits_per_s: Sequence[float]
) -> SweepConfig:
    """The configuration of an emulated device with shrink and dilate: as given; else chosen in a lab for its
    fastest network and all world sizes, and 1 where links cannot be slowed. That of another device as it is."""
    if not profiles.name_of(config.device):
        return config
    if not lab_bits_per_s:
        return replace(config, shrink=config.shrink or 1.0, dilate=config.dilate or 1.0)
    loads = list(_loads(config, slots, emulated_cores(enrolled), max(lab_bits_per_s)))
    setting = scale.setting(loads, config.shrink, config.dilate)
    return replace(config, shrink=setting.shrink, dilate=setting.dilate)


def emulated_cores(enrolled: Sequence[Enrol]) -> int:
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


def emulation_told(
    point: Point, slots: Sequence[Slot], cores: int, link_bits_per_s: float | None
) -> Emulation | None:
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


# ---------------------------------------------------------------- plan

# Of a group: until all forks are ready; windows that warm up; the uncounted step before each window, and orders.
GROUP_STARTUP_S, WARMING, UNCOUNTED_S = 1.5, 1.5, 0.1
# Of what goes on: with orders and canaries.
SOAKED = 1.1


class Plan(Record, frozen=True, kw_only=True):
    """Everything decided before the first point. `groups` are the points of one round, not yet shuffled, by which
    of them live side by side.

    `config` is the given one with every None that depends on the launch resolved. `missing` says by strategy
    and `refused` by cell why it will not be measured. `cores` are those of its smallest host. `other_code` is
    the folder of the revision that `--against` names.
    """

    config: SweepConfig
    device: Device
    slots: tuple[Slot, ...]
    networks: tuple[Network, ...]
    missing: dict[str, str]
    refused: dict[str, str]
    why: str
    groups: tuple[Group, ...]
    cores: int = 1
    other_code: str = ""

    @property
    def cells(self) -> tuple[Point, ...]:
        """All points of one round."""
        return tuple(point for group in self.groups for point in group.points)

    @property
    def side_by_side(self) -> bool:
        """Whether any points take turns."""
        return any(group.side_by_side for group in self.groups)

    def round(self, number: int) -> tuple[Group, ...]:
        """The groups of one round, shuffled by the seed and the round."""
        groups = [
            replace(group, points=tuple(replace(point, round=number) for point in group.points))
            for group in self.groups
        ]
        random.Random(f"{self.config.seed}/{number}").shuffle(groups)
        return tuple(groups)

    @property
    def stages(self) -> tuple[bool, ...]:
        """Whether its points are later ones, of each stage: all rounds of one are measured before the next."""
        return (False,) if self.config.predict_first is None else (False, True)

    def is_later(self, group: Group) -> bool:
        """Whether the group is measured when all smaller world sizes are, and what it will do is predicted."""
        return any(_is_later(self.config, point) for point in group.points)

    def code(self, point: Point) -> str:
        """The folder of the revision that a point's workers run; "" for that of the launch."""
        return self.other_code if other_code.revision(point.strategy) else ""

    def network(self, point: Point) -> Network:
        """The network that a point takes; a point without exchange needs none in particular."""
        named = (network for network in self.networks if network.word == point.interconnect)
        return next(named, self.networks[0])

    def emulation(self, point: Point) -> Emulation | None:
        """How well a point is emulated; None where devices are real."""
        return emulation_told(point, self.slots, self.cores, self.network(point).rate_bits_per_s)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts' names, in the order of their ranks."""
        return tuple(self.networks[0].places)

    @property
    def hardware(self) -> Hardware:
        """What all of its points run on."""
        return self.cells[0].hardware

    @property
    def slept_s(self) -> float:
        """How long a step takes on the clock at least where devices are emulated; else 0."""
        if self.device != "emulated":
            return 0.0
        return max(
            profiles.rate(point.hardware.profile, work.model, work.batch_size, work.image_size).step_s
            * point.hardware.dilate
            for point in self.cells
            for work in (point.workload,)
        )

    @property
    def estimate_s(self) -> float:
        """About how long the planned rounds take: start-up, warm-up and measured windows. 0 where nobody knows, as
        with epochs of training."""
        if any(cell.regime for cell in self.cells):
            return 0.0
        return self._rounds_s + SOAKED * self.soak_s * sum(map(_soaked, self.groups))

    @property
    def soak_s(self) -> float:
        """How long exchanges that take turns train on after the first round's windows."""
        given = self.config.soak_s
        return defaults.soak_s(self._rounds_s) if given is None else given

    @property
    def _rounds_s(self) -> float:
        return self.rounds * sum(self.seconds(group) for group in self.groups)

    @property
    def rounds(self) -> int:
        """How many are planned."""
        assert self.config.rounds is not None
        return self.config.rounds

    def seconds(self, group: Group) -> float:
        """About how long a group takes."""
        assert self.config.window_s is not None
        window_s = max(self.config.window_s, self.slept_s)
        windows = self.config.windows or defaults.turns_in_round(window_s + UNCOUNTED_S)
        if not group.side_by_side:
            point = group.points[0]
            seats_in_turn = point.world_size if point.kind == "each" else 1
            least_s, _ = defaults.warm_up_s(point.hardware.device)
            warm_up_s = max(least_s, defaults.WARM_UP_WINDOWS * window_s) + 2 * window_s
            return defaults.startup_guess_s(point) + seats_in_turn * windows * window_s + warm_up_s
        turns = sum(turns_of(point, windows) + WARMING for point in group.points)
        fresh_s = max(map(defaults.startup_guess_s, group.points)) if self.device == "cuda" else GROUP_STARTUP_S
        return fresh_s + turns * (window_s + UNCOUNTED_S)


def _soaked(group: Group) -> int:
    """How many of its points go on after their windows: an exchange of each strategy, and the plain loop."""
    strategies = {point.strategy for point in group.points if point.kind == "exchange"}
    return len(strategies) + 1 if group.side_by_side and strategies else 0


def make(
    config: SweepConfig,
    enrolled: Sequence[Enrol],
    fabric: Mapping[str, Entry] | None = None,
    *,
    lab_bits_per_s: Sequence[float] = (),
) -> Plan:
    """Resolve the configuration on these hosts and list the cells. UsageError for what this launch cannot run.
    `fabric` is what the fabric file names; `lab_bits_per_s` the declared rates of a lab's networks, if any."""
    slots = place_ranks(enrolled, config.cpus_per_rank)
    device, why = devices.choose(config, slots, enrolled)
    beside.check(config, device)
    names = resolving.names(config, device)
    missing = resolving.missing(names, enrolled, device, why)
    gpus = defaults.gpus_of(enrolled)
    known = emulation_settled(
        resolving.resolved(config, names, slots, device, gpus), slots, enrolled, lab_bits_per_s
    )
    defaults.check_compile(known, enrolled)
    resolved, points, how = defaults.with_points(known, device, slots, gpus)
    training.check_saving(resolved, points)
    networks = _networks(config, enrolled, fabric or {})
    refused = matrix.refused(points, slots, lambda point: name_address.refusal(point, slots, enrolled, networks))
    wanted = matrix.kept(points, refused)
    stages = ([one for one in wanted if _is_later(resolved, one) == later] for later in (False, True))
    grouped = tuple(group for cells in stages for group in _groups(resolved, cells, device, slots, enrolled))
    return Plan(
        config=defaults.paced(resolved, device, side_by_side=any(group.side_by_side for group in grouped)),
        device=device,
        slots=slots,
        networks=networks,
        missing=missing,
        why="; ".join(filter(None, (why, how, defaults.why_batch(config, resolved, device, gpus)))),
        refused=refused,
        groups=grouped,
        cores=emulated_cores(enrolled),
    )


def _groups(
    config: SweepConfig, cells: Sequence[Point], device: Device, slots: Sequence[Slot], enrolled: Sequence[Enrol]
) -> tuple[Group, ...]:
    """Side by side where memory allows; by default on CPUs only, since models would share a GPU's memory, and what
    is emulated sleeps as long whatever the machine does. Never where files are dropped from the page cache: points
    that take turns would read what others have just read."""
    wanted = (device == "cpu" if config.interleave is None else config.interleave) and not config.drop_caches
    memory_bytes = {enrol.host.hostname: enrol.host.memory_bytes for enrol in enrolled}
    if not wanted:
        return apart(cells)
    # A whole CPU, which leaves nothing to others; a training, of which no step is taken twice.
    alone = [cell for cell in cells if cell.hardware.cores or cell.regime]
    others = [cell for cell in cells if cell not in alone]
    return (*together(others, slots, memory_bytes), *apart(alone))


def _is_later(config: SweepConfig, point: Point) -> bool:
    first = config.predict_first
    return isinstance(first, int) and point.world_size > first


def turns_of(point: Point, windows: int) -> int:
    """How many windows of a point are measured in a round."""
    if point.kind != "each":
        return windows
    return sum(len(seats(point.world_size, block, windows)) for block in range(windows))


def _networks(config: SweepConfig, enrolled: Sequence[Enrol], fabric: Mapping[str, Entry]) -> tuple[Network, ...]:
    words = dict.fromkeys(config.interconnect)
    return tuple(choose((enrol.host for enrol in enrolled), word, fabric) for word in words)
