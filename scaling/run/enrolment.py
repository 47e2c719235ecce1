"""Checks of rank 0 with every rank before a sweep: host and code, data, networks."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from scaling import __version__, files, frameworks
from scaling.agent import environment, strategies
from scaling.agent.agent import Agent
from scaling.command import check_output
from scaling.errors import LaunchError, SilentRanks, UsageError
from scaling.hosts.info import check_names, code_hash, joined
from scaling.plan import refusals
from scaling.plan.plan import Plan
from scaling.records.host import HostInfo, joined_variables
from scaling.records.messages import (
    Admit,
    Admitting,
    Ask,
    Enrol,
    Locate,
    Located,
    Missing,
    Reach,
    Reached,
    ToAgent,
    ToSweep,
    Way,
)
from scaling.records.network import AUTO, Network
from scaling.records.run import Header
from scaling.transport.base import ENROL_S, Mailbox
from scaling.workloads import data, feeds, models, weights
from scaling.workloads.data import TRAIN, Split

# ---------------------------------------------------------------- networks
# Before measuring, rank 0 checks that hosts reach each other on each network: of each pair one host sends 1 MiB to
# the other. `python -m scaling check` measures more.


CONNECT_S = 3.0
ANSWER_S = 10.0
SAID = 3  # failures shown


def prove(
    mailbox: Mailbox[ToAgent, ToSweep], enrolled: Sequence[Enrol], networks: Iterable[Network]
) -> tuple[Network, ...]:
    """Connect the hosts on each network; return the networks with their numbers of connections.
    Raises LaunchError if hosts do not reach each other, or if routed packets leave by another interface."""
    first = first_ranks(enrolled)
    hosts = {one.host.hostname: one.host for one in enrolled}
    return tuple(_proved(mailbox, first, hosts, one) if len(one.places) > 1 else one for one in networks)


def _proved(
    mailbox: Mailbox[ToAgent, ToSweep], first: Mapping[str, int], hosts: Mapping[str, HostInfo], network: Network
) -> Network:
    try:
        ways = _connect(mailbox, first, network)
    finally:
        mailbox.order([first[name] for name in network.places], Admit(network=network.word, address=""))
    faults = [
        fault for (name, peer), way in ways.items() if (fault := _fault(hosts[name], hosts[peer], way, network))
    ]
    if faults:
        more = f"; and {len(faults) - SAID} more" if len(faults) > SAID else ""
        mend = "open the path (firewall, NetworkPolicy, routes: ip route get ADDRESS), or take another network"
        if network.word == AUTO:
            mend = "name another network with --interconnect, or open the path (firewall, NetworkPolicy, routes)"
        raise LaunchError(f"{_said(network)}{'; '.join(faults[:SAID])}{more}; {mend}")
    return replace(network, connections=len(ways))


def peers(names: Sequence[str], number: int) -> tuple[str, ...]:
    """Return the hosts to which a host connects: half of the others, those after it."""
    return tuple(names[(number + step) % len(names)] for step in range(1, len(names) // 2 + 1))


def _connect(
    mailbox: Mailbox[ToAgent, ToSweep], first: Mapping[str, int], network: Network
) -> dict[tuple[str, str], Way]:
    """Return how each host reached each of its peers."""
    names, places, word = list(network.places), network.places, network.word
    ranks = [first[name] for name in names]
    for name in names:
        mailbox.order([first[name]], Admit(network=word, address=places[name].address))
    doors = mailbox.answers(Admitting, ranks, ANSWER_S)
    for name in names:
        answer = doors.get(first[name], Admitting(network=word, error=f"no answer in {ANSWER_S:g} s"))
        if answer.error:
            where = f"{name} does not listen at {places[name].address}"
            raise LaunchError(f"{_said(network)}{where}: {answer.error}")
    wanted = {name: peers(names, number) for number, name in enumerate(names)}
    for name, others in wanted.items():
        at = tuple((places[peer].address, doors[first[peer]].port) for peer in others)
        mailbox.order([first[name]], Reach(network=word, peers=at, within_s=CONNECT_S))
    answers = mailbox.answers(Reached, ranks, CONNECT_S + ANSWER_S)
    found: dict[tuple[str, str], Way] = {}
    for name, others in wanted.items():
        reached = answers.get(first[name])
        ways = reached.ways if reached else (Way(error="no answer"),) * len(others)
        found |= {(name, peer): way for peer, way in zip(others, ways, strict=True)}
    return found


def _fault(host: HostInfo, other: HostInfo, way: Way, network: Network) -> str:
    peer = other.hostname
    address, wanted = network.places[peer].address, network.places[host.hostname].interface
    if way.error:
        mtus = [nic.mtu for nic in other.nics if nic.address == address] if "MTU" in way.error else []
        theirs = f"; that of {peer} is {mtus[0]}" if mtus else ""
        return f"{host.hostname} to {peer} at {address}: {way.error}{theirs}"
    left = [nic.name for nic in host.nics if nic.address == way.source]
    if not network.routed or wanted in left:
        return ""  # on a common subnet, the byte counters show it
    by = left[0] if left else "an interface that it did not report"
    return f"{host.hostname} goes to {peer} at {address} by {by} ({way.source}), not by {wanted}"


def _said(network: Network) -> str:
    interfaces = ", ".join(dict.fromkeys(place.interface for place in network.places.values()))
    if network.word == AUTO:
        return f"--interconnect auto takes {interfaces}, but not all hosts can connect there: "
    return f"--interconnect {network.word}: not all hosts can connect there: "


# ---------------------------------------------------------------- data


def absolute(data_dir: str | None) -> str:
    """Return the folder as an absolute path, "" if none is given."""
    return str(Path(data_dir).expanduser().absolute()) if data_dir else ""


def locate(
    made: Plan,
    mailbox: Mailbox[ToAgent, ToSweep],
    enrolled: Sequence[Enrol],
    within_s: float = ENROL_S,
    *,
    goes_on: bool = False,
) -> Plan:
    """Return the plan with the folder of its data, after a check that every host has it.
    Emulated devices read none. Raises UsageError with the flag and the host that lacks it, or SilentRanks."""
    config = made.config
    assert config.data is not None
    given = absolute(config.data_dir)
    if not data.spec(config.data).is_read and given:
        raise UsageError(
            f"--data-dir {given}: --data {config.data} is not read from files; leave --data-dir out, or name the "
            "data"
        )
    if made.device == "emulated":
        return made
    if config.weights:
        weights.of_file(models.at(made.cells[0]))
    model, parts = models.of(made.cells[0].workload), refusals.parts(config)
    with files.loading(f"--data-dir {given}" if given else config.data):
        splits: tuple[Split, ...] = ("train", "test") if config.epochs else TRAIN
        place = feeds.check(config.data, given, model, splits, parts)
    if place:
        order, own = Locate(data=config.data, data_dir=place), enrolled[0].host.hostname
        others = [rank for host, rank in sorted(first_ranks(enrolled).items()) if host != own]
        answers = _asked(mailbox, enrolled, others, order, Located, f"--data-dir {place}", within_s)
        for rank in others:
            if why := answers[rank].error:
                raise UsageError(f"{why} (on {enrolled[rank].host.hostname}; {own} has it)")
    saved = config.save_weights and _writable(config.save_weights, goes_on)
    return replace(made, config=replace(config, data_dir=place or None, save_weights=saved))


def _writable(path: str, goes_on: bool) -> str:
    """Return the absolute path. Raises UsageError if it cannot be written, or exists and the run is new."""
    file = Path(path).expanduser()
    check_output(file, "--save-weights")
    if os.path.lexists(file) and not goes_on:
        raise UsageError(f"--save-weights {path}: exists already; name another file, or remove it first")
    return str(file.absolute())


Answer = TypeVar("Answer", Located, Missing)


def _asked(
    mailbox: Mailbox[ToAgent, ToSweep],
    enrolled: Sequence[Enrol],
    ranks: Collection[int],
    order: Locate | Ask,
    kind: type[Answer],
    about: str,
    within_s: float,
) -> dict[int, Answer]:
    """Send an order to these ranks and return all answers. Raises SilentRanks if one is missing."""
    mailbox.order(list(ranks), order)
    answers = mailbox.answers(kind, ranks, within_s) if ranks else {}
    if silent := ", ".join(enrolled[rank].host.hostname for rank in ranks if rank not in answers):
        raise SilentRanks(f"{silent}: no answer about {about} within {within_s:g} s")
    return answers


# ---------------------------------------------------------------- enrolment


def enrol(agent: Agent) -> None:
    """Send rank 0 this rank's host, its code, and which strategies cannot run here."""
    lacking, others = strategies.examine((*frameworks.NAMES, *frameworks.BASELINES))
    agent.enrol(environment.host_with(others), version=__version__, code=code_hash(), lacking=lacking)


