"""The loop of a worker, its trainings, the files it reads, the start of a task."""

from __future__ import annotations

import os
import resource
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from scaling.frameworks.abilities import digest_of
from scaling.frameworks.fake.strategy import FakeTrainer
from scaling.records.events import Evaluated, Event, Progress, Rested, Result, Window
from scaling.records.point import Hardware, Kind, Pass, Regime
from scaling.records.task import BatchFit, Evaluate, Finish, Rest, Run, Task, Train
from scaling.worker import run_task, training
from scaling.worker.batch_fit import MOST, PART, largest
from scaling.worker.loop import NanLoss, Worker, digest_taken
from scaling.worker.run_task import Channel, operations_per_sample
from scaling.workloads import feeds
from tests.support.inline_child import Clock
from tests.support.paper_tasks import one_task
from tests.support.points import POINT, TASK, changed

# The worker alone: its one timed loop, its two pipes, what it calls its failures.


def loop_of(
    trainer_class: type[FakeTrainer], of: Task = TASK, **fields: Any
) -> tuple[Worker, Any, list[Event], Clock]:
    """A worker on a virtual clock, its trainer, and what it says."""
    clock, said = Clock(), list[Event]()
    trainer = trainer_class(of, clock=clock, sleep=clock.sleep)
    waiting = fields.pop("waiting", lambda: True)
    loop = Worker(trainer, lambda event, hold=False: said.append(event), waiting, clock, clock, **fields)
    return loop, trainer, said, clock


def worker(*, options: dict[str, str] | None = None, waiting: int = 0) -> tuple[Worker, list[Event], Clock]:
    """A worker whose command waits after so many looks."""
    looks = iter([False] * waiting + [True] * 1000)
    task = replace(TASK, point=replace(POINT, options={"step_s": "0.5", **(options or {})}))
    loop, _, said, clock = loop_of(FakeTrainer, task, waiting=lambda: next(looks))
    return loop, said, clock


def windows(said: list[Event]) -> list[Window]:
    return [event for event in said if isinstance(event, Window)]


def test_windows_share_their_edges_and_count_what_was_fed() -> None:
    loop, said, clock = worker()
    assert loop.obey(Run(windows=3, steps=4, measured=True))
    found = windows(said)
    assert [(w.index, w.steps, w.samples, w.seconds) for w in found] == [(i, 4, 4 * 32, 2.0) for i in range(3)]
    assert [w.start_s for w in found[1:]] == [w.end_s for w in found[:-1]]
    assert clock() == 6.5  # one step that is not counted gives all ranks a common start


class Device(FakeTrainer):
    """A device with a queue and a clock. The host needs 10 ms to enqueue a step, the device 250 ms to run it."""

    has_device_clock = True
    idle_at_s = 0.0
    enqueue_s = 0.01
    drift = 1.0  # the device's seconds for one of the host's
    syncs = 0
    servers_s = 0.0  # how long servers take after the device's last work

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._marks: list[float] = []

    def step(self) -> None:
        self._sleep(self.enqueue_s)
        self.idle_at_s = max(self.idle_at_s, self._clock()) + 0.25
        self.samples += 32

    def sync(self) -> None:
        self.syncs += 1
        self._sleep(max(0.0, self.idle_at_s - self._clock()) + self.servers_s)

    def mark(self) -> None:
        self._marks.append(max(self.idle_at_s, self._clock()))

    def between_marks_s(self, ahead: int = 0) -> tuple[float, ...]:
        last = len(self._marks) - ahead
        passed, self._marks = self._marks[:last], self._marks[last - 1 :] if ahead else []
        self._sleep(max(0.0, passed[-1] - self._clock()))
        return tuple(self.drift * (later - earlier) for earlier, later in pairwise(passed))


def on_device(**changes: Any) -> tuple[Worker, Device, list[Event], Clock]:
    loop, trainer, said, clock = loop_of(Device, times_steps=changes.get("is_beside", False))
    for name, value in changes.items():
        setattr(trainer, name, value)
    return loop, trainer, said, clock


