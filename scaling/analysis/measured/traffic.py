"""NCCL's choices, paths between nodes, and the traffic receipt: which card carried the bytes.

The receipt compares every node's byte counters over the measured windows with what the strategy must move
(`Strategy.bytes_per_step`; records/crossing.py). Only NCCL may use RDMA, which is counted by a card's port and not
by its interface. The counters include headers (4.6 % with TCP at an MTU of 1500), acknowledgements and other
traffic.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Literal

from msgspec.structs import replace

from scaling.records.crossing import Bounds
from scaling.records.events import Finished
from scaling.records.network import ANY, GBIT, NcclChoice, Place
from scaling.records.point import SERVER, Record
from scaling.records.run import PointRecord, RankRecord
from scaling.records.telemetry import Telemetry
from scaling.text import several

# ---------------------------------------------------------------- nccl

# Algorithms of fewer bytes carry the counters and flags of a step, and no gradients.
LEAST_BYTES = 0.05


def nccl_choices(records: Iterable[PointRecord]) -> NcclChoice | None:
    """Join the choices of all ranks of these records; None if none is known."""
    return joined_choices([rank.nccl for record in records for rank in record.ranks if rank.nccl is not None])


def joined_choices(told: Sequence[NcclChoice]) -> NcclChoice | None:
    """Join several choices into one; None for an empty sequence."""
    if not told:
        return None
    transports, algorithms = Counter[str](), Counter[str]()
    for one in told:
        transports.update(one.transports)
        algorithms.update(one.algorithms)
    return NcclChoice(
        version=", ".join(_each(one.version for one in told)),
        network=", ".join(_each(one.network for one in told)),
        provider=", ".join(_each(one.provider for one in told)),
        cards=tuple(sorted({card for one in told for card in one.cards})),
        transports=dict(transports),
        gpu_direct=sum(one.gpu_direct for one in told),
        algorithms=dict(algorithms),
        nvls=any(one.nvls for one in told),
        warnings=tuple(dict.fromkeys(text for one in told for text in one.warnings)),
    )


def _each(words: Iterable[str]) -> list[str]:
    return sorted(set(filter(None, words)))


def nccl_text(choice: NcclChoice) -> str:
    """`NET/IB on mlx5_0,mlx5_1 with GPUDirect, P2P/CUMEM, tree simple`; "" where it connected nobody."""
    if not choice.transports:
        return ""
    provider = f" ({choice.provider})" if choice.provider else ""
    on = f" on {','.join(choice.cards)}" if choice.cards else ""
    said = []
    for name in sorted(choice.transports, key=lambda name: not name.startswith(("NET/", "COLLNET/"))):
        direct = "" if name == "NET/Socket" else _gpu_direct(choice)
        said.append(f"{name}{provider}{on}{direct}" if "NET/" in name else name)
    # Those of the gradients, by their share of the bytes.
    whole = sum(choice.algorithms.values())
    ordered = sorted(choice.algorithms.items(), key=lambda item: -item[1])
    told = [name for name, count in ordered if count >= LEAST_BYTES * whole]
    return ", ".join((*said, *(told or (["NVLS set up"] if choice.nvls else []))))


def _gpu_direct(choice: NcclChoice) -> str:
    count, of = choice.gpu_direct, choice.over_network
    part = "" if count in (0, of) else f" on {count} of {of} connections"
    return f" {'with' if count else 'without'} GPUDirect{part}"


def with_algorithms(exchange: NcclChoice | None, comm: NcclChoice | None) -> NcclChoice | None:
    """Return `exchange` with the algorithms of its `comm` control, which alone logs them."""
    if exchange is None or comm is None or exchange.algorithms:
        return exchange
    return replace(exchange, algorithms=comm.algorithms)


def nccl_notes(records: Sequence[PointRecord]) -> Iterator[str]:
    """Yield NCCL's warnings, and a note if sockets were used although RDMA is available."""
    found = nccl_choices(records)
    if found is None:
        return
    ranks = (rank for record in records for rank in record.ranks)
    lost = _each(one.host for one in ranks if one.nccl and one.place.hca and "NET/Socket" in one.nccl.transports)
    if lost:
        yield f"NCCL used sockets on {several(lost)} although RDMA is available"
    if found.provider == "tcp" and found.over_network:
        yield f"NCCL's plugin {found.network} used libfabric's provider tcp, which is not RDMA"
    for text in found.warnings[:1]:
        yield f"NCCL warned: {text}"


