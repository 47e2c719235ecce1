"""What NCCL chose over the ranks and rounds of a row, and what of it a reader must know."""

from __future__ import annotations

from msgspec.structs import replace

from scaling.analysis.measured import traffic
from scaling.records.network import NcclChoice, Place
from scaling.records.run import PointRecord
from tests.support.scripted_records import by_size, point, record

IB = NcclChoice(network="IB", cards=("mlx5_0",), transports={"NET/IB": 2}, gpu_direct=2)
SOCKET = NcclChoice(network="Socket", cards=("eth0",), transports={"NET/Socket": 2})


def chosen(*choices: NcclChoice | None, hca: str = "") -> PointRecord:
    """An exchange of as many ranks, each on a node of its own whose place on the network has this card."""
    made = record(point("exchange", len(choices)), 0.1, hosts=[f"node{n}" for n in range(len(choices))])
    place = Place(address="10.0.0.1", interface="ib0", hca=hca)
    ranks = (replace(rank, nccl=one, place=place) for rank, one in zip(made.ranks, choices, strict=True))
    return replace(made, ranks=tuple(ranks))


def test_ranks_that_chose_apart_are_told_together() -> None:
    assert traffic.nccl_choices([chosen(IB, SOCKET, None)]) == NcclChoice(
        network="IB, Socket", cards=("eth0", "mlx5_0"), transports={"NET/IB": 2, "NET/Socket": 2}, gpu_direct=2
    )
    assert traffic.nccl_choices([chosen(None)]) is None


def test_algorithms_are_those_that_the_comm_control_wrote_down() -> None:
    told = replace(IB, algorithms={"ring simple": 7})
    solo = record(point("solo"), 0.1)
    comm = replace(chosen(told, IB), point=point("comm", 2))
    row = by_size([solo, chosen(IB, IB), comm])[2]
    assert row.nccl is not None and row.nccl.algorithms == {"ring simple": 7}
    assert row.nccl.transports == {"NET/IB": 4}
    alone = by_size([solo, chosen(IB, IB)])[2]
    assert alone.nccl is not None and alone.nccl.algorithms == {}


def test_sockets_are_noted_if_rdma_is_available() -> None:
    (note,) = traffic.nccl_notes([chosen(IB, SOCKET, hca="any")])
    assert note == "NCCL used sockets on node1 although RDMA is available"
    assert note in by_size([chosen(IB, SOCKET, hca="any")])[2].footnotes
    assert not list(traffic.nccl_notes([chosen(SOCKET, SOCKET)]))
    assert not list(traffic.nccl_notes([chosen(IB, IB, hca="any")]))


def test_libfabric_over_tcp_is_noted() -> None:
    over_tcp = NcclChoice(network="AWS Libfabric", provider="tcp", transports={"NET/AWS Libfabric": 2})
    (note,) = traffic.nccl_notes([chosen(over_tcp, over_tcp)])
    assert note == "NCCL's plugin AWS Libfabric used libfabric's provider tcp, which is not RDMA"
    assert not list(traffic.nccl_notes([chosen(*[replace(over_tcp, provider="efa")] * 2)]))


def test_the_first_warning_is_noted() -> None:
    (note,) = traffic.nccl_notes([chosen(replace(IB, warnings=("NET/IB : Got completion with error 12",)), IB)])
    assert note == "NCCL warned: NET/IB : Got completion with error 12"
