"""What was believed of the constants before any published series: weak, and from elsewhere. Data alone.

Each is (value, factor of one standard deviation, unit, from where). Learning starts from these and counts them as
`STRENGTH` series; a constant that no series teaches stays as it stands here.
"""

from __future__ import annotations

from math import log
from typing import NamedTuple

from scaling.tools.predict.priors import Prior, Priors, Walk

STRENGTH = 1.0


class Belief(NamedTuple):
    """A constant: for `hide` the logit and its standard deviation stand instead of value and factor."""

    value: float
    factor: float
    unit: str
    source: str


_GUESS = "a guess: the order of magnitude"
_TUNING = "NCCL's src/graph/tuning.cc: 9.6 us a step between nodes, x 1.9 in its plateau"
BELIEFS: dict[str, Belief] = {
    "network.tcp10.ring": Belief(0.94, 1.06, "share of the line", "TCP/IP framing leaves 0.949 of 10 GbE"),
    "network.tcp10.servers": Belief(0.90, 1.2, "share of the line", "TCP/IP framing, and a server's own pace"),
    "network.tcp.ring": Belief(2.2e9, 1.35, "B/s a node", "bytedance/byteps#29: iperf 13.7 to 21.1 Gb/s"),
    "network.tcp.servers": Belief(2.4e9, 1.5, "B/s a node", "bytedance/byteps#29: iperf 13.7 to 21.1 Gb/s"),
    "network.rdma": Belief(0.75, 1.4, "share of the line", "PCIe 3.0 x16 carries 0.8 to 0.95 of 100 Gb/s"),
    "network.rdma_several": Belief(0.6, 1.6, "share of the line", _GUESS),
    "network.unknown": Belief(2.5e9, 2.5, "B/s a node", _GUESS),
    "bus.pcie": Belief(6e9, 1.5, "B/s", "PCIe 3.0 x16: 12 GB/s, shared by the devices of a switch"),
    "bus.nvlink": Belief(50e9, 1.8, "B/s", "NVLink 2: 25 GB/s a link, 1 to 6 rings"),
    "bus.nvswitch": Belief(100e9, 1.8, "B/s", "NVSwitch: 150 GB/s each way"),
    "bus.host": Belief(10e9, 2.0, "B/s", "PCIe 3.0 x16 to the host's memory: 12 GB/s"),
    "bus.loopback": Belief(1e9, 3.0, "B/s", "TCP to the host itself: 0.3 to 3 GB/s, less where cores are busy"),
    "fade.tcp": Belief(0.1, 2.0, "power of nodes / 2", _GUESS),
    "fade.rdma": Belief(0.03, 2.0, "power of nodes / 2", _GUESS),
    "alpha.tcp": Belief(35e-6, 1.7, "s a message and step", "ping-pong over TCP: 20 to 50 us"),
    "alpha.rdma": Belief(14e-6, 1.5, "s a message and step", _TUNING),
    "hide.ddp": Belief(1.2, 1.0, "logit", _GUESS),
    "hide.horovod": Belief(1.2, 1.0, "logit", _GUESS),
    "hide.other": Belief(1.2, 1.0, "logit", _GUESS),
    "hide.mwms": Belief(-1.1, 1.0, "logit", "published as of little overlap"),
    "hide.serial": Belief(0.0, 1e-6, "logit", "nothing is hidden, by definition"),
    "window": Belief(0.66, 1.12, "share of a step", "backward has two thirds of the operations"),
    "tax": Belief(0.02, 2.0, "share of a step of 0.3 s", _GUESS),
    "tax_devices": Belief(0.015, 2.0, "share of a step of 0.3 s", _GUESS),
    "tax_nodes": Belief(0.007, 2.5, "share of a step of 0.3 s", _GUESS),
    "jitter": Belief(0.004, 2.0, "share of a step", "ranks differ by some tenths of a per cent"),
    "growth": Belief(0.004, 2.2, "share of a step per doubling of nodes", _GUESS),
    "network.emulated": Belief(0.949, 1.03, "share of the line", "TCP/IP framing of a link shaped to its line"),
    "fade.emulated": Belief(0.003, 3.0, "power of nodes / 2", "links are shaped one by one, and meet in a bridge"),
    "alpha.emulated": Belief(3e-6, 3.0, "s a message and step", "30 to 100 us between namespaces, over dilation"),
    "hide.emulated": Belief(4.0, 1.0, "logit", "who sleeps loses nothing to an exchange"),
    "tax.emulated": Belief(0.0005, 3.0, "share of a step of 0.3 s", "who sleeps shares nothing with a neighbour"),
    "straggling.emulated": Belief(0.001, 2.0, "share of a step", "sleeps end late, by up to 0.5 % of a step"),
    "wire": Belief(0.0, 1.0, "above 0: full, below: half", "even: mixed precision sends either, rarely stated"),
}
WALK = Walk(inside=0.025, leaving=0.05, beyond=0.035)
# What no table can teach.
FIXED = frozenset({"hide.serial", "wire"})


def before() -> Priors:
    """The beliefs as priors."""
    return Priors(walk=WALK, constants={name: prior(belief) for name, belief in BELIEFS.items()})


def prior(belief: Belief) -> Prior:
    """On the scale on which it is normal."""
    if belief.unit in ("logit", "above 0: full, below: half"):
        return Prior(mean=belief.value, sd=belief.factor)
    return Prior(mean=log(belief.value), sd=log(belief.factor))
