"""Find a strategy by its name.

No framework is imported here. A strategy is imported when it is asked for, so a broken one costs one row.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Collection
from copy import copy
from functools import lru_cache, wraps
from importlib import import_module
from types import ModuleType
from typing import Any

from scaling import files
from scaling.errors import Interrupted, ScalingError, StrategyError, UsageError, near
from scaling.frameworks import outside
from scaling.frameworks.base import Framework, Strategy, declared, typed
from scaling.records.point import Device
from scaling.workloads import models

# The order of --list; all other folders follow, by name.
FIRST = ("pytorch", "tf", "mx")


def _frameworks() -> dict[str, Framework]:
    found = [one.name for one in pkgutil.iter_modules(__path__) if one.ispkg]
    ordered = sorted(found, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))
    modules = {folder: import_module(f"{__name__}.{folder}") for folder in ordered}
    return {folder: module.FRAMEWORK for folder, module in modules.items() if hasattr(module, "FRAMEWORK")}


FOLDER_OF: dict[str, str] = {}
FRAMEWORKS: dict[str, Framework] = {}
for _folder, _one in _frameworks().items():
    FRAMEWORKS[_one.name], FOLDER_OF[_one.name] = _one, _folder
# `<framework>:plain` is the loop without exchange: the baseline of every strategy of the framework.
PLAIN = "plain"
LISTED = tuple(one for one in FRAMEWORKS.values() if not one.any_mode)
# In the order of --list.
NAMES: tuple[str, ...] = tuple(f"{one.name}:{mode}" for one in LISTED for mode in one.strategies if mode != PLAIN)
BASELINES: tuple[str, ...] = tuple(f"{one.name}:{PLAIN}" for one in LISTED)
# Other names that users of a framework write for a mode.
ALIASES: dict[str, str] = {
    f"{one.name}:{alias}": f"{one.name}:{mode}"
    for one in FRAMEWORKS.values()
    for alias, mode in one.aliases.items()
}


@lru_cache(maxsize=64)
def load(name: str) -> Strategy:
    """Return the strategy of a name.

    * `fake:<anything>` is the scripted strategy.
    * `package.module:mode` and `FILE:mode` are from outside the package. Their strategy must list the name, or
      that of a file the mode alone.
    * A revision behind an `@`, which older records have, is ignored.

    Raises UsageError with the nearest match for an unknown name, StrategyError for an attribute of a wrong type.
    """
    framework, colon, mode = name.rpartition(":")
    name = f"{framework}{colon}{mode.partition('@')[0]}"
    return _judged(_load(ALIASES.get(name, name)), name)


def _load(name: str) -> Strategy:
    framework, _, mode = name.partition(":")
    known = named(name)
    listed = PLAIN if mode and known.any_mode else mode
    if listed in known.strategies:
        module = import_module(f"{__name__}.{FOLDER_OF[framework]}.{known.strategies[listed]}")
        return _strategy_in(module, f"{framework}:{listed}")
    if is_outside(name):
        with files.loading(f"strategy module {framework}"):
            is_file = outside.is_file(framework)
            module = outside.of_file(framework, f"--strategy {name}") if is_file else _imported(framework, name)
        return _strategy_in(module, name)
    meant = known.meant.get(mode)
    raise UsageError(f"--strategy {name}: unknown; {f'take {meant}' if meant else near(name, NAMES)}")


def _imported(module: str, name: str) -> ModuleType:
    try:
        return import_module(module)
    except (Exception, SystemExit) as error:  # code from outside may raise anything
        kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
        raise UsageError(f"--strategy {name}: cannot import {module}: {kind}{error}") from error


def _strategy_in(module: ModuleType, name: str) -> Strategy:
    """Return a strategy of the class of a module that lists the name. Raises UsageError if none does."""
    where, _, mode = name.partition(":")
    listed = (name, mode) if outside.is_file(where) else (name,)
    classes = [one for one in vars(module).values() if isinstance(one, type) and issubclass(one, Strategy)]
    for kind in classes:
        if kind.__module__ == module.__name__ and any(one in kind.names for one in listed):
            return kind()
    raise UsageError(f"--strategy {name}: {where} has no class derived from Strategy that lists it in its names")


HOOKS = ("traits", "devices", "missing", "refuse", "helpers", "environ", "bytes_per_step")
DECLARED = declared(Strategy)


def _judged(strategy: Strategy, name: str) -> Strategy:
    """Return the strategy with hooks that raise StrategyError. Raises it for an attribute of a wrong type."""
    for attribute in Strategy.__annotations__:
        typed(name, attribute, getattr(strategy, attribute), DECLARED[attribute])
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
        return typed(name, f"{hook}()", value, DECLARED[hook])

    return ask


def is_outside(name: str) -> bool:
    """Return whether a name is `package.module:mode` or `FILE:mode`, from outside the package."""
    module, _, mode = name.partition(":")
    return "." in module and bool(mode)


def startup_s(name: str) -> float:
    return named(load(name).baseline).startup_s


def resident_bytes(baseline: str) -> int:
    return named(baseline).resident_bytes


def named(name: str) -> Framework:
    """Return the framework before the colon of a strategy's name; a nameless `Framework` for one from outside."""
    return FRAMEWORKS.get(name.partition(":")[0], Framework(name="", strategies={}))


def running(strategy: str) -> Framework:
    """Return the framework that a strategy's children run in; a nameless one if it is none of this package's."""
    return named(load(strategy).baseline)


def check_model(model: str, strategies: Collection[str]) -> None:
    """Raise UsageError for a model of a user's file that is unreadable, or that a strategy cannot train."""
    if not models.is_own(model):
        return
    outside.check_model(model)
    able = [one.name for one in LISTED if one.own_models]
    for name in strategies:
        if running(name).name not in able:
            raise UsageError(
                f"--model {model}: --strategy {name} trains no model of a file; take one of {' or '.join(able)}"
            )
    if len(found := {running(name).name for name in strategies}) > 1:
        raise UsageError(
            f"--model {model}: a file is of one framework; give --strategy of {' or '.join(sorted(found))} alone"
        )


def default(device: Device) -> str:
    """Return the strategy that is measured by default: that of the first framework with one for the device."""
    return next(f"{one.name}:{one.defaults[device]}" for one in LISTED if device in one.defaults)


def of_flag(mode_flag: str) -> Framework:
    return next(one for one in LISTED if one.mode_flag == mode_flag)


def of_preflight() -> Framework:
    """Return the framework that measures for `check`, all-reduces and devices: the first one that can."""
    return next(one for one in LISTED if one.preflight)


def distributions() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for one in FRAMEWORKS.values():
        for package, names in one.distributions.items():
            found[package] = tuple(dict.fromkeys((*found.get(package, ()), *names)))
    return found
