"""The Invocation, and how flags, file and an older run become one SweepConfig.

Order of precedence: flag, `--config` file, run of `--like` or `--against`, default.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scaling.plan import config, validation
from scaling.plan.config import COMMAND_LINE, SweepConfig, fields_of, words
from scaling.records.point import Record
from scaling.transport.terminal import ViewKind


class Invocation(Record, frozen=True, kw_only=True):
    """The parsed command line. `given` are fields set by flags, `base` those of the file."""

    given: dict[str, Any]
    base: dict[str, Any]
    resume: Path | None = None
    like: Path | None = None
    against: Path | None = None
    dry_run: bool = False
    list_all: bool = False
    view: ViewKind = "auto"
    page: bool = True
    verbose: bool = False
    metrics: Path | None = None
    require_proof: bool = False

    @property
    def device(self) -> str:
        """The device that is given; "" without one."""
        return str({**self.base, **self.given}.get("device") or "")


def resolve(invocation: Invocation, base: dict[str, Any] | None = None) -> SweepConfig:
    """Merge an older run's fields (`base`), the file and the flags; validate. Raises UsageError."""
    merged = merge(merge(base or {}, invocation.base), invocation.given)
    settled = config.build(merged, source=COMMAND_LINE)
    validation.validate(settled)
    validation.check_given(settled, invocation.given)
    return settled


def inherited(older: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an older run for a new one, without its file of weights."""
    return {field: value for field, value in older.items() if field != "save_weights"}


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Merge; `over` wins and resets the fields that it displaces."""
    known = fields_of(SweepConfig)
    changed = [known[field].flag for field in over if field in known and over[field] != base.get(field)]
    displaced = {other for flag in changed for other in flag.displaces}
    return {**{key: value for key, value in base.items() if key not in displaced}, **over}


def fields(flags: Mapping[str, Any], kv_store: str | None) -> dict[str, Any]:
    """Return the SweepConfig fields of the given flags; kvstores become strategies."""
    known = fields_of(SweepConfig)
    given = {field: known[field].read(value) for field, value in flags.items()}
    if kv_store is not None:
        from scaling import frameworks  # slow to import; --help does not need it

        prefix = f"{frameworks.of_flag('kv_store').name}:"
        modes = [f"{prefix}{mode.removeprefix(prefix)}" for mode in words(kv_store)]
        given["strategy"] = [*given.get("strategy", ()), *modes]
    return given
