"""What an agent asks of strategies. They may be anybody's: what they raise costs their points alone."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from scaling import frameworks
from scaling.errors import ScalingError, StrategyError
from scaling.records.task import Task


def missing(names: Iterable[str]) -> dict[str, str]:
    """By strategy, why it cannot run on this host; nothing of those that can."""
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
