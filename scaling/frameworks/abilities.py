"""What a trainer may have beside what every trainer has (base.py): the worker asks each for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from scaling.frameworks.base import Trainer


@runtime_checkable
class Shown(Protocol):
    """A trainer that shows its parameters: the worker hashes them, and does not ask for `digest()`."""

    def weights(self) -> Mapping[str, NDArray[Any]]:
        """Copies of the trained parameters, by name."""


@runtime_checkable
class Immediate(Protocol):
    """A trainer whose steps may have ended when they return says so; they can then be timed one by one."""

    is_done_on_return: bool


@runtime_checkable
class Marking(Protocol):
    """A trainer whose steps may return before the device is done has this too, where the device tells its own time
    (`has_device_clock`): then steps can be timed one by one without waiting for each."""

    has_device_clock: bool

    def mark(self) -> None:
        """Have the device note its time when it comes here."""

    def between_marks_s(self) -> tuple[float, ...]:
        """Seconds of the device's time from mark to mark, since this was last asked. Only called after `sync`."""


@runtime_checkable
class Stale(Protocol):
    """A trainer of an asynchronous mode has this too."""

    def staleness(self) -> float:
        """Steps of other ranks that came between a step's pull and its push: mean over this rank's steps
        since it was last asked. Only called after `sync`."""


@runtime_checkable
class Unsynced(Protocol):
    """A trainer has this too where its strategy has an honest way to leave out nothing but the exchange."""

    def unsynced_step(self) -> None:
        """The same step, wrapper and update included, without any exchange. Only called once the digest is taken:
        ranks' parameters part."""


@runtime_checkable
class Overlapping(Unsynced, Protocol):
    """A trainer has this too where its exchange can run alone beside its own compute."""

    def exchange_alone(self) -> Trainer | None:
        """What kind `comm` runs, among the ranks that it has joined, for a thread beside the one that computes.

        Its `sync` waits for nothing but itself. All ranks ask for it; None where any has no memory for it.
        """
