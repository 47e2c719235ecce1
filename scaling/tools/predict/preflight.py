"""Evidence from `python -m scaling check --json`: latencies, TCP flows, timed all-reduces.

An all-reduce is the model's T, half a round trip is alpha without the framework's part, one TCP flow is a lower
estimate of the bandwidth. The noises express these limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from scaling import files
from scaling.errors import UsageError
from scaling.records.network import Network
from scaling.records.point import Record
from scaling.tools.predict.forecast import Case
from scaling.tools.predict.model import SERVERS
from scaling.tools.predict.setting import At, Constant, Exchange, Setting

# standard deviations of logarithms
ALL_REDUCE_NOISE, ALPHA_NOISE, FLOW_NOISE = 0.1, 0.4, 0.15
# for networks above 10 Gb/s, where several flows carry more than one
FAST_FLOW_NOISE = 0.4


Above0 = Annotated[float, Meta(gt=0, lt=1e15)]


class Timed(Record, frozen=True, kw_only=True):
    ranks: Annotated[int, Meta(ge=2)]
    bytes: Annotated[int, Meta(ge=1)]
    times_s: Annotated[tuple[Above0, ...], Meta(min_length=1)]


class Link(Record, frozen=True, kw_only=True):
    network: str
    latency_s: Above0 | None = None
    forth_bits_per_s: Above0 | None = None
    back_bits_per_s: Above0 | None = None


class AllReduce(Record, frozen=True, kw_only=True):
    network: str
    everyone: Timed | None = None
    inside: dict[str, Timed] = {}


class Facts(Record, frozen=True, kw_only=True):
    networks: tuple[Network, ...] = ()
    links: tuple[Link, ...] = ()
    all_reduces: tuple[AllReduce, ...] = ()


class Findings(Record, frozen=True, kw_only=True):
    facts: Facts


def read(path: Path) -> Facts:
    """Read the output of `check --json`. Raises UsageError with the command that writes it."""
    again = "python -m scaling check --json > check.json writes such a file"
    try:
        facts = msgspec.json.decode(files.read(path), type=Findings).facts
    except OSError as error:
        raise UsageError(f"--check {path}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise UsageError(f"--check {path}: {error}; {again}") from None
    nodes = {one.word: len(one.places) for one in facts.networks}
    for one in facts.all_reduces:
        if one.everyone and not 0 < nodes.get(one.network, 1) <= one.everyone.ranks:
            ranks = f"{one.everyone.ranks} ranks on {nodes.get(one.network, 1)} nodes"
            raise UsageError(f"--check {path}: no all-reduce among {ranks} exists; {again}")
    return facts


def added(case: Case, facts: Facts, networks: Sequence[Network] = ()) -> Case:
    """Add the evidence to the case; `networks` are the run's. Raises UsageError for an unknown network or emulated
    devices."""
    setting = case.setting
    if setting.emulated:
        raise UsageError("--check: not for emulated devices, because the run shaped their links")
    found = _network(case, facts, networks)
    exchanges = () if setting.method in SERVERS else tuple(_exchanges(facts, found, setting))
    constants = tuple(_constants(facts, found, setting))
    if not exchanges and not constants:
        raise UsageError(f"--check: {found.word} was not measured: run the preflight on two or more nodes")
    known = case.known._replace(
        exchanges=(*case.known.exchanges, *exchanges), constants=(*case.known.constants, *constants)
    )
    said = f"{found.word} as the preflight measured it: {len(exchanges)} all-reduces, {len(constants)} constants"
    return case._replace(known=known, notes=(*case.notes, said))


def _network(case: Case, facts: Facts, networks: Sequence[Network]) -> Network:
    """By name, else by subnet, else the only one."""
    own = next((one for one in networks if one.word == case.interconnect), None)
    same = [one for one in facts.networks if one.word == case.interconnect]
    same += [one for one in facts.networks if own is not None and own.subnet and one.subnet == own.subnet]
    same += facts.networks if case.cold and len(facts.networks) == 1 else []
    if not same:
        words = ", ".join(one.word for one in facts.networks) or "no network"
        raise UsageError(
            f"--check: it measured {words}, not {case.interconnect or 'a single one'}; run: python -m scaling "
            f"check --json --interconnect {case.interconnect or 'NAME'}"
        )
    return same[0]


def _exchanges(facts: Facts, network: Network, setting: Setting) -> Iterator[Exchange]:
    for one in facts.all_reduces:
        if one.network == network.word:
            whole = [(one.everyone, len(network.places))] if one.everyone else []
            for timed, nodes in (*whole, *((each, 1) for each in one.inside.values())):
                own = replace(
                    setting, gradient_bytes=float(timed.bytes), gathered_bytes=0.0, messages="one", method="ring",
                    sparse_bytes=0.0,
                )  # fmt: skip
                at = At(world_size=timed.ranks, nodes=nodes)
                yield Exchange(at, median(timed.times_s), ALL_REDUCE_NOISE, own)


def _constants(facts: Facts, network: Network, setting: Setting) -> Iterator[Constant]:
    """RDMA links are skipped, because they differ from a TCP flow."""
    links = [one for one in facts.links if one.network == network.word]
    if setting.link not in ("tcp", "tcp10", "ipoib"):
        return
    if latencies := [one.latency_s for one in links if one.latency_s]:
        yield Constant("alpha", median(latencies), ALPHA_NOISE)
    flows = [rate for one in links for rate in (one.forth_bits_per_s, one.back_bits_per_s) if rate]
    if flows and setting.line_bytes_per_s:
        yield Constant("network", median(flows) / 8, FLOW_NOISE if setting.link == "tcp10" else FAST_FLOW_NOISE)
