"""Reads the priors: what is believed of clusters before measurements, and how far predictions miss.

Each constant is a normal distribution of the logarithm; of the logit for `hide`, of the value for exponents.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec

from scaling.records.point import Record

FILE = Path(__file__).with_name("priors.toml")


class Prior(Record, frozen=True, kw_only=True):
    """A constant: `mean` and `sd` on the scale on which it is normal, the rest for readers."""

    mean: float
    sd: float
    series: int = 0
    publishers: int = 0
    unit: str = ""
    before: str = ""


class Walk(Record, frozen=True, kw_only=True):
    """The model's error, a random walk of the loss over log2 N. Steps are standard deviations.

    * inside, beyond: per doubling inside a node, of nodes
    * leaving: from one node to several
    """

    inside: float
    leaving: float
    beyond: float


class Priors(Record, frozen=True, kw_only=True):
    """`quantiles`: by what is known, factors on the standard deviation below and above, which cover 80 %."""

    walk: Walk
    quantiles: Mapping[str, tuple[float, float]]
    constants: Mapping[str, Prior]


@cache
def read() -> Priors:
    return msgspec.toml.decode(FILE.read_bytes(), type=Priors)
