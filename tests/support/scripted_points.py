"""Running points in any state, their records and rows, without a sweep: what a view is shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scaling.analysis.statistics.intervals import Estimate
from scaling.analysis.table.rows import Row
from scaling.records.events import Failed, Finished, Hello, Ready, Window
from scaling.records.messages import Report
from scaling.records.point import Kind, Point
from scaling.records.run import SCHEMA, Header, PointRecord, PointWarning, RankRecord
from scaling.records.task import Run, Task
from scaling.sweep.state import Ahead, PointState, commanded, fold
from scaling.sweep.state import ChildState as RankState
from scaling.sweep.view.plain import View
from tests.support.inline import host
from tests.support.inline_child import Clock
from tests.support.points import make_point

BATCH = 32
WINDOW_S = 0.2
READY = Ready(import_s=1.0, build_s=0.1, parameters=1, gradient_bytes=4, device_name="cpu")


def point(world_size: int, kind: Kind = "exchange", number: int = 0, strategy: str = "torch:gloo") -> Point:
    return make_point(
        strategy=strategy, kind=kind, world_size=world_size, round=number, model="digits-cnn", data="digits",
        device="cpu", batch_rule="weak", batch_size=BATCH,
    )  # fmt: skip


def hosts_of(world_size: int, hosts: int) -> tuple[str, ...]:
    per_host = -(-world_size // hosts)
    return tuple(f"node{rank // per_host + 1}" for rank in range(world_size))


def header(world_size: int = 2, hosts: int = 1) -> Header:
    names = hosts_of(world_size, hosts)
    return Header(
        schema=SCHEMA, version="0.1.0", code="c0de", git="", created_unix_s=0.0, command=("scaling",),
        launch_size=world_size, mpi="Open MPI", seed=1,
        config={"strategy": ["torch:gloo"], "model": "digits-cnn", "data": "digits", "batch_size": BATCH,
                "global_batch_size": None, "world_sizes": [1, world_size]},
        hosts=tuple(host(name, 2, cpu_model="Xeon") for name in dict.fromkeys(names)),
        host_of_rank=names, device="cpu", why_default="no NVIDIA GPU on node1", estimate_s=90.0,
    )  # fmt: skip


def starting(of: Point, hosts: int = 1, started_s: float = 1000.0) -> PointState:
    names = hosts_of(of.world_size, hosts)
    tasks = [
        Task(
            point=of, attempt=1, rank=rank, launch_rank=rank, local_rank=0, local_world_size=1, hosts=names,
            device_index=0, cpus=(0,), threads=1, seed=1, log=f"logs/0001.{rank}.log",
        )
        for rank in range(of.world_size)
    ]  # fmt: skip
    ranks = tuple(RankState(task=task) for task in tasks)
    return PointState(point=of, ranks=ranks, expected=10, started_s=started_s, started_unix_s=0.0)


def tell(state: PointState, rank: int, event: Any) -> PointState:
    return fold(state, Report(attempt=1, rank=rank, role="worker", event=event))


def ready(state: PointState) -> PointState:
    for rank in range(len(state.ranks)):
        state = tell(state, rank, Hello(pid=100 + rank, affinity=(0,)))
        state = tell(state, rank, READY)
    return state


def window(index: int, *, measured: bool, samples: int = 2 * BATCH, seconds: float = WINDOW_S) -> Window:
    start_s = 10.0 + index * seconds
    return Window(
        index=index, measured=measured, steps=2, samples=samples, start_s=start_s, end_s=start_s + seconds,
        end_unix_s=start_s, loss=1.0,
    )  # fmt: skip


def warming(state: PointState, windows: int = 3) -> PointState:
    state = commanded(ready(state), Run(windows=4, steps=2, measured=False))
    for rank in range(len(state.ranks)):
        for index in range(windows):
            state = tell(state, rank, window(index, measured=False))
    return state


def measuring(state: PointState, windows: int = 4, slow: tuple[int, ...] = ()) -> PointState:
    """Every rank has done `windows` windows of ten, the slow ones a window less."""
    state = commanded(warming(state, 4), Run(windows=10, steps=2, measured=True))
    for rank in range(len(state.ranks)):
        for index in range(windows - (rank in slow)):
            state = tell(state, rank, window(index, measured=True))
    return state


def record(of: Point, outcome: Finished | Failed | None = None, **fields: Any) -> PointRecord:
    windows = tuple(window(index, measured=True) for index in range(10))
    ranks = tuple(
        RankRecord(rank=rank, launch_rank=rank, host="node1", outcome=Finished(), windows=windows)
        for rank in range(of.world_size)
    )
    return PointRecord(
        point=of, outcome=outcome or Finished(), ranks=ranks, started_unix_s=0.0, wall_s=4.9, startup_s=2.0,
        measured_s=2.0, **fields,
    )  # fmt: skip


CRASH = Failed(
    cause="crash(SIGSEGV)", message="died\n\x1b[31mbadly\x1b[0m", rank=1, host="node1", log="logs/0002.1.log"
)


def row(world_size: int, share: float = 0.95, strategy: str = "torch:gloo", **fields: Any) -> Row:
    rate = 320.0 * world_size * share
    estimates: dict[str, Any] = {
        "samples_per_s": Estimate(mean=rate, low=rate - 1.5, high=rate + 1.5, n=3),
        "efficiency": Estimate(mean=share, low=share - 0.004, high=share + 0.004, n=3),
    }
    return Row(
        workload=point(1).workload, hardware=point(1).hardware, strategy=strategy,
        interconnect="auto", options={}, placement="pack",
        global_batch_size=BATCH * world_size, world_size=world_size,
        nodes=1, rounds=3, rounds_tried=3, **(estimates | fields),
    )  # fmt: skip


def ten_rows() -> list[Row]:
    rows = [row(n, 1.0 - 0.03 * n, s) for s in ("torch:gloo", "torch:nccl") for n in (1, 2, 4, 8)]
    failed = row(16, flags=("FAILED",), failed=CRASH, samples_per_s=None, efficiency=None)
    return [*rows, failed, row(16, 0.6, flags=("UNSETTLED",))]


def running(
    screen: View, clock: Clock, state: PointState, rows: Sequence[Row] = (), notes: Sequence[str] = ()
) -> None:
    """A sweep of 60 points at its 23rd, whose next refresh was due."""
    size = state.point.world_size
    screen.opened(header(size, len(set(state.ranks[0].task.hosts))), 60)
    screen.advanced(Ahead(0.375, 268.0))
    screen.finished(record(point(1)), rows, 22, 60)
    for text in notes:
        screen.note(text)
    clock.now_s += 12
    screen.began(state, 23)


def everything(screen: View, clock: Clock) -> None:
    """Every call of a View, with refreshes and heartbeats due."""
    screen.opened(header(), 15)
    begun = starting(point(2))
    screen.began(begun, 1)
    for state in (begun, warming(begun), measuring(begun)):
        clock.now_s += 100
        screen.progress(state)
    screen.advanced(Ahead(1 / 15, 70.0))
    screen.finished(record(point(2)), ten_rows(), 1, 15)
    screen.finished(record(point(2), CRASH, warnings=(PointWarning(kind="other", text="w"),)), ten_rows(), 2, 15)
    screen.extended(20)
    screen.note("a note")
    screen.closed()
