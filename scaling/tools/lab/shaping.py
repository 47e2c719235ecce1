"""How fast the links of a lab are: a token bucket (tbf) on both ends of each veth pair.

Found on this kind of machine, as share of the rate that TCP delivers (0.956 is the ceiling of its framing):
the burst must hold one segmentation offload packet (64 KiB), else a packet is cut into frames one by one
(16 kB: 0.277). Offload must stay on at high rates, or the processor is the limit (0.32 at 4 Gb/s). tbf beats htb.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from scaling.errors import UsageError, near
from scaling.records.point import Record
from scaling.tools.lab import state, wires
from scaling.tools.lab.state import SWITCH, Lab, Nic

DISCIPLINE = "tbf"
OFFLOAD_BYTES, LEAST_OFFLOAD_BYTES = 65536, 3100  # one segmentation offload packet; two frames
PACKET_S = 0.005
QUEUE_S = 0.32


class Bucket(Record, frozen=True, kw_only=True):
    """How a rate is shaped: what may be sent at once, what waits, and the largest packet of the sender's
    segmentation offload, all in bytes."""

    burst_bytes: int
    limit_bytes: int
    offload_bytes: int


def bucket(rate_bits_per_s: float) -> Bucket:
    """The bucket of a rate. Below 100 Mb/s packets and burst shrink with the rate, to 5 ms of it, so that a
    slow link is a slow link also for small messages; the queue holds 0.32 s, 4 MB at the most."""
    bytes_per_s = rate_bits_per_s / 8
    offload = int(min(OFFLOAD_BYTES, max(LEAST_OFFLOAD_BYTES, bytes_per_s * PACKET_S)))
    burst = 1_000_000 if rate_bits_per_s >= 5e9 else 256_000 if rate_bits_per_s > 1e9 else offload + offload // 10
    limit = int(min(4_000_000, max(2 * burst, 128_000, bytes_per_s * QUEUE_S)))
    return Bucket(burst_bytes=burst, limit_bytes=limit, offload_bytes=offload)


def shape(lab: Lab, rates_bits_per_s: Mapping[str, float]) -> Lab:
    """Shape all links of these networks (by card: `ib0`) now, and keep that in the lab's state; what is declared
    stays, and so does a single link's share. Works for root inside a node too. Raises UsageError."""
    with state.locked():
        lab = state.load(lab.name)
        for name in rates_bits_per_s:
            nic_of(lab, name, name)
        nics = tuple(
            replace(nic, shaped_bits_per_s=float(rates_bits_per_s.get(nic.name, nic.shaped_bits_per_s)))
            for nic in lab.nics
        )
        lab = replace(lab, nics=nics)
        apply(lab, [nic for nic in nics if nic.name in rates_bits_per_s])
        state.save(lab)
        return lab


def apply(lab: Lab, nics: Iterable[Nic]) -> None:
    """Bring the links of these networks to what the state says. Raises LaunchError."""
    nics = tuple(nics)
    with wires.inside(lab, SWITCH) as ip:
        for node in lab.nodes:
            for nic in nics:
                _shape(ip, lab.port(node, nic), lab.link_bits_per_s(node, nic))
    for node in lab.nodes:
        with wires.inside(lab, node) as ip:
            for nic in nics:
                _shape(ip, nic.name, lab.link_bits_per_s(node, nic))


def _shape(ip: Any, interface: str, rate_bits_per_s: float) -> None:
    """One end of a link."""
    from scaling.tools.lab import tbf

    tbf.register()
    found, index = bucket(rate_bits_per_s), wires.index(interface)
    with wires.needing(DISCIPLINE):
        ip.tc(
            "replace",
            DISCIPLINE,
            index=index,
            rate=rate_bits_per_s / 8,
            burst=found.burst_bytes,
            limit=found.limit_bytes,
        )
    ip.link("set", index=index, gso_max_size=found.offload_bytes)


def nic_of(lab: Lab, name: str, source: str) -> Nic:
    """A network of the lab by its card. Raises UsageError naming `source`."""
    nic = lab.nic(name)
    if nic is None:
        raise UsageError(
            f"{source}: lab {lab.name} has no card {name!r}; {near(name, [n.name for n in lab.nics])}"
        )
    return nic
