"""Check values and combinations of flags without knowing the hosts, and read --target-ci and --for.

`plan/plan.py` checks the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from typing import Any

from scaling.emulated import profiles
from scaling.errors import UsageError, not_one_of
from scaling.plan.config import TRAINING, WHAT, SweepConfig
from scaling.plan.fields import Field, Topic, fields_of, flag
from scaling.text import seconds_of
from scaling.workloads import models

# ---------------------------------------------------------------- what ends a sweep

# Fewest rounds of a burn-in.
BURN_IN_ROUNDS = 2
MOST_BURN_IN_S = 366 * 86_400.0


def target_half_width(config: SweepConfig) -> float | None:
    """Return `--target-ci` (`1%` or `0.01`) as a fraction; None if it is not given."""
    if config.target_ci is None:
        return None
    text = config.target_ci.strip()
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise UsageError(f"--target-ci {config.target_ci}: not a width; write 1% or 0.01")
    return value


def burn_in_s(config: SweepConfig) -> float | None:
    """Return the seconds of `--for`; None if it is not given."""
    if config.for_ is None:
        return None
    found_s, given = seconds_of(config.for_), config.for_ or "''"
    if found_s is None or not 1 <= found_s <= MOST_BURN_IN_S:
        raise UsageError(f"--for {given}: not a time from 1 s to 366 days; write for example 90s, 30m, 2h or 7d")
    return found_s


def check_burn_in(config: SweepConfig) -> None:
    """Raise UsageError for a wrong `--for`, or for another rule of how many rounds are measured."""
    if burn_in_s(config) is None:
        return
    # A resumed burn-in has its first rounds in its configuration.
    if config.rounds not in (None, BURN_IN_ROUNDS):
        raise two_rules(config, f"--rounds {config.rounds}")
    if config.target_ci is not None:
        raise two_rules(config, f"--target-ci {config.target_ci}")


def two_rules(config: SweepConfig, other: str) -> UsageError:
    """Return the error about `--for` together with another rule of how many rounds are measured."""
    return UsageError(f"--for {config.for_} with {other}: both decide how many rounds are measured; give one")


# ---------------------------------------------------------------- validation

# The largest number: records keep 64 bits, also for products, and products of floats stay finite.
MOST = 1 << 32
DEVICES = ("auto", "cpu", "cuda")
MAX_NAME_BYTES = 200
MAX_SEED = 1 << 32
# File formats of weights (workloads/weights.py is not imported: it needs NumPy).
SAVED = (".npz", ".safetensors")
BASELINES = {"solo", "each"}


def validate(config: SweepConfig) -> None:
    """Raise UsageError for values that no launch could run; the message names the flag and the fix."""
    _each(config, _countable)
    _one_batch_rule(config)
    _each(config, _in_order)
    _batch_sizes(config)
    _device(config)
    _of_its_kind(config)
    _each(config, _within)
    _kinds(config)
    if config.rounds is not None:
        check_max_rounds(config, config.rounds)
    _name_and_seed(config)
    target_half_width(config)
    check_burn_in(config)
    if config.epochs is not None:
        _training(config)


# ---------------------------------------------------------------- every field, by its Flag


def _each(config: SweepConfig, check: Callable[[Field, Any], None]) -> None:
    for field in fields_of(type(config)).values():
        if (value := getattr(config, field.name)) is not None:
            check(field, value)


def _countable(field: Field, value: Any) -> None:
    for one in value if isinstance(value, tuple) else (value,):
        if isinstance(one, int | float) and MOST < abs(one) < math.inf:
            raise UsageError(f"{flag(field.key)} {one}: at most {MOST:,}")


def _in_order(field: Field, value: Any) -> None:
    name, one = flag(field.key), field.flag.ascending
    if value == () and field.flag.example:
        raise UsageError(f"{name}: empty; write for example {field.flag.example}")
    if not one:
        return
    text = ",".join(map(str, value))
    if value[0] < 1:
        raise UsageError(f"{name} {text}: {one} is at least 1")
    if list(value) != sorted(set(value)):
        raise UsageError(f"{name} {text}: not ascending; write {','.join(map(str, sorted(set(value))))}")


def _within(field: Field, value: Any) -> None:
    above, least, bound = field.flag.above, field.flag.least, field.flag.bound
    if isinstance(value, str):
        return
    if above is not None and not (value > above and math.isfinite(value)):
        raise UsageError(f"{flag(field.key)} {value}: {bound or f'must be a number above {above:g}'}")
    if least is not None and not (value >= least and math.isfinite(value)):
        text = f"{value:g}" if isinstance(value, float) else value
        raise UsageError(f"{flag(field.key)} {text}: {bound or f'at least {least:g}'}")


def _of(config: SweepConfig, topic: Topic) -> Iterator[tuple[str, Any]]:
    for field in fields_of(type(config)).values():
        value = getattr(config, field.name)
        if field.flag.of == topic and value is not None:
            yield field.key, value


def _of_its_kind(config: SweepConfig) -> None:
    if not profiles.name_of(config.device):
        for name, value in _of(config, "emulated devices"):
            raise UsageError(f"{flag(name)} {value:g}: only for emulated devices; add --device emulated:PROFILE")
    if config.epochs is None:
        for name, _ in _of(config, "training"):
            raise UsageError(f"{flag(name)}: only for a training to an accuracy; add --epochs N")
        return
    for name, _ in _of(config, "rates"):
        raise UsageError(
            f"{flag(name)} with --epochs: a training to an accuracy measures no rates by rounds; leave it out, or "
            "run both"
        )


# ---------------------------------------------------------------- batch flags


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


def _batch_sizes(config: SweepConfig) -> None:
    if config.batch_sizes is None:
        return
    for field in ("batch_size", "global_batch_size"):
        if getattr(config, field) is not None:
            raise UsageError(f"--batch-sizes and {flag(field)}: give one; the first measures each of its batches")
    if config.rule != "weak":
        text = ",".join(map(str, config.batch_sizes))
        raise UsageError(
            f"--batch-sizes {text} with --batch-rule {config.rule}: sweeps the batch of a device (weak); leave "
            "the rule out"
        )


# ---------------------------------------------------------------- device, name


def check_max_rounds(config: SweepConfig, rounds: int) -> None:
    """Raise UsageError if --max-rounds is less than the number of rounds."""
    if config.target_ci is not None and config.max_rounds < rounds:
        raise UsageError(f"--max-rounds {config.max_rounds}: less than --rounds {rounds}")


def _kinds(config: SweepConfig) -> None:
    if config.kinds is not None and "exchange" not in config.kinds:
        raise UsageError("--kinds: 'exchange' is missing, and the table is about it; add it")
    if config.epochs is None and "train" in (config.kinds or ()):
        raise UsageError("--kinds train: give --epochs N instead")


def _name_and_seed(config: SweepConfig) -> None:
    name = config.name
    if not name.isprintable() or not name or "/" in name or len(name.encode()) > MAX_NAME_BYTES:
        raise UsageError(
            f"--name {name!r}: a plain folder name without '/' and line breaks, at most {MAX_NAME_BYTES} bytes"
        )
    if not 0 <= config.seed < MAX_SEED:
        raise UsageError(f"--seed {config.seed}: from 0 to {MAX_SEED - 1}")


MEANING_CUDA = ("gpu", "gpus", "nvidia")


def _device(config: SweepConfig) -> None:
    device, profile = config.device, profiles.name_of(config.device)
    known = [*DEVICES, *(profiles.PREFIX + name for name in profiles.read().profiles)]
    if device.casefold() in MEANING_CUDA:
        raise UsageError(f"--device {device}: write --device cuda")
    if not profile and device not in DEVICES:
        raise UsageError(f"--device: {not_one_of(device, known)}")
    if profile:
        profiles.find(profile)


# ---------------------------------------------------------------- a training to an accuracy


def _training(config: SweepConfig) -> None:
    _with_epochs(config)
    _numbers(config)
    _epochs(config)
    path = config.save_weights
    if path is not None and not path.endswith(SAVED):
        raise UsageError(f"--save-weights {path}: not one of {', '.join(SAVED)}")


def _with_epochs(config: SweepConfig) -> None:
    # A resumed run has its single round in its configuration.
    if config.rounds not in (None, 1):
        raise UsageError(f"--rounds {config.rounds} with --epochs: a training is repeated by --seeds 0,1,2")
    if config.has_passes or config.trace:
        given = "--pass" if config.has_passes else "--trace"
        raise UsageError(f"{given} with --epochs: a training to an accuracy has only whole steps; leave it out")


def _numbers(config: SweepConfig) -> None:
    if config.lr is not None and not 0 < config.lr < float("inf"):
        raise UsageError(f"--lr {config.lr:g}: must be a number above 0")
    if config.target_top1 is not None and not 1 <= config.target_top1 <= 100:
        raise UsageError(f"--target-top1 {config.target_top1:g}: in percent, from 1 to 100; write for example 98")
    seeds = config.seeds
    if seeds is not None and (
        not seeds or len(set(seeds)) < len(seeds) or not all(0 <= seed < MAX_SEED for seed in seeds)
    ):
        raise UsageError(
            f"--seeds {','.join(map(str, seeds))}: each once, from 0 to {MAX_SEED - 1}; write for example 0,1"
        )


def _epochs(config: SweepConfig) -> None:
    assert config.epochs is not None
    for field in ("warmup_epochs", "augment_epochs"):
        if (getattr(config, field) or 0) > config.epochs:
            raise UsageError(f"{flag(field)} {getattr(config, field)}: at most --epochs {config.epochs}")
    steps = config.lr_steps or ()
    if list(steps) != sorted(set(steps)) or not all(0 < step < config.epochs for step in steps):
        raise UsageError(
            f"--lr-steps {','.join(map(str, steps))}: ascending epochs between 0 and --epochs {config.epochs}"
        )
    if early := [step for step in steps if step < (config.warmup_epochs or 0)]:
        raise UsageError(
            f"--lr-steps {early[0]}: within --warmup-epochs {config.warmup_epochs}, while the rate still grows; "
            "take a later one"
        )


# ---------------------------------------------------------------- flags without effect
# The user expects an effect of a flag. Files and older runs may have fields without effect.


def check_given(config: SweepConfig, given: Collection[str]) -> None:
    """Raise UsageError for a flag among the `given` ones that this configuration does not use."""
    _check_with_epochs(config, given)
    _check_script(config, given)
    _check_own_model(config, given)
    if "rounds" in given and config.for_ is not None:
        raise two_rules(config, f"--rounds {config.rounds}")
    if "max_rounds" in given and config.target_ci is None:
        raise UsageError(
            f"--max-rounds {config.max_rounds}: limits --target-ci; add --target-ci 1%, or give --rounds"
        )
    if "soak_s" in given and config.soak_s and config.interleave is False:
        raise UsageError(
            f"--soak-s {config.soak_s:g} with --no-interleave: only points that take turns are soaked; leave it "
            "out"
        )
    if config.kinds is not None and config.target_ci is not None and not BASELINES & set(config.kinds):
        raise UsageError(
            f"--target-ci {config.target_ci}: efficiencies need a baseline, which --kinds "
            f"{','.join(config.kinds)} lacks; add each to --kinds"
        )
    if "kinds" in given and config.has_passes and config.kinds != ("exchange",):
        raise UsageError(f"--kinds with --pass {','.join(config.pass_)}: passes have no controls; leave it out")
    tokens = config.model is not None and not models.spec(config.model).reads_images
    if "memory_format" in given and config.memory_format != "contiguous" and tokens:
        raise UsageError(
            f"--memory-format {config.memory_format}: {config.model} reads tokens, and this is for images; leave "
            "it out"
        )


# What a script leaves to flags; the panel's other fields are its own.
LEFT = ("script", "world_sizes", "kinds", "device")
SCRIPTS_OWN = ("malloc", "fresh_workers", "servers", "server_hosts")


def _check_script(config: SweepConfig, given: Collection[str]) -> None:
    for field in fields_of(type(config)).values():
        is_own = field.flag.panel in (WHAT, TRAINING) and field.flag.of != "scripts" and field.key not in LEFT
        if field.key not in given:
            continue
        if config.script is None and field.flag.of == "scripts":
            raise UsageError(f"{flag(field.key)}: only for a script; write it after --, or leave it out")
        if config.script is not None and (is_own or field.key in SCRIPTS_OWN):
            raise UsageError(f"{flag(field.key)}: the script decides that; write it after --, or leave it out")


# A model of a user's file makes its own samples, and nothing is known of its layers.
OF_CATALOGUE = (
    "epochs", "image_size", "sequence_length", "data", "data_dir", "feed", "feed_workers", "drop_caches",
)  # fmt: skip


def _check_own_model(config: SweepConfig, given: Collection[str]) -> None:
    if config.model is None or not models.is_own(config.model):
        return
    if profiles.name_of(config.device):
        raise UsageError(
            f"--device {config.device}: has no rate of --model {config.model}; use --device cpu or cuda"
        )
    for name in OF_CATALOGUE:
        if name in given and getattr(config, name) not in (None, False):
            raise UsageError(
                f"{flag(name)}: --model {config.model} is of a file, whose function batch makes all samples; "
                "leave it out"
            )


def _check_with_epochs(config: SweepConfig, given: Collection[str]) -> None:
    for name, value in _of(config, "measuring") if config.epochs is not None else ():
        if name in given and value is not False:
            raise UsageError(
                f"{flag(name)} with --epochs: trainings run one after the other, in whole epochs; leave it out"
            )
