"""Check values and combinations of flags without knowing the hosts, and read --target-ci and --for.

A mistake names the flag and the fix. `plan/rules.py` checks what depends on the hosts.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import Any

from scaling.emulated import profiles
from scaling.errors import UsageError, not_one_of
from scaling.plan.config import MAX_SEED, TRAINING, WHAT, Field, SweepConfig, fields_of, flag, refuse
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


def check_max_rounds(config: SweepConfig, rounds: int) -> None:
    """Raise UsageError if --max-rounds is less than the number of rounds."""
    if config.target_ci is not None and config.max_rounds < rounds:
        raise UsageError(f"--max-rounds {config.max_rounds}: less than --rounds {rounds}")


# ---------------------------------------------------------------- values

# The largest number: records keep 64 bits, also for products, and products of floats stay finite.
MOST = 1 << 32
DEVICES, MEANING_CUDA = ("auto", "cpu", "cuda"), ("gpu", "gpus", "nvidia")
MAX_NAME_BYTES = 200
# File formats of weights (workloads/weights.py is not imported: it needs NumPy).
SAVED = (".npz", ".safetensors")


def validate(config: SweepConfig) -> None:
    """Raise UsageError for values that no launch could run."""
    refuse(_wrong_device(config))
    for field in fields_of(type(config)).values():
        if (value := getattr(config, field.name)) is not None:
            refuse(_wrong_value(config, field, value))
    refuse(_wrong_batch(config))
    refuse(_wrong_rounds(config))
    if config.epochs is not None:
        refuse(_wrong_training(config, config.epochs))


def _wrong_value(config: SweepConfig, field: Field, value: Any) -> Iterator[str]:
    """Yield why a field cannot have a value, or has no meaning in such a run, by its Flag."""
    name, said, is_training = flag(field.key), field.flag, config.epochs is not None
    items = value if isinstance(value, tuple) else (value,)
    for one in items:
        if isinstance(one, int | float) and MOST < abs(one) < math.inf:
            yield f"{name} {one}: at most {MOST:,}"
    if not items and said.example:
        yield f"{name}: empty; write for example {said.example}"
    if said.ascending:
        text = ",".join(map(str, items))
        if items[0] < 1:
            yield f"{name} {text}: {said.ascending} is at least 1"
        if list(items) != sorted(set(items)):
            yield f"{name} {text}: not ascending; write {','.join(map(str, sorted(set(items))))}"
    if said.of == "emulated devices" and not profiles.name_of(config.device):
        yield f"{name} {value:g}: only for emulated devices; add --device emulated:PROFILE"
    if said.of == "training" and not is_training:
        yield f"{name}: only for a training to an accuracy; add --epochs N"
    if said.of == "rates" and is_training:
        rates = "a training to an accuracy measures no rates by rounds"
        yield f"{name} with --epochs: {rates}; leave it out, or run both"
    if isinstance(value, str | tuple) or (said.above is None and said.least is None):
        return
    is_above = value >= said.least if said.above is None else value > said.above
    if not (is_above and value <= said.most and math.isfinite(value)):
        what = f"at least {said.least}" if isinstance(value, int) else f"must be a number from {said.least}"
        usual = what if said.above is None else f"must be a number above {said.above:g}"
        yield f"{name} {value if isinstance(value, int) else f'{value:g}'}: {said.bound or usual}"


def _wrong_batch(config: SweepConfig) -> Iterator[str]:
    size, sizes, whole, rule = config.batch_size, config.batch_sizes, config.global_batch_size, config.rule
    if size is not None and whole is not None:
        yield (
            "--batch-size and --global-batch-size: give one; "
            "the first fixes the batch per device (weak scaling), the second the sum (strong scaling)"
        )
    if config.batch_rule == "strong" and whole is None:
        yield "--batch-rule strong: fixes the batch over all devices; give it with --global-batch-size"
    if whole is not None and rule != "strong":
        per = "device" if rule == "weak" else "node"
        fixed = f"that rule fixes the batch per {per}; give it with --batch-size"
        yield f"--global-batch-size {whole} with --batch-rule {rule}: {fixed}"
    if sizes is None:
        return
    for name, value in (("--batch-size", size), ("--global-batch-size", whole)):
        if value is not None:
            yield f"--batch-sizes and {name}: give one; the first measures each of its batches"
    if rule != "weak":
        text = f"--batch-sizes {','.join(map(str, sizes))} with --batch-rule {rule}"
        yield f"{text}: sweeps the batch of a device (weak); leave the rule out"


def _wrong_device(config: SweepConfig) -> Iterator[str]:
    device, name = config.device, config.name
    if device.casefold() in MEANING_CUDA:
        yield f"--device {device}: write --device cuda"
    if profile := profiles.name_of(device):
        profiles.find(profile)
    elif device not in DEVICES:
        emulated = (profiles.PREFIX + one for one in profiles.read().profiles)
        yield f"--device: {not_one_of(device, [*DEVICES, *emulated])}"
    if config.kinds is not None and "exchange" not in config.kinds:
        yield "--kinds: 'exchange' is missing, and the table is about it; add it"
    if config.epochs is None and "train" in (config.kinds or ()):
        yield "--kinds train: give --epochs N instead"
    if not name.isprintable() or not name or "/" in name or len(name.encode()) > MAX_NAME_BYTES:
        yield f"--name {name!r}: a plain folder name without '/' and line breaks, at most {MAX_NAME_BYTES} bytes"


def _wrong_rounds(config: SweepConfig) -> Iterator[str]:
    if config.rounds is not None:
        check_max_rounds(config, config.rounds)
    target_half_width(config)
    if burn_in_s(config) is None:
        return
    # A resumed burn-in has its first rounds in its configuration.
    if config.rounds not in (None, BURN_IN_ROUNDS):
        yield _two_rules(config, f"--rounds {config.rounds}")
    if config.target_ci is not None:
        yield _two_rules(config, f"--target-ci {config.target_ci}")


def _two_rules(config: SweepConfig, other: str) -> str:
    return f"--for {config.for_} with {other}: both decide how many rounds are measured; give one"


def _wrong_training(config: SweepConfig, epochs: int) -> Iterator[str]:
    # A resumed run has its single round in its configuration.
    if config.rounds not in (None, 1):
        yield f"--rounds {config.rounds} with --epochs: a training is repeated by --seeds 0,1,2"
    if config.has_passes or config.trace:
        given = "--pass" if config.has_passes else "--trace"
        yield f"{given} with --epochs: a training to an accuracy has only whole steps; leave it out"
    seeds, steps, warmup = config.seeds, config.lr_steps or (), config.warmup_epochs or 0
    if seeds is not None and not (0 < len(seeds) == len(set(seeds)) and all(0 <= one < MAX_SEED for one in seeds)):
        yield f"--seeds {','.join(map(str, seeds))}: each once, from 0 to {MAX_SEED - 1}; write for example 0,1"
    for name, value in (("--warmup-epochs", warmup), ("--augment-epochs", config.augment_epochs or 0)):
        if value > epochs:
            yield f"{name} {value}: at most --epochs {epochs}"
    if list(steps) != sorted(set(steps)) or not all(0 < step < epochs for step in steps):
        yield f"--lr-steps {','.join(map(str, steps))}: ascending epochs between 0 and --epochs {epochs}"
    if steps and steps[0] < warmup:
        within = f"within --warmup-epochs {warmup}, while the rate still grows"
        yield f"--lr-steps {steps[0]}: {within}; take a later one"
    if config.save_weights is not None and not config.save_weights.endswith(SAVED):
        yield f"--save-weights {config.save_weights}: not one of {', '.join(SAVED)}"


# ---------------------------------------------------------------- flags without effect
# The user expects an effect of a flag. Files and older runs may have fields without effect.

BASELINES = {"solo", "each"}
# What a script leaves to flags; the other fields of the panels of models are its own, as are these.
LEFT = ("script", "world_sizes", "kinds", "device")
SCRIPTS_OWN = ("malloc", "fresh_workers", "servers", "server_hosts")
# A model of a user's file makes its own samples, and nothing is known of its layers.
OF_CATALOGUE = (
    "epochs", "image_size", "sequence_length", "data", "data_dir", "feed", "feed_workers", "drop_caches",
)  # fmt: skip


def check_given(config: SweepConfig, given: Collection[str]) -> None:
    """Raise UsageError for a flag among the `given` ones that this configuration does not use."""
    is_own_model = config.model is not None and models.is_own(config.model)
    if is_own_model and profiles.name_of(config.device):
        raise UsageError(
            f"--device {config.device}: has no rate of --model {config.model}; use --device cpu or cuda"
        )
    for field in fields_of(type(config)).values():
        if field.key in given:
            refuse(_useless_field(config, field, is_own_model=is_own_model))
    refuse(_useless(config, given))


def _useless_field(config: SweepConfig, field: Field, *, is_own_model: bool) -> Iterator[str]:
    name, of, value = flag(field.key), field.flag.of, getattr(config, field.name)
    if of == "measuring" and config.epochs is not None and value is not False:
        yield f"{name} with --epochs: trainings run one after the other, in whole epochs; leave it out"
    if of == "scripts" and config.script is None:
        yield f"{name}: only for a script; write it after --, or leave it out"
    decides = field.flag.panel in (WHAT, TRAINING) and of != "scripts" and field.key not in LEFT
    if config.script is not None and (decides or field.key in SCRIPTS_OWN):
        yield f"{name}: the script decides that; write it after --, or leave it out"
    if is_own_model and field.key in OF_CATALOGUE and value is not False:
        yield f"{name}: --model {config.model} is of a file, whose function batch makes all samples; leave it out"


def _useless(config: SweepConfig, given: Collection[str]) -> Iterator[str]:
    kinds = config.kinds
    if "rounds" in given and config.for_ is not None:
        yield _two_rules(config, f"--rounds {config.rounds}")
    if "max_rounds" in given and config.target_ci is None:
        yield f"--max-rounds {config.max_rounds}: limits --target-ci; add --target-ci 1%, or give --rounds"
    if "soak_s" in given and config.soak_s and config.interleave is False:
        only = "only points that take turns are soaked; leave it out"
        yield f"--soak-s {config.soak_s:g} with --no-interleave: {only}"
    if kinds is not None and config.target_ci is not None and not BASELINES & set(kinds):
        lacks = f"efficiencies need a baseline, which --kinds {','.join(kinds)} lacks; add each to --kinds"
        yield f"--target-ci {config.target_ci}: {lacks}"
    if "kinds" in given and config.has_passes and kinds != ("exchange",):
        yield f"--kinds with --pass {','.join(config.pass_)}: passes have no controls; leave it out"
    tokens = config.model is not None and not models.spec(config.model).reads_images
    if "memory_format" in given and config.memory_format != "contiguous" and tokens:
        reads = f"{config.model} reads tokens, and this is for images; leave it out"
        yield f"--memory-format {config.memory_format}: {reads}"
