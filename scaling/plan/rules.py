"""Resolve a configuration on the hosts of this launch, by RULES in order.

A rule is named after the field that it fills in. It keeps given values, and raises UsageError if this launch
cannot run them. On GPUs the defaults are what users would choose, since slow compute makes every network look
good: half precision on tensor cores, channels_last, and a batch that fills the memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

from msgspec.structs import asdict, replace

from scaling import frameworks
from scaling.emulated import layers, profiles, scale
from scaling.emulated.scale import Load
from scaling.errors import UsageError
from scaling.frameworks.script import command
from scaling.plan import defaults, matrix, refusals
from scaling.plan.config import TRAINING, WHAT, SweepConfig, fields_of, flag, refuse
from scaling.plan.placement import Slot, first_slots, slots_of
from scaling.records.host import Gpu
from scaling.records.messages import Enrol
from scaling.records.point import Device, MemoryFormat, Point, Precision, Workload
from scaling.records.run import Emulation
from scaling.records.task import BatchFit
from scaling.text import counted, several
from scaling.workloads import data as catalogue
from scaling.workloads import models
from scaling.workloads.specs import ModelSpec

BFLOAT16_FROM, TENSOR_CORES_FROM = (8, 0), (7, 0)
# (least bytes of memory, batch). GPUs sold with 40 GB or 16 GB have slightly less for programs.
BATCHES = {"resnet50": ((39 * 10**9, 256), (15 * 10**9, 128))}
GB = 1e9


class Launch(NamedTuple):
    """The facts that rules use. `why`: the reason for the device. `fit`: the result of a trial of larger batches,
    or why there is none. `most_dilate`: limit of the chosen dilation of emulated devices."""

    enrolled: Sequence[Enrol]
    slots: Sequence[Slot]
    device: Device
    why: str
    lab_bits_per_s: Sequence[float] = ()
    fit: BatchFit | str = ""
    most_dilate: float = inf

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """All GPUs of the launch."""
        return tuple(gpu for enrol in self.enrolled for gpu in enrol.host.gpus)


class Filled(NamedTuple):
    """The fields that a rule has filled in, with their values."""

    rule: str
    fields: Mapping[str, Any]


class Draft(NamedTuple):
    """A partly resolved configuration: reasons for its defaults, what each rule has filled in, missing strategies,
    the points of a round."""

    config: SweepConfig
    why: tuple[str, ...] = ()
    filled: tuple[Filled, ...] = ()
    missing: Mapping[str, str] = {}
    points: tuple[Point, ...] = ()

    def but(self, **fields: Any) -> Draft:
        """Return a copy with other values of the configuration."""
        return self._replace(config=replace(self.config, **fields))


Rule = Callable[[Draft, Launch], Draft]


def resolve(config: SweepConfig, launch: Launch) -> Draft:
    """Apply every rule, in order. Raises UsageError if this launch cannot run the configuration."""
    draft = Draft(config)
    for rule in RULES:
        before, draft = draft.config, rule(draft, launch)
        new = {name: value for name, value in asdict(draft.config).items() if value != getattr(before, name)}
        if new:
            draft = draft._replace(filled=(*draft.filled, Filled(rule.__name__.rstrip("_"), new)))
    return draft


# ---------------------------------------------------------------- strategies and world sizes


def script(draft: Draft, _: Launch) -> Draft:
    """Read a script's command; it decides everything that a model of this package leaves to flags."""
    if draft.config.script is None:
        return draft
    given = command.parsed(draft.config.script)
    label = draft.config.label or given.label
    own = SweepConfig(
        script=given.text, label=label, unit=draft.config.unit or models.SCRIPT.unit, batch_size=1,
        strategy=(f"{command.FRAMEWORK}:{command.plain_name(label)}",), model=models.SCRIPT.name,
        data=models.SCRIPT.data, precision="fp32", memory_format="contiguous",
        kinds=draft.config.kinds or matrix.OF_SCRIPT,
    )  # fmt: skip
    decided = {
        one.name: getattr(own, one.name)
        for one in fields_of(SweepConfig).values()
        if one.flag.panel in (WHAT, TRAINING) and (one.flag.of != "scripts" or one.key in ("label", "unit"))
        and one.key not in ("world_sizes", "device")
    }  # fmt: skip
    return draft.but(**decided)._replace(why=(*draft.why, *given.notes))


