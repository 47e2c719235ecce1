"""Optional abilities of a trainer (base.py has the required ones). The worker checks for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from scaling.frameworks.base import Trainer


@runtime_checkable
class Shown(Protocol):
    """A trainer that shows its parameters. The worker hashes them and does not call `digest()`."""

    def weights(self) -> Mapping[str, NDArray[Any]]:
        """Return copies of the trained parameters, by name."""


@runtime_checkable
class Hashing(Protocol):
    """A trainer whose device hashes its parameters."""

    def device_digest(self) -> str | None:
        """Return the hash, equal on all ranks with equal parameters; None if the host should hash them."""


@runtime_checkable
class Immediate(Protocol):
    """A trainer that says whether its steps have ended when they return. If so, each step can be timed."""

    is_done_on_return: bool


@runtime_checkable
class Marking(Protocol):
    """A trainer whose device has a clock (`has_device_clock`). Its steps may return early. The device's clock
    times windows and steps, and the host stays ahead of the device."""

    has_device_clock: bool

    def mark(self) -> None:
        """Make the device record its time when it reaches this mark."""

    def between_marks_s(self, ahead: int = 0) -> tuple[float, ...]:
        """Wait until the device reaches all marks but the last `ahead`. Return the seconds between the reached
        marks by the device's clock, from the last one that an earlier call returned. `ahead=0` begins anew."""


@runtime_checkable
class Releasing(Protocol):
    """A trainer that keeps device memory which it does not use, and can give it back."""

    def release_memory(self) -> None:
        """Give back unused device memory, because other points have their turn. Steps take it again."""


@runtime_checkable
class Stale(Protocol):
    """A trainer of an asynchronous mode."""

    def staleness(self) -> float:
        """Return the mean staleness of this rank's steps since the last call. Staleness is the number of other
        ranks' steps between a step's pull and its push. Call it only after `sync`."""


@runtime_checkable
class Unsynced(Protocol):
    """A trainer whose strategy can leave out the exchange and nothing else."""

    def unsynced_step(self) -> None:
        """Do the same step without exchange. Call it only after the digest: the ranks' parameters then differ."""


@runtime_checkable
class Overlapping(Unsynced, Protocol):
    """A trainer whose exchange can run alone, during its own compute."""

    def exchange_alone(self) -> Trainer | None:
        """Return a trainer of kind `comm` over the connected ranks, for a second thread. Its `sync` waits only for
        its own work. All ranks call this. Return None if any rank lacks the memory."""
