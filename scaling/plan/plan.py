"""From a SweepConfig and the launch's hosts to ordered, interleaved points. Pure; every refusal names its flag.

All points, baselines included, are measured in each round, in an order shuffled anew per round, so
that drift hits all alike.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from scaling import frameworks
from scaling.emulated import layers, profiles, scale
from scaling.errors import UsageError
from scaling.hosts.fabric import Entry
from scaling.hosts.networks import choose
from scaling.plan import matrix
from scaling.plan.config import SweepConfig
from scaling.plan.placement import Slot, place_ranks
from scaling.records.messages import Enrol
from scaling.records.network import Network
from scaling.records.point import Device, Hardware, Point, Record
from scaling.workloads import feeds, models


class Plan(Record, frozen=True, kw_only=True):
    """Everything decided before the first point. `cells` are the points of one round, not yet shuffled.

    `config` is the given one with every None that depends on the launch resolved. `missing` says by strategy
    and `refused` by cell why it will not be measured.
    """

    config: SweepConfig
    device: Device
    slots: tuple[Slot, ...]
    networks: tuple[Network, ...]
    missing: dict[str, str]
    refused: dict[str, str]
    why: str
    cells: tuple[Point, ...]

    def round(self, number: int) -> tuple[Point, ...]:
        """The points of one round, shuffled by the seed and the round."""
        points = [replace(point, round=number) for point in self.cells]
        random.Random(f"{self.config.seed}/{number}").shuffle(points)
        return tuple(points)

    def network(self, point: Point) -> Network:
        """The network that a point takes; a point without exchange needs none in particular."""
        named = (network for network in self.networks if network.word == point.interconnect)
        return next(named, self.networks[0])

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
            profiles.rate(point.hardware.profile, point.workload.model, point.workload.batch_size).step_s
            * point.hardware.dilate
            for point in self.cells
        )

    @property
    def estimate_s(self) -> float:
        """About how long the planned rounds take: start-up, warm-up and measured windows."""
        config = self.config
        starts = [frameworks.startup_s(point.strategy) for point in self.cells]
        windows_s = (config.windows + 6) * max(config.window_s, self.slept_s)
        return config.rounds * (sum(starts) + len(starts) * windows_s)


def make(
    config: SweepConfig,
    enrolled: Sequence[Enrol],
    fabric: Mapping[str, Entry] | None = None,
    *,
    lab_bits_per_s: Sequence[float] = (),
) -> Plan:
    """Resolve the configuration on these hosts and list the cells. UsageError for what this launch cannot run.

    `fabric` is what the fabric file names; `lab_bits_per_s` the declared rates of a lab's networks, if any.
    """
    slots = place_ranks(enrolled, config.cpus_per_rank)
    device, why = _device(config, slots)
    names = _names(config, device)
    missing = _missing(names, enrolled, device)
    resolved = _emulated(_resolved(config, names, slots, device), slots, enrolled, lab_bits_per_s)
    points = matrix.make(resolved, device, slots)
    refused = matrix.refused(points, slots)
    return Plan(
        config=resolved,
        device=device,
        slots=slots,
        networks=_networks(config, enrolled, fabric or {}),
        missing=missing,
        why=why,
        refused=refused,
        cells=tuple(point for point in points if point.kind == "exchange" or point.cell not in refused),
    )


def _networks(config: SweepConfig, enrolled: Sequence[Enrol], fabric: Mapping[str, Entry]) -> tuple[Network, ...]:
    words = dict.fromkeys(config.interconnect)
    return tuple(choose((enrol.host for enrol in enrolled), word, fabric) for word in words)


def _names(config: SweepConfig, device: Device) -> tuple[str, ...]:
    """The strategies, each once and by its own name."""
    given = config.strategy or (("torch:nccl",) if device == "cuda" else ("torch:gloo",))
    return tuple(dict.fromkeys(frameworks.ALIASES.get(name, name) for name in given))


def _resolved(config: SweepConfig, names: tuple[str, ...], slots: Sequence[Slot], device: Device) -> SweepConfig:
    """The configuration with every None that depends on the launch replaced by what it means here."""
    sizes = config.world_sizes or default_world_sizes(len(slots))
    _check_sizes(sizes, slots, device)
    model = models.spec(config.model or models.default_model(device))
    feed = config.data or model.data
    feeds.check(feed, model.classes)
    _check_precision(config, device)
    batch_size = config.batch_size
    if config.global_batch_size is None and batch_size is None:
        batch_size = _batch_size(config, model, device)
    return replace(
        config,
        strategy=names,
        world_sizes=sizes,
        model=model.name,
        data=feed,
        device=config.device if device == "emulated" else device,
        batch_size=batch_size,
        interconnect=tuple(dict.fromkeys(config.interconnect)),
    )


def _batch_size(config: SweepConfig, model: models.ModelSpec, device: Device) -> int:
    """The batch per device, where none is given."""
    if device == "emulated":
        return profiles.rate(profiles.name_of(config.device), model.name).batch_size
    return model.batch_size[device]


def _emulated(
    config: SweepConfig,
    slots: Sequence[Slot],
    enrolled: Sequence[Enrol],
    lab_bits_per_s: Sequence[float],
) -> SweepConfig:
    """The configuration of an emulated device with shrink and dilate: as given; else chosen in a lab, and 1 where
    links cannot be slowed. That of another device is left as it is."""
    if not profiles.name_of(config.device):
        return config
    if not lab_bits_per_s:
        return replace(config, shrink=config.shrink or 1.0, dilate=config.dilate or 1.0)
    assert config.model is not None and config.world_sizes is not None
    largest = config.world_sizes[-1]
    batch = config.batch_size or max(1, (config.global_batch_size or 1) // largest)
    load = scale.Load(
        gradient_bytes=layers.gradient_bytes(config.model),
        tail_bytes=layers.tail_bytes(config.model),
        layers=len(layers.spans(layers.of(config.model), 1.0)),
        step_s=profiles.rate(profiles.name_of(config.device), config.model, batch).step_s,
        world_size=largest,
        ranks=min(largest, max(Counter(slot.machine for slot in slots).values())),
        cores=min(len(enrol.host.cores) for enrol in enrolled),
        link_bits_per_s=max(lab_bits_per_s),
        polling=max(_polling_cores(config.strategy or ()), default=0.0),
    )
    setting = scale.setting(load, config.shrink, config.dilate)
    return replace(config, shrink=setting.shrink, dilate=setting.dilate)


def _polling_cores(names: Iterable[str]) -> list[float]:
    """Cores that each strategy's own clock keeps busy beside a rank."""
    return [frameworks.load(name).traits(name).polling_cores for name in names]