def strategy(draft: Draft, launch: Launch) -> Draft:
    """Resolve strategies to their own names, without duplicates; the default depends on the device."""
    config, device = draft.config, launch.device
    default = frameworks.BASELINES[0] if config.has_passes else frameworks.default(device)
    own = tuple(dict.fromkeys(frameworks.ALIASES.get(name, name) for name in config.strategy or (default,)))
    return draft.but(strategy=own)._replace(missing=missing(own, launch.enrolled, device, launch.why))


def missing(names: Iterable[str], enrolled: Sequence[Enrol], device: Device, why: str) -> dict[str, str]:
    """Return why strategies cannot run on some host; `why` is the reason for the device.
    Raises UsageError if a strategy needs another device, or if no strategy can run."""
    reasons: dict[str, str] = {}
    for name in names:
        strategy = frameworks.load(name)
        if device not in strategy.devices(name):
            needs = " or ".join(strategy.devices(name))
            mode = frameworks.named(name).defaults.get(device)
            hint = f"; take {frameworks.named(name).name}:{mode}" if mode else ""
            if device == "emulated":
                able = (one for one in frameworks.NAMES if device in frameworks.load(one).devices(one))
                hint = f"; of emulated devices: {', '.join(able)}"
            raise UsageError(f"--strategy {name}: needs {needs}, this launch runs on {device} ({why}){hint}")
        for enrol in enrolled:
            if reason := enrol.lacks(name, device) or enrol.lacks(strategy.baseline, device):
                reasons.setdefault(name, f"{reason} (on {enrol.host.hostname})")
    if reasons and all(name in reasons for name in names):
        cpus = any("cpu" in frameworks.load(name).devices(name) for name in names)
        hint = "; or use --device cpu" if device == "cuda" and cpus else ""
        raise UsageError("; ".join(f"--strategy {name}: {why}" for name, why in reasons.items()) + hint)
    return reasons


def world_sizes(draft: Draft, launch: Launch) -> Draft:
    """Measure the powers of two up to the launch's size, and that size."""
    config, size = draft.config, len(launch.slots)
    # A script on one device is a baseline already, and passes exchange nothing.
    least = 2 if config.script and size > 1 else 1
    powers = {1} if config.has_passes else {size, *(1 << power for power in range(size.bit_length()))}
    sizes = config.world_sizes or tuple(one for one in sorted(powers) if one >= least)
    if config.has_passes and sizes != (1,):
        raise UsageError(
            f"--world-sizes {','.join(map(str, sizes))} with --pass {','.join(config.pass_)}: passes are timed on "
            "one device, since they exchange nothing; leave it out"
        )
    if sizes[-1] > size:
        raise UsageError(
            f"--world-sizes {','.join(map(str, sizes))}: {sizes[-1]} is more than the {size} ranks of this "
            f"launch; start them with --ranks {sizes[-1]}, or mpirun -np {sizes[-1]} python -m scaling.run ..."
        )
    if launch.device == "cuda":
        check_own(launch.slots)
    return draft.but(world_sizes=sizes)


# ---------------------------------------------------------------- model, data, kinds


def model(draft: Draft, launch: Launch) -> Draft:
    """Fill in the model: the default of the device."""
    found = models.spec(draft.config.model or models.default_model(launch.device)).name
    frameworks.check_model(found, draft.config.strategy or ())
    return draft.but(model=found)


def data(draft: Draft, _: Launch) -> Draft:
    """Fill in the model's own data; refuse data that it cannot read."""
    spec = _model(draft.config)
    name = draft.config.data or spec.data
    catalogue.fits(name, spec)
    return draft.but(data=name)


