"""Strategies whose workers run another revision of this package, `torch:gloo@1a2b3c4d5e`. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from scaling.records.task import Task

SIGN = "@"
# Of a commit, in a strategy's name.
DIGITS = 10


def own(strategy: str) -> str:
    """A strategy's name without any revision."""
    return strategy.partition(SIGN)[0]


def revision(strategy: str) -> str:
    """The revision that a strategy's workers run; "" for that of the launch."""
    return strategy.partition(SIGN)[2]


def of_revision(strategy: str, commit: str) -> str:
    """The name of a strategy whose workers run this commit; "" is that of the launch."""
    return f"{own(strategy)}{SIGN}{commit[:DIGITS]}" if commit else own(strategy)


def told(task: Task) -> Task:
    """The task as its worker is told: no revision knows of any other."""
    if not task.code:
        return task
    return replace(task, code="", point=replace(task.point, strategy=own(task.point.strategy)))