# Counters of lost packets and of congestion (hosts/interfaces.py).
LOSS = ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err")
CONGESTION = ("np_cnp_sent", "rp_cnp_handled", "port_xmit_wait")


def link_notes(records: Iterable[PointRecord]) -> Iterator[str]:
    """Yield notes of RDMA ports that lost packets or were told of congestion. `port_xmit_wait` alone is no reason:
    a busy port's data waits."""
    risen: dict[str, Counter[str]] = {}
    for child in chain.from_iterable(record.children for record in records):
        for one in child.telemetry.traffic:
            risen.setdefault(f"{one.name} of {child.host}", Counter()).update(one.errors)
    for port, counts in sorted(risen.items()):
        for what, names in (("packets were lost or out of order", LOSS), ("congestion", CONGESTION)):
            found = [f"{name} {counts[name]:,}" for name in names if counts[name]]
            if any(counts[name] for name in names if name != "port_xmit_wait"):
                yield f"{what} on {port}: {', '.join(found)}"


# ---------------------------------------------------------------- bottleneck
#
# In a ring every rank waits for the slowest path, so all steps take equally long and no rank looks like the
# straggler. But the slow path is busy all the time, while the others are soon done.

# A path with less than this part of the busiest path's bytes is not part of the exchange.
LEAST_PART = 0.2
# A path is slow if its rate is below SLOW_PART of its fastest rival's and it is busy for LEAST_BUSY of the time.
# A link throttled to a tenth reaches 0.07 (tests/system/lab/test_sweeps.py).
SLOW_PART = 0.4
LEAST_BUSY = 0.25


class Path(Record, frozen=True, kw_only=True):
    """From one node to another, scaled to an emulated cluster: bits/s while there are bytes to send."""

    node: str
    peer: str
    bits_per_s: float
    busy_share: float

    def __str__(self) -> str:
        return f"{self.node} to {self.peer}"


def paths(records: Iterable[PointRecord]) -> tuple[Path, ...]:
    """Return the paths that carried the exchange over all rounds, busiest first."""
    sent: defaultdict[tuple[str, str], float] = defaultdict(float)
    busy_s: defaultdict[tuple[str, str], float] = defaultdict(float)
    watched_s, slowed = 0.0, 1.0
    for record in records:
        nodes = {flow.address: one.host for one in record.children for flow in one.telemetry.flows}
        flows = [(one.host, flow) for one in record.children for flow in one.telemetry.flows if flow.peer in nodes]
        if not flows or not isinstance(record.outcome, Finished):
            continue
        watched_s += max(_watched_s(rank, record.epoch) for rank in record.ranks)
        slowed = record.point.hardware.link_divisor
        for host, flow in flows:
            sent[host, nodes[flow.peer]] += flow.sent_bytes
            busy_s[host, nodes[flow.peer]] += flow.busy_s
    least = LEAST_PART * max(sent.values(), default=0.0)
    carried = [
        Path(
            node=node,
            peer=peer,
            bits_per_s=8 * count / busy_s[node, peer] * slowed,
            busy_share=min(1.0, busy_s[node, peer] / watched_s),
        )
        for (node, peer), count in sent.items()
        if count >= least and busy_s[node, peer] > 0 and watched_s > 0
    ]
    return tuple(sorted(carried, key=lambda path: (-path.busy_share, path.node, path.peer)))


def _watched_s(rank: RankRecord, epoch: int | None) -> float:
    """Seconds in which connections were read: all windows, repeated ones and uncounted steps included."""
    windows = (*rank.windows, *rank.disturbed)
    seconds, steps = sum(window.seconds for window in windows), sum(window.steps for window in windows)
    return seconds * (1 + rank.uncounted_steps(epoch) / steps) if steps else 0.0


def slow_path(found: Sequence[Path]) -> str:
    """Return `slow link: ...` if some paths are much slower than similar ones and delay the exchange; else "".

    The text names the node that is an end of all slow paths, or else the paths.
    """
    held = [
        path
        for path in found
        if path.bits_per_s < SLOW_PART * _fastest_rival(path, found) and path.busy_share >= LEAST_BUSY
    ]
    if not held:
        return ""
    common = set.intersection(*({path.node, path.peer} for path in held)) if len(held) > 1 else set()
    which = common.pop() if len(common) == 1 else " and ".join(map(str, held))
    worst = min(held, key=lambda path: path.bits_per_s)
    busy = f"{path_rate(worst.bits_per_s)} and was busy for {worst.busy_share:.0%} of the time"
    like = path_rate(_fastest_rival(worst, found))
    return f"slow link: {which}; {worst} carried {busy}, the fastest like it carried {like}"


