"""Tasks on paper: those of a point as rank 0 would hand them out, on this host and with made-up ports."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import islice
from typing import Any

from scaling import frameworks
from scaling.plan import placement
from scaling.plan.placement import Slot
from scaling.plan.tasks import rank_tasks, wanted_ports, with_ports
from scaling.records.point import Kind
from scaling.records.task import Clocks, Task
from tests.support.points import make_point

LIMIT_S = 240
PORTS = range(5000, 5100)


def tasks(
    strategy: str, kind: Kind, size: int, *, ports: Iterable[int] = PORTS, servers: int = 1, **fields: Any
) -> list[Task]:
    """One task per rank on this host. `fields` are the point's, by default the digits at batch 4 on CPU."""
    traits = frameworks.load(strategy).traits(strategy)
    settled = {"model": "digits-cnn", "data": "digits", "device": "cpu", "batch_size": 4, **fields}
    point = make_point(
        strategy=strategy, kind=kind, world_size=size, round=0, batch_rule="weak",
        servers=servers if traits.servers else 0, **settled,
    )  # fmt: skip
    cpus = sorted(os.sched_getaffinity(0))
    mine = [
        Slot(launch_rank=rank, host="localhost", local_rank=rank, cpus=(cpus[rank % len(cpus)],), threads=1,
             device_index=rank)
        for rank in range(size)
    ]  # fmt: skip
    clocks = Clocks(startup_s=LIMIT_S, stall_s=LIMIT_S, deadline_s=LIMIT_S)
    beside = placement.server_slots(point, mine, mine)
    made = rank_tasks(point, mine, beside, {}, attempt=1, retry=0, seed=1, clocks=clocks, logs="")
    wanted = wanted_ports(made, traits)
    given = iter(ports)
    held = {slot: tuple(islice(given, one.count)) for slot, one in enumerate(wanted)}
    return list(with_ports(made, traits, held))


def one_task(strategy: str = "torch:plain", kind: Kind = "solo", **fields: Any) -> Task:
    """The task of a point of one rank."""
    (task,) = tasks(strategy, kind, 1, **fields)
    return task
