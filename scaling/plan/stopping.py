"""What ends a sweep, as numbers: the width of `--target-ci` and the time of `--for`."""

from __future__ import annotations

from scaling.errors import UsageError
from scaling.plan.config import SweepConfig
from scaling.text import seconds_of

# Fewest rounds of a burn-in.
BURN_IN_ROUNDS = 2
MOST_BURN_IN_S = 366 * 86_400.0


def target_half_width(config: SweepConfig) -> float | None:
    """Return `--target-ci` (`1%` or `0.01`) as a fraction; None if it is not given."""
    if config.target_ci is None:
        return None
    text = config.target_ci.strip()
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise UsageError(f"--target-ci {config.target_ci}: not a width; write 1% or 0.01")
    return value


def burn_in_s(config: SweepConfig) -> float | None:
    """Return the seconds of `--for`; None if it is not given."""
    if config.for_ is None:
        return None
    found_s, given = seconds_of(config.for_), config.for_ or "''"
    if found_s is None or not 1 <= found_s <= MOST_BURN_IN_S:
        raise UsageError(f"--for {given}: not a time from 1 s to 366 days; write for example 90s, 30m, 2h or 7d")
    return found_s


def check_burn_in(config: SweepConfig) -> None:
    """Raise UsageError for a wrong `--for`, or for another rule of how many rounds are measured."""
    if burn_in_s(config) is None:
        return
    # A resumed burn-in has its first rounds in its configuration.
    if config.rounds not in (None, BURN_IN_ROUNDS):
        raise two_rules(config, f"--rounds {config.rounds}")
    if config.target_ci is not None:
        raise two_rules(config, f"--target-ci {config.target_ci}")


def two_rules(config: SweepConfig, other: str) -> UsageError:
    """Return the error about `--for` together with another rule of how many rounds are measured."""
    return UsageError(f"--for {config.for_} with {other}: both decide how many rounds are measured; give one")
