"""What one collective sends from node to node, over Gloo and over NCCL."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from scaling.frameworks.pytorch.collective_bytes import (
    all_gather,
    all_reduce,
    broadcast,
    reduce_scatter,
    total,
    tree_crossings,
)

S = 1000
PACKED = ("a", "a", "b", "b")
SPREAD = ("a", "b", "a", "b")


@pytest.mark.parametrize(("hosts", "edges"), [(PACKED, 2), (SPREAD, 4), ("abcd", 4), ("aaaa", 0), ("a", 0)])
def test_gloo_sends_in_a_ring_of_ranks(hosts: Sequence[str], edges: int) -> None:
    """A reduce-scatter is a whole all-reduce, an all-gather half of one."""
    exactly = edges * 2 * (len(hosts) - 1) / len(hosts) * S
    assert all_reduce(S, hosts, nccl=False) == pytest.approx((exactly, exactly))
    assert reduce_scatter(S, hosts, nccl=False) == pytest.approx((exactly, exactly))
    assert all_gather(S, hosts, nccl=False) == pytest.approx((exactly / 2, exactly / 2))


@pytest.mark.parametrize("hosts", [PACKED, SPREAD])
def test_nccl_chooses(hosts: Sequence[str]) -> None:
    """Of two nodes of two ranks: a ring carries 2 x 3/4 S, a switch and peers S; a reducing switch 2 S."""
    assert all_gather(S, hosts, nccl=True) == (S, 1.5 * S)
    assert reduce_scatter(S, hosts, nccl=True) == (S, 2 * S)
    assert all_reduce(S, hosts, nccl=True) == (2 * S, 3 * S)
    assert broadcast(S, hosts, nccl=True) == (S, 2 * S)


def test_a_ring_of_nccl_is_within_its_bounds() -> None:
    """Whatever nodes and ranks: it carries M (N - 1) / N S."""
    for nodes in range(2, 9):
        for local in (1, 2, 8):
            hosts = [str(node) for node in range(nodes) for _ in range(local)]
            ring = nodes * (len(hosts) - 1) / len(hosts) * S
            for collective in (all_gather, reduce_scatter):
                least, most = collective(S, hosts, nccl=True)
                assert least <= ring <= most


@pytest.mark.parametrize("nccl", [False, True])
def test_nothing_crosses_on_one_node(nccl: bool) -> None:
    for collective in (all_gather, reduce_scatter, all_reduce, broadcast):
        assert collective(S, ["a"] * 8, nccl=nccl) == (0, 0)


def test_several_are_added() -> None:
    assert total((1, 2), (10, 20)) == (11, 22)
    assert total() == (0, 0)


# ---------------------------------------------------------------- Gloo's broadcast


def walked(hosts: Sequence[str], root: int) -> int:
    """Its rounds one after the other: in round i everybody who has it sends it to the rank 2^i further on."""
    count, having, length, crossed = len(hosts), {0}, 1, 0
    while length < count:
        sending = [rank for rank in having if rank + length < count]
        crossed += sum(hosts[(root + r) % count] != hosts[(root + r + length) % count] for r in sending)
        having |= {rank + length for rank in sending}
        length *= 2
    assert having == set(range(count))
    return crossed


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 13, 16])
@pytest.mark.parametrize("local", [1, 2, 3, 8])
def test_gloos_tree_crosses_as_its_rounds_do(count: int, local: int) -> None:
    hosts = [str(rank // local) for rank in range(count)]
    assert tree_crossings(hosts) == [walked(hosts, root) for root in range(count)]


def test_a_broadcast_to_nodes_of_one_rank_is_known_exactly() -> None:
    assert broadcast(S, "abcd", nccl=False) == (3 * S, 3 * S)
    # From rank 0 of two nodes of two: to 1, then to 2 and 3; from 1: to 2, then from 1 to 3 and from 2 to 0.
    assert broadcast(S, PACKED, nccl=False) == (2 * S, 3 * S)
