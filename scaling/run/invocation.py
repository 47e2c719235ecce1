"""What the command line asks for, and how flags, file and an older run become one SweepConfig.

A flag given on the command line wins over the `--config` file, which wins over the run of `--like` or `--against`,
which wins over the defaults of `SweepConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from scaling import frameworks
from scaling.errors import UsageError
from scaling.plan import config, ignored, validation
from scaling.plan.config import SweepConfig
from scaling.records import other_code
from scaling.records.point import Record

# What is said of one data set, and may not hold of another.
_OF_DATA = ("feed", "feed_workers", "drop_caches", "train_samples", "test_samples")
# Given together with the left one, the right ones of a file or an older run no longer hold.
DISPLACES: dict[str, tuple[str, ...]] = {
    "batch_size": ("global_batch_size", "batch_sizes"),
    "batch_sizes": ("batch_size", "global_batch_size", "batch_rule"),
    "global_batch_size": ("batch_size", "batch_sizes", "batch_rule", "predict_first"),
    "batch_rule": ("global_batch_size", "batch_sizes", "predict_first"),
    "world_sizes": ("predict_first",),
    "target_ci": ("predict_first",),
    "epochs": ("predict_first",),
    "pass": ("strategy", "world_sizes", "predict_first"),
    "model": ("data", "data_dir", *_OF_DATA, "batch_size", "batch_sizes", "shrink", "dilate"),
    "data": ("data_dir", *_OF_DATA),
    "feed": ("feed_workers",),
    "device": (
        "model",
        "data",
        "data_dir",
        *_OF_DATA,
        "batch_size",
        "batch_sizes",
        "strategy",
        "shrink",
        "dilate",
        "baseline_device",
    ),
}
ViewKind = Literal["live", "plain", "none"]


class Invocation(Record, frozen=True, kw_only=True):
    """What the command line asks for. `given` are the fields set by flags, `base` those of the file."""

    given: dict[str, Any]
    base: dict[str, Any]
    resume: Path | None = None
    like: Path | None = None
    against: Path | None = None
    dry_run: bool = False
    list_all: bool = False
    view: ViewKind = "plain"
    page: bool = True


def resolve(invocation: Invocation, base: dict[str, Any] | None = None) -> SweepConfig:
    """Merge `base` (an older run's fields), the file and the flags; validated. Raises UsageError."""
    merged = merge(merge(base or {}, invocation.base), invocation.given)
    settled = config.build(merged, source=config.COMMAND_LINE)
    validation.validate(settled)
    ignored.check(settled, invocation.given)
    return settled


def inherited(older: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an older run that hold for a new one: not the file of its weights, which stay its own."""
    return {field: value for field, value in older.items() if field != "save_weights"}


def alike(older: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an older run that `--like` measures anew: of the launch's code alone, whatever revision was
    measured beside it then."""
    kept = {field: value for field, value in inherited(older).items() if field != "against"}
    if kept.get("strategy"):
        kept["strategy"] = list(dict.fromkeys(map(other_code.own, kept["strategy"])))
    return kept


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over` wins, also against what it displaces."""
    displaced = {other for field in over for other in DISPLACES.get(field, ()) if over[field] != base.get(field)}
    return {**{key: value for key, value in base.items() if key not in displaced}, **over}


def fields(flags: Mapping[str, Any], kv_store: str | None) -> dict[str, Any]:
    """The SweepConfig fields of the flags that were given, lists split at commas; kvstores are strategies."""
    given = {field: _value(field, value) for field, value in flags.items()}
    if kv_store is not None:
        prefix = f"{frameworks.of_flag('kv_store').name}:"
        modes = [f"{prefix}{mode.removeprefix(prefix)}" for mode in _words(kv_store)]
        given["strategy"] = [*given.get("strategy", ()), *modes]
    return given


def _value(field: str, value: Any) -> Any:
    if field in ("strategy", "kinds", "interconnect", "pass", "lr_scale"):
        return _words(value)
    if field in ("world_sizes", "batch_sizes", "lr_steps", "seeds"):
        return _numbers(field, value)
    if field in ("servers", "predict_first"):
        with suppress(ValueError):  # a word, which SweepConfig judges
            return int(value)
    return list(value) if isinstance(value, tuple) else value


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(field: str, text: str) -> list[int]:
    try:
        return [int(word) for word in _words(text)]
    except ValueError:
        raise UsageError(f"{config.flag(field)} {text}: not numbers; write for example 1,2,4") from None
