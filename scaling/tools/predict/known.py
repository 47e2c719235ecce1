"""What was measured, as a prediction weighs it. Plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scaling.tools.predict.setting import At, Observed, Setting


class Exchange(NamedTuple):
    """The exchange alone as measured (`comm`): seconds, and the standard deviation of its logarithm. `setting` is
    that of an all-reduce of other bytes than the run's gradients; None: the run's own."""

    at: At
    seconds: float
    noise: float
    setting: Setting | None = None


class Constant(NamedTuple):
    """A constant of the model as measured by itself: its role in the equations (`alpha`, `network`), its value,
    and the standard deviation of its logarithm."""

    role: str
    value: float
    noise: float


class Share(NamedTuple):
    """A part of the step as controls tell it: `contention` or `straggling` over what one device takes."""

    at: At
    part: str
    fraction: float
    noise: float


class Known(NamedTuple):
    """All that was measured. `anchor` is where `setting.step_s` is from; efficiencies are relative to it."""

    anchor: At
    observed: Sequence[Observed] = ()
    exchanges: Sequence[Exchange] = ()
    shares: Sequence[Share] = ()
    anchor_noise: float = 0.0
    constants: Sequence[Constant] = ()
