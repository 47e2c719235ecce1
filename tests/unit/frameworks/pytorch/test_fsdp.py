"""FSDP2 on the agent's side: what it refuses, which groups it makes, what it expects to be sent."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.frameworks.base import read_options
from scaling.frameworks.pytorch import ddp, fsdp
from scaling.records.task import Task
from tests.support import paper_tasks

STRATEGY = fsdp.STRATEGY
S = 1000
HOSTS = ("a", "a", "b", "b")
MULTIPLES = "; choose --world-sizes of its multiples"
REPEATS = ", or torch:gloo or torch:nccl"
HSDP, KEPT = {"hsdp": "2"}, {"reshard": "false"}


def task(name: str = "torch:fsdp2", size: int = 4, **fields: Any) -> Task:
    return replace(paper_tasks.tasks(name, "exchange", size, **fields)[0], hosts=HOSTS[:size])


def refusal(name: str = "torch:fsdp2", size: int = 4, **fields: Any) -> str:
    strategy = ddp.STRATEGY if name in ddp.STRATEGY.names else STRATEGY
    return strategy.refuse(task(name, size, **fields).point) or ""


def test_it_goes_over_nccl_on_gpus_and_over_gloo_else() -> None:
    assert STRATEGY.traits("torch:fsdp2").nccl
    assert [STRATEGY.backend(task(device=device).point) for device in STRATEGY.devices("torch:fsdp2")] == [
        "gloo", "nccl",
    ]  # fmt: skip


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("size", "options", "reason"),
    [
        (4, {"hsdp": "2"}, ""),
        (4, {"hsdp": "4"}, ""),
        (4, {"hsdp": "3"}, "--option hsdp=3: 4 ranks cannot be groups of 3" + MULTIPLES),
        (2, {"hsdp": "4"}, "--option hsdp=4: 2 ranks cannot be groups of 4" + MULTIPLES),
        (1, {"hsdp": "2"}, "--option hsdp=2: one rank cannot be groups of 2" + MULTIPLES),
        (4, {"hsdp": "1"}, "--option hsdp=1: one rank shares with nobody; take 2 or more" + REPEATS),
        (4, {"param_dtype": "bf16"}, "--option param_dtype=bf16: needs --precision bf16"),
        (4, {"accumulate": "3"}, "--option accumulate=3: does not divide the batch of 4 per device"),
    ],
)  # fmt: skip
def test_groups_and_types_that_cannot_be(size: int, options: dict[str, str], reason: str) -> None:
    assert refusal(size=size, options=options) == reason


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_parameters_in_half_precision_beside_batch_norm_are_refused_before_a_worker_starts(precision: str) -> None:
    half = {"param_dtype": "bf16"}
    found = refusal(model="resnet50", data="synthetic", precision=precision, options=half)
    assert found.startswith("--option param_dtype=bf16: the batch norm of resnet50 keeps its means in fp32; leave")
    assert refusal(model="alexnet", data="synthetic", precision="bf16", options=half) == ""


def test_what_fully_shard_does_not_take() -> None:
    assert refusal(memory_format="channels_last").startswith("--memory-format channels_last: ")
    assert refusal(precision="bf16", options={"param_dtype": "bf16"}) == ""


@pytest.mark.parametrize("text", ["-1", "2.5", "node"])
def test_groups_are_counted(text: str) -> None:
    with pytest.raises(UsageError, match=f"--option hsdp={text}: expected integer from 0 to 1099511627776"):
        read_options(STRATEGY.options, {"hsdp": text})


@pytest.mark.parametrize(
    ("name", "device", "options", "reason"),
    [
        ("torch:gloo", "cpu", {"compress": "fp16"}, ""),
        ("torch:gloo", "cpu", {"compress": "bf16"}, "--option compress=bf16: Gloo sums fp32 and fp16; take"),
        ("torch:gloo", "cuda", {"compress": "bf16"}, "--option compress=bf16: Gloo sums fp32 and fp16; take"),
        ("torch:nccl", "cuda", {"compress": "bf16"}, ""),
        ("torch:gloo", "emulated", {"compress": "fp16"}, "--option compress=fp16: emulated devices"),
        ("torch:gloo", "emulated", {"shard_optimizer": "true"}, "--option shard_optimizer=true: emulated devices"),
        ("torch:gloo", "emulated", {}, ""),
    ],
)  # fmt: skip
def test_what_ddp_cannot_compress_or_shard(name: str, device: str, options: dict[str, str], reason: str) -> None:
    found = refusal(name, device=device, options=options)
    assert found.startswith(reason)
    assert bool(found) == bool(reason)


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
    assert STRATEGY.bytes_per_step(task(options=options), S) == pytest.approx((over_ring * 3 * S,) * 2)


@pytest.mark.parametrize("options", [HSDP, {**HSDP, **KEPT}, {**HSDP, "accumulate": "2"}])
def test_only_the_copies_of_a_node_are_compared_between_nodes(options: dict[str, str]) -> None:
    """Groups that are nodes share inside: what crosses is two all-reduces of half the gradients."""
    assert STRATEGY.bytes_per_step(task(options=options), S) == pytest.approx((2 * S, 2 * S))


def test_groups_across_nodes_gather_across_them() -> None:
    """4 S in each of two groups, and nothing between them."""
    spread = replace(task(options=HSDP), hosts=("a", "b", "a", "b"))
    assert STRATEGY.bytes_per_step(spread, S) == pytest.approx((8 * S, 8 * S))
    apart = replace(task(options=HSDP), hosts=("a", "b", "c", "d"))
    assert STRATEGY.bytes_per_step(apart, S) == pytest.approx((10 * S, 10 * S))


@pytest.mark.parametrize(("options", "ring", "least", "most"), [(KEPT, 3.0, 2.0, 3.5), ({}, 4.5, 3.0, 5.0)])
def test_over_nccl_by_the_algorithms_that_it_has(
    options: dict[str, str], ring: float, least: float, most: float
) -> None:
    """By the textbook an all-gather and a reduce-scatter are one all-reduce: a ring's 3 S with one gather, 4.5 S
    with two."""
    found = STRATEGY.bytes_per_step(task(device="cuda", options=options), S)
    assert found == pytest.approx((least * S, most * S))
    assert least <= ring <= most


def test_over_nccl_groups_that_are_nodes_reduce_between_them() -> None:
    """Two all-reduces of half the gradients, each of one rank per node."""
    on_gpus = task(device="cuda", options=HSDP)
    assert STRATEGY.bytes_per_step(on_gpus, S) == pytest.approx((2 * S, 2 * S))


def test_ddp_with_a_sharded_optimizer_sends_the_parameters_too() -> None:
    """Between two nodes of two ranks Gloo's tree crosses twice or three times."""
    options = {"shard_optimizer": "true"}
    assert ddp.STRATEGY.bytes_per_step(task("torch:gloo", options=options), S) == pytest.approx((5 * S, 6 * S))
    half = {**options, "compress": "fp16"}
    assert ddp.STRATEGY.bytes_per_step(task("torch:gloo", options=half), S) == pytest.approx((3.5 * S, 4.5 * S))
    on_gpus = task("torch:nccl", device="cuda", options=half)
    assert ddp.STRATEGY.bytes_per_step(on_gpus, S) == pytest.approx((2 * S, 3.5 * S))
