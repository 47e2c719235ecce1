"""A strategy under the name of another revision: to its own code it has the name that it knows."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from scaling.frameworks.base import Helper, Strategy
from scaling.records.other_code import own
from scaling.records.point import Point
from scaling.records.task import Task


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
