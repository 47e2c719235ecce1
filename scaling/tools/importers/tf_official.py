"""TensorFlow's official models: `TimeHistory` of their Keras callback, over all replicas.

The mean that they print at the end has the start in it: windows after the first are read. Under Horovod each
process prints windows of its own: where several speak, `--speed-of` says whose speed that is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

from scaling.tools.importers.found import NUMBER, Found, Given, Refused, Skipped, compiled, number, row, world_size
from scaling.tools.importers.gathered import Rates
from scaling.tools.importers.lines import LogLine

MARKS = ("TimeHistory:", "BenchmarkMetric:")
SURE = re.compile(r"TimeHistory: \S+ seconds, \S+ examples/second|BenchmarkMetric: \{'global step': *\d")
_NEW = compiled(
    "TimeHistory: *",
    NUMBER,
    " seconds, *",
    NUMBER,
    r" examples/second between steps (\d+) and (\d+)(?![\d\u2026])",
)
_OLD = compiled(
    r"BenchmarkMetric: \{'global step': *(\d+), *'time_taken': *", NUMBER, ", *'examples_per_second': *", NUMBER
)
# Of seconds with two decimals.
_ROUNDING = 0.001


class _Window(NamedTuple):
    """A window: its place among others, samples a second, samples of a step (0 where unknown)."""

    key: int
    rate: float
    samples: float


def read(lines: Iterable[LogLine], given: Given) -> Found:
    """A row of the whole log. Raises Refused."""
    skipped, speakers = Skipped(), set[int]()
    rates, samples = Rates(), Rates()
    for line in lines:
        text = line.text
        if "TimeHistory:" in text or ("BenchmarkMetric:" in text and "global step" in text):
            if (window := _window(text)) is None:
                skipped.add(line)
            else:
                rates.add(window.rate, window.key)
                samples.add(window.samples, window.key)
                speakers.add(-1 if line.rank is None else line.rank)
    if not rates:
        raise Refused("has no whole window of steps")
    rate = rates.steady("window")
    devices = world_size([], given)
    workers, notes = _workers(len(speakers), devices, given)
    return Found(
        rows=(
            row(
                given,
                tool="tf_official",
                unit="samples",
                rate=workers * rate,
                devices=devices,
                batches=_batches([workers * one for one in samples.later()], devices),
                notes=("the median of windows after the first", *notes),
            ),
        ),
        notes=skipped.notes(),
    )


def _workers(speakers: int, devices: int, given: Given) -> tuple[int, tuple[str, ...]]:
    """What a speed is multiplied with. Raises Refused where several speak and nobody says whose it is."""
    if given.speed_of != "worker":
        if speakers > 1 and not given.speed_of:
            raise Refused(
                f"has windows of {speakers} processes, and no line says whether a speed is of one of them "
                "(Horovod) or of all replicas; say --speed-of worker or --speed-of all"
            )
        return 1, ()
    workers = speakers if speakers > 1 else devices
    return workers, (f"one worker's own speed x {workers}",)


def _window(text: str) -> _Window | None:
    """Of either version; None of a line that is not whole."""
    if (new := _NEW.search(text)) is not None:
        first, last, rate = int(new[3]), int(new[4]), number(new[2])
        return _Window(first, rate, number(new[1]) * rate / (last - first)) if last > first else None
    old = _OLD.search(text)
    return None if old is None else _Window(int(old[1]), number(old[3]), 0.0)


def _batches(samples: Sequence[float], devices: int) -> list[int]:
    """Of a device, where samples of a step are a whole number of batches; none where rounding leaves it open."""
    if not samples:
        return []
    step = median(samples)
    whole = round(step / devices)
    return [whole] if whole and abs(step - whole * devices) <= _ROUNDING * devices * whole else []