def test_windows_of_a_turn_leave_the_devices_queue_filled() -> None:
    loop, trainer, said, clock = on_device()
    loop.obey(Run(windows=3, steps=4, measured=True, lead=2))
    found = windows(said)
    assert trainer.syncs == 2  # before the first step and after the last
    assert [w.seconds for w in found] == pytest.approx([1.0] * 3)
    assert [w.samples for w in found] == [4 * 32] * 3
    assert [w.uncounted_samples for w in found] == [2 * 32, 0, 0]
    assert [w.start_s for w in found[1:]] == [w.end_s for w in found[:-1]]
    assert found[-1].end_s == pytest.approx(clock()) == pytest.approx(found[-1].end_unix_s)
    assert [w.turn_s for w in found] == [None, None, pytest.approx(3.51)]
    assert found[-1].turn_device_s == pytest.approx(3.51)


@pytest.mark.parametrize(
    ("changes", "seconds", "turn_s"),
    [
        # torch:ps-* on GPUs: the host waits after the device has reached the last window's end
        ({"servers_s": 0.5}, 1.0, 3.51 + 0.5),
        # a device waits for a host that is slower
        ({"enqueue_s": 0.5}, 2.0, 7.25),
    ],
)
def test_a_turn_by_both_clocks(changes: dict[str, float], seconds: float, turn_s: float) -> None:
    loop, _, said, _ = on_device(**changes)
    loop.obey(Run(windows=3, steps=4, measured=True, lead=2))
    found = windows(said)
    assert [w.seconds for w in found] == pytest.approx([seconds] * 3)
    assert [found[-1].turn_s, found[-1].turn_device_s] == pytest.approx([turn_s] * 2)


def test_short_windows_have_the_rate_of_long_ones() -> None:
    loop, _, said, _ = on_device()
    for steps in (1, 20):
        loop.obey(Run(windows=1, steps=steps, measured=True, lead=2))
    assert [w.steps / w.seconds for w in windows(said)] == pytest.approx([4.0, 4.0])


def test_a_report_arrives_while_the_next_window_runs() -> None:
    """Otherwise the agent would end a worker as hung in long turns."""
    clock_at: list[float] = []
    loop, _, _, clock = on_device()
    loop._send = lambda event, hold=False: clock_at.append(clock())
    loop.obey(Run(windows=3, steps=4, measured=True, lead=2))
    assert clock_at == pytest.approx([1.51, 2.51, 3.51])


@pytest.mark.parametrize("has_clock", [True, False])
def test_steps_of_a_device_that_runs_behind_are_timed_by_its_own_clock(
    monkeypatch: pytest.MonkeyPatch, *, has_clock: bool
) -> None:
    monkeypatch.setattr(Device, "has_device_clock", has_clock)
    loop, _, said, _ = on_device(is_beside=True)
    loop.obey(Run(windows=2, steps=4, measured=True, lead=2))
    assert [w.step_s for w in windows(said)] == [pytest.approx((0.25,) * 4) if has_clock else ()] * 2


class Blocking(FakeTrainer):
    """Its steps have ended when they return; each takes half a second longer than the one before."""

    is_done_on_return = True

    def step(self) -> None:
        super().step()
        self._sleep(0.5 * self.samples / 32)


@pytest.mark.parametrize("is_done", [True, False])
def test_steps_that_end_when_they_return_are_timed_by_the_hosts_clock(
    monkeypatch: pytest.MonkeyPatch, *, is_done: bool
) -> None:
    monkeypatch.setattr(Blocking, "is_done_on_return", is_done)
    task = replace(TASK, point=replace(POINT, options={"step_s": "0"}))
    loop, _, said, _ = loop_of(Blocking, task, times_steps=True)
    loop.obey(Run(windows=2, steps=3, measured=True))
    # The first step is not counted.
    assert [w.step_s for w in windows(said)] == ([(1.0, 1.5, 2.0), (2.5, 3.0, 3.5)] if is_done else [(), ()])
    assert [w.seconds for w in windows(said)] == [4.5, 9.0]