def kinds(draft: Draft, launch: Launch) -> Draft:
    """Fill in the kinds: the usual ones, and `feed` and `held` for data decoded from files."""
    refuse(refusals.of_config(draft.config, launch.device, launch.slots))
    return draft.but(kinds=matrix.kinds_of(draft.config, launch.device, draft.config.data or ""))


def _model(config: SweepConfig) -> ModelSpec:
    assert config.model is not None
    return models.spec(config.model)


# ---------------------------------------------------------------- batch, timeouts


def cpu_precision(draft: Draft, launch: Launch) -> Draft:
    """Use fp32 and the frameworks' own memory format except on GPUs; refuse precisions that need a GPU."""
    config = draft.config
    if launch.device == "cpu" and config.precision in ("tf32", "fp16"):
        raise UsageError(f"--precision {config.precision}: needs CUDA; on cpu use fp32 or bf16")
    if launch.device == "cuda":
        return draft
    return draft.but(precision=config.precision or "fp32", memory_format=config.memory_format or "contiguous")


def batch_size(draft: Draft, launch: Launch) -> Draft:
    """Fill in the model's batch per device, or on GPUs one that fills the memory."""
    config, device, fit, why = draft.config, launch.device, launch.fit, ""
    if config.batch_size is not None or config.batch_sizes is not None or config.global_batch_size is not None:
        return draft
    model, listed = _model(config), BATCHES.get(config.model or "", ()) if device == "cuda" else ()
    if device == "emulated":
        image_size = matrix.image_size(config, model)
        size = profiles.rate(profiles.name_of(config.device), model.name, image_size=image_size).batch_size
    else:
        size = model.batch_size[device]
    if listed:
        memory_bytes = least_memory_bytes(launch)
        size = next((batch for least, batch in listed if memory_bytes >= least), size)
        why = f"{memory_bytes / GB:.0f} GB of memory" if memory_bytes else "memory unknown"
    elif grows_batch(config, device) and isinstance(fit, BatchFit):
        size, why = fit.batch_size, f"a step uses {fit.used_bytes / GB:.0f} GB"
    elif grows_batch(config, device):
        why = str(fit) or "a trial before the run chooses the largest that fits"
    return draft.but(batch_size=size)._replace(why=(*draft.why, why and f"batch {size}: {why}"))


def grows_batch(config: SweepConfig, device: Device) -> bool:
    """Return whether a trial on a GPU chooses the batch: none is given, and the model has no list of batches."""
    given = (config.batch_size, config.batch_sizes, config.global_batch_size)
    model = models.spec(config.model or models.default_model(device))
    return device == "cuda" and not any(given) and not model.reads_images and model.name not in BATCHES


def least_memory_bytes(launch: Launch) -> int:
    """Return the memory of the smallest GPU; 0 if unknown."""
    return min((gpu.memory_bytes for gpu in launch.gpus), default=0)


def timeouts(draft: Draft, launch: Launch) -> Draft:
    """Fill in the timeouts, which depend on the framework and the device."""
    return draft._replace(config=defaults.with_clocks(draft.config, launch.device, launch.gpus))


# ---------------------------------------------------------------- device, networks


def choose_device(config: SweepConfig, slots: Sequence[Slot], enrolled: Sequence[Enrol]) -> tuple[Device, str]:
    """Return the device and the reason for it.
    Raises UsageError if ranks lack the given device, or if only some ranks have GPUs and none is given: a driver
    may have failed."""
    if profiles.name_of(config.device):
        return "emulated", f"--device {config.device}"
    if config.device == "cpu":
        return "cpu", "--device cpu"
    bare = {slot.host: enrolled[slot.launch_rank] for slot in slots if not slot.gpu}
    if not bare:
        _check_modes(slots, enrolled)
        return "cuda", "; ".join(("every host has GPUs", *_doubts(slots, enrolled)))
    without = f"{several(list(bare))} {_has(bare)} no NVIDIA GPU{_because(bare.values())}"
    if config.device == "cuda":
        raise UsageError(f"--device cuda: {without}; use --device cpu")
    if len(bare) < len({slot.host for slot in slots}) or any(slot.gpu for slot in slots):
        rest = [slot.host for slot in slots if slot.gpu]
        raise UsageError(
            f"--device auto: {without}, {several(list(dict.fromkeys(rest)))} {_has(rest)} one per rank; see what "
            f"nvidia-smi says on {next(iter(bare))}, leave it out, or use --device cpu"
        )
    return "cpu", f"no NVIDIA GPU on {next(iter(bare))}{_because(bare.values())}"


