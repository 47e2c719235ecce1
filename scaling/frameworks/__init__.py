"""Name -> strategy. Imports no framework, and no strategy but what is asked for: a broken one costs one row."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any, cast

from msgspec.structs import replace

from scaling.errors import UsageError, near
from scaling.frameworks import answers, outside
from scaling.frameworks.base import Framework, Helper, Strategy
from scaling.records.other_code import own, revision
from scaling.records.point import Device, Point
from scaling.records.task import Task

# The order of --list; a framework in a folder of another name follows these.
FIRST = ("pytorch", "tf", "mx")


def _folders() -> list[str]:
    """All folders here: each framework has one."""
    found = [one.name for one in pkgutil.iter_modules(__path__) if one.ispkg]
    return sorted(found, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))


def _frameworks() -> dict[str, Framework]:
    """What each folder declares as FRAMEWORK, by the folder."""
    modules = {folder: import_module(f"{__name__}.{folder}") for folder in _folders()}
    return {folder: module.FRAMEWORK for folder, module in modules.items() if hasattr(module, "FRAMEWORK")}


FRAMEWORKS: dict[str, Framework] = {}
FOLDER_OF: dict[str, str] = {}
for _folder, _one in _frameworks().items():
    FRAMEWORKS[_one.name], FOLDER_OF[_one.name] = _one, _folder
# `<framework>:plain` is the loop without any exchange: the baseline of every strategy of the framework.
PLAIN = "plain"
LISTED = tuple(one for one in FRAMEWORKS.values() if not one.any_mode)
# In the order in which --list prints them.
NAMES: tuple[str, ...] = tuple(f"{one.name}:{mode}" for one in LISTED for mode in one.strategies if mode != PLAIN)
BASELINES: tuple[str, ...] = tuple(f"{one.name}:{PLAIN}" for one in LISTED)
# Names that users of a framework write for the same mode.
ALIASES: dict[str, str] = {
    f"{one.name}:{alias}": f"{one.name}:{mode}"
    for one in FRAMEWORKS.values()
    for alias, mode in one.aliases.items()
}


@lru_cache(maxsize=64)
def load(name: str) -> Strategy:
    """Return the strategy of a name.

    `fake:<anything>` is the scripted one; `package.module:mode` takes a file from outside, which must
    list the name. `NAME@REVISION` is NAME, whose workers run another revision of this package. Raises UsageError
    for an unknown name, with the near match, StrategyError for an attribute of a wrong type.
    """
    if revision(name):
        return cast(Strategy, Revised(load(own(name))))
    return answers.judged(_load(ALIASES.get(name, name)), name)


def _load(name: str) -> Strategy:
    framework, _, mode = name.partition(":")
    if mode and named(name).any_mode:
        return _of(framework, PLAIN)
    if mode in named(name).strategies:
        return _of(framework, mode)
    if is_outside(name):
        return outside.load(framework, name)
    known = [*NAMES, *(f"{one.name}:NAME" for one in FRAMEWORKS.values() if one.any_mode)]
    raise UsageError(f"--strategy {name}: unknown; {near(name, known)}")


def is_outside(name: str) -> bool:
    """Whether a name is that of a file from outside the package, `package.module:mode`."""
    module, _, mode = name.partition(":")
    return "." in module and bool(mode)


def missing(name: str, device: Device) -> str | None:
    """Why a strategy cannot run on a device of this host; None where it can. Those from outside may look at the
    name alone."""
    name = own(name)
    ask: Callable[..., str | None] = load(name).missing
    try:
        inspect.signature(ask).bind(name, device)
    except TypeError:
        return ask(name)
    return ask(name, device)


def startup_s(name: str) -> float:
    """About how long a worker of a strategy takes to be ready; one from outside as long as its baseline's."""
    return named(load(name).baseline).startup_s


def resident_bytes(baseline: str) -> int:
    """About what a worker keeps in memory without any model."""
    return named(baseline).resident_bytes


def named(name: str) -> Framework:
    """The framework that a strategy's name begins with; one without any knowledge for a strategy from outside."""
    return FRAMEWORKS.get(name.partition(":")[0], Framework(name="", strategies={}))


def default(device: Device) -> str:
    """The strategy that is measured if none is given: of the first framework that has one for the device."""
    return next(f"{one.name}:{one.defaults[device]}" for one in LISTED if device in one.defaults)


def of_flag(mode_flag: str) -> Framework:
    """The framework whose modes a flag names."""
    return next(one for one in LISTED if one.mode_flag == mode_flag)


def all_reducing() -> Framework:
    """The framework that times all-reduces for `check`: the first that can."""
    return next(one for one in LISTED if one.all_reduce)


def distributions() -> dict[str, tuple[str, ...]]:
    """By package of any framework, the names under which it is distributed."""
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
#
# A strategy under the name of another revision: to its own code it has the name that it knows.


class Revised:
    """A strategy that is asked about `name@revision`, and answers as about `name`."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy

    def helpers(self, task: Task) -> list[Helper]:
        """Workers of another revision may not wait for them."""
        return [replace(one, awaited=True) for one in self._strategy.helpers(_own_task(task))]

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._strategy, name)
        return (lambda *asked: found(*map(_known, asked))) if callable(found) else found


def _known(asked: object) -> object:
    """A name, a point or a task as the strategy knows them."""
    match asked:
        case str():
            return own(asked)
        case Point():
            return replace(asked, strategy=own(asked.strategy))
        case Task():
            return _own_task(asked)
    return asked


def _own_task(task: Task) -> Task:
    return replace(task, point=replace(task.point, strategy=own(task.point.strategy)))
