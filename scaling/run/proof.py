"""Rank 0 has hosts prove that they reach each other on each network, before anything is measured.

Each host connects to those 1, 2, 4, ... places after it: all pairs of up to five hosts, some of many. The
preflight (`python -m scaling check`) measures more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from scaling.errors import LaunchError
from scaling.records.host import HostInfo
from scaling.records.messages import Admit, Admitting, Enrol, Reach, Reached, ToAgent, ToSweep, Way
from scaling.records.network import AUTO, Network
from scaling.transport.mailbox import Mailbox

CONNECT_S = 3.0
ANSWER_S = 10.0
SAID = 3  # of what failed


def prove(
    mailbox: Mailbox[ToAgent, ToSweep], enrolled: Sequence[Enrol], networks: Sequence[Network]
) -> tuple[Network, ...]:
    """The networks, with the connections that were made on each. Raises LaunchError if hosts do not reach each
    other, or if packets that are routed leave by another interface."""
    first: dict[str, int] = {}
    for rank, one in enumerate(enrolled):
        first.setdefault(one.host.hostname, rank)
    hosts = {one.host.hostname: one.host for one in enrolled}
    return tuple(_proved(mailbox, first, hosts, one) if len(one.places) > 1 else one for one in networks)


def _proved(
    mailbox: Mailbox[ToAgent, ToSweep], first: Mapping[str, int], hosts: Mapping[str, HostInfo], network: Network
) -> Network:
    names = list(network.places)
    wanted = {name: peers(names, number) for number, name in enumerate(names)}
    try:
        ways = _connect(mailbox, first, network, wanted)
    finally:
        mailbox.order([first[name] for name in names], Admit(network=network.word, address=""))
    pairs = [(name, peer, way) for name in names for peer, way in zip(wanted[name], ways[name], strict=True)]
    faults = [fault for name, peer, way in pairs if (fault := _fault(hosts[name], peer, way, network))]
    if faults:
        more = f"; and {len(faults) - SAID} more" if len(faults) > SAID else ""
        raise LaunchError(f"{_said(network)}{'; '.join(faults[:SAID])}{more}; {_mend(network)}")
    return replace(network, connections=len(pairs))


def peers(names: Sequence[str], number: int) -> tuple[str, ...]:
    """Whom a host connects to: those 1, 2, 4, ... places after it."""
    steps = (1 << power for power in range(len(names).bit_length()))
    return tuple(names[(number + step) % len(names)] for step in steps if step < len(names))


def _connect(
    mailbox: Mailbox[ToAgent, ToSweep],
    first: Mapping[str, int],
    network: Network,
    wanted: Mapping[str, Sequence[str]],
) -> dict[str, tuple[Way, ...]]:
    """How each host reached those that it was to."""
    ranks = [first[name] for name in wanted]
    for name, place in network.places.items():
        mailbox.order([first[name]], Admit(network=network.word, address=place.address))
    doors = mailbox.answers(Admitting, ranks, ANSWER_S)
    for name in wanted:
        answer = doors.get(first[name], Admitting(network=network.word, error=f"no answer in {ANSWER_S:g} s"))
        if answer.error:
            place = network.places[name]
            raise LaunchError(f"{_said(network)}{name} does not listen at {place.address}: {answer.error}")
    for name, others in wanted.items():
        at = tuple((network.places[peer].address, doors[first[peer]].port) for peer in others)
        mailbox.order([first[name]], Reach(network=network.word, peers=at, within_s=CONNECT_S))
    answers = mailbox.answers(Reached, ranks, CONNECT_S + ANSWER_S)
    silent = Way(error="no answer")
    return {
        name: answers[first[name]].ways if first[name] in answers else (silent,) * len(others)
        for name, others in wanted.items()
    }


def _fault(host: HostInfo, peer: str, way: Way, network: Network) -> str:
    """What is wrong with the way from a host to a peer; "" if nothing."""
    address, wanted = network.places[peer].address, network.places[host.hostname].interface
    if way.error:
        return f"{host.hostname} to {peer} at {address}: {way.error}"
    left = next(_interfaces(host, way.source), "no interface that it told of")
    if not network.routed or left == wanted or wanted in _interfaces(host, way.source):
        return ""  # on a subnet of all hosts the counters tell it
    return f"{host.hostname} goes to {peer} at {address} by {left} ({way.source}), not by {wanted}"


def _interfaces(host: HostInfo, address: str) -> Iterator[str]:
    return (nic.name for nic in host.nics if nic.address == address)


def _said(network: Network) -> str:
    interfaces = ", ".join(dict.fromkeys(place.interface for place in network.places.values()))
    if network.word == AUTO:
        return f"--interconnect auto takes {interfaces}, over which the hosts do not all meet: "
    return f"--interconnect {network.word}: the hosts do not all meet there: "


def _mend(network: Network) -> str:
    if network.word == AUTO:
        return "name another network by --interconnect, or open the way (firewall, NetworkPolicy, routes)"
    return "open the way (firewall, NetworkPolicy, routes: ip route get ADDRESS), or take another network"
