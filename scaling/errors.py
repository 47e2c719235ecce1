"""Every error of the package.

    ScalingError
    ├── UsageError       a user's mistake: one line on rank 0, exit 2, no worker was started
    ├── LaunchError      the launch itself cannot work (mixed versions, no MPI library): exit 2
    │   └── SilentRanks  ranks that do not answer: the launch is aborted, since MPI's own end would wait for them
    ├── StrategyError    what a strategy's own code raised, or a wrong type: its points fail, the sweep goes on
    └── StoreError       the run's file can no longer be written or read: exit 1, the file stays readable

A point that fails is not an error but a value: `Failed` of records/events.py, in its record and its table cell.
Anything else that is raised is a bug: traceback and Abort.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Collection, Iterable
from difflib import get_close_matches


class ScalingError(Exception):
    """The base of all errors that a user is meant to read."""

    exit_code = 1


class UsageError(ScalingError):
    """A flag, file or launch that cannot be obeyed: says where, what was found, what would be right."""

    exit_code = 2


class LaunchError(ScalingError):
    """The ranks of this launch cannot work together."""

    exit_code = 2


class SilentRanks(LaunchError):
    """Ranks that do not answer; `ranks` are their numbers where a run is broken off because of them."""

    def __init__(self, message: str, ranks: Collection[int] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks
        self.exit_code = 1 if ranks else 2


class StrategyError(ScalingError):
    """A mistake in a strategy's own code: `what` is the hook with what it raised or returned."""

    exit_code = 2

    def __init__(self, name: str, what: str, error: BaseException) -> None:
        super().__init__(f"strategy {name}: {what}")
        self.trace = "".join(traceback.format_exception(error))


class StoreError(ScalingError):
    """A run folder that cannot be written, read or joined."""


def near(word: str, known: Iterable[str]) -> str:
    """Return the tail of a message about an unknown `word`: its near match, or all that is known.

    Capitals count as no difference: P100 is nearer to p100 than to v100.
    """
    names = sorted(known)
    folded = {name.casefold(): name for name in names}
    close = get_close_matches(word.casefold(), folded, n=1, cutoff=0.6)
    return f"did you mean {folded[close[0]]!r}?" if close else f"known: {', '.join(names)}"


def told_by(flag: str, variable: str, value: str) -> str:
    """What told a value, `flag value` or `VARIABLE=value`: who set a variable long ago finds no flag on the line
    typed."""
    return f"{variable}={value}" if os.environ.get(variable) == value else f"{flag} {value}"


class Interrupted(Exception):
    """A signal asked for the end; `number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def by_launcher(self) -> bool:
        """Whether mpirun itself may be ending: it sends TERM to its ranks, also after a Ctrl-C."""
        return self.number == signal.SIGTERM

    @property
    def exit_code(self) -> int:
        """As shells count: 130 for Ctrl-C, 143 for TERM, 129 for HUP."""
        return 128 + (signal.SIGINT if self.number == signal.SIGUSR1 else self.number)
