"""Evidence from `python -m scaling check --json`: latencies, TCP flows, timed all-reduces.

An all-reduce is the model's T, half a round trip is alpha without the framework's part, one TCP flow is a lower
estimate of the bandwidth. The noises express these limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path
from statistics import median

import msgspec
from msgspec.structs import replace

from scaling import files
from scaling.errors import UsageError
from scaling.records.network import Network
from scaling.records.point import Record
from scaling.records.task import Timed
from scaling.tools.predict.forecast import Case
from scaling.tools.predict.model import SERVERS
from scaling.tools.predict.setting import At, Constant, Exchange, Setting

# standard deviations of logarithms
ALL_REDUCE_NOISE, ALPHA_NOISE, FLOW_NOISE = 0.1, 0.4, 0.15
# for networks above 10 Gb/s, where several flows carry more than one
FAST_FLOW_NOISE = 0.4


class Link(Record, frozen=True, kw_only=True):
    network: str
    latency_s: float | None = None
    forth_bits_per_s: float | None = None
    back_bits_per_s: float | None = None


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
    if wrong := next(_wrong(facts), ""):
        raise UsageError(f"--check {path}: {wrong}; {again}")
    return facts


def _wrong(facts: Facts) -> Iterator[str]:
    for link in facts.links:
        for name in ("latency_s", "forth_bits_per_s", "back_bits_per_s"):
            value = getattr(link, name)
            if value is not None and not 0 < value < inf:
                yield f"{name} = {value:g} of {link.network}: must be above 0"
    nodes = {one.word: len(one.places) for one in facts.networks}
    for one in facts.all_reduces:
        sides = [(one.everyone, nodes.get(one.network, 1))] if one.everyone else []
        for timed, fewest in (*sides, *((each, 1) for each in one.inside.values())):
            if timed.ranks < max(2, fewest) or timed.bytes < 1 or not fewest:
                yield f"no all-reduce of {timed.bytes} bytes among {timed.ranks} ranks on {fewest} nodes exists"
            if not timed.times_s or not 0 < min(timed.times_s) <= max(timed.times_s) < inf:
                yield f"an all-reduce of {one.network}: times_s needs values, all above 0"


def added(case: Case, facts: Facts, networks: Sequence[Network] = ()) -> Case:
    """Add the evidence to the case; `networks` are the run's. Raises UsageError for an unknown network or emulated
    devices."""
    if case.emulated:
        raise UsageError("--check: not for emulated devices, because the run shaped their links")
    found = _network(case, facts, networks)
    setting = case.setting
    exchanges = [] if setting.method in SERVERS else list(_exchanges(facts, found, setting))
    constants = list(_constants(facts, found, setting))
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
    if not same and case.cold and len(facts.networks) == 1:
        same = list(facts.networks)
    if not same:
        words = ", ".join(one.word for one in facts.networks) or "no network"
        wanted = case.interconnect or "a single one"
        raise UsageError(
            f"--check: it measured {words}, not {wanted}; run: python -m scaling check --json "
            f"--interconnect {case.interconnect or 'NAME'}"
        )
    return same[0]


def _exchanges(facts: Facts, network: Network, setting: Setting) -> Iterator[Exchange]:
    nodes = len(network.places)
    for one in facts.all_reduces:
        if one.network == network.word and one.everyone is not None:
            yield _exchange(one.everyone, nodes, setting)
        for timed in one.inside.values() if one.network == network.word else ():
            yield _exchange(timed, 1, setting)


def _exchange(timed: Timed, nodes: int, setting: Setting) -> Exchange:
    at = At(world_size=timed.ranks, nodes=nodes)
    own = replace(
        setting, gradient_bytes=float(timed.bytes), messages="one", method="ring", wire="full", compress=1.0,
        sparse_bytes=0.0,
    )  # fmt: skip
    return Exchange(at, median(timed.times_s), ALL_REDUCE_NOISE, own)


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
