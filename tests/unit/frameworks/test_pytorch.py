"""PyTorch on the agent's side: compilers, bytes of collectives, groups of FSDP."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from scaling import frameworks
from scaling.frameworks.pytorch import installed, strategies
from scaling.records.crossing import (
    all_gather,
    all_reduce,
    broadcast,
    reduce_scatter,
    total,
    tree_crossings,
)
from scaling.records.point import Device
from scaling.records.task import Task
from tests.support import paper_tasks

S = 1000
PACKED, SPREAD = ("a", "a", "b", "b"), ("a", "b", "a", "b")


def refusal(task: Task) -> str | None:
    return frameworks.load(task.point.strategy).refuse(task.point)


def test_an_old_torch_divides_no_first_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    given = partial(paper_tasks.one_task, "torch:gloo", "exchange", device="emulated", profile="p100", shrink=8.0)
    monkeypatch.setattr(installed, "release", lambda: "2.10.0+cu128")
    assert (refusal(given()) or "").startswith("--shrink 8: DDP of torch 2.10.0+cu128 ")
    assert refusal(given(options={"bucket_cap_mb": "24"})) is None
    monkeypatch.setattr(installed, "release", lambda: "2.11.0")
    assert refusal(given()) is None


@pytest.mark.parametrize(
    ("has", "environ", "lacks"),
    [
        (("gcc", "g++", "Python.h"), {}, ""),
        (("g++", "Python.h"), {}, "C compiler"),
        (("gcc", "Python.h"), {}, "C++ compiler"),
        (("gcc", "g++"), {}, "Python.h"),
        ((), {}, "C compiler and C++ compiler and Python.h"),
        (("own", "g++", "Python.h"), {"CC": "own"}, ""),
        (("own", "Python.h"), {"CC": "own", "CXX": "nowhere"}, "C++ compiler"),
    ],
)
def test_what_torch_compile_lacks(has: Sequence[str], environ: dict[str, str], lacks: str, tmp_path: Path) -> None:
    for name in has:
        (tmp_path / name).touch(0o755)
    assert installed.compiler_lacks({"PATH": str(tmp_path), **environ}, str(tmp_path)) == lacks


# ---------------------------------------------------------------- bytes of one collective


@pytest.mark.parametrize(("hosts", "edges"), [(PACKED, 2), (SPREAD, 4), ("abcd", 4), ("aaaa", 0), ("a", 0)])
def test_gloo_sends_in_a_ring_of_ranks(hosts: Sequence[str], edges: int) -> None:
    """A reduce-scatter is a whole all-reduce, an all-gather half of one."""
    exactly = edges * 2 * (len(hosts) - 1) / len(hosts) * S
    for collective, part in ((all_reduce, 1), (reduce_scatter, 1), (all_gather, 2)):
        assert collective(S, hosts, nccl=False) == pytest.approx((exactly / part, exactly / part))


@pytest.mark.parametrize("hosts", [PACKED, SPREAD])
def test_nccl_chooses(hosts: Sequence[str]) -> None:
    """Of two nodes of two ranks: a ring carries 2 x 3/4 S, a switch and peers S; a reducing switch 2 S."""
    chosen = [each(S, hosts, nccl=True) for each in (all_gather, reduce_scatter, all_reduce, broadcast)]
    assert chosen == [(S, 1.5 * S), (S, 2 * S), (2 * S, 3 * S), (S, 2 * S)]


def test_a_ring_of_nccl_is_within_its_bounds() -> None:
    """Whatever nodes and ranks: it carries M (N - 1) / N S."""
    for nodes in range(2, 9):
        for local in (1, 2, 8):
            hosts = [str(node) for node in range(nodes) for _ in range(local)]
            ring = nodes * (len(hosts) - 1) / len(hosts) * S
            for collective in (all_gather, reduce_scatter):
                least, most = collective(S, hosts, nccl=True)
                assert least <= ring <= most


def test_nothing_crosses_on_one_node_and_several_are_added() -> None:
    for collective in (all_gather, reduce_scatter, all_reduce, broadcast):
        assert collective(S, ["a"] * 8, nccl=False) == collective(S, ["a"] * 8, nccl=True) == (0, 0)
    assert (total((1, 2), (10, 20)), total()) == ((11, 22), (0, 0))


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


# ---------------------------------------------------------------- FSDP, sharded optimizers

HSDP, KEPT, TWICE, HALF = {"hsdp": "2"}, {"reshard": "false"}, {"accumulate": "2"}, {"param_dtype": "bf16"}
SHARDED = {"shard_optimizer": "true"}
HALF_SHARDED = {**SHARDED, "compress": "fp16"}
GROUPS = "cannot form groups of {}; use --world-sizes that are multiples"


def task(name: str = "torch:fsdp2", size: int = 4, hosts: Sequence[str] = PACKED, **fields: Any) -> Task:
    return replace(paper_tasks.tasks(name, "exchange", size, **fields)[0], hosts=tuple(hosts[:size]))


@pytest.mark.parametrize(
    ("size", "group", "reason"),
    [
        (4, 2, None),
        (4, 4, None),
        (4, 3, f"4 ranks {GROUPS}"),
        (2, 4, f"2 ranks {GROUPS}"),
        (1, 2, f"one rank {GROUPS}"),
        (4, 1, "one rank shares nothing; take 2 or more, or torch:gloo or torch:nccl"),
    ],
)
def test_groups_that_cannot_be(size: int, group: int, reason: str | None) -> None:
    said = reason and f"--option hsdp={group}: {reason.format(group)}"
    assert refusal(task(size=size, options={"hsdp": str(group)})) == said


def test_groups_of_ranks() -> None:
    assert strategies.shard_groups(range(6), 2) == [range(2), range(2, 4), range(4, 6)]
    assert [list(one) for one in strategies.replica_groups(range(6), 2)] == [[0, 2, 4], [1, 3, 5]]
    assert strategies.shard_groups("abc", 3) == ["abc"]
    assert [strategies.group_size(task(options=options).point) for options in (HSDP, {})] == [2, 4]


# By strategy, device, options and hosts: the least and the most that cross, in S.
CROSSING: list[tuple[str, Device, dict[str, str], Sequence[str], float, float]] = [
    # Over Gloo in rings: an all-reduce of four ranks on two nodes sends 3 S between them.
    *(("torch:fsdp2", "cpu", options, PACKED, 3 * rings, 3 * rings) for options, rings in (
        ({}, 2.0), (KEPT, 1.5), (TWICE, 3.0), ({**TWICE, **KEPT}, 2.0), (HALF, 1.5), ({**HALF, **KEPT}, 1.25))),
    # Groups that are nodes share inside: what crosses is two all-reduces of half the gradients.
    *(("torch:fsdp2", "cpu", {**HSDP, **options}, PACKED, 2, 2) for options in ({}, KEPT, TWICE)),
    ("torch:fsdp2", "cuda", HSDP, PACKED, 2, 2),
    # Groups across nodes gather across them: 4 S in each of two groups, and nothing between them.
    ("torch:fsdp2", "cpu", HSDP, SPREAD, 8, 8), ("torch:fsdp2", "cpu", HSDP, "abcd", 10, 10),
    # By the textbook an all-gather and a reduce-scatter are one all-reduce: a ring's 3 S with one gather, 4.5 S
    # with two. NCCL has other algorithms too.
    ("torch:fsdp2", "cuda", KEPT, PACKED, 2, 3.5), ("torch:fsdp2", "cuda", {}, PACKED, 3, 5),
    # DDP with a sharded optimizer sends the parameters too: Gloo's tree crosses two nodes twice or three times.
    ("torch:gloo", "cpu", SHARDED, PACKED, 5, 6), ("torch:gloo", "cpu", HALF_SHARDED, PACKED, 3.5, 4.5),
    ("torch:nccl", "cuda", HALF_SHARDED, PACKED, 2, 3.5),
]  # fmt: skip


@pytest.mark.parametrize(("name", "device", "options", "hosts", "least", "most"), CROSSING)
def test_bytes_that_cross_nodes(
    name: str, device: Device, options: dict[str, str], hosts: Sequence[str], least: float, most: float
) -> None:
    found = frameworks.load(name).bytes_per_step(task(name, 4, hosts, device=device, options=options), S)
    assert found == pytest.approx((least * S, most * S))
