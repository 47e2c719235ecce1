"""A point that is not measured stands still on every host; a canary tells meanwhile how fast its cores are."""

from __future__ import annotations

from collections.abc import Iterable

from scaling.agent.supervisor import Supervisor
from scaling.hosts import canary
from scaling.records.messages import Pause, Paused


def obey(order: Pause, children: Iterable[tuple[str, Supervisor]], launch_rank: int, now_s: float) -> Paused:
    """Stop these children, by role, and answer once they stand still."""
    found = None
    for role, supervisor in children:
        supervisor.pause(now_s)
        if role == "worker" and order.canary:
            found = canary.tried(supervisor.child.task.cpus)
    if found is None:
        return Paused(attempt=order.attempt, launch_rank=launch_rank)
    return Paused(
        attempt=order.attempt, launch_rank=launch_rank, canary_s=found.seconds, canary_queued_s=found.queued_s
    )