def test_a_lingering_run_goes_on_until_the_next_command() -> None:
    """One that rests has left off between two steps: stopped within a step, its rest would count in the next
    window's time."""
    loop, said, clock = worker(waiting=5)
    loop.obey(Run(windows=1, steps=2, measured=True, linger=True))
    assert len(windows(said)) == 1
    assert clock() == 0.5 + 2 * 0.5 + 5 * 0.5
    assert loop.obey(Rest())
    assert said[1:] == [Rested()] and clock() == 0.5 + 2 * 0.5 + 5 * 0.5


def test_the_last_word_is_the_result() -> None:
    loop, said, _ = worker()
    assert not loop.obey(Finish())
    (result,) = said
    assert isinstance(result, Result)
    assert result.digest == "begun"
    assert result.peak_rss_bytes > 1 << 20


def test_the_hosts_memory_is_read_before_the_digest_copies_the_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    most_kib = [1]
    monkeypatch.setattr(resource, "getrusage", lambda _: SimpleNamespace(ru_maxrss=most_kib[-1]))

    class Copying(FakeTrainer):
        def digest(self) -> str | None:
            most_kib.append(2)
            return super().digest()

    loop, _, said, _ = loop_of(Copying)
    loop.obey(Finish())
    (result,) = said
    assert isinstance(result, Result)
    assert (result.peak_rss_bytes, most_kib) == (1024, [1, 2])


class Lying(FakeTrainer):
    """Shows parameters that never change, and counts twice the samples that it is fed."""

    def step(self) -> None:
        super().step()
        self.samples += self._task.point.workload.batch_size

    def weights(self) -> dict[str, NDArray[Any]]:
        return {"weight": np.zeros(3)}


def test_samples_are_those_of_the_feed_and_the_digest_that_of_the_parameters() -> None:
    """Whatever the trainer says of either."""
    batch_size = TASK.point.workload.batch_size
    loop, trainer, said, _ = loop_of(Lying)
    loop._fed, loop._first_digest = lambda: trainer._steps * batch_size, digest_taken(trainer)
    loop.obey(Run(windows=2, steps=3, measured=True))
    assert [window.samples for window in windows(said)] == [3 * batch_size] * 2
    loop.obey(Finish())
    result = said[-1]
    assert isinstance(result, Result)
    assert result.digest == result.first_digest == digest_of(trainer.weights())


@pytest.mark.parametrize(
    ("fail_step", "phase"), [("1", "warm-up window 1"), ("6", "measured window 2"), ("10", "soak window 4")]
)
def test_a_loss_that_is_no_number_ends_it_and_it_says_when(fail_step: str, phase: str) -> None:
    loop, _, _ = worker(options={"fail": "nan", "fail_step": fail_step})
    with pytest.raises(NanLoss, match=f"the loss is nan after {phase}"):
        loop.obey(Run(windows=1, steps=2, measured=False))
        loop.obey(Run(windows=2, steps=1, measured=True, lead=2))
        loop.obey(Run(windows=2, steps=2, measured=False, first=2))


def test_commands_come_in_and_events_go_out_as_lines() -> None:
    (in_r, in_w), (out_r, out_w) = os.pipe(), os.pipe()
    channel = Channel(in_r, out_w)
    first, second = Run(windows=1, steps=2, measured=False), Finish()
    os.write(in_w, b"\n".join(msgspec.json.encode(one) for one in (TASK, first)) + b"\n")
    assert channel.read_task() == TASK
    channel.listen()
    assert channel.receive() == first
    assert not channel.waiting()
    os.write(in_w, msgspec.json.encode(second)[:5])
    os.write(in_w, msgspec.json.encode(second)[5:] + b"\n")
    assert channel.receive() == second
    event = Result(digest=None, peak_memory_bytes=0, peak_rss_bytes=1)
    channel.send(event)
    assert msgspec.json.decode(os.read(out_r, 1000).removesuffix(b"\n"), type=Event) == event


