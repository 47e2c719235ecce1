"""All errors of the package.

    ScalingError
    ├── UsageError       a user's mistake: one line on rank 0, exit 2, no worker was started
    ├── LaunchError      the launch cannot work (mixed versions, no MPI library): exit 2
    │   └── SilentRanks  some ranks do not answer: abort the launch, since MPI_Finalize would wait for them
    ├── StrategyError    a strategy's own code failed: its points fail, the sweep goes on
    ├── ScriptError      a user's script failed, ended early, or makes no steps: its point fails
    └── StoreError       the run's file cannot be written or read: exit 1, the file stays readable

A failed point is a value, not an error: `Failed` in records/events.py. Any other exception is a bug.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches


class ScalingError(Exception):
    """The base of all errors with a message for users."""

    exit_code = 1


class UsageError(ScalingError):
    """A flag, file or launch that cannot be used. The message says where, what is wrong, and what is right."""

    exit_code = 2


class LaunchError(ScalingError):
    """Ranks of this launch that cannot work together."""

    exit_code = 2


class SilentRanks(LaunchError):
    """Ranks that do not answer. `ranks` are their numbers if a run is aborted because of them, `cause` that of
    their points: `hang`, or `lost` if their connection has ended."""

    def __init__(self, message: str, ranks: Collection[int] = (), cause: str = "hang") -> None:
        super().__init__(message)
        self.ranks, self.cause = ranks, cause
        self.exit_code = 1 if ranks else 2


class StrategyError(ScalingError):
    """A mistake in a strategy's own code. `what` names the hook and what it raised or returned."""

    exit_code = 2

    def __init__(self, name: str, what: str, error: BaseException) -> None:
        super().__init__(f"strategy {name}: {what}")
        self.trace = "".join(traceback.format_exception(error))


class StoreError(ScalingError):
    """A run folder that cannot be written, read or joined."""


def closest(word: str, known: Iterable[str]) -> str:
    """Return the known word that is nearest to `word`, ignoring case; "" if none is near."""
    folded = {name.casefold(): name for name in known}
    close = get_close_matches(word.casefold(), folded, n=1, cutoff=0.6)
    return folded[close[0]] if close else ""


def near(word: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown `word`: the closest known word, or all."""
    names = sorted(known)
    close = closest(word, names)
    return f"did you mean {close!r}?" if close else f"known: {', '.join(names)}"


def not_one_of(word: str, choices: Sequence[str]) -> str:
    """Return the end of a message about a word that is no choice: all choices, and the closest."""
    close = closest(word, choices)
    return f"{word!r} is not one of {', '.join(choices)}" + (f"; did you mean {close!r}?" if close else "")


def told_by(flag: str, variable: str, value: str) -> str:
    """Return the source of a value, `flag value` or `VARIABLE=value`, for messages."""
    return f"{variable}={value}" if os.environ.get(variable) == value else f"{flag} {value}"


class Interrupted(Exception):
    """A signal asked the process to end; `number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def by_launcher(self) -> bool:
        """Whether mpirun may be ending too: it sends TERM to its ranks, also after Ctrl-C."""
        return self.number == signal.SIGTERM

    @property
    def exit_code(self) -> int:
        """The exit code that shells give: 130 for Ctrl-C, 143 for TERM, 129 for HUP. USR1 counts as Ctrl-C."""
        return 128 + (signal.SIGINT if self.number == signal.SIGUSR1 else self.number)
