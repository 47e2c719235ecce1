"""Records with chosen step times, so that what an analysis must find can be computed by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from scaling.analysis.statistics.intervals import Estimate
from scaling.analysis.table.analyse import rows
from scaling.analysis.table.rows import Breakdown, Row
from scaling.records.crossing import bytes_per_step
from scaling.records.events import Failed, Finished, Ready, Window
from scaling.records.host import HostInfo
from scaling.records.network import Place
from scaling.records.point import BESIDE, Point
from scaling.records.run import (
    SCHEMA,
    Header,
    HelperRecord,
    PointRecord,
    PointWarning,
    Prediction,
    RankRecord,
    WarningKind,
)
from scaling.records.telemetry import Flow, Sample, Telemetry, Traffic
from tests.support.points import make_point

STEPS = 10
WINDOWS = 3
UNIX_S = 1_785_000_000.0
STRONG: dict[str, Any] = {"batch_rule": "strong"}


def point(kind: str = "exchange", world_size: int = 1, number: int = 0, **changes: Any) -> Point:
    """A point of `fake:a`, or of the plain loop for its controls."""
    plain = kind in ("solo", "each", *BESIDE)
    base: dict[str, Any] = {
        "strategy": "fake:plain" if plain else "fake:a", "kind": kind, "world_size": world_size,
        "round": number, "model": "digits-cnn", "data": "digits", "device": "cpu", "batch_rule": "weak",
        "batch_size": 32,
    }  # fmt: skip
    return make_point(**{**base, **changes})


def windows(step_s: float, batch_size: int, *, start_s: float = 100.0, losses: bool = True) -> tuple[Window, ...]:
    """Measured windows of `STEPS` steps each that share their edges."""
    each_s = step_s * STEPS
    return tuple(
        Window(
            index=index, measured=True, steps=STEPS, samples=STEPS * batch_size,
            start_s=start_s + index * each_s, end_s=start_s + (index + 1) * each_s,
            end_unix_s=UNIX_S + (index + 1) * each_s, loss=2.0 - 0.5 * index if losses else None,
        )
        for index in range(WINDOWS)
    )  # fmt: skip


def record(of: Point, *steps_s: float, hosts: Sequence[str] = ("node1",), **changes: Any) -> PointRecord:
    """A finished record whose rank r took `steps_s[r]` a step (one time: all alike), spread over `hosts`."""
    times = steps_s if len(steps_s) == of.world_size else steps_s * of.world_size
    ranks = tuple(
        RankRecord(
            rank=rank,
            launch_rank=rank,
            host=hosts[rank * len(hosts) // of.world_size],
            outcome=Finished(),
            cpus=(rank,),
            ready=Ready(import_s=1.0, build_s=0.1, parameters=10, gradient_bytes=40, device_name="Test CPU"),
            windows=windows(time_s, of.workload.batch_size, losses=of.kind != "comm"),
        )
        for rank, time_s in enumerate(times)
    )
    made = PointRecord(
        point=of, outcome=Finished(), ranks=ranks, started_unix_s=UNIX_S, wall_s=10.0, startup_s=1.0,
        measured_s=max(times) * STEPS * WINDOWS,
    )  # fmt: skip
    return replace(made, **changes)


def warning(text: str, kind: WarningKind = "other") -> PointWarning:
    """A warning of a record."""
    return PointWarning(kind=kind, text=text)


def asynchronous(made: PointRecord, staleness: float | None = None) -> PointRecord:
    """The same of a mode whose ranks do not wait for each other; its measured windows saw `staleness`."""
    ranks = tuple(
        replace(rank, windows=tuple(replace(window, staleness=staleness) for window in rank.windows))
        for rank in made.ranks
    )
    return replace(made, ranks=ranks, synchronous=False)


def by_one_worker(made: PointRecord) -> PointRecord:
    """The same with rank 0's worker driving all devices: its samples are those of all, its cores
    those of all on its host."""
    count, first = made.point.world_size, made.ranks[0]
    whole = tuple(replace(window, samples=window.samples * count) for window in first.windows)
    cpus = tuple(cpu for rank in made.ranks if rank.host == first.host for cpu in rank.cpus)
    return replace(
        made, ranks=(replace(first, windows=whole, cpus=cpus),), hosts=tuple(rank.host for rank in made.ranks)
    )


def served(made: PointRecord, *cpu_percent: float | None, hosts: Sequence[str] = ("node1",)) -> PointRecord:
    """The same with a scheduler and parameter servers that used so much of a core, dealt out over `hosts`."""
    servers = [
        HelperRecord(
            name=f"server-{index}", launch_rank=0, host=hosts[index % len(hosts)], outcome=Finished(),
            telemetry=Telemetry(cpu_percent=used),
        )
        for index, used in enumerate(cpu_percent)
    ]  # fmt: skip
    scheduler = HelperRecord(
        name="scheduler", launch_rank=0, host="node1", outcome=Finished(), telemetry=Telemetry(cpu_percent=99.0)
    )
    return replace(made, helpers=(scheduler, *servers))


def carried(made: PointRecord, card: str, *, slow: str = "") -> PointRecord:
    """The same as a ring whose bytes all went over `card`, asked for or not; the paths to and from the node `slow`
    had a tenth of the rate of the others, which were busy for a twentieth of the time."""
    names = [rank.host for rank in made.ranks]
    ranks = []
    for rank, peer in zip(made.ranks, (*made.ranks[1:], made.ranks[0]), strict=True):
        sent = int(2 * (len(names) - 1) / len(names) * 40 * (STEPS * WINDOWS + 1) * 1.02)
        share = 0.5 if slow in (rank.host, peer.host) else 0.05
        flow = Flow(address=rank.host, peer=peer.host, sent_bytes=sent, busy_s=share * made.measured_s)
        traffic = (Traffic(name=card, received_bytes=sent, sent_bytes=sent),)
        told = Telemetry(traffic=traffic, flows=(flow,))
        place = Place(address="", interface=made.point.interconnect)
        assert rank.ready is not None
        ready = replace(rank.ready, crossing_bytes_per_step=bytes_per_step("ring", 40, names, ()))
        ranks.append(replace(rank, place=place, telemetry=told, ready=ready))
    return replace(made, ranks=tuple(ranks), hosts=tuple(names), pattern="ring")


def with_losses(made: PointRecord, *losses: float | None) -> PointRecord:
    """The same whose windows end with these losses on every rank."""
    ranks = tuple(
        replace(rank, windows=tuple(replace(w, loss=x) for w, x in zip(rank.windows, losses, strict=True)))
        for rank in made.ranks
    )
    return replace(made, ranks=ranks)


def with_window(made: PointRecord, rank: int, index: int, **changes: Any) -> PointRecord:
    """The record with one window of one rank changed."""
    windows, ranks = list(made.ranks[rank].windows), list(made.ranks)
    windows[index] = replace(windows[index], **changes)
    ranks[rank] = replace(ranks[rank], windows=tuple(windows))
    return replace(made, ranks=tuple(ranks))


def faster(made: PointRecord, factor: float) -> PointRecord:
    """The point with `factor` times its windows' times."""

    def short(one: Window) -> Window:
        start_s, end_s = factor * one.start_s, factor * one.end_s
        return replace(one, start_s=start_s, end_s=end_s, end_unix_s=end_s)

    ranks = (replace(rank, windows=tuple(map(short, rank.windows))) for rank in made.ranks)
    return replace(made, ranks=tuple(ranks))