PREFLIGHT_AND_FEED = ("preflight.py", "feeding.py")


def test_the_loop_is_the_only_place_that_takes_the_time_of_steps() -> None:
    package = Path(__file__).parents[3] / "scaling"
    for path in (package / "frameworks").rglob("*.py"):
        # The preflight measures devices and all-reduces; a feed measures how long a rank is blocked in it. A
        # script's pauses and time limit are no step's time.
        if path.parent.name not in ("fake", "script") and path.name not in PREFLIGHT_AND_FEED:
            assert "perf_counter" not in path.read_text() and "monotonic" not in path.read_text(), path


# A worker of a training to an accuracy: rates step by step, signs of life, as many predictions on all ranks.

REGIME = Regime(epochs=2, seed=0, rate=0.4, base_rate=0.1, base_batch=32, warmup_epochs=1)


class Counting(FakeTrainer):
    predicted = 0

    def predict(self, inputs: NDArray[Any]) -> NDArray[np.int64]:
        self.predicted += 1
        return super().predict(inputs)


def task(rank: int = 0, size: int = 1, batch_size: int = 64) -> Task:
    fields: dict[str, Any] = {"kind": "train", "world_size": size, "batch_size": batch_size}
    fields |= {"regime": REGIME, "image_size": 8}
    return replace(TASK, rank=rank, point=changed(TASK.point, options={"step_s": "2.0"}, **fields))


def training_worker(of: Task) -> tuple[Worker, Counting, list[Event]]:
    loop, trainer, said, clock = loop_of(Counting, of)
    loop._learner = training.Learner(trainer, of, said.append, clock)
    return loop, trainer, said


def test_an_epoch_is_one_window_with_a_rate_for_each_step_and_signs_of_life() -> None:
    loop, trainer, said = training_worker(task())
    assert loop.obey(Train(number=0, steps=4))
    assert loop.obey(Train(number=1, steps=4))
    assert trainer.rates == pytest.approx([0.1, 0.175, 0.25, 0.325, 0.4, 0.4, 0.4, 0.4])
    windows = [event for event in said if isinstance(event, Window)]
    assert [(each.index, each.steps, each.samples, each.measured) for each in windows] == [
        (0, 4, 256, True), (1, 4, 256, True),
    ]  # fmt: skip
    assert windows[0].seconds == 8.0
    assert windows[1].uncounted_samples == 0
    assert any(isinstance(event, Progress) for event in said)


def test_ranks_with_shorter_shards_predict_as_often_and_count_only_their_own() -> None:
    """360 held-out digits on 7 ranks in batches of 17: 52 or 51 each, that is 4 batches or 3 whole ones."""
    seen, predicted = [], []
    for rank in range(7):
        loop, trainer, said = training_worker(task(rank, 7, batch_size=17))
        loop.obey(Evaluate(number=0))
        (found,) = (event for event in said if isinstance(event, Evaluated))
        seen.append(found.seen)
        predicted.append(trainer.predicted)
    assert seen == [52, 52, 52, 51, 51, 51, 51]
    assert predicted == [4] * 7


# What a worker tells of its point before it trains.

RESNET50 = replace(POINT, workload=replace(POINT.workload, model="resnet50"))


# He 2015 counts 3.8 to 4.1 thousand million multiply-adds of a forward pass.
@pytest.mark.parametrize(("pass_", "giga"), [("forward", 8.18), ("backward", 24.3), ("step", 24.3)])
def test_operations_are_those_of_the_passes_that_a_step_runs(pass_: Pass, giga: float) -> None:
    point = replace(RESNET50, workload=replace(RESNET50.workload, pass_=pass_))
    assert operations_per_sample(point) / 1e9 == pytest.approx(giga, rel=0.005)


