"""Which card carried the bytes: counters of every node over the measured windows against what the exchange must
move. Pure.

What a step must move, its strategy says (`Strategy.bytes_per_step`; records/crossing.py has the usual formulas),
and the worker's `Ready` keeps it. Only NCCL's bytes may go by RDMA, and are then in a port's counters and in no
interface's: all other libraries send TCP over the interface, over that of an InfiniBand card too. The counters
have headers, acknowledgements and all else that the nodes said meanwhile: TCP's framing is 4.6 % at an MTU of 1500
where every frame is counted; between nodes of a lab 1.00 to 1.01 of the expectation was measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Literal

from msgspec.structs import replace

from scaling.records.crossing import Bounds
from scaling.records.events import Finished
from scaling.records.network import Place
from scaling.records.point import SERVER, Record
from scaling.records.run import HelperRecord, PointRecord, RankRecord
from scaling.records.telemetry import Telemetry, Traffic

Verdict = Literal["VERIFIED", "MISLABELLED", "UNSENT", "UNVERIFIED"]
LEAST_SHARE = 0.95
# Less than this of the least that must have moved was seen by any counter. Parameter servers are reckoned as if
# each node had as many ranks and each server as many bytes.
LEAST_SEEN = 0.5
# Set for whom NCCL carries the exchange (frameworks/network_env.py), and for nobody else.
BY_NCCL = "NCCL_SOCKET_IFNAME"
ORDER: tuple[Verdict, ...] = ("UNSENT", "MISLABELLED", "UNVERIFIED", "VERIFIED")


class Receipt(Record, frozen=True, kw_only=True):
    """Proof of the network of one record, or of all rounds of a row.

    `sent_bytes` are by card over all nodes, `expected_bytes` the least that must be sent between nodes and
    `expected_most_bytes` the most, where the library chooses how; None where that is not known. `wanted` are the
    cards of the network that was asked for, `why` explains a verdict other than VERIFIED.
    """

    verdict: Verdict
    wanted: tuple[str, ...]
    sent_bytes: dict[str, int]
    expected_bytes: float | None
    expected_most_bytes: float | None = None
    why: str = ""

    @property
    def share(self) -> float:
        """Of all bytes sent, on the cards that were asked for."""
        total = sum(self.sent_bytes.values())
        return sum(self.sent_bytes.get(card, 0) for card in self.wanted) / total if total else 0.0

    @property
    def over_expected(self) -> Bounds | None:
        """Bytes sent on the cards that were asked for, over the most and over the least that must be sent."""
        if not self.expected_bytes:
            return None
        sent = sum(self.sent_bytes.get(card, 0) for card in self.wanted)
        return sent / (self.expected_most_bytes or self.expected_bytes), sent / self.expected_bytes


def of_row(records: Iterable[PointRecord]) -> Receipt | None:
    """Of all rounds together; a row is as good as the worst of them. None where nothing crosses nodes."""
    found = [one for record in records if (one := of(record)) is not None]
    if not found:
        return None
    worst = min(found, key=lambda one: ORDER.index(one.verdict))
    return Receipt(
        verdict=worst.verdict,
        wanted=tuple(dict.fromkeys(chain.from_iterable(one.wanted for one in found))),
        sent_bytes=dict(sum((Counter(one.sent_bytes) for one in found), Counter())),
        expected_bytes=_sum([one.expected_bytes for one in found]),
        expected_most_bytes=_sum([one.expected_most_bytes for one in found]),
        why=worst.why,
    )


def _sum(found: Sequence[float | None]) -> float | None:
    """None where one of them is not known."""
    known = [one for one in found if one is not None]
    return sum(known) if len(known) == len(found) else None


def of(record: PointRecord) -> Receipt | None:
    """Of one record; None where it failed, and where nothing crosses nodes."""
    hosts = set(record.hosts) | {one.host for one in _servers(record)}
    if not isinstance(record.outcome, Finished) or len(hosts) < 2 or record.pattern in ("", "inside"):
        return None
    counted = _counted(record)
    by_nccl = any(BY_NCCL in rank.environ for rank in record.ranks)
    wanted = {
        name: _wanted(place, counted.get(name, ())) if by_nccl else (place.interface,)
        for name, place in _places(record).items()
    }
    sent: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for name, carried in counted.items():
        sent.update({one.name: one.sent_bytes for one in carried})
        wrong.update({one.name: one.sent_bytes for one in carried if one.name not in wanted[name]})
    least, most = _expected(record)
    verdict, why = _judged(hosts - set(counted), sent, wrong, least, sees_all=_sees_all(record, counted))
    cards = tuple(sorted({card for cards in wanted.values() for card in cards}))
    return Receipt(
        verdict=verdict,
        wanted=cards,
        sent_bytes=dict(sent),
        expected_bytes=least,
        expected_most_bytes=most,
        why=why,
    )


def _judged(
    silent: set[str],
    sent: Mapping[str, int],
    wrong: Mapping[str, int],
    expected: float | None,
    *,
    sees_all: bool,
) -> tuple[Verdict, str]:
    total = sum(sent.values())
    if silent:
        return "UNVERIFIED", f"no counters of {', '.join(sorted(silent))}"
    if expected is None:
        return "UNVERIFIED", f"the counters saw {total / 1e6:.1f} MB; what must have moved is not known"
    if total < LEAST_SEEN * expected:
        why = f"the counters saw {total / 1e6:.1f} MB of the {expected / 1e6:.1f} MB that must have moved"
        other = "and no node has an RDMA card; a strategy that sends less says so by bytes_per_step"
        return ("UNSENT", f"{why}, {other}") if sees_all else ("UNVERIFIED", why)
    if not total:
        return "UNVERIFIED", "the counters saw nothing"
    if (total - sum(wrong.values())) / total >= LEAST_SHARE:
        return "VERIFIED", ""
    other = max(wrong, key=lambda card: wrong[card])
    return "MISLABELLED", f"{wrong[other] / total:.0%} of the bytes went over {other}"


# ---------------------------------------------------------------- what was counted


def _sees_all(record: PointRecord, counted: Mapping[str, Sequence[Traffic]]) -> bool:
    """Whether bytes between the hosts cannot pass the counters: no RDMA card on any, counters that move on each,
    and an address of its own for each, since one address leads over the loopback."""
    places = _places(record)
    has_cards = any(place.hca or place.plugin for place in places.values())
    has_ports = any("/" in one.name for carried in counted.values() for one in carried)
    own = len({place.address for place in places.values()}) == len(places)
    moves = all(any(one.sent_bytes for one in child.telemetry.traffic) for child in _first_children(record))
    return own and moves and not has_cards and not has_ports


def _servers(record: PointRecord) -> Iterable[HelperRecord]:
    return (one for one in record.helpers if one.name.startswith(SERVER))


def _children(record: PointRecord) -> Iterable[RankRecord | HelperRecord]:
    return chain[RankRecord | HelperRecord](record.ranks, record.helpers)


def _counted(record: PointRecord) -> dict[str, Sequence[Traffic]]:
    """The counters of each host, from the one child beside which they were read, less what its cards carry while
    nothing runs."""
    return {one.host: _own(one.telemetry) for one in _first_children(record)}


def _first_children(record: PointRecord) -> Iterable[RankRecord | HelperRecord]:
    """Of each host the child beside which its counters were read."""
    found: dict[str, RankRecord | HelperRecord] = {}
    for one in _children(record):
        if one.telemetry.traffic:
            found.setdefault(one.host, one)
    return found.values()


def _own(telemetry: Telemetry) -> tuple[Traffic, ...]:
    idle = {one.name: one for one in telemetry.idle_traffic}
    return tuple(
        replace(
            one,
            received_bytes=max(0, one.received_bytes - idle[one.name].received_bytes),
            sent_bytes=max(0, one.sent_bytes - idle[one.name].sent_bytes),
        )
        if one.name in idle
        else one
        for one in telemetry.traffic
    )


def _places(record: PointRecord) -> dict[str, Place]:
    """For each host, which card its children were told to take."""
    found: dict[str, Place] = {}
    for one in _children(record):
        found.setdefault(one.host, one.place)
    return found


def _wanted(place: Place, carried: Sequence[Traffic]) -> tuple[str, ...]:
    """Where NCCL's bytes were to go: the ports of the cards that RDMA was to take, or else the interface."""
    ports = [one.name for one in carried if "/" in one.name]
    if place.hca == "any":
        return (place.interface, *ports)
    cards = {card.replace(":", "/") for card in place.hca.split(",") if card}
    return tuple(port for port in ports if {port, port.partition("/")[0]} & cards) if cards else (place.interface,)


# ---------------------------------------------------------------- what must have moved


def _expected(record: PointRecord) -> tuple[float | None, float | None]:
    """The least and the most bytes that must have crossed nodes while the counters ran; None where the strategy
    did not know them.

    Rank 0's strategy says it of the whole point; where ranks do not wait for each other, each of itself: others go
    on until all are measured, so that it is the least.
    """
    ranks = record.ranks[:1] if record.synchronous else record.ranks
    least, most = zip(*(_of_rank(rank, record.epoch) for rank in ranks), strict=True)
    return _sum(least), _sum(most)


def _of_rank(rank: RankRecord, epoch: int | None) -> tuple[float | None, float | None]:
    """In its measured steps, and in the one before them that gives all ranks a common start, before each window
    where points take turns; in those too that were measured again."""
    if rank.ready is None or rank.ready.crossing_bytes_per_step is None:
        return None, None
    windows = (*rank.windows, *rank.disturbed)
    steps = sum(window.steps for window in windows) + rank.uncounted_steps(epoch)
    least, most = rank.ready.crossing_bytes_per_step
    return least * steps, most * steps
