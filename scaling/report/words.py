"""Numbers and names, the same in every format."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from scaling.analysis.rows import Row
from scaling.analysis.stats import Estimate

NONE = "-"
Option = tuple[str, str]


def plus_minus(mean: float, half: float | None, digits: int, unit: str = "") -> str:
    """`93.1 % ± 0.8`; without an interval the mean alone."""
    text = f"{number(mean, digits)}{unit}"
    return text if half is None else f"{text} ± {half:.{digits}f}"


def number(value: float, digits: int) -> str:
    """Fixed digits, and no minus before a zero."""
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def rate(estimate: Estimate | None) -> str:
    """images/s with half its interval, to about four digits."""
    if estimate is None:
        return NONE
    digits = 2 if estimate.mean < 10 else 1 if estimate.mean < 1000 else 0
    return plus_minus(estimate.mean, estimate.half_width, digits)


def mean_rate(estimate: Estimate | None) -> str:
    """images/s alone, to about four digits."""
    return rate(None if estimate is None else replace(estimate, low=None, high=None))


def standing(row: Row) -> str:
    """Against the best of its contest: `best`, `4.2 ± 1.1 % slower`, `not distinguishable`; `-` without a rival
    or with too few rounds to tell."""
    found = row.standing
    if found is None or row.rounds < 2:
        return NONE
    if found.best:
        return "best"
    if found.difference is None or found.difference.half_width is None:
        return NONE
    if not found.distinguishable:
        return "not distinguishable"
    # The best by all its rounds may still lose in those that it shares with another.
    word = "slower" if found.difference.mean < 0 else "faster"
    mean, half = abs(found.difference.mean), found.difference.half_width
    return f"{plus_minus(100 * mean, 100 * half, 1)} % {word}"


def loss_at(row: Row) -> str:
    """The training loss after as many samples as all of its contest have reached: `1.204`."""
    return NONE if row.loss_at is None else f"{row.loss_at:.3f}"


def images(count: int | None) -> str:
    """`12,800 images`."""
    return NONE if count is None else f"{count:,} images"


def percent(estimate: Estimate | None) -> str:
    """A fraction as percent with half its interval."""
    if estimate is None:
        return NONE
    half = estimate.half_width
    return plus_minus(100 * estimate.mean, None if half is None else 100 * half, 1, " %")


def fraction(value: float | None, unit: str = "") -> str:
    """A fraction as percent."""
    return NONE if value is None else number(100 * value, 1) + unit


def speedup(estimate: Estimate | None) -> str:
    """How many times one device."""
    return NONE if estimate is None else f"{estimate.mean:.2f}"


def knobs(options: Iterable[Option]) -> str:
    """`bucket_cap_mb=10, wire=fp16`."""
    return ", ".join(f"{key}={value}" for key, value in sorted(options))


def who(entry: Row, shared: Collection[Option]) -> str:
    """`torch:nccl over ib0 (bucket_cap_mb=10)`.

    The automatic network and the options that all of a report share go without saying.
    """
    name = entry.strategy if entry.interconnect == "auto" else f"{entry.strategy} over {entry.interconnect}"
    own = [option for option in entry.options.items() if option not in shared]
    return f"{name} ({knobs(own)})" if own else name
