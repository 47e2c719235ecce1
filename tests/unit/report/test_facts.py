"""The block above the tables: whose heap CPU workers have, and which variables."""

from __future__ import annotations

from typing import Any

import pytest

from scaling.records.host import HostInfo
from scaling.report import labels, words
from scaling.report.facts import facts
from tests.support.scripted_records import header, host

KEPT = "kept by CPU workers (--malloc keep)"
SYSTEM = "as the system has it (--malloc system)"


def heap(*hosts: HostInfo, device: str = "cpu", **config: Any) -> list[str]:
    found = facts(header(hosts, device=device, config=config), (), (), labels.context(()))
    return [words.text(entry.phrase) for entry in found if entry.label == "heap"]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"malloc": "keep"}, [KEPT]),
        ({"malloc": "system"}, [SYSTEM]),
        ({"malloc": "keep", "device": "emulated"}, [KEPT]),
        ({"malloc": "keep", "device": "cuda"}, []),
        ({"malloc": "keep", "device": "cuda", "baseline_device": "cpu"}, [KEPT]),
        ({}, []),  # of runs that did not keep it yet
    ],
)
def test_whether_the_heap_is_kept_is_said(config: dict[str, Any], said: list[str]) -> None:
    assert heap(**config) == said


@pytest.mark.parametrize("malloc", ["keep", "system"])
def test_another_allocator_is_told_apart(malloc: str) -> None:
    named = host(allocator="jemalloc", allocator_by="LD_PRELOAD")
    assert heap(named, malloc=malloc) == ["jemalloc, by LD_PRELOAD"]


def test_what_is_not_known_to_come_by_ld_preload_is_not_said_to() -> None:
    """It is linked to Python, or the run is an older one, which believed what LD_PRELOAD named."""
    assert heap(host(allocator="jemalloc"), malloc="keep") == ["jemalloc"]


@pytest.mark.parametrize(("malloc", "own"), [("keep", KEPT), ("system", SYSTEM)])
def test_what_the_user_has_set_of_the_heap_comes_first(malloc: str, own: str) -> None:
    settings = ("MALLOC_TRIM_THRESHOLD_=0", "glibc.malloc.arena_max=1")
    said = f"with the user's MALLOC_TRIM_THRESHOLD_=0, glibc.malloc.arena_max=1, else {own}"
    assert heap(host(heap_settings=settings), malloc=malloc) == [said]


def test_what_the_user_has_set_on_one_host_is_said_of_that() -> None:
    hosts = [host("node1", heap_settings=("MALLOC_TOP_PAD_=1",)), host("node2")]
    said = f"with the user's MALLOC_TOP_PAD_=1, else {KEPT} on node1; {KEPT} on node2"
    assert heap(*hosts, malloc="keep") == [said]


def test_another_allocator_reads_no_settings_of_glibcs() -> None:
    assert heap(host(allocator="jemalloc", heap_settings=("MALLOC_TOP_PAD_=1",)), malloc="keep") == ["jemalloc"]


def test_hosts_whose_allocators_differ_are_named() -> None:
    allocators = {"node1": "jemalloc", "node2": "", "node3": "", "node4": "jemalloc"}
    hosts = [host(name, allocator=allocator) for name, allocator in allocators.items()]
    assert heap(*hosts, malloc="keep") == [f"jemalloc on node1 node4; {KEPT} on node2 node3"]


# ---------------------------------------------------------------- variables


def said(label: str, *hosts: HostInfo) -> list[str]:
    found = facts(header(hosts), (), (), labels.context(()))
    return [words.text(entry.phrase) for entry in found if entry.label == label]


def test_variables_that_change_rates_are_said_by_host() -> None:
    first = host("node1", variables={"NCCL_ALGO": "Ring", "TF_X": "1"})
    second = host("node2", variables={"NCCL_ALGO": "Ring", "TF_X": "2 | unset"})
    assert said("variables", first, second) == ["NCCL_ALGO=Ring; TF_X=1 on node1; TF_X=2 | unset on node2"]


def test_nothing_is_said_of_variables_where_none_is_set_or_nobody_looked() -> None:
    assert said("variables", host(variables={})) == said("variables", host()) == said("changed", host()) == []


def test_variables_that_workers_do_not_have_are_said_once() -> None:
    changed = ("OMP_PROC_BIND=true (dropped: why)",)
    hosts = [host(name, changed_variables=changed) for name in ("node1", "node2")]
    assert said("changed", *hosts) == list(changed)
