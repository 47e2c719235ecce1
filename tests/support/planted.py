"""Records of a machine with a known loss: seeded step times, with CPU time by thread as a rank's kernel tells it.

Every cell of a round lives in one epoch and is measured block by block, the plain loops alone as `each`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from scaling.analysis.table.rows import Breakdown, Row
from scaling.records.events import Finished, Ready, Window
from scaling.records.point import Point
from scaling.records.run import HelperRecord, PointRecord, RankRecord
from scaling.records.telemetry import CpuTime, Telemetry, ThreadTime
from tests.support.scripted_records import UNIX_S, by_size, loss_of, point

STEP_S = 0.1
NOISE = 0.004


class Plan(NamedTuple):
    """A machine of `size` devices, over so many rounds of so many blocks of so many steps.

    `alone` is what each seat's step takes in units of STEP_S; `stall` makes one of them a stalled one (its rank
    and dice in, a factor out). `contention` slows whoever is not alone; `speed` slows everything of a round and
    block. Of an exchange: `hooks_s` of CPU at every N, `steals_s` of communication threads on the core that
    computes, `wire_s` of waiting that compute does not hide, `comm_s` what the exchange takes alone, `server_s` of
    CPU that a server takes of rank 0's core; `polls` is the part of a rank's waiting for the others that its
    communication threads run.
    """

    size: int = 4
    rounds: int = 6
    blocks: int = 6
    steps: int = 7
    alone: Sequence[float] = ()
    stall: Callable[[int, random.Random], float] = lambda _rank, _dice: 1.0
    contention: float = 1.0
    speed: Callable[[int, int], float] = lambda _round, _block: 1.0
    hooks_s: float = 0.0
    steals_s: float = 0.0
    wire_s: float = 0.0
    comm_s: float = 0.01
    server_s: float = 0.0
    polls: float = 0.0
    tells_cpu: bool = True
    threads: int = 1


class Step(NamedTuple):
    """One step of one rank: seconds, of which its threads ran, and its main thread queued."""

    wall_s: float
    main_s: float
    comm_s: float = 0.0
    queued_s: float = 0.0


def run(plan: Plan, seed: int = 1) -> list[PointRecord]:
    """All records of a run: `each`, the exchange with 1 rank and with all, and its controls."""
    dice = random.Random(seed)
    return [one for number in range(plan.rounds) for one in _round(plan, number, dice)]


def _round(plan: Plan, number: int, dice: random.Random) -> list[PointRecord]:
    n = plan.size
    blocks = range(plan.blocks)
    plain = {b: [_plain(plan, r, number, b, dice, beside=False) for r in range(n)] for b in blocks}
    beside = {b: [_plain(plan, r, number, b, dice, beside=True) for r in range(n)] for b in blocks}
    single = {b: [_exchange(plan, _plain(plan, 0, number, b, dice, beside=False), 1)] for b in blocks}
    whole = {b: _wait(plan, [_plain(plan, r, number, b, dice, beside=True) for r in range(n)]) for b in blocks}
    comm = {b: [[Step(plan.comm_s, plan.steals_s)] * plan.steps for _ in range(n)] for b in blocks}
    made = (
        (point("each", n, number, strategy="fake:plain"), plain),
        (point("together", n, number), beside),
        (point("exchange", 1, number), single),
        (point("exchange", n, number), whole),
        (point("comm", n, number), comm),
    )
    return [_record(plan, of, by_block) for of, by_block in made]


def _plain(plan: Plan, rank: int, number: int, block: int, dice: random.Random, *, beside: bool) -> list[Step]:
    level = STEP_S * (plan.alone[rank] if plan.alone else 1.0) * plan.speed(number, block)
    level *= plan.contention if beside else 1.0
    times = [level * plan.stall(rank, dice) * (1 + dice.gauss(0, NOISE)) for _ in range(plan.steps)]
    return [Step(time, time) for time in times]


def _exchange(plan: Plan, plain: Sequence[Step], ranks: int) -> list[Step]:
    """The same steps in the wrapper of an exchange, before anybody waits."""
    steals_s = plan.steals_s if ranks > 1 else 0.0
    return [
        Step(one.wall_s + plan.hooks_s + steals_s, one.main_s + plan.hooks_s, steals_s, steals_s) for one in plain
    ]


def _wait(plan: Plan, plain: Sequence[Sequence[Step]]) -> list[list[Step]]:
    """Every step ends for all when the last rank's does, and the wire is done."""
    own = [_exchange(plan, steps, plan.size) for steps in plain]
    if plan.server_s:
        own[0] = [
            one._replace(wall_s=one.wall_s + plan.server_s, queued_s=one.queued_s + plan.server_s)
            for one in own[0]
        ]
    last = [max(steps) + plan.wire_s for steps in zip(*([s.wall_s for s in rank] for rank in own), strict=True)]
    return [[_until(plan, one, wall_s) for one, wall_s in zip(rank, last, strict=True)] for rank in own]


