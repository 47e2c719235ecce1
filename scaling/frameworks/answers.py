"""Check what strategies and trainers return.

Code from outside may raise anything and return any type. Both become a StrategyError with the hook's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from functools import wraps
from typing import Any

import msgspec

from scaling.errors import Interrupted, ScalingError, StrategyError
from scaling.frameworks.base import Helper, Option, Strategy, Traits
from scaling.records.crossing import Bounds
from scaling.records.point import Device

HOOKS: Mapping[str, Any] = {
    "traits": Traits,
    "devices": tuple[Device, ...],
    "missing": str | None,
    "refuse": str | None,
    "helpers": list[Helper],
    "environ": dict[str, str],
    "bytes_per_step": Bounds | None,
}
ATTRIBUTES: Mapping[str, Any] = {
    "names": tuple[str, ...],
    "baseline": str,
    "options": dict[str, Option],
    "trainer": str,
    "server": str,
    "native_formats": tuple[str, ...],
    "native_hint": str,
    "obeying": str,
    "preload": tuple[str, ...],
}
OF_TRAINER: Mapping[str, Any] = {
    "parameters": int,
    "gradient_bytes": int,
    "device_name": str,
    "versions": dict[str, Any],
    "notes": tuple[str, ...],
    "samples": int,
    "loss": float | None,
    "digest": str | None,
    "device_digest": str | None,
    "peak_memory_bytes": int,
    "staleness": float,
    "between_marks_s": tuple[float, ...],
}


def judged(strategy: Strategy, name: str) -> Strategy:
    """Return the strategy with hooks that raise StrategyError. Raises it for an attribute of a wrong type."""
    for attribute, wanted in ATTRIBUTES.items():
        typed(name, attribute, getattr(strategy, attribute), wanted)
    made = copy(strategy)
    for hook in HOOKS:
        setattr(made, hook, _judged_hook(strategy, name, hook))
    return made


def _judged_hook(strategy: Strategy, name: str, hook: str) -> Callable[..., Any]:
    @wraps(getattr(strategy, hook))
    def ask(*asked: Any) -> Any:
        try:
            value = getattr(strategy, hook)(*asked)
        except (ScalingError, Interrupted):
            raise
        except (Exception, SystemExit) as error:
            raise StrategyError(name, f"{hook}() raised {type(error).__name__}: {error}", error) from error
        return typed(name, f"{hook}()", value, HOOKS[hook])

    return ask


def of_trainer(trainer: Any, what: str, *given: Any) -> Any:
    """Return a trainer's attribute, or its method's value. Raises StrategyError for a wrong type."""
    found = getattr(trainer, what)
    value, told = (found(*given), f"{what}()") if callable(found) else (found, what)
    made_by = type(trainer)
    return typed(made_by.__module__, f"{made_by.__qualname__}.{told}", value, OF_TRAINER[what])


def typed(name: str, what: str, value: Any, wanted: Any) -> Any:
    """Return the value converted to the wanted type. Raises StrategyError."""
    try:
        found = msgspec.convert(value, wanted)
        if wanted in (Traits, list[Helper]):  # msgspec does not check an existing Struct
            found = msgspec.convert(msgspec.to_builtins(found), wanted)
    except (TypeError, msgspec.ValidationError) as error:
        raise StrategyError(name, f"{what} is of a wrong type: {error}", error) from error
    return found
