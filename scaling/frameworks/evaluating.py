"""What a trainer has that can be trained to an accuracy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from scaling.records.point import Skill

if TYPE_CHECKING:
    # Strategies' own files import this one, on the agent's side.
    import numpy as np
    from numpy.typing import NDArray

ALL: tuple[Skill, ...] = ("evaluate", "rate", "statistics")


@runtime_checkable
class Evaluating(Protocol):
    """Beside what every trainer has; only called between steps."""

    def set_rate(self, rate: float) -> None:
        """The learning rate from the next step on."""

    def average_statistics(self) -> None:
        """Give all ranks the mean of what batch norm has gathered on each. Collective."""

    def predict(self, inputs: NDArray[Any]) -> NDArray[np.int64]:
        """The class that each sample is taken for, in evaluation mode: (batch,). Every rank calls it as often."""