def default_world_sizes(size: int) -> tuple[int, ...]:
    """1, 2, 4, ... and the launch's size."""
    powers = [2**power for power in range(size.bit_length()) if 2**power <= size]
    return tuple(sorted({*powers, size}))


def _device(config: SweepConfig, slots: Sequence[Slot]) -> tuple[Device, str]:
    bare = next((slot for slot in slots if not slot.gpu), None)
    if profiles.name_of(config.device):
        return "emulated", f"--device {config.device}"
    if config.device == "cpu":
        return "cpu", "--device cpu"
    if bare is None:
        return "cuda", "every host has GPUs"
    if config.device == "cuda":
        raise UsageError(f"--device cuda: {bare.host} has no NVIDIA GPU; use --device cpu")
    return "cpu", f"no NVIDIA GPU on {bare.host}"


def _missing(names: Iterable[str], enrolled: Sequence[Enrol], device: Device) -> dict[str, str]:
    """Why strategies cannot run on some host. Raises UsageError where another device is needed, or
    when nothing that was asked for can run."""
    reasons: dict[str, str] = {}
    for name in names:
        strategy = frameworks.load(name)
        if device not in strategy.devices(name):
            needs = " or ".join(strategy.devices(name))
            host = enrolled[0].host.hostname
            hint = f"; of emulated devices: {', '.join(_emulating())}" if device == "emulated" else ""
            raise UsageError(f"--strategy {name}: needs {needs}, this launch runs on {device} ({host}){hint}")
        for enrol in enrolled:
            if reason := enrol.missing.get(name):
                reasons.setdefault(name, f"{reason} (on {enrol.host.hostname})")
    if reasons and all(name in reasons for name in names):
        raise UsageError("; ".join(f"--strategy {name}: {why}" for name, why in reasons.items()))
    return reasons


def _emulating() -> list[str]:
    return [name for name in frameworks.NAMES if "emulated" in frameworks.load(name).devices(name)]


def _check_sizes(sizes: Sequence[int], slots: Sequence[Slot], device: Device) -> None:
    if sizes[-1] > len(slots):
        raise UsageError(
            f"--world-sizes {','.join(map(str, sizes))}: {sizes[-1]} is more than the {len(slots)} ranks of this "
            f"launch; start it with mpirun -np {sizes[-1]}"
        )
    if device == "cuda":
        _check_gpus(slots)


def _check_gpus(slots: Sequence[Slot]) -> None:
    owner: dict[tuple[str, str], Slot] = {}
    for slot in slots:
        other = owner.setdefault((slot.host, slot.gpu), slot)
        if other is not slot:
            raise UsageError(
                f"ranks {other.launch_rank} and {slot.launch_rank} on {slot.host} would share GPU {slot.gpu}; "
                "start no more ranks there than it has GPUs, or use --device cpu"
            )


def _check_precision(config: SweepConfig, device: Device) -> None:
    if device == "cpu" and config.precision in ("tf32", "fp16"):
        raise UsageError(f"--precision {config.precision}: needs CUDA; on cpu use fp32 or bf16")
