"""The timed all-reduces against the links that carried them. Pure.

What a library makes of a network has no number that is right everywhere; so nothing is blamed but what stays far
below the links that the same preflight measured, or below the other nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from scaling.check.facts import AllReduce, Facts, Verdict
from scaling.check.verdicts.links import gbit, slow_nodes
from scaling.check.verdicts.words import some
from scaling.records.all_reduce import Timed
from scaling.records.network import GBIT, Network
from scaling.report import devices
from scaling.text import counted

TOPIC = "all-reduce"
# In the launch's environment. Without a file what NCCL prints is not kept.
NCCL_LOG = "NCCL_DEBUG=INFO NCCL_DEBUG_FILE=/tmp/nccl.%h.%p"
FAR_BELOW = 1 / 3  # of the slowest link that was measured
BITS = 8


def all_reduce(facts: Facts) -> Iterator[Verdict]:
    """All that is said about them."""
    for one in facts.all_reduces:
        if one.left_out:
            yield Verdict(level="ok", topic=TOPIC, text=f"{_over(one)}not measured: {one.left_out}")
        elif one.error:
            yield _failed(one)
        elif one.everyone is not None:
            yield _judged(facts, one, one.everyone)
            yield from _without_rdma(facts, one)
            yield from _slow_nodes(one)


def _over(one: AllReduce) -> str:
    return f"{one.network}: " if one.network else ""


def _failed(one: AllReduce) -> Verdict:
    look = f"{NCCL_LOG} shows how far it came" if one.backend == "nccl" else "look at that rank's node first"
    return Verdict(
        level="error",
        topic=TOPIC,
        text=f"{_over(one)}torch:{one.backend} failed: {one.error}",
        mend=f"{look}; what fails here fails in a sweep too",
    )


def _judged(facts: Facts, one: AllReduce, timed: Timed) -> Verdict:
    chosen = devices.nccl(one.nccl) if one.nccl else ""
    by = f"{one.backend} ({chosen})" if chosen else one.backend
    said = f"{_over(one)}{counted(timed.ranks, 'rank')} by {by}, busbw {speed(timed.best_busbw_bytes_per_s)}"
    network = next((network for network in facts.networks if network.word == one.network), None)
    measured = facts.bandwidths(one.network)
    if network is None or not measured:
        return Verdict(level="ok", topic=TOPIC, text=said)
    reached, slowest = BITS * timed.best_busbw_bytes_per_s, min(measured.values())
    text = f"{said}, {_share(network, reached)}{100 * reached / slowest:.0f} % of its slowest link as measured"
    if reached >= FAR_BELOW * slowest:
        return Verdict(level="ok", topic=TOPIC, text=text)
    text += f" ({gbit(slowest)} Gb/s)"
    return Verdict(level="warning", topic=TOPIC, text=text, mend=_mend(facts, one))


def _without_rdma(facts: Facts, one: AllReduce) -> Iterator[Verdict]:
    """NCCL goes over sockets without a word where it cannot use the cards."""
    network = next((network for network in facts.networks if network.word == one.network), None)
    cards = network is not None and any(place.hca for place in network.places.values())
    if cards and one.nccl is not None and "NET/Socket" in one.nccl.transports:
        yield Verdict(
            level="warning",
            topic=TOPIC,
            text=f"{_over(one)}NCCL took sockets, though there are cards for RDMA",
            mend=f"{NCCL_LOG} says why: it loads libibverbs (rdma-core), locks memory, opens /dev/infiniband",
        )


def _share(network: Network, bits_per_s: float) -> str:
    """`41 % of ib's 100 Gb/s, `."""
    rate = network.rate_bits_per_s
    return f"{100 * bits_per_s / rate:.0f} % of {network.word}'s {rate / GBIT:g} Gb/s, " if rate else ""


def speed(bytes_per_s: float) -> str:
    """`5.12 GB/s (41.0 Gb/s)`."""
    return f"{gbit(bytes_per_s)} GB/s ({gbit(BITS * bytes_per_s)} Gb/s)"


def _mend(facts: Facts, one: AllReduce) -> str:
    times = crossings(facts)
    if one.backend == "gloo" and times > 1:
        return (
            f"neighbouring ranks on one node (mpirun --map-by slot): each byte crosses a node's link {times} times"
        )
    if one.backend == "nccl":
        return f"{NCCL_LOG} shows the transport (NET/IB, NET/Socket), GDRDMA and the rings that it chose"
    return "Gloo computes on the ranks' cores: look at the load and the binding; more: GLOO_SOCKET_IFNAME, mtu"


def crossings(facts: Facts) -> int:
    """How often a ring in the order of ranks leaves the node that it leaves most often."""
    hosts = [rank.host.hostname for rank in facts.ranks]
    leaving = [here for here, there in pairwise([*hosts, hosts[0]]) if here != there]
    return max((leaving.count(host) for host in set(leaving)), default=0)


def _slow_nodes(one: AllReduce) -> Iterator[Verdict]:
    """Nodes whose GPUs exchange slower than the others'; on CPUs whoever else computes decides."""
    rates = {node: timed.best_busbw_bytes_per_s for node, timed in one.inside.items()}
    slow, usual = slow_nodes(rates)
    if slow and one.backend == "nccl":
        listed = some(f"{node} {speed(value)}" for node, value in slow.items())
        yield Verdict(
            level="warning",
            topic=TOPIC,
            text=f"inside {listed}; the others reach {speed(usual)}",
            mend="nvidia-smi topo -m and nvidia-smi nvlink -s there, against a node that is well",
        )
