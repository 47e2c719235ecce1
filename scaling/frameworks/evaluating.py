"""What a trainer has that can be trained to an accuracy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from scaling.records.point import Skill

if TYPE_CHECKING:
    # Strategies' own files import this one, on the agent's side.
    import numpy as np
    from numpy.typing import NDArray

ALL: tuple[Skill, ...] = ("evaluate", "rate", "statistics")


class Learnt(NamedTuple):
    """What a network has come to: `trained` by the description's names, in its order and shapes; mean and variance
    of every batch norm, in order too."""

    trained: dict[str, NDArray[Any]]
    statistics: tuple[tuple[NDArray[Any], NDArray[Any]], ...]


@runtime_checkable
class Evaluating(Protocol):
    """Beside what every trainer has; only called between steps."""

    def set_rate(self, rate: float) -> None:
        """The learning rate from the next step on."""

    def average_statistics(self) -> None:
        """Give all ranks the mean of what batch norm has gathered on each. Collective."""

    def predict(self, inputs: NDArray[Any]) -> NDArray[np.int64]:
        """The class that each sample is taken for, in evaluation mode: (batch,). Every rank calls it as often."""

    def learnt(self) -> Learnt:
        """What the network has come to. Collective."""
