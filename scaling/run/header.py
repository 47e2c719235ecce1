"""Make the header of a run: its settings, its hosts and its devices."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence

import msgspec

from scaling import __version__
from scaling.hosts.info import joined, revision
from scaling.plan.plan import Plan
from scaling.records.host import HostInfo
from scaling.records.messages import Enrol
from scaling.records.network import GBIT
from scaling.records.point import Hardware
from scaling.records.run import SCHEMA, Header
from scaling.tools.emulated import profiles
from scaling.tools.emulated.profiles import Rate
from scaling.tools.lab.slowdown import VARIABLE
from scaling.transport.base import Cluster


def make_header(
    cluster: Cluster, made: Plan, enrolled: Sequence[Enrol], argv: Sequence[str], program: str
) -> Header:
    """Make the header of a new run."""
    config = made.config
    return Header(
        schema=SCHEMA,
        version=__version__,
        code=enrolled[0].code,
        git=revision(),
        created_unix_s=time.time(),
        command=tuple(argv),
        program=program,
        launch_size=cluster.size,
        mpi=cluster.library,
        seed=config.seed,
        config=msgspec.to_builtins(config),
        hosts=tuple(by_name(enrolled).values()),
        host_of_rank=tuple(one.host.hostname for one in enrolled),
        device=made.device,
        why_default=made.why,
        estimate_s=made.estimate_s,
        networks=made.networks,
        emulation=emulation(
            made.hardware, config.model or "", _batch_sizes(made), image_size=made.cells[0].workload.image_size
        ),
    )


def by_name(enrolled: Sequence[Enrol]) -> dict[str, HostInfo]:
    """Return each host by name, joined from what its ranks know."""
    ranks: dict[str, list[HostInfo]] = {}
    for one in enrolled:
        ranks.setdefault(one.host.hostname, []).append(one.host)
    return {name: joined(hosts) for name, hosts in ranks.items()}


def _batch_sizes(made: Plan) -> list[int]:
    return sorted({point.workload.batch_size for point in made.cells}, reverse=True)


def emulation(
    hardware: Hardware,
    model: str,
    batch_sizes: Sequence[int],
    environ: Mapping[str, str] = os.environ,
    *,
    image_size: int = 0,
) -> str:
    """Describe emulated devices and links for readers of the run; "" for real devices."""
    profile = hardware.profile
    if not profile:
        return ""
    parts = [
        f"{profiles.find(profile).device}, computing nothing",
        *(_rate(profiles.rate(profile, model, batch_size, image_size)) for batch_size in batch_sizes),
        f"sizes / {hardware.shrink:g}, times x {hardware.dilate:g}, both undone here",
        _links(environ.get(VARIABLE), hardware.link_divisor),
    ]
    return "; ".join(parts)


def _rate(one: Rate) -> str:
    how = f"FITTED: {one.fitted}; " if one.fitted else ""
    where = f"batch {one.batch_size}{profiles.pixels(one.image_size)}"
    return f"{one.samples_per_s:.4g} images/s of {one.model} at {where} ({how}{profiles.source(one)})"


def _links(lab: str | None, divisor: float) -> str:
    if not lab:
        faster = f" and seem {divisor:g} times as fast as they are" if divisor != 1 else ""
        return f"no lab (SCALING_LAB): networks are the real ones{faster}"
    from scaling.tools.lab import state

    rates = ", ".join(
        f"{nic.name} {nic.rate_bits_per_s / GBIT:g} Gb/s as {nic.rate_bits_per_s / divisor / GBIT:.4g}"
        for nic in state.load(lab).nics
    )
    return f"links of lab {lab} / {divisor:g}: {rates}"