def wait_for_all(mailbox: Mailbox[ToAgent, ToSweep]) -> tuple[Enrol, ...]:
    """Return every rank's enrolment, by rank.
    Raises SilentRanks, or LaunchError for different code or for two machines of one name."""
    enrolled = mailbox.answers(Enrol, range(mailbox.size), ENROL_S)
    if len(enrolled) < mailbox.size:
        raise SilentRanks(f"only {len(enrolled)} of {mailbox.size} ranks reported within {ENROL_S:g} s")
    by_rank = tuple(enrolled[rank] for rank in sorted(enrolled))
    check_versions(by_rank)
    check_names([one.host for one in by_rank])
    return by_rank


def first_ranks(enrolled: Sequence[Enrol]) -> dict[str, int]:
    """Return the first rank of each host, by name."""
    return {one.host.hostname: rank for rank, one in reversed(list(enumerate(enrolled)))}


def check_versions(enrolled: Sequence[Enrol]) -> None:
    """Raise LaunchError if ranks run different code."""
    first = enrolled[0]
    for rank, one in enumerate(enrolled):
        if (one.version, one.code) != (first.version, first.code):
            raise LaunchError(
                f"rank {rank} on {one.host.hostname} runs scaling {one.version} (code {one.code}), "
                f"rank 0 on {first.host.hostname} {first.version} (code {first.code}); "
                "install the same version on every host"
            )