def _fastest_rival(path: Path, found: Sequence[Path]) -> float:
    """bits/s of the fastest path with the same sender or receiver; if there is none (a ring), of all."""
    like = [other for other in found if other.node == path.node or other.peer == path.peer]
    return max(other.bits_per_s for other in (like if len(like) > 1 else found))


def path_rate(bits_per_s: float) -> str:
    """Format a rate: `9.4 Gb/s`, `38 Mb/s`."""
    if bits_per_s >= GBIT:
        return f"{bits_per_s / GBIT:.3g} Gb/s"
    return f"{bits_per_s / 1e6:.3g} Mb/s"


# ---------------------------------------------------------------- traffic receipt

Verdict = Literal["VERIFIED", "MISLABELLED", "UNSENT", "UNVERIFIED"]
LEAST_SHARE = 0.95
# Least part of the expected bytes that counters must see. For parameter servers these assume equal nodes.
LEAST_SEEN = 0.5
# Set only if NCCL carries the exchange (frameworks/network_env.py).
BY_NCCL = "NCCL_SOCKET_IFNAME"
ORDER: tuple[Verdict, ...] = ("UNSENT", "MISLABELLED", "UNVERIFIED", "VERIFIED")


class Receipt(Record, frozen=True, kw_only=True):
    """Proof of the network of one record, or of all rounds of a row.

    `wanted` are the cards of the requested network; `sent_bytes` are by card over all nodes. `expected_bytes` is
    the least that nodes must send (None if unknown), `expected_most_bytes` the most, if the library chooses the
    algorithm.
    """

    verdict: Verdict
    wanted: tuple[str, ...]
    sent_bytes: dict[str, int]
    expected_bytes: float | None
    expected_most_bytes: float | None = None
    why: str = ""

    @property
    def right_bytes(self) -> int:
        """Bytes sent on the requested cards."""
        return sum(self.sent_bytes.get(card, 0) for card in self.wanted)

    @property
    def share(self) -> float:
        """Part of all sent bytes on the requested cards."""
        total = sum(self.sent_bytes.values())
        return self.right_bytes / total if total else 0.0

    @property
    def over_expected(self) -> Bounds | None:
        """Bytes sent on the requested cards, over the most and over the least expected bytes."""
        if not self.expected_bytes:
            return None
        most = self.expected_most_bytes or self.expected_bytes
        return self.right_bytes / most, self.right_bytes / self.expected_bytes


def of_row(records: Iterable[PointRecord]) -> Receipt | None:
    """Join the receipts of all rounds, with the worst verdict; None if nothing crosses nodes."""
    found = [one for record in records if (one := of(record)) is not None]
    if not found:
        return None
    worst = min(found, key=lambda one: ORDER.index(one.verdict))
    return replace(
        worst,
        wanted=tuple(dict.fromkeys(chain.from_iterable(one.wanted for one in found))),
        sent_bytes=dict(sum((Counter(one.sent_bytes) for one in found), Counter())),
        expected_bytes=_sum([one.expected_bytes for one in found]),
        expected_most_bytes=_sum([one.expected_most_bytes for one in found]),
    )


def _sum(found: Sequence[float | None]) -> float | None:
    known = [one for one in found if one is not None]
    return sum(known) if len(known) == len(found) else None


# Card -> bytes sent.
Counted = Mapping[str, int]


