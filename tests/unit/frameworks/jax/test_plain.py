"""Agent-side strategies of JAX: plain loop, mesh, sharded parameters."""

from __future__ import annotations

from importlib.machinery import ModuleSpec
from typing import Any

import pytest
from msgspec.structs import replace

from scaling import frameworks
from scaling.frameworks.base import PASSES
from scaling.frameworks.jax import plain
from scaling.hosts import gpus
from tests.support import paper_tasks
from tests.support.paper_tasks import one_task

NAMES = ("jax:plain", "jax:psum", "jax:fsdp")
MIB = 1 << 20


def refused(name: str, **fields: Any) -> str | None:
    return frameworks.load(name).refuse(one_task(name, **fields).point)


@pytest.mark.parametrize("spec", [None, ModuleSpec("a-folder", None)])
@pytest.mark.parametrize("name", NAMES)
def test_missing_jax(name: str, spec: ModuleSpec | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "find_spec", lambda _: spec)
    assert frameworks.load(name).missing(name) == "jax is not installed: ./launch/install jax"


def test_a_jax_without_shard_map_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "find_spec", lambda _: ModuleSpec("jax", None, origin="jax/__init__.py"))
    monkeypatch.setattr(plain, "release", lambda: "0.4.38")
    why = frameworks.load("jax:psum").missing("jax:psum")
    assert why == "jax 0.4.38 has no jax.shard_map, which came with 0.6: ./launch/install jax"


def test_a_jax_for_cpus_alone_is_told_where_there_are_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ModuleSpec("jax", None, origin="jax/__init__.py")
    monkeypatch.setattr(plain, "find_spec", lambda name: found if name == "jax" else None)
    monkeypatch.setattr(plain, "release", lambda: "0.12.0")
    monkeypatch.setattr(gpus, "none_here", lambda _: None)
    why = frameworks.load("jax:fsdp").missing("jax:fsdp", "cuda")
    assert why == "jax 0.12.0 has no plugin for CUDA: ./launch/install jax-cuda"


def test_the_plain_loop_is_a_loop_by_itself() -> None:
    strategy = frameworks.load("jax:plain")
    assert strategy.traits("jax:plain") == PASSES
    assert strategy.devices("jax:plain") == ("cpu", "cuda")


@pytest.mark.parametrize("name", NAMES)
def test_what_it_cannot_do(name: str) -> None:
    assert refused(name) is None
    assert refused(name, compile=True, memory_format="channels_last", precision="bf16") is None
    assert str(refused(name, precision="fp16")).startswith("--precision fp16: ")
    assert str(refused(name, options={"accumulate": "5"})).startswith("--option accumulate=5: ")


def test_xla_is_told_its_threads() -> None:
    task = replace(one_task("jax:psum"), threads=3)
    environ = frameworks.load("jax:psum").environ(task, {})
    assert environ == {"NPROC": "3", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


@pytest.mark.parametrize(
    ("name", "hosts", "least", "most"),
    [
        ("jax:psum", ("a", "b"), 2, 2),
        ("jax:psum", ("a", "b", "c", "d"), 6, 6),
        ("jax:fsdp", ("a", "a"), 0, 0),
        # An all-gather by a ring, and a reduce-scatter by halves.
        ("jax:fsdp", ("a", "b"), 1 + 1, 1 + 2),
        ("jax:fsdp", ("a", "b", "c", "d"), 3 + 3, 3 + 4),
        ("jax:fsdp", ("a", "a", "b", "b"), 1.5 + 1, 1.5 + 4),
    ],
)
def test_bytes_of_a_step_between_nodes(name: str, hosts: tuple[str, ...], least: float, most: float) -> None:
    task = replace(paper_tasks.tasks(name, "exchange", len(hosts))[0], hosts=hosts)
    assert frameworks.load(name).bytes_per_step(task, MIB) == (least * MIB, most * MIB)
