"""The first line of a run: what was asked, and what it is measured on."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence

import msgspec

from scaling import __version__
from scaling.emulated import profiles
from scaling.emulated.scale import Setting
from scaling.hosts.info import git_revision
from scaling.lab.slowdown import VARIABLE
from scaling.plan import plan
from scaling.records.messages import Enrol
from scaling.records.network import GBIT
from scaling.records.run import SCHEMA, Header
from scaling.transport.base import Cluster


def emulation(
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
    return f"{one.samples_per_s:g} images/s of {model} at batch {batch_size} ({profiles.source(one)})"


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


def make_header(cluster: Cluster, made: plan.Plan, enrolled: Sequence[Enrol], argv: Sequence[str]) -> Header:
    hosts = {enrol.host.hostname: enrol.host for enrol in enrolled}
    return Header(
        schema=SCHEMA,
        version=__version__,
        code=enrolled[0].code,
        git=git_revision(),
        created_unix_s=time.time(),
        command=tuple(argv),
        launch_size=cluster.size,
        mpi=cluster.library,
        seed=made.config.seed,
        config=msgspec.to_builtins(made.config),
        hosts=tuple(hosts.values()),
        host_of_rank=tuple(enrol.host.hostname for enrol in enrolled),
        device=made.device,
        why_default=made.why,
        estimate_s=made.estimate_s,
        networks=made.networks,
        emulation=emulation(
            made.config.device, made.config.model or "", made.config.batch_size, emulation_setting(made)
        ),
    )


def emulation_setting(made: plan.Plan) -> Setting:
    """What sizes are divided and times multiplied by; 1 for devices that are not emulated."""
    return Setting(shrink=made.config.shrink or 1.0, dilate=made.config.dilate or 1.0)