def of(record: PointRecord) -> Receipt | None:
    """Return the receipt of one record; None if it failed or nothing crosses nodes."""
    hosts = set(record.hosts) | {one.host for one in record.helpers if one.name.startswith(SERVER)}
    if not isinstance(record.outcome, Finished) or len(hosts) < 2 or record.pattern in ("", "inside"):
        return None
    places: dict[str, Place] = {}
    read: dict[str, Telemetry] = {}
    for child in record.children:
        places.setdefault(child.host, child.place)
        if child.telemetry.traffic:
            read.setdefault(child.host, child.telemetry)
    counted = {host: _own(telemetry) for host, telemetry in read.items()}
    by_nccl = any(BY_NCCL in rank.environ for rank in record.ranks)
    wanted = {
        host: _wanted(place, counted.get(host, {})) if by_nccl else (place.interface,)
        for host, place in places.items()
    }
    sent, wrong = Counter[str](), Counter[str]()
    for host, carried in counted.items():
        sent.update(carried)
        wrong.update({card: count for card, count in carried.items() if card not in wanted[host]})
    least, most = _expected(record)
    verdict, why = _judged(sent, wrong, least)
    if silent := hosts - set(counted):
        verdict, why = "UNVERIFIED", f"no counters of {', '.join(sorted(silent))}"
    elif verdict == "UNSENT":
        verdict, more = _unsent(places, counted, read.values())
        why += more
    return Receipt(
        verdict=verdict,
        wanted=tuple(sorted(set(chain.from_iterable(wanted.values())))),
        sent_bytes=dict(sent),
        expected_bytes=least,
        expected_most_bytes=most,
        why=why,
    )


def _judged(sent: Counted, wrong: Counted, expected: float | None) -> tuple[Verdict, str]:
    total = sum(sent.values())
    if expected is None:
        return "UNVERIFIED", f"the counters saw {total / 1e6:.1f} MB; the expected bytes are not known"
    if total < LEAST_SEEN * expected:
        return "UNSENT", f"the counters saw {total / 1e6:.1f} MB of the {expected / 1e6:.1f} MB that must be sent"
    if not total:
        return "UNVERIFIED", "the counters saw nothing"
    if (total - sum(wrong.values())) / total >= LEAST_SHARE:
        return "VERIFIED", ""
    other = max(wrong, key=lambda card: wrong[card])
    return "MISLABELLED", f"{wrong[other] / total:.0%} of the bytes went over {other}"


def _unsent(
    places: Mapping[str, Place], counted: Mapping[str, Counted], read: Iterable[Telemetry]
) -> tuple[Verdict, str]:
    """Judge bytes that no counter saw: they were not sent if nothing can bypass the counters (no RDMA, counters
    that move, an own address of each host). Return also the rest of the text."""
    unread = [
        f"{card} of {host}"
        for host, place in places.items()
        for card in place.hca.split(",")
        if card not in ("", ANY) and not _wanted(replace(place, hca=card), counted.get(host, {}))
    ]
    why = f"; no byte counters of {', '.join(unread)}" if unread else ""
    has_cards = any(place.hca or place.plugin for place in places.values())
    has_ports = any("/" in card for carried in counted.values() for card in carried)
    moves = all(any(one.sent_bytes for one in telemetry.traffic) for telemetry in read)
    if has_cards or has_ports or not moves or len({place.address for place in places.values()}) < len(places):
        return "UNVERIFIED", why
    return "UNSENT", f"{why}, and no node has an RDMA card; a strategy that sends less must define bytes_per_step"


def _own(telemetry: Telemetry) -> Counted:
    """What the cards sent beyond what they carry when idle."""
    idle = {one.name: one.sent_bytes for one in telemetry.idle_traffic}
    return {one.name: max(0, one.sent_bytes - idle.get(one.name, 0)) for one in telemetry.traffic}


def _wanted(place: Place, carried: Iterable[str]) -> tuple[str, ...]:
    """Where NCCL's bytes should go: the ports of the RDMA cards, or else the interface; by a plugin without RDMA
    cards, any."""
    if place.plugin and not place.hca:
        return tuple(carried)
    ports = [name for name in carried if "/" in name]
    if place.hca == ANY:
        return (place.interface, *ports)
    cards = {card.replace(":", "/") for card in place.hca.split(",") if card}
    return tuple(port for port in ports if {port, port.partition("/")[0]} & cards) if cards else (place.interface,)


def _expected(record: PointRecord) -> tuple[float | None, float | None]:
    """Least and most bytes between nodes while the counters ran, in all windows, repeated ones included, and the
    uncounted steps before them; None if the strategy does not know them.

    Rank 0 gives them for all ranks. Asynchronous ranks give their own, which are a lower bound.
    """
    found: list[tuple[float | None, float | None]] = []
    for rank in record.ranks[:1] if record.synchronous else record.ranks:
        known = rank.ready.crossing_bytes_per_step if rank.ready else None
        steps = sum(one.steps for one in (*rank.windows, *rank.disturbed)) + rank.uncounted_steps(record.epoch)
        found.append((known[0] * steps, known[1] * steps) if known else (None, None))
    least, most = zip(*found, strict=True)
    return _sum(least), _sum(most)
