"""What a trainer needs for a training to an accuracy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from scaling.records.point import Skill

if TYPE_CHECKING:
    # The agent imports this file too, without NumPy.
    import numpy as np
    from numpy.typing import NDArray

ALL: tuple[Skill, ...] = ("evaluate", "rate", "statistics")


class Learnt(NamedTuple):
    """What a network has learnt.

    * trained: parameters by the description's names, in its order and shapes.
    * statistics: mean and variance of every batch norm, in order.
    """

    trained: dict[str, NDArray[Any]]
    statistics: tuple[tuple[NDArray[Any], NDArray[Any]], ...]


@runtime_checkable
class Evaluating(Protocol):
    """Extra methods of a trainer, called only between steps."""

    def set_rate(self, rate: float) -> None:
        """Set the learning rate from the next step on."""

    def average_statistics(self) -> None:
        """Give all ranks the mean of their batch norm statistics. Collective."""

    def predict(self, inputs: NDArray[Any]) -> NDArray[np.int64]:
        """Return each sample's class in evaluation mode: (batch,). Every rank calls it equally often."""

    def learnt(self) -> Learnt:
        """Return what the network has learnt. Collective."""
