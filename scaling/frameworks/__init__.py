"""Find a strategy by its name.

No framework is imported here. A strategy is imported when it is asked for, so a broken one costs one row.
"""

from __future__ import annotations

import inspect
import pkgutil
import sys
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any, cast

from msgspec.structs import replace

from scaling import files
from scaling.errors import UsageError, near
from scaling.frameworks import answers, outside
from scaling.frameworks.base import Framework, Helper, Option, Strategy, Traits
from scaling.records.point import Device, Point, own_name, revision_of
from scaling.records.task import Task
from scaling.workloads import models

# The order of --list; all other folders follow, by name.
FIRST = ("pytorch", "tf", "mx")


def _folders() -> list[str]:
    found = [one.name for one in pkgutil.iter_modules(__path__) if one.ispkg]
    return sorted(found, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))


def _frameworks() -> dict[str, Framework]:
    modules = {folder: import_module(f"{__name__}.{folder}") for folder in _folders()}
    return {folder: module.FRAMEWORK for folder, module in modules.items() if hasattr(module, "FRAMEWORK")}


FRAMEWORKS: dict[str, Framework] = {}
FOLDER_OF: dict[str, str] = {}
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
    * `NAME@REVISION` is NAME with workers that run another revision of this package.

    Raises UsageError with the nearest match for an unknown name, StrategyError for an attribute of a wrong type.
    """
    if revision_of(name):
        return cast(Strategy, Revised(load(own_name(name))))
    return answers.judged(_load(ALIASES.get(name, name)), name)


def _load(name: str) -> Strategy:
    framework, _, mode = name.partition(":")
    if mode and named(name).any_mode:
        return _of(framework, PLAIN)
    if mode in named(name).strategies:
        return _of(framework, mode)
    if is_outside(name):
        return _load_outside(framework, name)
    meant = named(name).meant.get(mode)
    raise UsageError(f"--strategy {name}: unknown; {f'take {meant}' if meant else near(name, NAMES)}")


def is_outside(name: str) -> bool:
    """Return whether a name is `package.module:mode` or `FILE:mode`, from outside the package."""
    module, _, mode = name.partition(":")
    return "." in module and bool(mode)


def missing(name: str, device: Device) -> str | None:
    """Return why a strategy cannot run on a device of this host, or None. From outside it may take the name
    alone."""
    name = own_name(name)
    ask: Callable[..., str | None] = load(name).missing
    try:
        inspect.signature(ask).bind(name, device)
    except TypeError:
        return ask(name)
    return ask(name, device)


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


def all_reducing() -> Framework:
    """Return the framework that measures for `check`, all-reduces and devices: the first one that can."""
    return next(one for one in LISTED if one.all_reduce)


def distributions() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for one in FRAMEWORKS.values():
        for package, names in one.distributions.items():
            found[package] = tuple(dict.fromkeys((*found.get(package, ()), *names)))
    return found


def _of(framework: str, mode: str) -> Strategy:
    module = import_module(f"{__name__}.{FOLDER_OF[framework]}.{FRAMEWORKS[framework].strategies[mode]}")
    strategy: Strategy = module.STRATEGY
    return strategy


# ---------------------------------------------------------------- revised


class Revised:
    """A strategy named `name@revision`. Its own code is given the plain `name`."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy

    def helpers(self, task: Task) -> list[Helper]:
        """Return the helpers, all awaited: workers of another revision may not wait for them."""
        return [replace(one, awaited=True) for one in self._strategy.helpers(_own_task(task))]

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._strategy, name)
        return (lambda *asked: found(*map(_known, asked))) if callable(found) else found


def _known(asked: object) -> object:
    match asked:
        case str():
            return own_name(asked)
        case Point():
            return replace(asked, strategy=own_name(asked.strategy))
        case Task():
            return _own_task(asked)
    return asked


def _own_task(task: Task) -> Task:
    return replace(task, point=replace(task.point, strategy=own_name(task.point.strategy)))


