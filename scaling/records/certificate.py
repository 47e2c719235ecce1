"""The verdict of `scaling certify`, which is a line of the run's file."""

from __future__ import annotations

from typing import Literal

from scaling.records.device_rates import DeviceRates
from scaling.records.point import Amount, Record, Size

Result = Literal["PASS", "FAIL", "NO VERDICT"]
PASS: Result = "PASS"
FAIL: Result = "FAIL"
NO_VERDICT: Result = "NO VERDICT"


class Look(Record, frozen=True, kw_only=True):
    """A measured value after some rounds, with its bounds. Each bound is wrong with probability `error`."""

    rounds: Size
    mean: Amount
    low: Amount
    high: Amount
    error: Amount


class Criterion(Record, frozen=True, kw_only=True):
    """A quantity that was judged, look by look; the last look decides.

    `unit`: "" for an efficiency, a fraction of 1. `line`: the least value that passes, with the error of
    `reference`: the reference's value, None without one.
    """

    name: str
    unit: str
    line: Amount
    looks: tuple[Look, ...]
    result: Result
    reference: Amount | None = None


class Certificate(Record, frozen=True, kw_only=True, tag="certificate"):
    """The verdict on a launch.

    `why`: the reason for a FAIL or for NO VERDICT. `where`: the device, link or node that a FAIL points to.
    `error`: the probability of a false FAIL, and of a false PASS. `minutes`: the budget.
    `reference`: name and digest of the reference. `findings`: warnings and errors of the preflight. `devices`: the
    rates of each device alone.
    """

    result: Result
    why: str
    criteria: tuple[Criterion, ...]
    error: Amount
    minutes: Amount
    where: tuple[str, ...] = ()
    reference: str = ""
    findings: tuple[str, ...] = ()
    devices: tuple[DeviceRates, ...] = ()
