"""Make the Plan from a SweepConfig and the launch's hosts. Every refusal names its flag.

Each round measures all points, baselines included, in a new random order: drift then affects all points equally.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from math import inf

from msgspec.structs import replace

from scaling import frameworks
from scaling.errors import UsageError
from scaling.hosts.networks import Entry, choose
from scaling.plan import defaults, matrix, rules, validation
from scaling.plan.config import SweepConfig, fields_of, flag
from scaling.plan.groups import Group, apart, gpus_hold, short_of_memory, together
from scaling.plan.placement import Slot, most_of_a_host, place_ranks
from scaling.records.messages import Enrol
from scaling.records.network import Network
from scaling.records.point import Device, Hardware, Point, Record
from scaling.records.run import Emulation
from scaling.records.task import BatchFit
from scaling.text import duration

# ---------------------------------------------------------------- flags without effect
# These checks need the launch's devices; `validation.check_given` checks the configuration alone.


def check_given(made: Plan, given: Collection[str]) -> None:
    """Raise UsageError for a flag among the `given` ones that this plan does not use."""
    on_gpus = all(point.hardware.device == "cuda" for point in made.cells)
    # Workers on GPUs are no forks and keep the system's malloc.
    for field in fields_of(type(made.config)).values() if on_gpus else ():
        if field.flag.of == "cpu workers" and field.key in given:
            name = flag(field.key)
            raise UsageError(f"{name}: only for workers on CPUs, and all of these are on GPUs; leave it out")
    # A whole CPU and a training are always measured alone.
    able = [point for point in made.cells if not point.hardware.cores and point.regime is None]
    families = Counter(frameworks.load(point.strategy).baseline for point in able)
    if "interleave" in given and made.config.interleave and max(families.values(), default=0) < 2:
        raise UsageError(
            "--interleave: no framework has two points that could take turns; leave it out, or ask for more "
            "--world-sizes or --kinds"
        )


# Factor for messages and canaries during the soak.
SOAKED = 1.1


class Plan(Record, frozen=True, kw_only=True):
    """Everything decided before the first point.

    `config`: the given one, with every None that depends on the launch replaced.
    `missing`, `refused`: why a strategy, or a cell, is not measured. `why`: the reasons for device and defaults.
    `filled`: the fields that each rule has filled in.
    `groups`: the points of one round, not shuffled.
    `cores`: those of the smallest host. `gpu_memory_bytes`: of the smallest GPU; 0 if unknown.
    `host_memory_bytes`: by host.
    """

    config: SweepConfig
    device: Device
    slots: tuple[Slot, ...]
    networks: tuple[Network, ...]
    missing: dict[str, str]
    refused: dict[str, str]
    why: str
    filled: tuple[rules.Filled, ...] = ()
    groups: tuple[Group, ...]
    cores: int = 1
    gpu_memory_bytes: int = 0
    host_memory_bytes: dict[str, int] = {}

    @property
    def cells(self) -> tuple[Point, ...]:
        """All points of one round."""
        return tuple(point for group in self.groups for point in group.points)

    @property
    def side_by_side(self) -> bool:
        """Whether any points take turns."""
        return any(group.side_by_side for group in self.groups)

    def round(self, number: int) -> tuple[Group, ...]:
        """Return the groups of one round, shuffled by the seed and the round's number."""
        groups = [
            replace(group, points=tuple(replace(point, round=number) for point in group.points))
            for group in self.groups
        ]
        random.Random(f"{self.config.seed}/{number}").shuffle(groups)
        return tuple(groups)

    def network(self, point: Point) -> Network:
        """Return the network of a point; the first one for points without exchange."""
        named = (network for network in self.networks if network.word == point.interconnect)
        return next(named, self.networks[0])

    def emulation(self, point: Point) -> Emulation | None:
        """Return the accuracy of a point's emulation; None for real devices."""
        return rules.emulation_told(point, self.slots, self.cores, self.network(point).rate_bits_per_s)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts' names, in the order of their ranks."""
        return tuple(self.networks[0].places)

    @property
    def hardware(self) -> Hardware:
        """The hardware of all points."""
        return self.cells[0].hardware

    @property
    def emulation_error(self) -> float | None:
        """The emulator's largest error as a fraction of a step; None if it is unknown for a point."""
        told = [one.error_fraction for point in self.cells if (one := self.emulation(point))]
        known = [one for one in told if one is not None]
        return max(known, default=None) if len(known) == len(told) else None

    @property
    def slept_s(self) -> float:
        """Seconds of the longest step of an emulated device; 0 for real ones."""
        if self.device != "emulated":
            return 0.0
        works = {point.workload for point in self.cells}
        return self.hardware.dilate * max(matrix.emulated_rate(self.hardware.profile, one).step_s for one in works)

    @property
    def estimate_s(self) -> float:
        """Estimated seconds of the planned rounds: start-up, warm-up, windows, soak. 0 if unknown (--epochs). A
        burn-in takes the time of --for at least."""
        if self.config.epochs:
            return 0.0
        trace_s = defaults.TRACE_S * len(self.cells) if self.config.trace else 0.0
        return max(self._rounds_s + trace_s + sum(map(self.soak_of_s, self.groups)), self.burn_in_s)

    @property
    def soak_s(self) -> float:
        """Seconds of soak of exchanges that take turns, after the windows of the first round."""
        given = self.config.soak_s
        return defaults.soak_s(max(self._rounds_s, self.burn_in_s), self.device) if given is None else given

    def soak_of_s(self, group: Group) -> float:
        """Estimate the seconds of all soaks of a group, which are in its first round."""
        strategies = {point.strategy for point in group.points if point.kind == "exchange"}
        return SOAKED * self.soak_s * (len(strategies) + 1) if group.side_by_side and strategies else 0.0

    @property
    def burn_in_s(self) -> float:
        """Seconds of --for; 0 without it."""
        return validation.burn_in_s(self.config) or 0.0

    @property
    def _rounds_s(self) -> float:
        return self.rounds * sum(self.seconds(group) for group in self.groups)

    @property
    def rounds(self) -> int:
        """The number of planned rounds."""
        assert self.config.rounds is not None
        return self.config.rounds

    def seconds(
        self,
        group: Group,
        step_s: float | None = None,
        *,
        fits: int | None = None,
        seats_apart: bool = False,
    ) -> float:
        """Estimate the seconds of a group in one round. `step_s`: of a measured step; else by the model. `fits`:
        how many of its points GPUs hold at the same time; else by a guess. `seats_apart`: seats of GPUs run one
        after the other."""
        return defaults.group_s(
            group,
            self.config,
            self._step_s if step_s is None else step_s,
            processes=most_of_a_host(group.points, self.slots),
            fits=gpus_hold(group.points, self.gpu_memory_bytes) if fits is None else fits,
            seats_apart=seats_apart,
        )

    @property
    def _step_s(self) -> float:
        if self.device == "emulated":
            return self.slept_s
        threads = min(slot.threads_on(self.device) for slot in self.slots)
        works = {point.workload for point in self.cells}
        return max((defaults.step_s(one, self.device, threads) for one in works), default=0.0)

    @property
    def memory_doubts(self) -> tuple[str, ...]:
        """Texts about the points for which a host or a GPU probably has too little memory."""
        return short_of_memory(self.cells, self.slots, self.host_memory_bytes, self.gpu_memory_bytes)


