"""What is asked of a prediction before a point is measured, and what was answered: lines of a run."""

from __future__ import annotations

from scaling.records.bounds import Amount, Index, Size, UnixSeconds
from scaling.records.point import Point, Record


class Question(Record, frozen=True, kw_only=True):
    """What a point will do, whose devices will be on so many `nodes`."""

    point: Point
    nodes: Size


class Prediction(Record, frozen=True, kw_only=True, tag="prediction"):
    """What was PREDICTED of an exchange before it was measured, once for all of its rounds (`point` is the first).

    Medians with the ends of their 80 % interval; efficiencies are fractions of 1. `up_to` is the largest world
    size that was known then. `refused` says why nothing was predicted; then all figures are None. Not `claimed`:
    the interval is wider than a prediction may be. `notes`: what of the measured was left out, and where the model
    does not fit it.
    """

    point: Point
    nodes: Size
    registered_unix_s: UnixSeconds
    up_to: Index = 0
    samples_per_s: Amount | None = None
    samples_per_s_low: Amount | None = None
    samples_per_s_high: Amount | None = None
    efficiency: Amount | None = None
    efficiency_low: Amount | None = None
    efficiency_high: Amount | None = None
    claimed: bool = True
    refused: str = ""
    notes: tuple[str, ...] = ()
