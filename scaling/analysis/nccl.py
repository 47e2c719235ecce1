"""What NCCL chose in all ranks and rounds of a cell, and what of that a reader of its row must know. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from scaling.records.network import NcclChoice
from scaling.records.run import PointRecord, RankRecord
from scaling.text import several


def of(records: Iterable[PointRecord]) -> NcclChoice | None:
    """The choices of all ranks of these records as one; None where none is known."""
    return joined([rank.nccl for record in records for rank in record.ranks if rank.nccl is not None])


def joined(told: Sequence[NcclChoice]) -> NcclChoice | None:
    """Several choices as one; None where there is none."""
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
    return sorted({word for word in words if word})


def with_algorithms(exchange: NcclChoice | None, comm: NcclChoice | None) -> NcclChoice | None:
    """The choice of an exchange with the algorithms of its `comm` control, which alone writes them down: the same
    gradients between the same ranks."""
    if exchange is None or comm is None or exchange.algorithms:
        return exchange
    return replace(exchange, algorithms=comm.algorithms)


def notes(records: Sequence[PointRecord]) -> Iterator[str]:
    """What a reader must know: sockets where RDMA was to be had, warnings of NCCL's own."""
    ranks = [rank for record in records for rank in record.ranks]
    found = of(records)
    if found is None:
        return
    if lost := _without_rdma(ranks):
        yield f"NCCL took sockets on {several(lost)}, where RDMA was to be had"
    if found.provider == "tcp" and found.over_network:
        yield f"NCCL's plugin {found.network} took libfabric's provider tcp, which is no RDMA"
    for text in found.warnings[:1]:
        yield f"NCCL warned: {text}"


def _without_rdma(ranks: Iterable[RankRecord]) -> list[str]:
    """The hosts on which NCCL connected over sockets though their place on the network has a card for RDMA."""
    return _each(
        rank.host for rank in ranks if rank.nccl and rank.place.hca and "NET/Socket" in rank.nccl.transports
    )
