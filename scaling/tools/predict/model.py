"""The time of a step at any world size from constants of a cluster, as arrays of draws x world sizes.

    t(N)    = a t1 (1 + tax) (1 + straggling) + exposed + G      a micro steps of t1 between two exchanges
    tax     = d1 + d2 log2(n)/3 + d3 [M > 1] + f / (a t1)       n devices on each of M nodes
    strag.  = s Z(N) + r log2(M) + large worlds' fade,  Z(N) = Phi^-1((N - 3/8) / (N + 1/4))
    T       = V(N) / b + messages x latency
    exposed = (1 - h) T + h W e(T / W),  W = window x t1,  e(x) = max(x - 1, tail x)
    window  = 1 if parameters are sharded: they are gathered during forward, too
    G       = (N-1)/N gathered bytes / b, after the step (ZeRO-1)

Every term grows with a slower network, more bytes, more devices and a shorter step, relative to the step.

Sources:

* volume 2 (N-1)/N and latency of a ring: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009
* latency 2 log2(M) of a tree: NCCL, src/graph/tuning.cc
* Z: Blom, "Statistical estimates and transformed beta-variables", 1958
* timeline of gradients: Shi, MG-WFBP, arXiv:1811.11141
* tax, and the form of the other terms: this project
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaling.tools.predict.catalogue import USUAL_BYTES_PER_S
from scaling.tools.predict.priors import Prior
from scaling.tools.predict.setting import At, Link, Overlap, Setting

# ---------------------------------------------------------------- constants

Floats = NDArray[np.float64]
Values = Mapping[str, Floats]

COMMON = ("window", "tax", "tax_devices", "tax_nodes", "tax_s", "jitter", "growth")
TCP: tuple[Link, ...] = ("tcp", "tcp10", "ipoib", "unknown", "none")
# for sleeping devices and shaped links, which no published cluster has
EMULATED = {
    "fade": "fade.emulated", "alpha": "alpha.emulated", "tax": "tax.emulated", "tax_devices": "tax.emulated",
    "tax_nodes": "tax.emulated", "tax_s": "tax.emulated", "jitter": "straggling.emulated",
    "growth": "straggling.emulated",
}  # fmt: skip
SERVERS = ("servers_apart", "servers_beside", "servers_in_host")


def keys(setting: Setting) -> dict[str, str]:
    """Map the roles of constants in the equations to the names of their priors."""
    wires = "tcp" if setting.link in TCP else "rdma"
    found = {name: name for name in COMMON} | {
        "bus": f"bus.{setting.bus}", "network": _network(setting), "fade": f"fade.{wires}",
        "alpha": f"alpha.{wires}", "hide": hidden(setting.overlap, emulated=setting.emulated),
    }  # fmt: skip
    if setting.link == "tcp" and not _is_cpu_ring(setting):
        found["cap_growth"] = "cap_growth"
    if setting.method == "sharded":
        found["tax"] = "tax.sharded"
    return found | EMULATED if setting.emulated else found


def _network(setting: Setting) -> str:
    if setting.link in ("none", "unknown"):
        return "network.unknown"
    if setting.emulated and setting.link == "tcp10" and setting.method not in SERVERS:
        return "network.emulated"
    if setting.link in TCP and _is_cpu_ring(setting):
        return "network.cpu"
    family = ".servers" if setting.method in SERVERS else ".ring"
    return f"network.{setting.link}{family if setting.link in ('tcp', 'tcp10') else ''}"


def _is_cpu_ring(setting: Setting) -> bool:
    return setting.carrier == "cpu" and setting.method not in SERVERS


def hidden(overlap: Overlap, *, emulated: bool) -> str:
    return "hide.emulated" if emulated and overlap in ("ddp", "horovod") else f"hide.{overlap}"


def values(names: Mapping[str, str], priors: Mapping[str, Prior], z: Floats) -> dict[str, Floats]:
    """Convert standard normal draws (draws x constants) to constants, one column each."""
    return {
        role: transformed(name, priors[name].mean + priors[name].sd * z[:, [index]])
        for index, (role, name) in enumerate(names.items())
    }


def transformed(name: str, normal: Floats) -> Floats:
    """Convert values from the scale on which a constant is normal."""
    if name == "hide.serial":
        return np.zeros_like(normal)
    if name.startswith("hide."):
        return np.asarray(1 / (1 + np.exp(-normal)))
    return np.maximum(normal, 0.0) if name == "cap_growth" else np.exp(normal)


# ---------------------------------------------------------------- equations

# where the cap of TCP has no power
CAP_LINE_BYTES_PER_S = 3.125e9
BUCKET_BYTES, FUSION_BYTES, FUSION_CYCLE_S = 25e6, 64e6, 5e-3
# one step inside a node; NVLink and PCIe: 3.4 and 5.7 us in NCCL's src/graph/tuning.cc
INSIDE_LATENCY_S: Mapping[str, float] = {"nvlink": 3.4e-6, "nvswitch": 3.4e-6, "loopback": 30e-6}
INSIDE_LATENCY_PCIE_S = 5.7e-6
# how often a server's link carries a gradient in series: pushes and pulls are full duplex
SERVERS_SERIAL, SERVERS_OVERLAPPED = 2.0, 1.1
TREE_STEPS = 3.0
SHARDED_VOLUME = 1.5
TCP_EFFICIENCY = 0.95
# Share of a step that is lost per doubling of nodes beyond so many. `growth` is learned from few nodes, and worlds
# of hundreds of devices lose more.
FADES = ((2, 0.002), (8, 0.005), (16, 0.01))


class Sizes(NamedTuple):
    """`order` is Z(N)."""

    world: Floats
    nodes: Floats
    each: Floats
    accumulation: Floats
    order: Floats


class Parts(NamedTuple):
    """Seconds of a step by cause, draws x world sizes. They add up to `step_s`."""

    alone_s: Floats
    contention_s: Floats
    straggling_s: Floats
    exposed_s: Floats
    exchange_s: Floats

    @property
    def step_s(self) -> Floats:
        return self.alone_s + self.contention_s + self.straggling_s + self.exposed_s


def sizes(points: Sequence[At]) -> Sizes:
    rows = [(at.world_size, at.nodes, at.devices_per_node, at.accumulation) for at in points]
    world, nodes, each, steps = np.array(rows, float).reshape(-1, 4).T
    order = np.array([NormalDist().inv_cdf((n - 0.375) / (n + 0.25)) if n > 1 else 0.0 for n in world])
    return Sizes(world, nodes, each, steps, order)


def parts(setting: Setting, values: Values, at: Sizes, alone_s: Floats) -> Parts:
    """Compute the seconds of a step; `alone_s` is the micro step of one device by draw."""
    t1 = alone_s[:, None]
    compute = at.accumulation * t1
    several = at.world > 1
    share = values["tax"] * several + values["tax_devices"] * np.log2(at.each) / 3
    contention = compute * (share + values["tax_nodes"] * (at.nodes > 1)) + values["tax_s"] * several
    straggling = values["jitter"] * at.order + values["growth"] * np.log2(at.nodes)
    if not setting.emulated:
        straggling = straggling + sum(lost * np.log2(np.maximum(at.nodes / first, 1)) for first, lost in FADES)
    exchange = np.where(several, exchange_s(setting, values, at, t1), 0.0)
    window = t1 if setting.method == "sharded" else values["window"] * t1
    hidden = np.maximum(exchange - window, setting.tail * exchange)
    gathered = (at.world - 1) / at.world * setting.gathered_bytes / _slowest(setting, values, at)
    exposed = (1 - values["hide"]) * exchange + values["hide"] * hidden + gathered
    return Parts(compute, contention, (compute + contention) * straggling, exposed, exchange + gathered)


def exchange_s(setting: Setting, values: Values, at: Sizes, t1: Floats) -> Floats:
    slowest = _slowest(setting, values, at)
    time = _moved_s(setting, values, at) + _messages(setting, t1 * values["window"]) * _latency_s(
        setting, values, at
    )
    return np.asarray(time + (at.world - 1) * setting.sparse_bytes / slowest)


def bus_bytes_per_s(setting: Setting) -> float:
    return setting.bus_bytes_per_s or USUAL_BYTES_PER_S[setting.bus]


def network_bytes_per_s(setting: Setting, values: Values, at: Sizes) -> Floats:
    """Compute what a node's link carries in an exchange among these nodes, bytes/s."""
    return np.asarray(carried_bytes_per_s(setting, values) * (np.maximum(at.nodes, 2) / 2) ** -values["fade"])


