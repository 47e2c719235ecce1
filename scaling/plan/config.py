"""SweepConfig, the fields of a run, and how a file of them is read.

The same fields are the flags (`run/flags.py`) and the keys of a `--config` file. What values may be is checked in
`plan/validation.py`, and what needs the launch's hosts (world sizes, devices, missing frameworks) in
`plan/plan.py`, where defaults of None are resolved, once the devices are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from scaling import files
from scaling.errors import UsageError, near
from scaling.records.point import (
    BatchRule,
    Feed,
    Kind,
    LrScale,
    MemoryFormat,
    Optimizer,
    Pass,
    Placement,
    Precision,
    Record,
    ServerHosts,
)
from scaling.records.task import Malloc

KINDS: tuple[Kind, ...] = tuple(kind for kind in get_args(Kind) if kind != "train")
DEVICES = ("auto", "cpu", "cuda")
# Fields that take a number or one word.
COUNTS = {"servers": "a number or per-node", "predict_first": "a world size or half"}
COMMAND_LINE = "command line"
MAX_NAME_BYTES = 200
MAX_SEED = 1 << 32


class SweepConfig(Record, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"pass_": "pass"}):
    """What to measure and how. Lists of words are tuples; None means: chosen from the devices found."""

    strategy: tuple[str, ...] | None = None
    world_sizes: tuple[int, ...] | None = None
    kinds: tuple[Kind, ...] | None = None
    pass_: tuple[Pass, ...] = ("step",)
    model: str | None = None
    data: str | None = None
    data_dir: str | None = None
    feed: Feed = "reference"
    feed_workers: int | None = None
    drop_caches: bool = False
    device: str = "auto"
    baseline_device: Literal["cpu"] | None = None
    shrink: float | None = None
    dilate: float | None = None
    batch_size: int | None = None
    batch_sizes: tuple[int, ...] | None = None
    global_batch_size: int | None = None
    batch_rule: BatchRule | None = None
    precision: Precision | None = None
    memory_format: MemoryFormat | None = None
    compile: bool = False
    image_size: int | None = None
    sequence_length: int | None = None
    optimizer: Optimizer | None = None
    epochs: int | None = None
    target_top1: float | None = None
    lr: float | None = None
    lr_scale: tuple[LrScale, ...] | None = None
    warmup_epochs: int | None = None
    lr_steps: tuple[int, ...] | None = None
    augment_epochs: int | None = None
    weights: str | None = None
    seeds: tuple[int, ...] | None = None
    train_samples: int | None = None
    test_samples: int | None = None
    save_weights: str | None = None
    option: tuple[str, ...] = ()
    placement: Placement = "pack"
    servers: int | Literal["per-node"] = "per-node"
    server_hosts: ServerHosts = "shared"
    interconnect: tuple[str, ...] = ("auto",)
    fabric: str | None = None
    cpus_per_rank: int | None = None
    interleave: bool | None = None
    rounds: int | None = None
    windows: int | None = None
    window_s: float | None = None
    soak_s: float | None = None
    trace: bool = False
    target_ci: str | None = None
    max_rounds: int = 20
    predict_first: int | Literal["half"] | None = None
    seed: int = 1
    malloc: Malloc = "keep"
    fresh_workers: bool = False
    against: str | None = None
    startup_timeout_s: float | None = None
    stall_timeout_s: float = 120.0
    point_timeout_s: float | None = None
    results: str = "results"
    name: str = "sweep"

    @property
    def rule(self) -> BatchRule:
        """What is held as devices grow, also where only the batch says it."""
        return self.batch_rule or ("weak" if self.global_batch_size is None else "strong")

    @property
    def has_passes(self) -> bool:
        """Whether less than a whole step is asked for, so that nothing is exchanged."""
        return self.pass_ != ("step",)


# As they are written in files; a keyword of Python's ends with _ inside.
FIELDS: tuple[str, ...] = SweepConfig.__struct_encode_fields__


def flag(field: str) -> str:
    """The command-line spelling of a field."""
    return "--" + field.replace("_", "-")


def target_half_width(config: SweepConfig) -> float | None:
    """What `--target-ci` asks for, `1%` or `0.01`, as a fraction; None where it is not given."""
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


def read_file(path: Path) -> dict[str, Any]:
    """Read a TOML file of SweepConfig fields; every mistake is a UsageError that names its key or line."""
    try:
        data = msgspec.toml.decode(files.read(path))
    except OSError as error:
        raise UsageError(f"--config {path}: {error.strerror}") from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise UsageError(f"--config {path}: not TOML: {error}") from None
    if not isinstance(data, dict):
        raise UsageError(f"--config {path}: expected `field = value` lines")
    for key in data:
        if key not in FIELDS:
            raise UsageError(f"--config {path}: unknown key {key!r}; {near(key, FIELDS)}")
    build(data, source=f"--config {path}")
    return data


def build(data: dict[str, Any], *, source: str) -> SweepConfig:
    """Make a SweepConfig of plain data.

    Raises UsageError naming `source` and the key path of what has the wrong type or value.
    """
    try:
        config = msgspec.convert(data, SweepConfig)
    except msgspec.ValidationError as error:
        raise UsageError(_readable(str(error), data, source)) from None
    return config


def _readable(message: str, data: dict[str, Any], source: str) -> str:
    """Turn msgspec's "Expected `int`, got `str` - at `$.rounds`" into the flag, or the file's key, first, with the
    near match."""
    what, _, path = message.replace(" | null", "").partition(" - at ")
    key = path.strip("`").removeprefix("$.").removeprefix("$")
    field = key.split("[")[0]
    given = data.get(field)
    where = flag(field) if source == COMMAND_LINE and field else f"{source}: {key}" if key else source
    if what.startswith("Invalid enum value") and field in COUNTS:
        return f"{where}: {given!r} is not {COUNTS[field]}"
    if what.startswith("Invalid enum value") and field in FIELDS:
        words = [given] if isinstance(given, str) else [word for word in given or () if isinstance(word, str)]
        choices = _choices(field)
        wrong = next((word for word in words if word not in choices), words[0] if words else "")
        return f"{where}: {wrong!r} is not one of {', '.join(choices)}{_near(wrong, choices)}"
    return f"{where}: {what.lower() if key else what}"


def _near(word: str, choices: Sequence[str]) -> str:
    """The near match, beside which all are listed already."""
    text = near(word, choices)
    return f"; {text}" if text.startswith("did") else ""


def _choices(field: str) -> tuple[str, ...]:
    """The words that a field with fixed choices takes."""
    return {
        "batch_rule": get_args(BatchRule),
        "feed": get_args(Feed),
        "precision": get_args(Precision),
        "optimizer": get_args(Optimizer),
        "lr_scale": get_args(LrScale),
        "memory_format": get_args(MemoryFormat),
        "placement": get_args(Placement),
        "kinds": KINDS,
        "pass": get_args(Pass),
        "baseline_device": ("cpu",),
        "server_hosts": get_args(ServerHosts),
        "malloc": get_args(Malloc),
    }.get(field, ())
