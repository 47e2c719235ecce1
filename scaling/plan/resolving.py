"""What a configuration means on these hosts: its strategies, and every field that depends on the launch. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from scaling import frameworks
from scaling.errors import UsageError
from scaling.plan import batches, defaults, devices, feeding, kinds, passes, training
from scaling.plan.config import SweepConfig
from scaling.plan.placement import Slot
from scaling.records import other_code
from scaling.records.host import Gpu
from scaling.records.messages import Enrol
from scaling.records.point import Device, Kind
from scaling.tools.emulated import profiles
from scaling.workloads import data, models
from scaling.workloads.specs import ModelSpec

# ---------------------------------------------------------------- predicting
#
# `--predict-first`: which world sizes are measured first, and whether the others can be predicted then.


def predict_first_settled(config: SweepConfig, sizes: Sequence[int], kinds: Sequence[Kind] | None) -> int | None:
    """The world size up to which is measured first; None where nothing is to be predicted.

    Raises UsageError where the sweep has nothing to predict from, or nothing to predict.
    """
    given = config.predict_first
    if given is None:
        return None
    first = sizes[-1] // 2 if given == "half" else given
    if why := _why_not(config, sizes, kinds or (), first):
        raise UsageError(f"--predict-first {given}: {why}")
    return first


def _why_not(config: SweepConfig, sizes: Sequence[int], kinds: Sequence[Kind], first: int) -> str:
    """What of the sweep stands against it; "" if nothing."""
    known, later = [one for one in sizes if one <= first], [one for one in sizes if one > first]
    listed = ",".join(map(str, sizes))
    if config.target_ci is not None:
        return "its rounds are counted beforehand: leave --target-ci out and give --rounds"
    if config.has_passes or config.epochs is not None:
        return "only exchanges of whole steps are predicted: leave --pass and --epochs out"
    if config.rule != "weak":
        return f"only weak scaling is predicted, not the batch rule {config.rule}: give --batch-size"
    # What is emulated sleeps as long whenever it is measured.
    baselines = {"each", "solo"} if config.device.startswith("emulated") else {"each"}
    if kinds and not baselines & set(kinds):
        return "add each to --kinds: one device alone is measured again beside the larger sizes"
    if not any(one > 1 for one in known):
        return f"several devices must be measured first; of --world-sizes {listed} none is: raise it"
    if not later:
        return f"nothing is left to predict of --world-sizes {listed}: lower it"
    return ""


# ---------------------------------------------------------------- resolving


def names(config: SweepConfig, device: Device) -> tuple[str, ...]:
    """The strategies, each once and by its own name."""
    default = passes.STRATEGY if config.has_passes else "torch:nccl" if device == "cuda" else "torch:gloo"
    given = tuple(dict.fromkeys(other_code.own(name) for name in config.strategy or (default,)))
    if config.against is None and given != tuple(dict.fromkeys(config.strategy or given)):
        raise UsageError("--strategy: names a revision (@); give that with --against REV")
    own = tuple(dict.fromkeys(frameworks.ALIASES.get(name, name) for name in given))
    others = (other_code.of_revision(name, config.against) for name in own if config.against)
    return (*own, *others)


def resolved(
    config: SweepConfig, names: tuple[str, ...], slots: Sequence[Slot], device: Device, gpus: Sequence[Gpu]
) -> SweepConfig:
    """The configuration with every None replaced that depends on the launch, but not on its points."""
    sizes = passes.world_sizes(config, default_world_sizes(len(slots)))
    _check_sizes(sizes, slots, device)
    model = models.spec(config.model or models.default_model(device))
    feed = config.data or model.data
    data.fits(feed, model)
    asked = kinds.of(config, device, feed)
    training.check(config, device, model, feed)
    feeding.check(config, device, feed)
    _check_precision(config, device)
    batch_size = config.batch_size
    if config.global_batch_size is None and batch_size is None and config.batch_sizes is None:
        batch_size = _batch_size(config, model, device, gpus)
    named = replace(config, strategy=names)
    return replace(
        defaults.with_clocks(named, device, gpus),
        world_sizes=sizes,
        model=model.name,
        data=feed,
        kinds=asked,
        predict_first=predict_first_settled(config, sizes, asked),
        device=config.device if device == "emulated" else device,
        batch_size=batch_size,
        precision=config.precision or (None if device == "cuda" else "fp32"),
        memory_format=config.memory_format or (None if device == "cuda" else "contiguous"),
        interconnect=tuple(dict.fromkeys(config.interconnect)),
    )


def _batch_size(config: SweepConfig, model: ModelSpec, device: Device, gpus: Sequence[Gpu]) -> int:
    """The batch per device, where none is given."""
    if device == "emulated":
        size = batches.image_size(config, model)
        return profiles.rate(profiles.name_of(config.device), model.name, image_size=size).batch_size
    return defaults.batch_size(model, device, gpus)


def default_world_sizes(size: int) -> tuple[int, ...]:
    """1, 2, 4, ... and the launch's size."""
    powers = [2**power for power in range(size.bit_length()) if 2**power <= size]
    return tuple(sorted({*powers, size}))


def missing(names: Iterable[str], enrolled: Sequence[Enrol], device: Device, why: str) -> dict[str, str]:
    """Why strategies cannot run on some host. Raises UsageError where another device is needed than the launch
    runs on, and `why` it does, or when nothing that was asked for can run."""
    reasons: dict[str, str] = {}
    for name in names:
        strategy = frameworks.load(name)
        if device not in strategy.devices(name):
            needs = " or ".join(strategy.devices(name))
            hint = f"; of emulated devices: {', '.join(_emulating())}" if device == "emulated" else ""
            raise UsageError(f"--strategy {name}: needs {needs}, this launch runs on {device} ({why}){hint}")
        for enrol in enrolled:
            if reason := enrol.lacks(other_code.own(name), device) or enrol.lacks(strategy.baseline, device):
                reasons.setdefault(name, f"{reason} (on {enrol.host.hostname})")
    if reasons and all(name in reasons for name in names):
        cpus = any("cpu" in frameworks.load(name).devices(name) for name in names)
        hint = "; or use --device cpu" if device == "cuda" and cpus else ""
        raise UsageError("; ".join(f"--strategy {name}: {why}" for name, why in reasons.items()) + hint)
    return reasons


def _emulating() -> list[str]:
    return [name for name in frameworks.NAMES if "emulated" in frameworks.load(name).devices(name)]


def _check_sizes(sizes: Sequence[int], slots: Sequence[Slot], device: Device) -> None:
    if sizes[-1] > len(slots):
        raise UsageError(
            f"--world-sizes {','.join(map(str, sizes))}: {sizes[-1]} is more than the {len(slots)} ranks of this "
            f"launch; start it with mpirun -np {sizes[-1]} python -m scaling.run ..."
        )
    if device == "cuda":
        devices.check_own(slots)


def _check_precision(config: SweepConfig, device: Device) -> None:
    if device == "cpu" and config.precision in ("tf32", "fp16"):
        raise UsageError(f"--precision {config.precision}: needs CUDA; on cpu use fp32 or bf16")
