"""Which card carried the bytes: counters of every node over the measured windows against what the exchange must
move. Pure.

What a step must move, its strategy says (`Strategy.bytes_per_step`; records/crossing.py has the usual formulas),
and the worker's `Ready` keeps it. The counters have headers, acknowledgements and all else that the nodes said
meanwhile: TCP's framing is 4.6 % at an MTU of 1500 where every frame is counted; between nodes of a lab 1.00 to
1.01 of the expectation was measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Literal

from msgspec.structs import replace

from scaling.records.events import Finished
from scaling.records.network import Place
from scaling.records.point import SERVER, Record
from scaling.records.run import HelperRecord, PointRecord, RankRecord
from scaling.records.telemetry import Telemetry, Traffic

Verdict = Literal["VERIFIED", "MISLABELLED", "UNVERIFIED"]
LEAST_SHARE = 0.95
# Less than this of what must have moved was seen by any counter.
LEAST_SEEN = 0.5
ORDER: tuple[Verdict, ...] = ("MISLABELLED", "UNVERIFIED", "VERIFIED")


class Receipt(Record, frozen=True, kw_only=True):
    """Proof of the network of one record, or of all rounds of a row.

    `sent_bytes` are by card over all nodes, `expected_bytes` what the algorithm must send between nodes, None
    where that is not known; `wanted` are the cards of the network that was asked for, `why` explains a verdict
    other than VERIFIED.
    """

    verdict: Verdict
    wanted: tuple[str, ...]
    sent_bytes: dict[str, int]
    expected_bytes: float | None
    why: str = ""

    @property
    def share(self) -> float:
        """Of all bytes sent, on the cards that were asked for."""
        total = sum(self.sent_bytes.values())
        return sum(self.sent_bytes.get(card, 0) for card in self.wanted) / total if total else 0.0

    @property
    def over_expected(self) -> float | None:
        """Bytes sent on the cards that were asked for, over those that the algorithm must send."""
        if not self.expected_bytes:
            return None
        return sum(self.sent_bytes.get(card, 0) for card in self.wanted) / self.expected_bytes


def of_row(records: Iterable[PointRecord]) -> Receipt | None:
    """Of all rounds together; a row is as good as the worst of them. None where nothing crosses nodes."""
    found = [one for record in records if (one := of(record)) is not None]
    if not found:
        return None
    worst = min(found, key=lambda one: ORDER.index(one.verdict))
    expected = [one.expected_bytes for one in found if one.expected_bytes is not None]
    return Receipt(
        verdict=worst.verdict,
        wanted=tuple(dict.fromkeys(chain.from_iterable(one.wanted for one in found))),
        sent_bytes=dict(sum((Counter(one.sent_bytes) for one in found), Counter())),
        expected_bytes=sum(expected) if len(expected) == len(found) else None,
        why=worst.why,
    )


def of(record: PointRecord) -> Receipt | None:
    """Of one record; None where it failed, and where nothing crosses nodes."""
    hosts = set(record.hosts) | {one.host for one in _servers(record)}
    if not isinstance(record.outcome, Finished) or len(hosts) < 2 or record.pattern in ("", "inside"):
        return None
    counted = _counted(record)
    wanted = {name: _wanted(place, counted.get(name, ())) for name, place in _places(record).items()}
    sent: Counter[str] = Counter()
    right = 0
    for name, carried in counted.items():
        sent.update({one.name: one.sent_bytes for one in carried})
        right += sum(one.sent_bytes for one in carried if one.name in wanted[name])
    expected = _expected(record)
    verdict, why = _judged(hosts - set(counted), sent, right, expected)
    cards = tuple(sorted({card for cards in wanted.values() for card in cards}))
    return Receipt(verdict=verdict, wanted=cards, sent_bytes=dict(sent), expected_bytes=expected, why=why)


def _judged(silent: set[str], sent: Mapping[str, int], right: int, expected: float | None) -> tuple[Verdict, str]:
    total = sum(sent.values())
    if silent:
        return "UNVERIFIED", f"no counters of {', '.join(sorted(silent))}"
    if expected is not None and total < LEAST_SEEN * expected:
        return (
            "UNVERIFIED",
            f"the counters saw {total / 1e6:.1f} MB of the {expected / 1e6:.1f} MB that must have moved",
        )
    if not total:
        return "UNVERIFIED", "the counters saw nothing"
    if right / total >= LEAST_SHARE:
        return "VERIFIED", ""
    other = max(sent, key=lambda card: sent[card])
    return "MISLABELLED", f"{sent[other] / total:.0%} of the bytes went over {other}"


# ---------------------------------------------------------------- what was counted


def _servers(record: PointRecord) -> Iterable[HelperRecord]:
    return (one for one in record.helpers if one.name.startswith(SERVER))


def _children(record: PointRecord) -> Iterable[RankRecord | HelperRecord]:
    return chain[RankRecord | HelperRecord](record.ranks, record.helpers)


def _counted(record: PointRecord) -> dict[str, Sequence[Traffic]]:
    """The counters of each host, from the one child beside which they were read, less what its cards carry while
    nothing runs."""
    found: dict[str, Sequence[Traffic]] = {}
    for one in _children(record):
        if one.telemetry.traffic:
            found.setdefault(one.host, _own(one.telemetry))
    return found


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
    """The interface, or the ports of the cards that RDMA was to take."""
    ports = [one.name for one in carried if "/" in one.name]
    if place.hca == "any":
        return (place.interface, *ports)
    cards = [card.partition(":")[0] for card in place.hca.split(",") if card]
    return tuple(port for port in ports if port.partition("/")[0] in cards) if cards else (place.interface,)


# ---------------------------------------------------------------- what must have moved


def _expected(record: PointRecord) -> float | None:
    """Bytes that must have crossed nodes while the counters ran, at least: in the measured steps, and in the one
    before them that gives all ranks a common start, before each window where points take turns; in those too that
    were measured again. None where the strategy did not know them."""
    first = record.ranks[0]
    if first.ready is None or first.ready.crossing_bytes_per_step is None:
        return None
    least, _ = first.ready.crossing_bytes_per_step
    windows = (*first.windows, *first.disturbed)
    starts = 1 if record.epoch is None else len(windows)
    return least * (sum(window.steps for window in windows) + starts)