def make(
    config: SweepConfig,
    enrolled: Sequence[Enrol],
    fabric: Mapping[str, Entry] | None = None,
    *,
    lab_bits_per_s: Sequence[float] = (),
    fit: BatchFit | str = "",
) -> Plan:
    """Resolve the configuration on these hosts and list the points. Raises UsageError.

    `fabric` has the networks of the fabric file, `lab_bits_per_s` the declared rates of a lab's networks, `fit`
    the result of a trial of larger batches.
    """
    brief = partial(_made, config, enrolled, fabric, lab_bits_per_s, fit)
    found = brief(None)
    asked = config.rounds, config.windows, config.dilate, config.for_, config.target_ci
    if found.device != "emulated" or any(asked) or found.estimate_s <= defaults.EMULATED_S:
        return found
    whole, found = found, brief(inf)
    while found.estimate_s > defaults.EMULATED_S:
        dilate = found.hardware.dilate
        shorter = brief(min(dilate * defaults.EMULATED_S / found.estimate_s, dilate - 1))
        if shorter.hardware.dilate >= dilate:  # the cores need as much
            break
        found = shorter
    changes = (
        ("rounds", found.rounds, whole.rounds),
        ("windows", found.config.windows or 0, whole.config.windows or 0),
        ("--dilate", found.hardware.dilate, whole.hardware.dilate),
    )
    said = ", ".join(f"{what} {short:g}, not {long:g}" for what, short, long in changes if short != long)
    times = f"{duration(found.estimate_s)} instead of {duration(whole.estimate_s)}"
    return replace(found, why=f"{found.why}; {times}: {said}")