def test_what_computes_nothing_has_no_operations() -> None:
    kinds: tuple[Kind, ...] = ("comm", "feed")
    emulated = replace(RESNET50, hardware=Hardware(device="emulated", profile="p100"))
    points = [emulated, *(replace(RESNET50, kind=kind) for kind in kinds)]
    assert [operations_per_sample(one) for one in points] == [0, 0, 0]


# Which files a worker drops from the page cache, and what its row may say of them.

FILES = tuple(Path(f"{number}.jpg") for number in range(8))


@pytest.fixture
def dropped(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    found: list[Path] = []
    encoded = SimpleNamespace(encoded=SimpleNamespace(paths=FILES))
    monkeypatch.setattr(feeds, "encoded_pictures", lambda task, spec: encoded)
    monkeypatch.setattr(run_task, "drop_cached", found.extend)
    monkeypatch.setattr(run_task, "cached_fraction", lambda paths: 0.0)
    return found


def _task(strategy: str, *, drop: bool = True) -> Task:
    task = one_task(strategy, "solo", model="resnet50", data="imagenet")
    work = replace(task.point.workload, drop_caches=drop)
    return replace(task, point=replace(task.point, workload=work), local_rank=1, local_world_size=4)


@pytest.mark.parametrize(
    ("task", "files", "found"),
    [
        # ranks share the files of their host
        (_task("torch:gloo"), [FILES[1], FILES[5]], ("disk", 0.0)),
        # one worker of a node drops them all
        (_task("mxnet:local"), [*FILES], ("disk", 0.0)),
        # helpers hold them in memory
        (_task("tensorflow:ps"), [], ("", None)),
        (_task("torch:gloo", drop=False), [], ("page cache", None)),
    ],
)
def test_files_are_dropped_from_the_page_cache(
    dropped: list[Path], task: Task, files: list[Path], found: tuple[str, float | None]
) -> None:
    assert (run_task.prepared(task), dropped) == (found, files)


# How large a batch the memory of a GPU holds.

GB = 10**9
WEIGHTS, SEQUENCE = 2 * GB, GB


class Gpu:
    """A step uses WEIGHTS, and SEQUENCE for each sequence, up to all memory that the GPU has."""

    def __init__(self, memory_gb: float, sequence: int = SEQUENCE) -> None:
        self.memory_bytes, self._sequence = round(memory_gb * GB), sequence
        self.tried: list[int] = []

    def peak(self, batch: int) -> int | None:
        self.tried.append(batch)
        used = WEIGHTS + batch * self._sequence
        return used if used <= self.memory_bytes else None


@pytest.mark.parametrize(("memory_gb", "batch"), [(16, 8), (24, 16), (40, 16), (80, 32), (141, 64)])
def test_the_largest_batch_that_leaves_room_for_the_exchange(memory_gb: float, batch: int) -> None:
    gpu = Gpu(memory_gb)
    found = largest(8, gpu.memory_bytes, gpu.peak)
    assert found == BatchFit(batch_size=batch, used_bytes=WEIGHTS + batch * SEQUENCE)
    assert found.used_bytes <= PART * gpu.memory_bytes


def test_growth_or_a_lack_of_memory_tells_when_to_stop() -> None:
    gpu, unknown, small = Gpu(80), Gpu(40), Gpu(8)
    largest(8, gpu.memory_bytes, gpu.peak)
    assert gpu.tried == [8, 16, 32]
    found = largest(8, unknown.memory_bytes, lambda batch: None if unknown.peak(batch) is None else 0)
    assert found == BatchFit(batch_size=32, used_bytes=0)
    assert unknown.tried == [8, 16, 32, 64]
    assert largest(8, small.memory_bytes, small.peak) is None


def test_small_models_stop_at_a_limit() -> None:
    gpu = Gpu(80, sequence=1)
    assert largest(8, gpu.memory_bytes, gpu.peak) == BatchFit(batch_size=8 * MOST, used_bytes=WEIGHTS + 8 * MOST)
