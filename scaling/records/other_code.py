"""Names of strategies whose workers run another revision: `torch:gloo@1a2b3c4d5e`."""

from __future__ import annotations

from msgspec.structs import replace

from scaling.records.task import Task

SIGN = "@"
# Digits of the commit in a strategy's name.
DIGITS = 10


def own(strategy: str) -> str:
    """Return a strategy's name without its revision."""
    return strategy.partition(SIGN)[0]


def revision(strategy: str) -> str:
    """Return the revision of a strategy's workers; "" for the launch's."""
    return strategy.partition(SIGN)[2]


def of_revision(strategy: str, commit: str) -> str:
    """Return the name of a strategy whose workers run this commit; "" is the launch's."""
    return f"{own(strategy)}{SIGN}{commit[:DIGITS]}" if commit else own(strategy)


def told(task: Task) -> Task:
    """Return the task as its worker gets it: without the revision."""
    if not task.code:
        return task
    return replace(task, code="", point=replace(task.point, strategy=own(task.point.strategy)))