def _check_modes(slots: Sequence[Slot], enrolled: Sequence[Enrol]) -> None:
    closed = [slot.host for slot, gpu in owned_gpus(slots, enrolled) if gpu.compute_mode == "Prohibited"]
    if closed:
        raise UsageError(
            f"--device: the compute mode Prohibited of GPUs on {several(list(dict.fromkeys(closed)))} forbids all "
            "processes; nvidia-smi -c DEFAULT as root there, or use --device cpu"
        )


def owned_gpus(slots: Sequence[Slot], enrolled: Sequence[Enrol]) -> list[tuple[Slot, Gpu]]:
    """Return each rank's GPU, if it has one."""
    own = ((slot, enrolled[slot.launch_rank].host.gpus) for slot in slots)
    return [(slot, gpu) for slot, gpus in own for gpu in gpus if gpu.uuid == slot.gpu]


def check_own(slots: Sequence[Slot]) -> None:
    """Raise UsageError if two ranks would share a GPU."""
    owner: dict[tuple[str, str], Slot] = {}
    for slot in slots:
        other = owner.setdefault((slot.host, slot.gpu), slot)
        if other is not slot:
            raise UsageError(
                f"ranks {other.launch_rank} and {slot.launch_rank} on {slot.host} would share GPU {slot.gpu}; "
                "start no more ranks there than it has GPUs, or use --device cpu"
            )


def _has(hosts: Iterable[str]) -> str:
    return "has" if len(set(hosts)) == 1 else "have"


def _because(enrolled: Iterable[Enrol]) -> str:
    said: dict[str, None] = {}
    for host in (enrol.host for enrol in enrolled):
        driver = host.gpu_driver
        if driver.startswith("unusable"):
            driver = f"NVML is {driver}"
        elif driver:
            driver = f"driver {driver} shows none: see CUDA_VISIBLE_DEVICES and what the batch system granted"
        said["; ".join(filter(None, (driver, host.unsupported_gpus)))] = None
    return f" ({'; '.join(said)})" if any(said) else ""


def _doubts(slots: Sequence[Slot], enrolled: Sequence[Enrol]) -> Iterator[str]:
    owned = owned_gpus(slots, enrolled)
    kinds = Counter(gpu.name for _, gpu in owned)
    if len(kinds) > 1:
        listed = ", ".join(f"{count} x {name}" for name, count in kinds.items())
        yield f"they differ ({listed}), and so do the ranks that share the work"
    if single := [slot.host for slot, gpu in owned if gpu.takes_one_process]:
        yield (
            f"GPUs on {several(list(dict.fromkeys(single)))} take one process (Exclusive_Process): points are "
            "measured one after another; nvidia-smi -c DEFAULT lets them take turns"
        )
    gpus: dict[str, set[str]] = {}
    on_gpu: dict[str, dict[str, None]] = {}
    for slot in slots:
        gpus.setdefault(slot.host, set()).add(slot.whole_gpu)
        on_gpu.setdefault(slot.gpu, {})[slot.host] = None
    shared = dict.fromkeys(several(list(hosts)) for hosts in on_gpu.values() if len(hosts) > 1)
    for hosts in shared:
        yield f"{hosts} share a GPU: points on more than one of them are OVERSUBSCRIBED"
    alone = [
        host
        for host, owned in gpus.items()
        if len(owned) > 1
        and all(enrol.host.reachable_gpus == 1 for enrol in enrolled if enrol.host.hostname == host)
    ]
    if alone:
        # https://github.com/NVIDIA/nccl/issues/1066, https://github.com/open-mpi/ompi/issues/11949
        yield (
            f"each rank on {several(alone)} may open one GPU alone, which can keep NCCL and MPI from copying "
            "between GPUs directly: with Slurm, --gpu-bind=none and no --gpus-per-task"
        )
    slices = [slot for slot in slots if slot.whole_gpu != slot.gpu]
    if slices:
        yield f"{counted(len(slices), 'rank')} on slices of GPUs (MIG), each sees only its own"


