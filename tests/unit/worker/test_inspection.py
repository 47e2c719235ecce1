"""Steps that no figure counts, on a virtual clock: in which order they come, and what profilers may do."""

from __future__ import annotations

import gzip
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from scaling.frameworks.abilities import Tracer
from scaling.frameworks.fake.strategy import FakeTrainer
from scaling.records.events import Event, Inspected, Result
from scaling.records.task import Finish, Inspect
from scaling.worker.loop import Worker, inspected, trace_path
from tests.support import cuda_traces
from tests.support.inline_child import Clock
from tests.support.points import POINT, TASK

INSPECT = Inspect(windows=2, steps=3, traced_steps=5)


class Noting(FakeTrainer):
    said: list[str]
    profilers: list[Tracer]

    def step(self) -> None:
        self.said.append("step")
        super().step()

    def unsynced_step(self) -> None:
        super().unsynced_step()
        self.said[-1] = "unsynced"

    def digest(self) -> str | None:
        self.said.append("digest")
        return super().digest()

    def tracers(self) -> list[Tracer]:
        return self.profilers


class Profiler(Tracer):
    """One whose file is that of a GPU; it fails where told."""

    tells_gpu = True

    def __init__(self, said: list[str], fails: str = "", kernels: int = 1, end: str = ".json.gz") -> None:
        self.said, self.fails, self.kernels, self.end = said, fails, kernels, end

    def start(self, path: Path) -> None:
        self._do("start")
        self.path = path

    def stop(self) -> None:
        self._do("stop")
        events = [cuda_traces.kernel(cuda_traces.GEMM, 10, 20)] * self.kernels
        self.path.write_bytes(gzip.compress(cuda_traces.trace(events)))

    def _do(self, what: str) -> None:
        self.said.append(what)
        if what == self.fails:
            raise OSError(f"cannot {what}\nat all")


def inspect(tmp_path: Path, *profilers: Tracer, said: list[str] | None = None) -> tuple[Inspected, list[Event]]:
    """The answer of a rank of two that steps 0.5 s and exchanges 0.1 s, and all that it told."""
    clock, events = Clock(), list[Event]()
    options = {"step_s": "0.5", "exchange_s": "0.1"}
    task = replace(TASK, point=replace(POINT, world_size=2, options=options), hosts=("node1", "node1"))
    trainer = Noting(task, clock=clock, sleep=clock.sleep)
    trainer.said, trainer.profilers = [] if said is None else said, list(profilers)
    path = tmp_path / "traces" / "0001-a.0"
    worker = Worker(
        trainer, lambda event, hold=False: events.append(event), lambda: True, clock, clock, trace=path
    )
    assert worker.obey(INSPECT)
    assert not worker.obey(Finish())
    (found,) = (event for event in events if isinstance(event, Inspected))
    return found, events


def test_the_digest_comes_first_and_the_result_last(tmp_path: Path) -> None:
    said: list[str] = []
    _, events = inspect(tmp_path, Profiler(said), said=said)
    unsynced = ["step", *["unsynced"] * 7]  # a common start, one that does not count, two windows of three
    traced = ["start", "step", *["step"] * 5, "stop"]
    assert said == ["digest", *unsynced, *traced]
    assert isinstance(events[-1], Result) and events[-1].digest is not None


def test_windows_without_the_exchange_share_their_edges(tmp_path: Path) -> None:
    found, _ = inspect(tmp_path)
    assert [(one.index, one.steps) for one in found.unsynced] == [(0, 3), (1, 3)]
    assert [one.seconds for one in found.unsynced] == [pytest.approx(1.5)] * 2
    assert found.unsynced[1].start_s == found.unsynced[0].end_s
    assert not any(one.measured for one in found.unsynced)


class Alone(FakeTrainer):
    computed: threading.Event

    def sync(self) -> None:
        assert self.computed.wait(60)
        self.computed.clear()
        super().sync()


class Overlapping(Noting):
    """One whose exchange can run beside its compute, unless it has no memory for it."""

    fits = True
    computed: threading.Event

    def unsynced_step(self) -> None:
        self.said.append("beside")
        self.computed.set()

    def enter_thread(self) -> None:
        self.said.append(f"entered by {threading.current_thread() is threading.main_thread()}")

    def exchange_alone(self) -> FakeTrainer | None:
        self.computed = threading.Event()
        point = replace(self._task.point, kind="comm")
        alone = Alone(replace(self._task, point=point), clock=self._clock, sleep=self._sleep)
        alone.computed = self.computed
        return alone if self.fits else None


