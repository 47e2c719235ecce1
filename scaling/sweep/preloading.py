"""What is done before points are measured: imports, once, and listening to idle networks before each round."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from msgspec.structs import replace

from scaling import frameworks
from scaling.plan import placement
from scaling.plan.plan import Plan
from scaling.plan.tasks import rank_tasks
from scaling.records.messages import Listen, Listened, Preload, Preloaded, ToAgent, ToSweep
from scaling.records.other_code import of_revision, revision
from scaling.records.point import Point
from scaling.records.task import Clocks, Task
from scaling.transport.mailbox import Mailbox

LISTEN_S = 0.5
PATIENCE_S = 10.0


def preload(plan: Plan, mailbox: Mailbox[ToAgent, ToSweep], within_s: float) -> None:
    """Have all agents import what they need, since half of a short run would else be imports, and wait until they
    have. Raises Interrupted on a signal."""
    wanted: dict[int, list[Task]] = defaultdict(list)
    for point in _samples(plan):
        slots = placement.slots_of(point, plan.slots)
        tasks = rank_tasks(
            point, slots, (), plan.network(point).places,
            attempt=0, retry=0, seed=plan.config.seed, clocks=Clocks(), logs="",
            malloc=plan.config.malloc, fresh=plan.config.fresh_workers, code=plan.code(point),
        )  # fmt: skip
        for task in tasks:
            wanted[task.launch_rank].append(task)
    names = tuple(dict.fromkeys(cell.strategy for cell in plan.cells if cell.strategy not in plan.missing))
    for rank, tasks_here in wanted.items():
        mailbox.order([rank], Preload(tasks=tuple(tasks_here), strategies=names))
    if wanted:
        mailbox.answers(Preloaded, wanted.keys(), within_s)


def listen(plan: Plan, mailbox: Mailbox[ToAgent, ToSweep]) -> None:
    """Have all agents count what their hosts' cards carry while nothing runs, where points cross hosts. Raises
    Interrupted on a signal."""
    if len(plan.hosts) > 1:
        mailbox.order_all(Listen(seconds=LISTEN_S))
        mailbox.answers(Listened, range(mailbox.size), LISTEN_S + PATIENCE_S)


def _samples(plan: Plan) -> Iterator[Point]:
    """Of each framework that can be imported beforehand, its plain loop on as many ranks as any point has: what an
    exchange asks of the environment there is none of yet, no port, no server."""
    by_baseline: dict[str, list[Point]] = defaultdict(list)
    for cell in plan.cells:
        if cell.strategy not in plan.missing:
            baseline = frameworks.load(cell.strategy).baseline
            by_baseline[of_revision(baseline, revision(cell.strategy))].append(cell)
    for baseline, cells in by_baseline.items():
        if frameworks.of_baseline(baseline).preload:
            largest = max(cells, key=lambda cell: cell.world_size)
            yield replace(largest, strategy=baseline, kind="solo", options={})
