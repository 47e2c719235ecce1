"""Which files a worker drops from the page cache, and what its row may say of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from scaling.hosts import page_cache
from scaling.records.task import Task
from scaling.worker import run_task
from scaling.workloads import feeds
from tests.support.paper_tasks import one_task

FILES = tuple(Path(f"{number}.jpg") for number in range(8))


@pytest.fixture
def dropped(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    found: list[Path] = []
    encoded = SimpleNamespace(encoded=SimpleNamespace(paths=FILES))
    monkeypatch.setattr(feeds, "encoded_pictures", lambda task, spec: encoded)
    monkeypatch.setattr(page_cache, "drop", found.extend)
    monkeypatch.setattr(page_cache, "cached_fraction", lambda paths: 0.0)
    return found


def _task(strategy: str, *, drop: bool = True) -> Task:
    task = one_task(strategy, "solo", model="resnet50", data="imagenet")
    work = replace(task.point.workload, drop_caches=drop)
    return replace(task, point=replace(task.point, workload=work), local_rank=1, local_world_size=4)


def test_ranks_share_the_files_of_their_host(dropped: list[Path]) -> None:
    assert run_task.prepared(_task("torch:gloo")) == ("disk", 0.0)
    assert dropped == [FILES[1], FILES[5]]


def test_one_worker_of_a_node_drops_them_all(dropped: list[Path]) -> None:
    assert run_task.prepared(_task("mxnet:local")) == ("disk", 0.0)
    assert dropped == [*FILES]


def test_nothing_is_said_of_what_helpers_hold_in_memory(dropped: list[Path]) -> None:
    assert run_task.prepared(_task("tensorflow:ps")) == ("", None)
    assert dropped == []


def test_without_the_flag_files_are_in_the_page_cache(dropped: list[Path]) -> None:
    assert run_task.prepared(_task("torch:gloo", drop=False)) == ("page cache", None)
    assert dropped == []