def beside(kind: type[Overlapping], *, fits: bool = True) -> tuple[Inspected, Overlapping]:
    clock = Clock()
    point = replace(POINT, world_size=2, options={"step_s": "0.5", "comm_s": "0.1"})
    trainer = kind(replace(TASK, point=point, hosts=("node1", "node1")), clock=clock, sleep=clock.sleep)
    trainer.said, trainer.profilers, trainer.fits = [], [], fits
    worker = Worker(trainer, lambda event, hold=False: None, lambda: True, clock, clock)
    return inspected(worker, Inspect(windows=0, steps=3, traced_steps=0, beside_windows=2), None), trainer


@pytest.mark.parametrize("fits", [True, False])
def test_the_exchange_is_timed_while_something_is_computed(fits: bool) -> None:
    found, trainer = beside(Overlapping, fits=fits)
    assert [(one.index, one.steps, one.samples) for one in found.beside] == [(0, 3, 0), (1, 3, 0)][: 2 * fits]
    assert [one.seconds for one in found.beside] == [pytest.approx(0.3)] * 2 * fits
    assert ("beside" in trainer.said) == fits
    assert trainer.said.count("entered by False") == fits, "the thread of the exchange takes the rank's device"


def test_what_compute_raises_beside_the_exchange_is_raised() -> None:
    class Broken(Overlapping):
        def unsynced_step(self) -> None:
            self.computed.clear = lambda: None  # type: ignore[method-assign]
            super().unsynced_step()
            raise RuntimeError("no compute")

    with pytest.raises(RuntimeError, match="no compute"):
        beside(Broken)


NOT_STARTED = "no trace: the profiler did not start: OSError: cannot start at all"
# By profilers: the ends of their files, whether the GPU's times are read, the windows, the notes.
TRACES: list[tuple[list[dict[str, Any]], list[str], bool, int, tuple[str, ...]]] = [
    ([{}], [".json.gz"], True, 1, ()),
    # As where the driver keeps its counters from users.
    ([{"kernels": 0}], [".json.gz"], False, 1,
     ("the trace has no GPU events: check that this user may read its counters (CUPTI)",)),
    ([{"fails": "start"}], [], False, 0, (NOT_STARTED,)),
    ([{"fails": "stop"}], [], False, 1, ("no trace: the profiler did not end: OSError: cannot stop at all",)),
    ([{"fails": "start"}, {"end": ".other.json.gz"}], [".other.json.gz"], True, 1, (NOT_STARTED,)),
    ([], [], False, 0, ("no trace: the strategy's trainer has no profiler",)),
]  # fmt: skip


@pytest.mark.parametrize(("profilers", "ends", "has_gpu", "windows", "notes"), TRACES)
def test_a_trace_is_written_and_read_and_a_profiler_that_fails_costs_a_note(
    tmp_path: Path, profilers: list[dict[str, Any]], ends: list[str], has_gpu: bool, windows: int,
    notes: tuple[str, ...],
) -> None:  # fmt: skip
    """The steps are made all the same: other ranks make theirs."""
    said: list[str] = []
    found, events = inspect(tmp_path, *(Profiler(said, **one) for one in profilers), said=said)
    assert (found.traces, found.notes) == (tuple(f"traces/0001-a.0{end}" for end in ends), notes)
    assert all(msgspec.json.decode(gzip.decompress((tmp_path / one).read_bytes())) for one in found.traces)
    assert [one.steps for one in found.traced] == [5] * windows
    assert [one.seconds for one in found.traced] == pytest.approx([3.0] * windows)
    assert (found.gpu and found.gpu.steps) == (5 if has_gpu else None)
    assert said.count("step") == 1 + 1 + 5
    assert isinstance(events[-1], Result)


def test_a_folder_that_cannot_be_made_costs_a_note(tmp_path: Path) -> None:
    (tmp_path / "traces").write_text("a file is in the way")
    said: list[str] = []
    found, _ = inspect(tmp_path, Profiler(said), said=said)
    assert found.notes[0].startswith("no trace: the profiler did not start: FileExistsError")
    assert said.count("step") == 1 + 1 + 5


def test_traces_lie_beside_the_logs() -> None:
    assert trace_path("/runs/a/logs/0004-x-r0.1.log") == Path("/runs/a/traces/0004-x-r0.1")
