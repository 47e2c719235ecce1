"""The links of the lab while devices are emulated: slowed as much as sizes are shrunk and times are stretched.

Rank 0 does it for all nodes. Without a lab the network is real and stays as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from scaling.emulated import profiles
from scaling.emulated.scale import Setting
from scaling.errors import UsageError
from scaling.hosts.fabric import GBIT

# Set by `python -m scaling.lab run` for all processes of the launch.
VARIABLE = "SCALING_LAB"


def declared(environ: Mapping[str, str] = os.environ) -> tuple[float, ...]:
    """The rates of the lab's networks, bits/s; none without a lab. Raises UsageError when the lab is not up."""
    name = environ.get(VARIABLE)
    if not name:
        return ()
    from scaling.lab import state

    return tuple(nic.rate_bits_per_s for nic in state.load(name).nics)


@contextmanager
def shaped(setting: Setting, environ: Mapping[str, str] = os.environ) -> Iterator[None]:
    """In a lab, have every link at its declared rate / (shrink x dilate) while inside; a run that broke off may
    have left another. Raises UsageError when the lab is no longer up."""
    name = environ.get(VARIABLE)
    if not name:
        yield
        return
    _shape(name, setting.shrink * setting.dilate)
    try:
        yield
    finally:
        # A lab that was taken down has nothing to restore.
        with suppress(UsageError):
            _shape(name, 1.0)


def _shape(name: str, divisor: float) -> None:
    from scaling.lab import shaping, state  # pyroute2 is there where a lab is

    lab = state.load(name)
    wanted = {nic.name: nic.rate_bits_per_s / divisor for nic in lab.nics}
    if any(abs(nic.shaped_bits_per_s / wanted[nic.name] - 1) > 1e-9 for nic in lab.nics):
        shaping.shape(lab, wanted)


def told(
    device: str, model: str, batch_size: int | None, setting: Setting, environ: Mapping[str, str] = os.environ
) -> str:
    """What a reader of the run must know of its devices and links; "" for devices that are not emulated.

    `batch_size` is None where it differs by world size.
    """
    profile = profiles.name_of(device)
    if not profile:
        return ""
    parts = [
        f"{profiles.find(profile).device}, computing nothing",
        *([_rate(profile, model, batch_size)] if batch_size is not None else []),
        f"sizes / {setting.shrink:g}, times x {setting.dilate:g}, both undone here",
        _links(environ.get(VARIABLE), setting.shrink * setting.dilate),
    ]
    return "; ".join(parts)


def _rate(profile: str, model: str, batch_size: int) -> str:
    one = profiles.rate(profile, model, batch_size)
    return f"{one.images_per_s:g} images/s of {model} at batch {batch_size} ({profiles.source(one)})"


def _links(name: str | None, divisor: float) -> str:
    if not name:
        faster = f" and seem {divisor:g} times as fast as they are" if divisor != 1 else ""
        return f"no lab (SCALING_LAB): networks are the real ones{faster}"
    from scaling.lab import state

    nics = state.load(name).nics
    rates = ", ".join(
        f"{nic.name} {nic.rate_bits_per_s / GBIT:g} Gb/s as {nic.rate_bits_per_s / divisor / GBIT:.4g}"
        for nic in nics
    )
    return f"links of lab {name} / {divisor:g}: {rates}"
