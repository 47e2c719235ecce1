"""Feeds of a worker: which batch a step takes, how long it waited for it, and that their processes end."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.frameworks import feeding
from scaling.frameworks.feeding import FeedError, Opened
from scaling.records.point import Kind
from scaling.records.task import Task
from scaling.workloads import models
from scaling.workloads.specs import ModelSpec
from tests.support.paper_tasks import tasks


class Scripted:
    said = "scripted"

    def __init__(self, _task: Task, _spec: ModelSpec) -> None:
        self.numbers, self.closed = count(), 0

    def next(self) -> tuple[Any, Any]:
        return np.array([next(self.numbers)]), np.array([0])

    def close(self) -> None:
        self.closed += 1


class Slow:
    fixed = False

    def __init__(self) -> None:
        self.now_s = 0.0

    def batch(self, step: int) -> tuple[Any, Any]:
        self.now_s += 1.0
        if step == 9:
            raise UsageError("a.jpg: Pillow cannot read it")
        return np.array([step]), np.array([0])


@pytest.fixture(autouse=True)
def closed() -> Any:
    feeding.close()
    yield
    feeding.close()


def native(kind: Kind = "together") -> Task:
    task = tasks("torch:plain", kind, 2)[0]
    return replace(task, point=replace(task.point, workload=replace(task.point.workload, feed="native")))


def test_each_step_takes_the_next_batch_once() -> None:
    task = native()
    fed = feeding.opened(task, models.of(task.point.workload), Scripted)
    assert [int(fed.batch(step)[0][0]) for step in (0, 0, 1, 1, 2)] == [0, 0, 1, 1, 2]
    assert (fed.fixed, feeding.said()) == (False, "scripted")
    assert feeding.fed() == 3 * len(fed.batch(2)[1])


def test_of_kind_held_the_first_batch_serves_and_the_pipeline_ends() -> None:
    task = native("held")
    made: list[Scripted] = []

    def make(task: Task, spec: ModelSpec) -> Scripted:
        made.append(Scripted(task, spec))
        return made[0]

    fed = feeding.opened(task, models.of(task.point.workload), make)
    assert [int(fed.batch(step)[0][0]) for step in (0, 1, 7)] == [0, 0, 0]
    assert fed.fixed and made[0].closed == 1
    assert feeding.waited_s() is None and feeding.fed() is None


def test_the_reference_feed_says_nothing_of_itself() -> None:
    task = tasks("torch:plain", "together", 2)[0]
    fed = feeding.opened(task, models.of(task.point.workload), Scripted)
    assert feeding.said() == ""
    assert fed.batch(3)[0].shape[0] == task.point.workload.batch_size


def test_waiting_is_added_up_over_feeds(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow()
    monkeypatch.setattr(feeding, "perf_counter", lambda: slow.now_s)
    first, second = Opened(slow), Opened(slow)
    assert feeding.waited_s() == 0.0
    for step in range(3):
        first.batch(step)
    second.batch(0)
    assert (first.waited_s, second.waited_s, feeding.waited_s()) == (3.0, 1.0, 4.0)
    with pytest.raises(FeedError, match=r"^a.jpg: Pillow cannot read it$"):
        first.batch(9)


def test_closing_ends_all_pipelines_whatever_one_raises(capsys: pytest.CaptureFixture[str]) -> None:
    ended: list[str] = []

    def fails() -> None:
        raise RuntimeError("its process is gone")

    kept = [Opened(Slow(), close=fails), Opened(Slow(), close=lambda: ended.append("second"))]
    feeding.close()
    assert ended == ["second"] and len(kept) == 2
    assert "its process is gone" in capsys.readouterr().err
    assert feeding.waited_s() is None


def test_workers_are_what_was_asked_for_or_the_cores_of_the_rank() -> None:
    task = replace(native(), cpus=(0, 1, 2, 3))
    assert feeding.workers(task) == 4
    # One process that drives two devices has a feed for each.
    assert feeding.workers(replace(task, device_indices=(0, 1))) == 2
    asked = replace(task.point, workload=replace(task.point.workload, feed_workers=7))
    assert feeding.workers(replace(task, point=asked)) == 7