# ---------------------------------------------------------------- outside
#
# From outside the package: a class in one file, or for one more release a module of functions.


# Aliases of old import paths, for one more release.
FORMERLY: Mapping[str, str] = {
    "scaling.strategies": "scaling.frameworks",
    "scaling.strategies.base": "scaling.frameworks.base",
    "scaling.strategies.knobs": "scaling.frameworks.options",
    "scaling.steering": "scaling.frameworks.network_env",
    "scaling.points": "scaling.records.point",
    "scaling.tasks": "scaling.records.task",
    "scaling.models": "scaling.workloads.models",
    "scaling.data": "scaling.workloads.feeds",
}


def _load_outside(module: str, name: str) -> Strategy:
    """Load the strategy `name` of a module: an object `STRATEGY`, a class, or the module's functions. Raises
    UsageError if the module cannot be imported or has no strategy of this name."""
    for old, new in FORMERLY.items():
        sys.modules.setdefault(old, import_module(new))
    with files.loading(f"strategy module {module}"):
        is_file = outside.is_file(module)
        found = outside.of_file(module, f"--strategy {name}") if is_file else _imported(module, name)
    if hasattr(found, "NAMES"):
        strategy: Strategy = ModuleStrategy(found, name)
        listed = "NAMES"
    else:
        strategy, listed = _of_class(found, module, name), "its names"
    if not _lists(strategy.names, name):
        raise UsageError(f"--strategy {name}: {module} does not list it in {listed}")
    return strategy


def _imported(module: str, name: str) -> ModuleType:
    try:
        return import_module(module)
    except ImportError as error:
        raise UsageError(f"--strategy {name}: cannot import {module}: {error}") from None
    except (Exception, SystemExit) as error:  # code from outside may raise anything
        raise UsageError(f"--strategy {name}: cannot import {module}: {type(error).__name__}: {error}") from error


def _lists(names: Collection[str], name: str) -> bool:
    module, _, mode = name.partition(":")
    return name in names or (outside.is_file(module) and mode in names)


def _of_class(found: ModuleType, module: str, name: str) -> Strategy:
    made = getattr(found, "STRATEGY", None)
    if isinstance(made, Strategy):
        return made
    classes = [each for each in vars(found).values() if isinstance(each, type) and issubclass(each, Strategy)]
    for kind in classes:
        if kind.__module__ == found.__name__ and _lists(kind.names, name):
            return kind()
    raise UsageError(f"--strategy {name}: {module} has no class derived from Strategy that lists it in its names")


class ModuleStrategy(Strategy):
    """A module of functions as a strategy, an interface that remains for one more release."""

    def __init__(self, module: ModuleType, name: str) -> None:
        self._module: Any = module
        self.names = tuple(self._module.NAMES)
        self.baseline = self._module.BASELINE
        plain = name == self.baseline
        self.options: Mapping[str, Option] = self._module.PLAIN_OPTIONS if plain else self._module.OPTIONS
        self.trainer = self.server = module.__name__

    def traits(self, name: str) -> Traits:
        found: Traits = self._module.traits(name)
        return found

    def devices(self, name: str) -> tuple[Device, ...]:
        return tuple(self._module.devices(name))

    def missing(self, name: str, _device: Device = "cpu") -> str | None:
        reason: str | None = self._module.missing(name)
        return reason

    def refuse(self, point: Point) -> str | None:
        reason: str | None = self._module.refuse(point)
        return reason

    def helpers(self, task: Task) -> list[Helper]:
        return list(self._module.helpers(task))

    def environ(self, task: Task, announced: Mapping[str, str]) -> dict[str, str]:
        return dict(self._module.environ(task, announced))

    def compresses(self, point: Point) -> bool:
        """Return whether the option `compression` is set: such a module cannot say it otherwise."""
        return point.options.get("compression", "none") != "none"
