"""`--predict-first`: which world sizes are measured first, and whether the others can be predicted then. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from scaling.errors import UsageError
from scaling.plan.config import SweepConfig
from scaling.records.point import Kind


def settled(config: SweepConfig, sizes: Sequence[int], kinds: Sequence[Kind] | None) -> int | None:
    """The world size up to which is measured first; None where nothing is to be predicted.

    Raises UsageError where the sweep has nothing to predict from, or nothing to predict.
    """
    given = config.predict_first
    if given is None:
        return None
    first = sizes[-1] // 2 if given == "half" else given
    if why := _why_not(config, sizes, kinds or (), first):
        raise UsageError(f"--predict-first {given}: {why}")
    return first


def _why_not(config: SweepConfig, sizes: Sequence[int], kinds: Sequence[Kind], first: int) -> str:
    """What of the sweep stands against it; "" if nothing."""
    known, later = [one for one in sizes if one <= first], [one for one in sizes if one > first]
    listed = ",".join(map(str, sizes))
    if config.target_ci is not None:
        return "its rounds are counted beforehand: leave --target-ci out and give --rounds"
    if config.has_passes or config.epochs is not None:
        return "only exchanges of whole steps are predicted: leave --pass and --epochs out"
    if config.rule != "weak":
        return f"only weak scaling is predicted, not the batch rule {config.rule}: give --batch-size"
    # What is emulated sleeps as long whenever it is measured.
    baselines = {"each", "solo"} if config.device.startswith("emulated") else {"each"}
    if kinds and not baselines & set(kinds):
        return "add each to --kinds: one device alone is measured again beside the larger sizes"
    if not any(one > 1 for one in known):
        return f"several devices must be measured first; of --world-sizes {listed} none is: raise it"
    if not later:
        return f"nothing is left to predict of --world-sizes {listed}: lower it"
    return ""
