"""In which order a worker asks a GPU for what: torch.cuda's functions are stubs that note it, the CPU computes.

It shows the order alone: what each call does on a GPU, it cannot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import distributed

from scaling.frameworks.pytorch import ddp_trainer, group, preflight
from scaling.frameworks.pytorch.loop import Training
from scaling.frameworks.pytorch.preflight import by_clock
from scaling.hosts import proc
from scaling.records.events import Event
from scaling.records.point import Kind
from scaling.records.task import AskedDeviceRates, Command, DeviceRates, Finish, Inspect, Rest, Run
from scaling.worker import run_task
from tests.support.inline_child import Clock
from tests.support.points import changed
from tests.support.ranks import one_task

PEAK_BYTES = 123


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was asked, in order; tensors that are sent to a GPU stay where they are."""
    noted: list[str] = []

    def note(name: str, answer: Any = None) -> Callable[..., Any]:
        def call(*_args: Any, **_kwargs: Any) -> Any:
            noted.append(name)
            return answer

        return call

    for name in ("set_device", "synchronize", "max_memory_allocated", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, note(name, PEAK_BYTES))
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: Mark(noted))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 29, 7))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    for owner in (torch.Tensor, torch.nn.Module):
        monkeypatch.setattr(owner, "to", _staying(owner.to, noted))
    for name in ("step", "close", "device_digest"):
        monkeypatch.setattr(Training, name, _noting(getattr(Training, name), name, noted))
    return noted


class Mark:
    """An event of a device that is as far as the host."""

    def __init__(self, noted: list[str]) -> None:
        self._noted = noted

    def record(self) -> None:
        self._noted.append("mark")
        self.at_s = time.perf_counter()

    def synchronize(self) -> None:
        self._noted.append("reached")

    def elapsed_time(self, later: Mark) -> float:
        return 1000 * (later.at_s - self.at_s)