def ask_of_outside(
    mailbox: Mailbox[ToAgent, ToSweep],
    enrolled: Sequence[Enrol],
    names: Iterable[str],
    within_s: float = ENROL_S,
) -> tuple[Enrol, ...]:
    """Ask all ranks which strategies from outside they lack; return the completed enrolments.
    Only rank 0 knows their names, from the command line. Raises SilentRanks."""
    outside = tuple(name for name in dict.fromkeys(names) if frameworks.is_outside(name))
    if not outside:
        return tuple(enrolled)
    ranks, about = range(mailbox.size), ", ".join(outside)
    answers = _asked(mailbox, enrolled, ranks, Ask(strategies=outside), Missing, about, within_s)
    return tuple(
        replace(
            one,
            missing={**one.missing, **answers[rank].missing},
            missing_on_cuda={**one.missing_on_cuda, **answers[rank].missing_on_cuda},
        )
        for rank, one in enumerate(enrolled)
    )


def missing_somewhere(enrolled: Sequence[Enrol]) -> dict[str, str]:
    """Return by strategy why it cannot run on some host or its GPUs."""
    on_cuda = {name: f"not on GPUs: {why}" for one in enrolled for name, why in one.missing_on_cuda.items()}
    return {**on_cuda, **{name: reason for one in enrolled for name, reason in one.missing.items()}}


def check_same_launch(header: Header, enrolled: Sequence[Enrol], run: Path) -> None:
    """Raise UsageError if a run would be resumed on other hosts, with other variables or other code."""
    hosts = tuple(one.host.hostname for one in enrolled)
    if hosts != header.host_of_rank:
        raise UsageError(
            f"--resume {run}: was started on {', '.join(header.host_of_rank)}, this launch is on "
            f"{', '.join(hosts)}; start it on the same hosts, or start a new run with --like"
        )
    before, now = joined_variables(header.hosts), joined_variables(by_name(enrolled).values())
    if before != now and all(host.variables is not None for host in header.hosts):
        names = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
        said = (f"{name} was {before.get(name, 'unset')}, is {now.get(name, 'unset')}" for name in names)
        raise UsageError(
            f"--resume {run}: environment variables have changed: {'; '.join(said)}; restore them, or "
            "start a new run with --like"
        )
    if enrolled[0].code != header.code:
        raise UsageError(
            f"--resume {run}: was measured by other code ({header.version}, {header.code}) than this "
            f"({__version__}, {enrolled[0].code}); start a new run with --like"
        )


def by_name(enrolled: Sequence[Enrol]) -> dict[str, HostInfo]:
    """Return each host by name, joined from what its ranks know."""
    ranks: dict[str, list[HostInfo]] = {}
    for one in enrolled:
        ranks.setdefault(one.host.hostname, []).append(one.host)
    return {name: joined(hosts) for name, hosts in ranks.items()}