def failed(of: Point, cause: str = "oom", message: str = "out of memory") -> PointRecord:
    """A record without any window."""
    why = Failed(cause=cause, message=message, rank=1, host="node1", log="logs/a.log")
    empty = tuple(replace(rank, outcome=why, ready=None, windows=()) for rank in record(of, 1.0).ranks)
    return replace(record(of, 1.0), outcome=why, ranks=empty, measured_s=0.0)


def numbered(records: Iterable[PointRecord], number: int) -> list[PointRecord]:
    """The same records in this round."""
    return [replace(one, point=replace(one.point, round=number)) for one in records]


def throttled(made: PointRecord, reason: str = "hw thermal") -> PointRecord:
    """The same with a GPU sample that names a throttle reason on rank 0."""
    sample = Sample(
        unix_s=UNIX_S, utilisation_percent=99.0, power_w=300.0, sm_clock_mhz=900.0, memory_used_bytes=1,
        temperature_c=80.0, throttle=(reason,),
    )  # fmt: skip
    first = replace(made.ranks[0], telemetry=Telemetry(samples=(sample,)))
    return replace(made, ranks=(first, *made.ranks[1:]))


def host(name: str = "node1", **changes: Any) -> HostInfo:
    """A small machine."""
    made = HostInfo(
        hostname=name, os="Debian 12", kernel="6.1.0", cpu_model="Test CPU 2.0 GHz", sockets=1,
        cores=((0,), (1,)), memory_bytes=8_000_000_000, load_1m=0.1, python="3.11.7",
        versions={"torch": "2.13.0"},
    )  # fmt: skip
    return replace(made, **changes)