def carried_bytes_per_s(setting: Setting, values: Values) -> Floats:
    """Compute what a node's link carries between two nodes, bytes/s by draw."""
    line, network = setting.line_bytes_per_s, values["network"]
    if setting.link in ("unknown", "none"):
        return network
    if not has_cap(setting):
        return np.asarray(network * max(line, 1.0))
    return np.asarray(np.minimum(TCP_EFFICIENCY * line, cap_bytes_per_s(setting, values)))


def cap_bytes_per_s(setting: Setting, values: Values) -> Floats:
    """Compute what a node can send over TCP, whatever its line."""
    faster = setting.line_bytes_per_s / setting.cards / CAP_LINE_BYTES_PER_S
    return np.asarray(setting.cards * values["network"] * faster ** values.get("cap_growth", np.zeros(1)))


def has_cap(setting: Setting) -> bool:
    """Whether a host sends less over TCP than a fast line carries."""
    slow = setting.link == "tcp10" and _is_cpu_ring(setting) and not setting.emulated
    return setting.link in ("tcp", "ipoib") or slow


def _slowest(setting: Setting, values: Values, at: Sizes) -> Floats:
    bus, network = values["bus"] * bus_bytes_per_s(setting), network_bytes_per_s(setting, values, at)
    inside = np.where(at.each > 1, bus, np.inf)
    return np.where(at.nodes > 1, np.minimum(network, inside), bus)


