"""Rates as people write them, and how many bits a second this machine carries faithfully."""

from __future__ import annotations

import os
import re

from scaling.errors import UsageError

UNITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
LOWEST_BITS_PER_S, HIGHEST_BITS_PER_S = 1e4, 1e12
# Four nodes at 1 Gb/s each kept 93 % in an all-reduce over Gloo and took 0.4 to 1.2 cores of 2; at 4 Gb/s they
# took all of both and kept 35 to 92 % (README.md).
CARRIED_BITS_PER_S_PER_CORE = 2e9


def parse(text: str, source: str) -> float:
    """`2.5gbit` in bits/s. Raises UsageError naming `source`, a flag with the word it was given in."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)\s*([a-z]+)", text.strip().lower())
    if found is None or found[2] not in UNITS:
        said = f"{text!r} is no rate" if text else "a rate is missing"
        raise UsageError(f"{source}: {said}; write for example 10gbit (units: {', '.join(UNITS)})")
    rate_bits_per_s = float(found[1]) * UNITS[found[2]]
    if not LOWEST_BITS_PER_S <= rate_bits_per_s <= HIGHEST_BITS_PER_S:
        lowest, highest = show(LOWEST_BITS_PER_S), show(HIGHEST_BITS_PER_S)
        raise UsageError(f"{source}: {text} is out of range; write a rate from {lowest} to {highest}")
    return rate_bits_per_s


def show(rate_bits_per_s: float) -> str:
    """A rate in the largest unit that it fills, to 6 digits: `2.5gbit`. `parse` reads it."""
    unit = max((name for name in UNITS if UNITS[name] <= rate_bits_per_s), key=UNITS.__getitem__, default="bit")
    return f"{rate_bits_per_s / UNITS[unit]:.6g}{unit}"


def too_fast(name: str, rate_bits_per_s: float, nodes: int, cores: int | None = None) -> str:
    """The warning about a network that this machine cannot carry between so many nodes, "" where it can."""
    cores = len(os.sched_getaffinity(0)) if cores is None else cores
    carried = CARRIED_BITS_PER_S_PER_CORE * cores / nodes
    if rate_bits_per_s <= carried:
        return ""
    return (
        f"{name}={show(rate_bits_per_s)} is shaped so, but {cores} cores carry about {show(carried)} a node "
        f"between {nodes} nodes: measure with --device emulated, which scales rates down, or take a lower rate"
    )