def header(hosts: Sequence[HostInfo] = (), **changes: Any) -> Header:
    """The header of a two-rank run on one host."""
    found = tuple(hosts) or (host(),)
    made = Header(
        schema=SCHEMA, version="0.1.0", code="c0de", git="1234abc", created_unix_s=UNIX_S,
        command=("python", "-m", "scaling.run"), launch_size=4, mpi="Open MPI 5.0.11", seed=1,
        config={"rounds": 3, "windows": WINDOWS}, hosts=found, device="cpu",
        host_of_rank=tuple(one.hostname for one in found for _ in range(4 // len(found))),
    )  # fmt: skip
    return replace(made, **changes)


def sweep(number: int, solo_s: float, exchanges: dict[int, float], **changes: Any) -> list[PointRecord]:
    """One round: the plain loop alone, and per world size its exchange and its controls.

    At N > 1 the plain loops take solo x 1.02 beside each other, the last one solo x 1.04, and the
    communication alone takes half of `solo_s`.
    """
    made = [record(point("solo", 1, number), solo_s)]
    for n, step_s in exchanges.items():
        made.append(record(point("exchange", n, number, **changes), step_s))
        if n > 1:
            beside = (*(solo_s * 1.02,) * (n - 1), solo_s * 1.04)
            made.append(record(point("together", n, number), *beside))
            made.append(record(point("comm", n, number, **changes), solo_s / 2))
    return made


def written(folder: Path, run: tuple[Header, Sequence[PointRecord | Prediction]]) -> Path:
    """The run's file, as the store writes it."""
    folder.mkdir()
    made, records = run
    lines = [msgspec.json.encode(one) + b"\n" for one in (made, *records)]
    (folder / "run.jsonl").write_bytes(b"".join(lines))
    return folder


# ---------------------------------------------------------------- reading the answers


def by_size(records: Iterable[PointRecord]) -> dict[int, Row]:
    """The rows of one strategy by world size."""
    return {row.world_size: row for row in rows(records)}


def close(value: float) -> Any:
    return pytest.approx(value, abs=1e-9)


def mean(estimate: Estimate | None) -> float:
    """The mean of what must have been measured."""
    assert estimate is not None
    return estimate.mean


def half(estimate: Estimate | None) -> float:
    """Half of the interval that there must be."""
    assert estimate is not None and estimate.half_width is not None
    return estimate.half_width


def loss_of(row: Row) -> Breakdown:
    """The loss that must be claimed."""
    assert row.breakdown is not None
    return row.breakdown
