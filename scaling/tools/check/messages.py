"""What rank 0 asks of the other ranks and what they answer, as MessagePack."""

from __future__ import annotations

import msgspec

from scaling.records.all_reduce import AskedAllReduce, RankAllReduce
from scaling.records.messages import Signalled
from scaling.records.network import Place
from scaling.records.point import Record
from scaling.tools.check.facts import Link, Prepared, RankFacts


class Prepare(Record, frozen=True, kw_only=True, tag="prepare"):
    """To the first rank of a node: listen at `places` (by network), resolve `names`, watch the load of all
    processes but `mine`. Only who says `token` is served."""

    places: dict[str, Place]
    names: tuple[str, ...]
    mine: tuple[int, ...]
    token: bytes


class Measure(Record, frozen=True, kw_only=True, tag="measure"):
    """Measure the link to a node that listens. `latency_s` and `bandwidth_s` (each way) are the time to spend,
    `limit_s` is when to give up."""

    network: str
    client: str
    server: str
    source: Place
    address: str
    port: int
    token: bytes
    latency_s: float
    bandwidth_s: float
    limit_s: float


class Exchange(Record, frozen=True, kw_only=True, tag="exchange"):
    """Start the process of a timed all-reduce; `number` tells this one's answers from an earlier one's."""

    number: int
    asked: AskedAllReduce


class Exchanged(Record, frozen=True, kw_only=True, tag="exchanged"):
    """What the process told."""

    number: int
    told: RankAllReduce


class EndExchange(Record, frozen=True, kw_only=True, tag="end-exchange"):
    """End the process: all ranks have told, or one has failed."""

    number: int


class Leave(Record, frozen=True, kw_only=True, tag="leave"):
    """The preflight is over."""


ToRank = Prepare | Measure | Exchange | EndExchange | Leave
ToLead = RankFacts | Prepared | Link | Exchanged | Signalled

RANK_DECODER = msgspec.msgpack.Decoder(ToRank)
LEAD_DECODER = msgspec.msgpack.Decoder(tuple[ToLead, ...])
