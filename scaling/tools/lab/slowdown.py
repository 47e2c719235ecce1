"""Slow down the lab's links for emulated devices, by shrink x dilate. Without a lab the network is not changed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from scaling.errors import UsageError

# `python -m scaling lab run` sets it for all processes
VARIABLE = "SCALING_LAB"


def declared(environ: Mapping[str, str] = os.environ) -> tuple[float, ...]:
    """List the declared rates in bits/s, () without a lab. Raises UsageError if the lab is not up."""
    name = environ.get(VARIABLE)
    if not name:
        return ()
    from scaling.tools.lab import state

    return tuple(nic.rate_bits_per_s for nic in state.load(name).nics)


@contextmanager
def shaped(slower: float, environ: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Set every link of the lab to its declared rate / `slower`. Raises UsageError if the lab is not up."""
    name = environ.get(VARIABLE)
    if not name:
        yield
        return
    shape(name, slower)
    try:
        yield
    finally:
        # the lab may be down already
        with suppress(UsageError):
            shape(name, 1.0)


def shape(name: str, divisor: float) -> None:
    """Set every link to its declared rate / `divisor`. Raises UsageError if the lab is not up."""
    from scaling.tools.lab import state, wires  # pyroute2 is installed if there is a lab

    lab = state.load(name)
    wanted = {nic.name: nic.rate_bits_per_s / divisor for nic in lab.nics}
    if any(abs(nic.shaped_bits_per_s / wanted[nic.name] - 1) > 1e-9 for nic in lab.nics):
        wires.shape(lab, wanted)
