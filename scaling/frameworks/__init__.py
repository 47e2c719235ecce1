"""Name -> strategy. Imports no framework, and no strategy but what is asked for: a broken one costs one row."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import cast

from scaling.errors import UsageError, near
from scaling.frameworks import answers, outside
from scaling.frameworks.base import Framework, Strategy
from scaling.frameworks.revised import Revised
from scaling.records.other_code import own, revision
from scaling.records.point import Device

# A framework is a folder here and its name in this line. `fake` has any mode and is not listed.
FOLDERS = ("pytorch", "tf", "mx", "fake")


def _framework(folder: str) -> Framework:
    found: Framework = import_module(f"{__name__}.{folder}").FRAMEWORK
    return found


FRAMEWORKS: dict[str, Framework] = {one.name: one for one in map(_framework, FOLDERS)}
FOLDER_OF = dict(zip(FRAMEWORKS, FOLDERS, strict=True))
# `<framework>:plain` is the loop without any exchange: the baseline of every strategy of the framework.
PLAIN = "plain"
# In the order in which --list prints them.
NAMES: tuple[str, ...] = tuple(
    f"{one.name}:{mode}"
    for one in FRAMEWORKS.values()
    for mode in one.strategies
    if one.name != "fake" and mode != PLAIN
)
BASELINES: tuple[str, ...] = tuple(f"{name}:{PLAIN}" for name in FRAMEWORKS if name != "fake")
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
    if framework == "fake" and mode:
        return _of(framework, PLAIN)
    if framework in FRAMEWORKS and mode in FRAMEWORKS[framework].strategies:
        return _of(framework, mode)
    if is_outside(name):
        return outside.load(framework, name)
    raise UsageError(f"--strategy {name}: unknown; {near(name, [*NAMES, 'fake:NAME'])}")


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
    return of_baseline(load(name).baseline).startup_s


def resident_bytes(baseline: str) -> int:
    """About what a worker keeps in memory without any model."""
    return of_baseline(baseline).resident_bytes


def of_baseline(baseline: str) -> Framework:
    """The framework of a plain loop; one without any knowledge for what is none of these."""
    return FRAMEWORKS.get(baseline.partition(":")[0], Framework(name="", strategies={}))


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
