"""The links of the lab while devices are emulated: slowed as much as sizes are shrunk times as times are dilated.

Rank 0 does it for all nodes. Without a lab the network is real and stays as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from scaling.errors import UsageError

# Set by `python -m scaling lab run` for all processes of the launch.
VARIABLE = "SCALING_LAB"


def declared(environ: Mapping[str, str] = os.environ) -> tuple[float, ...]:
    """The rates of the lab's networks, bits/s; none without a lab. Raises UsageError when the lab is not up."""
    name = environ.get(VARIABLE)
    if not name:
        return ()
    from scaling.tools.lab import state

    return tuple(nic.rate_bits_per_s for nic in state.load(name).nics)


@contextmanager
def shaped(slower: float, environ: Mapping[str, str] = os.environ) -> Iterator[None]:
    """In a lab, have every link at its declared rate / `slower` while inside; a run that broke off may
    have left another. Raises UsageError when the lab is no longer up."""
    name = environ.get(VARIABLE)
    if not name:
        yield
        return
    _shape(name, slower)
    try:
        yield
    finally:
        # A lab that was taken down has nothing to restore.
        with suppress(UsageError):
            _shape(name, 1.0)


def _shape(name: str, divisor: float) -> None:
    from scaling.tools.lab import shaping, state  # pyroute2 is there where a lab is

    lab = state.load(name)
    wanted = {nic.name: nic.rate_bits_per_s / divisor for nic in lab.nics}
    if any(abs(nic.shaped_bits_per_s / wanted[nic.name] - 1) > 1e-9 for nic in lab.nics):
        shaping.shape(lab, wanted)