def _until(plan: Plan, own: Step, wall_s: float) -> Step:
    polled_s = plan.polls * (wall_s - own.wall_s)
    return own._replace(wall_s=wall_s, comm_s=own.comm_s + polled_s)


# ---------------------------------------------------------------- as records


def _record(plan: Plan, of: Point, by_block: Mapping[int, Sequence[Sequence[Step]]]) -> PointRecord:
    ranks = tuple(
        _rank(plan, of, rank, [by_block[b][rank] for b in sorted(by_block)]) for rank in range(of.world_size)
    )
    made = PointRecord(
        point=of, outcome=Finished(), ranks=ranks, started_unix_s=UNIX_S, wall_s=10.0, startup_s=1.0,
        measured_s=max(rank.measured_s for rank in ranks), hosts=("node1",) * of.world_size, epoch=of.round,
    )  # fmt: skip
    return _served(plan, made) if plan.server_s and of.kind == "exchange" and of.world_size > 1 else made


def _rank(plan: Plan, of: Point, rank: int, blocks: Sequence[Sequence[Step]]) -> RankRecord:
    windows = tuple(_window(of, index, steps) for index, steps in enumerate(blocks))
    return RankRecord(
        rank=rank, launch_rank=rank, host="node1", outcome=Finished(), cpus=(rank,),
        ready=Ready(import_s=1, build_s=1, parameters=1, gradient_bytes=4, device_name="Test CPU"),
        windows=windows, telemetry=Telemetry(cpu=_cpu([step for steps in blocks for step in steps]))
        if plan.tells_cpu else Telemetry(),
    )  # fmt: skip


def _window(of: Point, index: int, steps: Sequence[Step]) -> Window:
    seconds, start_s, batch = sum(step.wall_s for step in steps), 100.0 + 10 * index, of.workload.batch_size
    return Window(
        index=index, measured=True, steps=len(steps), samples=0 if of.kind == "comm" else len(steps) * batch,
        start_s=start_s, end_s=start_s + seconds, end_unix_s=UNIX_S + 10 * index + seconds, loss=1.0,
        uncounted_samples=batch, step_s=tuple(step.wall_s for step in steps) if of.kind == "together" else (),
    )  # fmt: skip


def _cpu(steps: Sequence[Step]) -> CpuTime:
    main = ThreadTime(
        name="python", threads=1, run_s=sum(step.main_s for step in steps),
        queued_s=sum(step.queued_s for step in steps),
    )  # fmt: skip
    threads = [main]
    if comm_s := sum(step.comm_s for step in steps):
        threads.append(ThreadTime(name="gloo_tcp_loop", threads=2, run_s=comm_s, queued_s=0.0))
    wall_s = sum(step.wall_s for step in steps)
    return CpuTime(
        steps=len(steps), wall_s=wall_s, kernel_s=0.0, minor_faults=0, major_faults=0, threads=tuple(threads)
    )


def _served(plan: Plan, made: PointRecord) -> PointRecord:
    steps = plan.blocks * plan.steps
    cpu = CpuTime(
        steps=steps, wall_s=made.measured_s, kernel_s=0.0, minor_faults=0, major_faults=0,
        threads=(ThreadTime(name="python", threads=1, run_s=plan.server_s * steps, queued_s=0.0),),
    )  # fmt: skip
    helper = HelperRecord(
        name="server-0", launch_rank=0, host="node1", outcome=Finished(), telemetry=Telemetry(cpu=cpu)
    )
    return replace(made, helpers=(helper,))


def older(made: PointRecord) -> PointRecord:
    """The same of a record that tells how much of one core each rank used, and nothing else of CPUs."""
    ranks = []
    for rank in made.ranks:
        cpu = rank.telemetry.cpu
        assert cpu is not None
        used = Telemetry(cpu_percent=100 * cpu.run_s / cpu.wall_s)
        ranks.append(replace(rank, telemetry=used))
    return replace(made, ranks=tuple(ranks), epoch=None)


# ---------------------------------------------------------------- reading the answers


def lost(records: list[PointRecord], size: int = 4) -> tuple[Row, dict[str, float]]:
    """The row of all ranks, and what it lost by cause in percent."""
    row = by_size(records)[size]
    found = loss_of(row)
    return row, {cause: 100 * (getattr(found, cause) or 0.0) for cause in Breakdown.__struct_fields__}
