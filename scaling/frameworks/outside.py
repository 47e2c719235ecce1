"""Load strategies from outside the package: a class in one file, or for one more release a module of functions."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from scaling import files
from scaling.errors import UsageError
from scaling.frameworks.base import Helper, Option, Strategy, Traits
from scaling.records.point import Device, Point
from scaling.records.task import Task

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


def load(module: str, name: str) -> Strategy:
    """Load the strategy `name` of a module: an object `STRATEGY`, a class, or the module's functions. Raises
    UsageError if the module cannot be imported or has no strategy of this name."""
    for old, new in FORMERLY.items():
        sys.modules.setdefault(old, import_module(new))
    try:
        with files.loading(f"strategy module {module}"):
            found = import_module(module)
    except ImportError as error:
        raise UsageError(f"--strategy {name}: cannot import {module}: {error}") from None
    except (Exception, SystemExit) as error:  # code from outside may raise anything
        raise UsageError(f"--strategy {name}: cannot import {module}: {type(error).__name__}: {error}") from error
    if hasattr(found, "NAMES"):
        strategy: Strategy = ModuleStrategy(found, name)
        listed = "NAMES"
    else:
        strategy, listed = _of_class(found, module, name), "its names"
    if name not in strategy.names:
        raise UsageError(f"--strategy {name}: {module} does not list it in {listed}")
    return strategy


def _of_class(found: ModuleType, module: str, name: str) -> Strategy:
    made = getattr(found, "STRATEGY", None)
    if isinstance(made, Strategy):
        return made
    classes = [each for each in vars(found).values() if isinstance(each, type) and issubclass(each, Strategy)]
    for own in classes:
        if own.__module__ == found.__name__ and name in own.names:
            return own()
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