def _staying(to: Callable[..., Any], noted: list[str]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        devices = [one for one in (*args, kwargs.get("device")) if isinstance(one, torch.device)]
        if not any(one.type == "cuda" for one in devices):
            return to(self, *args, **kwargs)
        noted.append("to")
        kept = {key: value for key, value in kwargs.items() if key == "memory_format"}
        return to(self, torch.device("cpu"), **kept)

    return call


def _noting(method: Callable[..., Any], name: str, noted: list[str]) -> Callable[..., Any]:
    def call(self: Any, *args: Any) -> Any:
        noted.append(name)
        return method(self, *args)

    return call


class Scripted:
    """The worker's pipes: commands in a row, events by name among the calls."""

    def __init__(self, commands: list[Command], noted: list[str]) -> None:
        self._commands: Iterator[Command] = iter(commands)
        self._noted = noted
        self.events: list[Event] = []

    def receive(self) -> Command:
        return next(self._commands)

    def waiting(self) -> bool:
        return True

    def send(self, event: Event, *, hold: bool = False) -> None:
        self._noted.append(type(event).__name__)
        self.events.append(event)


def work(noted: list[str], *commands: Command, strategy: str = "torch:plain", kind: Kind = "solo") -> Scripted:
    task = one_task(strategy, kind, batch_size=4)
    task = replace(task, point=changed(task.point, device="cuda"), device_index=3)
    channel = Scripted([*commands, Finish()], noted)
    assert run_task._leave(run_task._work(task, channel)) == 0  # type: ignore[arg-type]
    return channel


def test_the_device_is_taken_before_anything_is_put_on_it(calls: list[str]) -> None:
    work(calls)
    assert calls.index("set_device") < calls.index("to") < calls.index("Ready")
    assert calls.count("set_device") == 1


def test_windows_begin_and_end_at_marks_in_a_queue_that_stays_filled(calls: list[str]) -> None:
    work(calls, Run(windows=2, steps=2, measured=True, lead=2))
    told = [call for call in calls[calls.index("Ready") + 1 :] if call != "to"]
    window = ["step", "step", "mark"]
    # Two steps are not counted. The next window is in the queue while the host waits for the one before.
    assert told[: told.index("Result")] == [
        "synchronize", "mark", *window, *window, *window, "reached", "Window", "synchronize", "mark", "reached",
        "reached", "Window",
        "synchronize", "device_digest", "max_memory_allocated",
    ]  # fmt: skip


def test_memory_is_given_back_while_others_have_their_turn(calls: list[str]) -> None:
    work(calls, Run(windows=1, steps=1, measured=True), Rest())
    assert calls[calls.index("Window") + 1 :][:2] == ["empty_cache", "Rested"]


def test_the_result_is_out_before_the_exchange_is_left(calls: list[str]) -> None:
    channel = work(calls, Run(windows=1, steps=1, measured=True))
    assert calls[-2:] == ["Result", "close"]
    assert getattr(channel.events[-1], "peak_memory_bytes", None) == PEAK_BYTES


def test_digest_and_memory_are_those_of_the_measured_steps(calls: list[str]) -> None:
    """Profiled steps follow them: they change the parameters and take memory."""
    work(calls, Run(windows=1, steps=1, measured=True), Inspect(windows=0, steps=1, traced_steps=0))
    assert calls[calls.index("Ready") :].count("device_digest") == calls.count("max_memory_allocated") == 1
    assert calls.index("max_memory_allocated") < calls.index("Inspected") < calls.index("Result")


def test_nccl_connects_on_the_rank_s_own_device_before_it_is_ready(
    calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bound to its device it connects at once, not inside the first step; it is left when the result is out."""
    given: dict[str, Any] = {}

    def note(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            given.update(kwargs)
            return args[0] if args else None

        return call

    for name in ("init_process_group", "destroy_process_group"):
        monkeypatch.setattr(distributed, name, note(name))
    monkeypatch.setattr(ddp_trainer, "DistributedDataParallel", note("DistributedDataParallel"))
    monkeypatch.setattr(group, "open_store", lambda *_, **__: None)
    work(calls, Run(windows=1, steps=1, measured=True), strategy="torch:nccl", kind="exchange")
    once = ["set_device", "init_process_group", "DistributedDataParallel", "Ready"]
    assert [call for call in calls if call in once] == once
    assert (given["device_id"], given["device_ids"]) == (torch.device("cuda", 3), [3])
    assert calls[-2:] == ["Result", "destroy_process_group"]


# ---------------------------------------------------------------- the rates of a device alone


@pytest.fixture
def probe(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> preflight.Probe:
    """The probe of GPU 3, with small tensors and no time for repeats; what it allocates is noted."""

    def allocating(make: Callable[..., Any]) -> Callable[..., Any]:
        def call(*size: int, device: Any = None, dtype: Any = None, pin_memory: bool = False) -> Any:
            calls.append("pinned" if pin_memory else str(device))
            return make(*size, dtype=dtype)

        return call

    task = one_task("torch:plain", "solo", batch_size=4)
    task = replace(task, point=changed(task.point, device="cuda"), device_index=3)
    asked = AskedDeviceRates(
        task=task, device=DeviceRates(launch_rank=3, host="node1", device="cuda", name="a GPU"), host_bytes=64
    )
    made = preflight.Probe(asked)
    monkeypatch.setattr(preflight, "GPU_ROWS", 8)
    monkeypatch.setattr(preflight, "GPU_COPY_BYTES", 64)
    for name in ("WARM_UP_S", "MATRIX_S", "COPY_S", "TRANSFER_S", "STEP_S"):
        monkeypatch.setattr(preflight, name, 0.0)
    for name in ("randn", "ones"):
        monkeypatch.setattr(torch, name, allocating(getattr(torch, name)))
    calls.clear()
    return made


TIMED = ["mark", "reached", "mark", "reached", "reached"]


def test_a_rate_is_timed_by_events_of_a_queue_that_stays_filled(probe: preflight.Probe, calls: list[str]) -> None:
    told = probe.rates()
    assert told.error == ""
    repeats = ["mark", *TIMED] * 2  # the first ones warm up
    on_gpu = "cuda:3"
    noted = [call for call in calls if call != "to"]
    assert noted[:-16] == [
        on_gpu, on_gpu, *repeats,
        on_gpu, *repeats,
        "pinned", on_gpu, *repeats,
        "pinned", on_gpu, *repeats,
    ]  # fmt: skip
    assert noted[-16:] == ["mark", "step", "mark", "reached", "step", "mark", "reached", "reached"] * 2


def test_the_median_repeat_of_a_gpu_counts(probe: preflight.Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_by_events", lambda _work, _budget_s: [4.0, 1.0, 2.0])
    told = probe.rates()
    assert (told.samples_per_s, told.copy_bytes_per_s, told.to_device_bytes_per_s) == (4 / 2, 2 * 64 / 2, 64 / 2)
    assert told.matrix_flops_per_s == 2 * 8**3 / 2


def test_rates_before_a_failure_are_kept(probe: preflight.Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 1 GiB")

    monkeypatch.setattr(torch, "ones", fails)
    told = probe.rates()
    assert told.matrix_flops_per_s and (told.copy_bytes_per_s, told.samples_per_s) == (None, None)
    assert told.error == "OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB"


# ---------------------------------------------------------------- rates of CPUs, on a scripted clock

Script = Callable[[Sequence[tuple[float, float]], float], list[float]]


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Times repeats that take (seconds, of which the thread waits) in turn, with a budget."""
    clock, waited_s = Clock(), 0.0
    monkeypatch.setattr(preflight, "perf_counter", clock)
    monkeypatch.setattr(proc, "queued_s", lambda: waited_s)

    def call(script: Sequence[tuple[float, float]], budget_s: float) -> list[float]:
        repeats = iter(script)

        def work() -> None:
            nonlocal waited_s
            seconds, queued_s = next(repeats)
            clock.sleep(seconds)
            waited_s += queued_s

        return by_clock(work, budget_s)

    return call


@pytest.mark.parametrize(
    ("script", "budget_s", "times_s"),
    [
        ([(1.0, 0.0), (3.0, 2.0), (2.5, 0.5), (1.0, 0.0)], 4.5, [1.0, 1.0, 2.0, 1.0]),
        ([(1.0, 0.0)] * 9, 3.0, [1.0] * 3),
        ([(2.0, 1.0)] * 9, 3.0, [1.0] * 3),  # on crowded cores it takes longer
        ([(3.0, 3.0)] * 9, 3.0, [0.0] * preflight.CROWDED),  # repeats that only wait end in time
        ([(100.0, 0.0)], 0.1, [100.0]),
    ],
)
def test_waiting_for_other_programs_does_not_count(
    timed: Script, script: Sequence[tuple[float, float]], budget_s: float, times_s: list[float]
) -> None:
    assert timed(script, budget_s) == pytest.approx(times_s)
