"""What an agent asks of strategies. They may be anybody's: what they raise costs their points alone."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from scaling import frameworks
from scaling.agent import interpreters
from scaling.errors import ScalingError, StrategyError
from scaling.records.interpreter import Interpreter
from scaling.records.task import Task


def missing(names: Iterable[str]) -> dict[str, str]:
    """By strategy, why it cannot run on this host; nothing of those that can."""
    return examine(names)[0]


def examine(names: Iterable[str]) -> tuple[dict[str, str], tuple[Interpreter, ...]]:
    """By strategy, why it cannot run on this host, and the interpreters beside this one that were asked."""
    names = tuple(names)
    questions = interpreters.ask(names)
    elsewhere = {name for question in questions for name in question.names}
    reasons = missing_here(name for name in names if name not in elsewhere)
    answers = [question.answer() for question in questions]
    for _, told in answers:
        reasons |= told
    return reasons, tuple(found for found, _ in answers)


def missing_here(names: Iterable[str]) -> dict[str, str]:
    """By strategy, why it cannot run in this interpreter."""
    reasons = {name: _missing(name) for name in names}
    return {name: reason for name, reason in reasons.items() if reason}


def _missing(name: str) -> str | None:
    try:
        return frameworks.load(name).missing(name)
    except ScalingError as error:
        return str(error)
    except Exception as error:
        return str(StrategyError(name, "missing", error))


def environ(task: Task) -> dict[str, str]:
    """What the strategy asks of a child's environment. Raises StrategyError for what it raised or what is no
    environment, ScalingError where it cannot be loaded."""
    name = task.point.strategy
    try:
        return msgspec.convert(frameworks.load(name).environ(task, task.announced), dict[str, str])
    except (OSError, ScalingError):
        raise
    except Exception as error:
        raise StrategyError(name, "environ", error) from error
