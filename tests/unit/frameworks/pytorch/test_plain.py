"""PyTorch on the agent's side: compilers, bytes of collectives, groups of FSDP."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.frameworks.collective_bytes import (
    all_gather,
    all_reduce,
    broadcast,
    reduce_scatter,
    total,
    tree_crossings,
)
from scaling.frameworks.pytorch import ddp, fsdp, installed
from scaling.records.task import Task
from tests.support import paper_tasks

STRATEGY = ddp.STRATEGY


def test_an_old_torch_divides_no_first_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "release", lambda: "2.10.0+cu128")
    given = partial(paper_tasks.one_task, "torch:gloo", "exchange", device="emulated", profile="p100", shrink=8.0)
    assert (STRATEGY.refuse(given().point) or "").startswith("--shrink 8: DDP of torch 2.10.0+cu128 ")
    assert STRATEGY.refuse(given(options={"bucket_cap_mb": "24"}).point) is None
    monkeypatch.setattr(installed, "release", lambda: "2.11.0")
    assert STRATEGY.refuse(given().point) is None


# What torch.compile would miss on a host.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("gcc", "g++"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "Python.h").write_text("")
    return tmp_path


def lacks(folder: Path, without: str = "", **environ: str) -> str:
    if without:
        (folder / without).unlink()
    return installed.compiler_lacks({"PATH": str(folder), **environ}, str(folder))


def test_nothing_is_missing(folder: Path) -> None:
    assert lacks(folder) == ""


@pytest.mark.parametrize(
    ("without", "missing"), [("gcc", "C compiler"), ("g++", "C++ compiler"), ("Python.h", "Python.h")]
)
def test_what_is_missing_is_named(folder: Path, without: str, missing: str) -> None:
    assert lacks(folder, without) == missing


def test_all_of_it(tmp_path: Path) -> None:
    assert installed.compiler_lacks({"PATH": ""}, str(tmp_path)) == "C compiler and C++ compiler and Python.h"


def test_one_that_is_named_in_the_environment_will_do(folder: Path) -> None:
    (folder / "own").write_text("")
    (folder / "own").chmod(0o755)
    own = str(folder / "own")
    assert lacks(folder, "gcc", CC=own) == ""
    assert lacks(folder, "g++", CC=own, CXX="nowhere") == "C++ compiler"


# What one collective sends from node to node, over Gloo and over NCCL.

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


# FSDP2 on the agent's side: what it refuses, which groups it makes, what it expects to be sent.

FSDP_STRATEGY = fsdp.STRATEGY
HOSTS = ("a", "a", "b", "b")
MULTIPLES = "; use --world-sizes that are multiples"
REPEATS = ", or torch:gloo or torch:nccl"
HSDP, KEPT = {"hsdp": "2"}, {"reshard": "false"}


def task(name: str = "torch:fsdp2", size: int = 4, **fields: Any) -> Task:
    return replace(paper_tasks.tasks(name, "exchange", size, **fields)[0], hosts=HOSTS[:size])


def refusal(name: str = "torch:fsdp2", size: int = 4, **fields: Any) -> str:
    strategy = ddp.STRATEGY if name in ddp.STRATEGY.names else FSDP_STRATEGY
    return strategy.refuse(task(name, size, **fields).point) or ""


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("size", "options", "reason"),
    [
        (4, {"hsdp": "2"}, ""),
        (4, {"hsdp": "4"}, ""),
        (4, {"hsdp": "3"}, "--option hsdp=3: 4 ranks cannot form groups of 3" + MULTIPLES),
        (2, {"hsdp": "4"}, "--option hsdp=4: 2 ranks cannot form groups of 4" + MULTIPLES),
        (1, {"hsdp": "2"}, "--option hsdp=2: one rank cannot form groups of 2" + MULTIPLES),
        (4, {"hsdp": "1"}, "--option hsdp=1: one rank shares nothing; take 2 or more" + REPEATS),
        (4, {"param_dtype": "bf16"}, "--option param_dtype=bf16: needs --precision bf16"),
        (4, {"accumulate": "3"}, "--option accumulate=3: does not divide the batch of 4 per device"),
    ],
)  # fmt: skip
def test_groups_and_types_that_cannot_be(size: int, options: dict[str, str], reason: str) -> None:
    assert refusal(size=size, options=options) == reason


# ---------------------------------------------------------------- groups


def test_groups_of_ranks() -> None:
    assert fsdp.shard_groups(range(6), 2) == [range(2), range(2, 4), range(4, 6)]
    assert [list(one) for one in fsdp.replica_groups(range(6), 2)] == [[0, 2, 4], [1, 3, 5]]
    assert fsdp.shard_groups("abc", 3) == ["abc"]
    assert fsdp.group_size(task(options={"hsdp": "2"}).point) == 2
    assert fsdp.group_size(task().point) == 4


# ---------------------------------------------------------------- what must be sent


@pytest.mark.parametrize(
    ("options", "over_ring"),
    [
        ({}, 2.0), (KEPT, 1.5), ({"accumulate": "2"}, 3.0), ({"accumulate": "2", **KEPT}, 2.0),
        ({"param_dtype": "bf16"}, 1.5), ({"param_dtype": "bf16", **KEPT}, 1.25),
    ],
)  # fmt: skip
def test_over_gloo_in_rings(options: dict[str, str], over_ring: float) -> None:
    """An all-reduce of four ranks on two nodes sends 3 S between them."""
    assert FSDP_STRATEGY.bytes_per_step(task(options=options), S) == pytest.approx((over_ring * 3 * S,) * 2)


@pytest.mark.parametrize("options", [HSDP, {**HSDP, **KEPT}, {**HSDP, "accumulate": "2"}])
def test_only_the_copies_of_a_node_are_compared_between_nodes(options: dict[str, str]) -> None:
    """Groups that are nodes share inside: what crosses is two all-reduces of half the gradients."""
    assert FSDP_STRATEGY.bytes_per_step(task(options=options), S) == pytest.approx((2 * S, 2 * S))


def test_groups_across_nodes_gather_across_them() -> None:
    """4 S in each of two groups, and nothing between them."""
    spread = replace(task(options=HSDP), hosts=("a", "b", "a", "b"))
    assert FSDP_STRATEGY.bytes_per_step(spread, S) == pytest.approx((8 * S, 8 * S))
    apart = replace(task(options=HSDP), hosts=("a", "b", "c", "d"))
    assert FSDP_STRATEGY.bytes_per_step(apart, S) == pytest.approx((10 * S, 10 * S))


@pytest.mark.parametrize(("options", "ring", "least", "most"), [(KEPT, 3.0, 2.0, 3.5), ({}, 4.5, 3.0, 5.0)])
def test_over_nccl_by_the_algorithms_that_it_has(
    options: dict[str, str], ring: float, least: float, most: float
) -> None:
    """By the textbook an all-gather and a reduce-scatter are one all-reduce: a ring's 3 S with one gather, 4.5 S
    with two."""
    found = FSDP_STRATEGY.bytes_per_step(task(device="cuda", options=options), S)
    assert found == pytest.approx((least * S, most * S))
    assert least <= ring <= most


def test_over_nccl_groups_that_are_nodes_reduce_between_them() -> None:
    """Two all-reduces of half the gradients, each of one rank per node."""
    on_gpus = task(device="cuda", options=HSDP)
    assert FSDP_STRATEGY.bytes_per_step(on_gpus, S) == pytest.approx((2 * S, 2 * S))


def test_ddp_with_a_sharded_optimizer_sends_the_parameters_too() -> None:
    """Between two nodes of two ranks Gloo's tree crosses twice or three times."""
    options = {"shard_optimizer": "true"}
    assert ddp.STRATEGY.bytes_per_step(task("torch:gloo", options=options), S) == pytest.approx((5 * S, 6 * S))
    half = {**options, "compress": "fp16"}
    assert ddp.STRATEGY.bytes_per_step(task("torch:gloo", options=half), S) == pytest.approx((3.5 * S, 4.5 * S))
    on_gpus = task("torch:nccl", device="cuda", options=half)
    assert ddp.STRATEGY.bytes_per_step(on_gpus, S) == pytest.approx((2 * S, 3.5 * S))