def _moved_s(setting: Setting, values: Values, at: Sizes) -> Floats:
    size, bus = setting.gradient_bytes, values["bus"] * bus_bytes_per_s(setting)
    network = network_bytes_per_s(setting, values, at)
    inside, crosses = 2 * (at.each - 1) / at.each * size / bus, at.nodes > 1
    beside = 2 * (at.nodes - 1) / at.nodes
    match setting.method:
        case "ring" | "sharded":
            factor = SHARDED_VOLUME if setting.method == "sharded" else 1.0
            return np.asarray(factor * 2 * (at.world - 1) / at.world * size / _slowest(setting, values, at))
        case "hierarchical":
            return np.asarray(inside + crosses * beside * size / network)
        case "servers_apart":
            often = SERVERS_SERIAL if setting.overlap == "serial" else SERVERS_OVERLAPPED
            return np.asarray(inside + crosses * often * size / network)
        case "servers_beside":
            return np.asarray(at.each * size / bus * (at.each > 1) + crosses * beside * size / network)
        case "servers_in_host":
            return np.asarray(at.each * size / bus * (at.each > 1) + crosses * 2 * size / network)


def _messages(setting: Setting, window_s: Floats) -> Floats | float:
    match setting.messages:
        case "one":
            return 1.0
        case "tensors":
            return float(setting.tensors)
        case "buckets":
            return max(1.0, setting.gradient_bytes / BUCKET_BYTES)
        case "fusion":
            fused = np.maximum(1.0, setting.gradient_bytes / FUSION_BYTES + window_s / FUSION_CYCLE_S)
            return np.minimum(fused, float(setting.tensors))


def _latency_s(setting: Setting, values: Values, at: Sizes) -> Floats:
    alpha, inside_s = values["alpha"], INSIDE_LATENCY_S.get(setting.bus, INSIDE_LATENCY_PCIE_S)
    if setting.method in SERVERS:
        return np.where(at.nodes > 1, 2 * alpha, 2 * inside_s)
    ring = 2 * (at.nodes - 1) * alpha + 2 * (at.world - at.nodes) * inside_s * (setting.method != "hierarchical")
    if not setting.tree:
        return ring
    tree = 2 * np.log2(at.nodes) * TREE_STEPS * alpha + 2 * (at.each - 1) * inside_s
    return np.where(at.nodes > 1, np.minimum(ring, tree), ring)
