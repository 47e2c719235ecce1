"""Check what strategies and trainers return.

Code from outside may raise anything and return any type. Both become a StrategyError with the hook's name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import copy
from functools import cache, wraps
from typing import Any, get_type_hints

import msgspec

from scaling.errors import Interrupted, ScalingError, StrategyError
from scaling.frameworks.base import Helper, Strategy, Trainer, Traits


def _declared(*kinds: type) -> dict[str, Any]:
    """Return the types of attributes and of the results of methods, by name."""
    found: dict[str, Any] = {}
    for kind in kinds:
        found |= get_type_hints(kind)
        for name, each in vars(kind).items():
            if inspect.isfunction(told := each.fget if isinstance(each, property) else each):
                found[name] = get_type_hints(told).get("return")
    return found


HOOKS = ("traits", "devices", "missing", "refuse", "helpers", "environ", "bytes_per_step")
OF_STRATEGY = _declared(Strategy)


@cache
def _of_trainer() -> dict[str, Any]:
    # It imports NumPy, which agents do without.
    from scaling.frameworks.abilities import Hashing, Marking, Stale

    return _declared(Trainer, Hashing, Stale, Marking) | {"versions": dict[str, Any]}


def judged(strategy: Strategy, name: str) -> Strategy:
    """Return the strategy with hooks that raise StrategyError. Raises it for an attribute of a wrong type."""
    for attribute in get_type_hints(Strategy):
        typed(name, attribute, getattr(strategy, attribute), OF_STRATEGY[attribute])
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
        return typed(name, f"{hook}()", value, OF_STRATEGY[hook])

    return ask


def of_trainer(trainer: Any, what: str, *given: Any) -> Any:
    """Return a trainer's attribute, or its method's value. Raises StrategyError for a wrong type."""
    found = getattr(trainer, what)
    value, told = (found(*given), f"{what}()") if callable(found) else (found, what)
    made_by = type(trainer)
    return typed(made_by.__module__, f"{made_by.__qualname__}.{told}", value, _of_trainer()[what])


def typed(name: str, what: str, value: Any, wanted: Any) -> Any:
    """Return the value converted to the wanted type. Raises StrategyError."""
    try:
        found = msgspec.convert(value, wanted)
        if wanted in (Traits, list[Helper]):  # msgspec does not check an existing Struct
            found = msgspec.convert(msgspec.to_builtins(found), wanted)
    except (TypeError, msgspec.ValidationError) as error:
        raise StrategyError(name, f"{what} is of a wrong type: {error}", error) from error
    return found