def _made(
    config: SweepConfig,
    enrolled: Sequence[Enrol],
    fabric: Mapping[str, Entry] | None,
    lab_bits_per_s: Sequence[float],
    fit: BatchFit | str,
    most_dilate: float | None,
) -> Plan:
    """`most_dilate`: of a brief plan of emulated devices."""
    slots = place_ranks(enrolled, config.cpus_per_rank)
    device, why = rules.choose_device(config, slots, enrolled)
    launch = rules.Launch(enrolled, slots, device, why, lab_bits_per_s, fit, most_dilate or inf)
    resolved, how, filled, missing, points = rules.resolve(config, launch)
    words = dict.fromkeys(config.interconnect)
    networks = tuple(choose((enrol.host for enrol in enrolled), word, fabric) for word in words)
    refused = matrix.refused(points, slots, lambda point: matrix.name_refusal(point, slots, enrolled, networks))
    wanted = matrix.kept(points, refused)
    grouped = _groups(resolved, wanted, device, slots, enrolled)
    return Plan(
        config=defaults.paced(
            resolved,
            device,
            side_by_side=any(group.side_by_side for group in grouped),
            points=sum(len(group.points) for group in grouped),
            is_brief=most_dilate is not None,
        ),
        device=device,
        slots=slots,
        networks=networks,
        missing=dict(missing),
        why="; ".join(filter(None, (why, *how))),
        filled=filled,
        refused=refused,
        groups=grouped,
        cores=rules.emulated_cores(enrolled),
        gpu_memory_bytes=rules.least_memory_bytes(launch),
        host_memory_bytes={enrol.host.hostname: enrol.host.memory_bytes for enrol in enrolled},
    )


def _groups(
    config: SweepConfig, cells: Sequence[Point], device: Device, slots: Sequence[Slot], enrolled: Sequence[Enrol]
) -> tuple[Group, ...]:
    """Group the cells. By default they take turns on CPUs, and on GPUs if their framework gives back memory. Never
    with --drop-caches: points that take turns would read the files from the page cache."""
    wanted = device in ("cpu", "cuda") if config.interleave is None else config.interleave
    if device == "cuda" and any(gpu.takes_one_process for _, gpu in rules.owned_gpus(slots, enrolled)):
        wanted = False
        if config.interleave:
            raise UsageError(
                "--interleave: GPUs take one process (Exclusive_Process), so points cannot take turns; "
                "nvidia-smi -c DEFAULT as root on all nodes, or leave it out"
            )
    if not wanted or config.drop_caches:
        return apart(cells)
    # A whole CPU leaves nothing to others, and no step of a training may be repeated.
    by_default = device == "cuda" and config.interleave is None
    alone = [
        cell for cell in cells
        if cell.hardware.cores or cell.regime
        or (by_default and not frameworks.running(cell.strategy).shares_gpus)
    ]  # fmt: skip
    memory_bytes = {enrol.host.hostname: enrol.host.memory_bytes for enrol in enrolled}
    return (*together([cell for cell in cells if cell not in alone], slots, memory_bytes), *apart(alone))