def device(draft: Draft, launch: Launch) -> Draft:
    """Fill in the device of the launch; an emulated device keeps its profile."""
    return draft if launch.device == "emulated" else draft.but(device=launch.device)


def interconnect(draft: Draft, _: Launch) -> Draft:
    """Measure each network once."""
    return draft.but(interconnect=tuple(dict.fromkeys(draft.config.interconnect)))


# ---------------------------------------------------------------- emulation


def emulated_cores(enrolled: Sequence[Enrol]) -> int:
    """Return the cores of the machine that emulates, of the smallest if there are several."""
    hosts = [enrol.host for enrol in enrolled]
    return min(max(1, int(min([len(host.cores), *host.cpu_quotas.values()]))) for host in hosts)


def _loads(config: SweepConfig, slots: Sequence[Slot], cores: int, link_bits_per_s: float) -> Iterator[Load]:
    polling = max((_polling_cores(name) for name in config.strategy or ()), default=0.0)
    profile = profiles.name_of(config.device)
    sizes = config.world_sizes or ()
    for work, size in ((matrix.workload(one, size, slots), size) for one in matrix.each(config) for size in sizes):
        yield _load(work, profile, first_slots(size, config.placement, slots), cores, link_bits_per_s, polling)


def _load(
    work: Workload, profile: str, taken: Sequence[Slot], cores: int, link_bits_per_s: float | None, polling: float
) -> Load:
    return Load(
        gradient_bytes=layers.gradient_bytes(work.model, work.image_size),
        tail_bytes=layers.tail_bytes(work.model, work.image_size),
        layers=len(layers.spans(layers.of(work.model, work.image_size), 1.0)),
        step_s=matrix.emulated_rate(profile, work).step_s,
        world_size=len(taken),
        ranks=max(Counter(slot.machine for slot in taken).values()),
        cores=cores,
        link_bits_per_s=link_bits_per_s if len({slot.host for slot in taken}) > 1 else None,
        polling=polling,
    )


def _polling_cores(name: str) -> float:
    return frameworks.load(name).traits(name).polling_cores


def emulation_told(
    point: Point, slots: Sequence[Slot], cores: int, link_bits_per_s: float | None
) -> Emulation | None:
    """Return the accuracy of a point's emulation over links of this rate between nodes; None for real devices."""
    work, hardware = point.workload, point.hardware
    if not hardware.profile:
        return None
    rate = matrix.emulated_rate(hardware.profile, work)
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


def emulation(draft: Draft, launch: Launch) -> Draft:
    """Choose shrink and dilate of an emulated device for the lab's fastest network; both are 1 without a lab."""
    config = draft.config
    if not profiles.name_of(config.device):
        return draft
    if not launch.lab_bits_per_s:
        return draft.but(shrink=config.shrink or 1.0, dilate=config.dilate or 1.0)
    loads = list(_loads(config, launch.slots, emulated_cores(launch.enrolled), max(launch.lab_bits_per_s)))
    setting = scale.setting(loads, config.shrink, config.dilate, launch.most_dilate)
    return draft.but(shrink=setting.shrink, dilate=setting.dilate)


def compile_(draft: Draft, launch: Launch) -> Draft:
    """Refuse `--compile` if a host lacks the tools with which a framework builds kernels."""
    config = draft.config
    compilers = [compiler for name in config.strategy or () if (compiler := frameworks.named(name).compiler)]
    if not config.compile or not compilers:
        return draft
    for enrol in launch.enrolled:
        if lacks := enrol.host.compile_lacks:
            raise UsageError(
                f"--compile: {enrol.host.hostname} has no {lacks}, with which {compilers[0]} builds kernels while "
                "it trains; install gcc, g++ and python3-dev there, or leave it out"
            )
    return draft


