"""What the values of a run may be, as far as no host must be asked (`plan/plan.py` asks them). Pure."""

from __future__ import annotations

import math

from scaling.errors import UsageError, near
from scaling.plan import epochs
from scaling.plan.config import DEVICES, MAX_NAME_BYTES, MAX_SEED, SweepConfig, flag, target_half_width
from scaling.tools.emulated import profiles

# ---------------------------------------------------------------- batch flags
#
# What the flags of batches may say (`--batch-size` and those beside it).


def validate_batches(config: SweepConfig) -> None:
    """Refuse batches that contradict each other or the rule; raises UsageError naming the flag."""
    _one_batch_rule(config)
    _batch_sizes(config)


def _one_batch_rule(config: SweepConfig) -> None:
    if config.batch_size is not None and config.global_batch_size is not None:
        raise UsageError(
            "--batch-size and --global-batch-size: give one; "
            "the first fixes the batch per device (weak scaling), the second the sum (strong scaling)"
        )
    if config.batch_rule == "strong" and config.global_batch_size is None:
        raise UsageError("--batch-rule strong: fixes the batch over all devices; give it with --global-batch-size")
    if config.global_batch_size is not None and config.rule != "strong":
        per = "device" if config.rule == "weak" else "node"
        raise UsageError(
            f"--global-batch-size {config.global_batch_size} with --batch-rule {config.rule}: that rule fixes the "
            f"batch per {per}; give it with --batch-size"
        )


def ascending(sizes: tuple[int, ...], flag: str, example: str, one: str) -> None:
    """Refuse a list of sizes that is empty, out of order or has a size below 1."""
    text = ",".join(map(str, sizes))
    if not sizes:
        raise UsageError(f"{flag}: empty; write for example {example}")
    if sizes[0] < 1:
        raise UsageError(f"{flag} {text}: {one} is at least 1")
    if list(sizes) != sorted(set(sizes)):
        raise UsageError(f"{flag} {text}: not ascending; write {','.join(map(str, sorted(set(sizes))))}")


def _batch_sizes(config: SweepConfig) -> None:
    """Refuse a sweep over batches beside another batch, or under a rule that divides it."""
    if config.batch_sizes is None:
        return
    ascending(config.batch_sizes, "--batch-sizes", "16,32,64", "a batch")
    for field in ("batch_size", "global_batch_size"):
        if getattr(config, field) is not None:
            raise UsageError(
                f"--batch-sizes and --{field.replace('_', '-')}: give one; the first measures each of its batches"
            )
    if config.rule != "weak":
        text = ",".join(map(str, config.batch_sizes))
        raise UsageError(
            f"--batch-sizes {text} with --batch-rule {config.rule}: sweeps the batch of a device (weak); leave "
            "the rule out"
        )


# ---------------------------------------------------------------- validation

# Of samples, sizes, epochs, steps: records keep 64 bits, also of products. Of seconds and factors: their products
# stay numbers.
MOST = 1 << 32


def validate(config: SweepConfig) -> None:
    """Refuse values that no launch could run.

    Raises UsageError naming the flag, what was found and what would be right.
    """
    _countable(config)
    validate_batches(config)
    _positive(
        config, "batch_size", "global_batch_size", "image_size", "sequence_length", "cpus_per_rank", "rounds",
        "feed_workers", "max_rounds", "window_s", "startup_timeout_s", "stall_timeout_s", "point_timeout_s",
    )  # fmt: skip
    _device(config)
    _at_least(config)
    _not_empty(config)
    if config.rounds is not None:
        check_max_rounds(config, config.rounds)
    _name_and_seed(config)
    target_half_width(config)
    epochs.validate(config)
    if config.world_sizes is not None:
        ascending(config.world_sizes, "--world-sizes", "1,2,4", "a world size")


def check_max_rounds(config: SweepConfig, rounds: int) -> None:
    """Refuse fewer rounds at most than there are at least."""
    if config.target_ci is not None and config.max_rounds < rounds:
        raise UsageError(f"--max-rounds {config.max_rounds}: less than --rounds {rounds}")


def _at_least(config: SweepConfig) -> None:
    if config.servers != "per-node" and config.servers < 1:
        raise UsageError(f"--servers {config.servers}: at least 1, or per-node")
    if isinstance(config.predict_first, int) and config.predict_first < 2:
        raise UsageError(f"--predict-first {config.predict_first}: at least 2, a world size of --world-sizes")
    if config.soak_s is not None and not 0 <= config.soak_s < math.inf:
        raise UsageError(f"--soak-s {config.soak_s:g}: must be a number from 0")
    if config.windows is not None and config.windows < 3:
        raise UsageError(f"--windows {config.windows}: at least 3 are needed")


def _not_empty(config: SweepConfig) -> None:
    if not config.interconnect:
        raise UsageError("--interconnect: empty; write for example ib0,eth0, or auto")
    if config.strategy == ():
        raise UsageError("--strategy: empty; write for example torch:gloo")
    if not config.pass_:
        raise UsageError("--pass: empty; write for example forward,backward")
    if config.kinds is not None and "exchange" not in config.kinds:
        raise UsageError("--kinds: 'exchange' is what the table is about; leave it in")


def _name_and_seed(config: SweepConfig) -> None:
    name = config.name
    if not name.isprintable() or not name or "/" in name or len(name.encode()) > MAX_NAME_BYTES:
        raise UsageError(
            f"--name {name!r}: a plain folder name without '/' and line breaks, at most {MAX_NAME_BYTES} bytes"
        )
    if not 0 <= config.seed < MAX_SEED:
        raise UsageError(f"--seed {config.seed}: from 0 to {MAX_SEED - 1}")


def _countable(config: SweepConfig) -> None:
    """Refuse numbers beyond what records keep, which a slip of the finger makes."""
    for field in config.__struct_fields__:
        value = getattr(config, field)
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, int | float) and MOST < abs(one) < math.inf:
                raise UsageError(f"{flag(field)} {one}: at most {MOST:,}")


def _device(config: SweepConfig) -> None:
    """Refuse a device that nobody knows, and what only emulated ones take beside another."""
    device, profile = config.device, profiles.name_of(config.device)
    known = [*DEVICES, *(profiles.PREFIX + name for name in profiles.read().profiles)]
    if not profile and device not in DEVICES:
        raise UsageError(f"--device: {device!r} is not one of {', '.join(known)}; {near(device, known)}")
    if profile:
        profiles.find(profile)
    for field in ("shrink", "dilate"):
        value = getattr(config, field)
        if value is not None and not profile:
            raise UsageError(f"{flag(field)} {value:g}: only for emulated devices; add --device emulated:PROFILE")
        if value is not None and not (value >= 1 and math.isfinite(value)):
            raise UsageError(f"{flag(field)} {value:g}: must be a number from 1")


def _positive(config: SweepConfig, *fields: str) -> None:
    for field in fields:
        value = getattr(config, field)
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise UsageError(f"{flag(field)} {value}: must be a number above 0")
