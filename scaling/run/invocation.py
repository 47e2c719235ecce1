"""What the command line asks for, and how flags, file and an older run become one SweepConfig.

A flag given on the command line wins over the `--config` file, which wins over the run of `--like` or `--against`,
which wins over the defaults of `SweepConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from scaling.plan import config, validation
from scaling.plan.config import SweepConfig
from scaling.plan.fields import COMMAND_LINE, fields_of, words
from scaling.records import other_code
from scaling.records.point import Record

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
    settled = config.build(merged, source=COMMAND_LINE)
    validation.validate(settled)
    validation.check_given(settled, invocation.given)
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
    known = fields_of(SweepConfig)
    changed = [known[field].flag for field in over if field in known and over[field] != base.get(field)]
    displaced = {other for flag in changed for other in flag.displaces}
    return {**{key: value for key, value in base.items() if key not in displaced}, **over}


def fields(flags: Mapping[str, Any], kv_store: str | None) -> dict[str, Any]:
    """The SweepConfig fields of the flags that were given, lists split at commas; kvstores are strategies."""
    known = fields_of(SweepConfig)
    given = {field: known[field].read(value) for field, value in flags.items()}
    if kv_store is not None:
        from scaling import frameworks  # takes longer to import than --help to answer

        prefix = f"{frameworks.of_flag('kv_store').name}:"
        modes = [f"{prefix}{mode.removeprefix(prefix)}" for mode in words(kv_store)]
        given["strategy"] = [*given.get("strategy", ()), *modes]
    return given
