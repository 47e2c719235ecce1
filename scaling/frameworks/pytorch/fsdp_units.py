"""Into which units a module is sharded: what is gathered, and reduced, as one. Worker's side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from torch import nn


class Unit(NamedTuple):
    """A module, and those of its parameters that no unit inside it has."""

    module: nn.Module
    parameters: list[nn.Parameter]


def units(module: nn.Module) -> list[Unit]:
    """Each child with parameters, and the module with what is left; inner ones first, as fully_shard asks.

    Containers that compute nothing (ModuleList) stand for what they hold. A module with an attribute `blocks`
    names repeated modules that lie deeper: each of them is a unit of its own too. Children that share a parameter
    (a tied embedding) cannot be gathered apart: they are left to the module.
    """
    inner = dict.fromkeys([*getattr(module, "blocks", ()), *_computing(module.children())])
    owned = {each: _own(each, inner) for each in inner}
    owners = Counter(parameter for parameters in owned.values() for parameter in parameters)
    found = [
        Unit(each, parameters)
        for each, parameters in owned.items()
        if parameters and all(owners[parameter] == 1 for parameter in parameters)
    ]
    taken = {parameter for unit in found for parameter in unit.parameters}
    return [*found, Unit(module, [each for each in module.parameters() if each not in taken])]


def _computing(modules: Iterable[nn.Module]) -> Iterator[nn.Module]:
    for each in modules:
        if isinstance(each, (nn.ModuleList, nn.ModuleDict)):
            yield from _computing(each.children())
        else:
            yield each


def _own(module: nn.Module, units: Iterable[nn.Module]) -> list[nn.Parameter]:
    """Without those of units inside it."""
    inside = {id(each) for each in module.modules()} - {id(module)}
    theirs = {id(one) for each in units if id(each) in inside for one in each.parameters()}
    return [each for each in module.parameters() if id(each) not in theirs]