# ---------------------------------------------------------------- precision and points


class Choice(NamedTuple):
    """Precision and memory format of the plain loop."""

    precision: Precision
    memory_format: MemoryFormat


def precision(draft: Draft, launch: Launch) -> Draft:
    """Choose the best precision and memory format that no strategy refuses, and list the points of a round.
    Raises UsageError if none fits."""
    config, refusals = draft.config, list[str]()
    *better, last = _choices(config, launch.device, _capability(launch.gpus))
    for choice in better:
        try:
            return _chosen(draft, launch, choice, refusals)
        except UsageError as error:
            refusals.append(str(error).rpartition(": ")[2])
    return _chosen(draft, launch, last, refusals)


def _chosen(draft: Draft, launch: Launch, choice: Choice, refusals: Sequence[str]) -> Draft:
    chosen = draft.but(**choice._asdict())
    why = _why(draft.config, choice, launch.gpus, refusals)
    points = matrix.make(chosen.config, launch.device, launch.slots)
    return chosen._replace(points=points, why=(why, *draft.why))


def _choices(config: SweepConfig, device: Device, capability: tuple[int, int] | None) -> Iterator[Choice]:
    halves: tuple[Precision, ...] = ()
    if device == "cuda" and capability is not None and capability >= TENSOR_CORES_FROM:
        halves = ("bf16", "fp16") if capability >= BFLOAT16_FROM else ("fp16",)
    for precision in (config.precision,) if config.precision else (*halves, "fp32"):
        # Only images on tensor cores are faster in channels_last.
        formats: tuple[MemoryFormat, ...] = ("contiguous",)
        images = config.model is None or models.spec(config.model).reads_images
        if device == "cuda" and precision in ("bf16", "fp16") and images:
            formats = ("channels_last", "contiguous")
        for memory_format in (config.memory_format,) if config.memory_format else formats:
            yield Choice(precision, memory_format)


def preferred(device: Device, capability: tuple[int, int] | None) -> Choice:
    """Return the default of a run whose strategies refuse nothing; `capability`: of its GPUs, None if unknown."""
    return next(_choices(SweepConfig(), device, capability))


def _capability(gpus: Iterable[Gpu]) -> tuple[int, int] | None:
    """Return the lowest of all GPUs; None if any is unknown."""
    known = [gpu.compute_capability for gpu in gpus]
    return min((one for one in known if one), default=None) if all(known) else None


def _why(given: SweepConfig, choice: Choice, gpus: Sequence[Gpu], refusals: Iterable[str]) -> str:
    words = [word for word, asked in zip(choice, (given.precision, given.memory_format), strict=True) if not asked]
    if not words:
        return ""
    capability = _capability(gpus)
    version = "unknown" if capability is None else ".".join(map(str, capability))
    return "; ".join((f"{', '.join(words)}: compute capability {version}", *dict.fromkeys(refusals)))


def save_weights(draft: Draft, _: Launch) -> Draft:
    """Refuse one file for the weights of several trainings."""
    config, trained = draft.config, [point for point in draft.points if point.regime]
    if config.save_weights is None or len(trained) < 2:
        return draft
    swept = ("strategy", "world_sizes", "batch_sizes", "lr_scale", "seeds", "interconnect")
    counts = {name: len(set(getattr(config, name) or ())) for name in swept}
    which = ", ".join(f"{count} of {flag(name)}" for name, count in counts.items() if count > 1)
    would = f"{len(trained)} trainings would write it ({which})"
    raise UsageError(f"--save-weights {config.save_weights}: {would}; ask for one")


RULES: tuple[Rule, ...] = (
    script, strategy, world_sizes, model, data, kinds, cpu_precision, batch_size, timeouts, device, interconnect,
    emulation, compile_, precision, save_weights,
)  # fmt: skip


def text_of(name: str) -> str:
    """Return a rule as `--dry-run` prints it: the first sentence of its docstring."""
    rule = next(one for one in RULES if one.__name__.rstrip("_") == name)
    return " ".join((rule.__doc__ or "").split()).partition(". ")[0].rstrip(".")
