"""The objects that all attempts of a sweep share."""

from __future__ import annotations

from collections.abc import Callable

from scaling.plan.plan import Plan
from scaling.records.messages import ToAgent, ToSweep
from scaling.records.point import Record
from scaling.records.task import Clocks
from scaling.transport.mailbox import Mailbox


class Bench(Record, frozen=True, kw_only=True):
    """Shared objects of all attempts. `logs` is the folder of their logs."""

    plan: Plan
    mailbox: Mailbox[ToAgent, ToSweep]
    logs: str
    clock: Callable[[], float]
    unix_clock: Callable[[], float]

    @property
    def clocks(self) -> Clocks:
        config = self.plan.config
        assert config.startup_timeout_s is not None and config.point_timeout_s is not None
        return Clocks(
            startup_s=config.startup_timeout_s,
            stall_s=config.stall_timeout_s,
            deadline_s=config.point_timeout_s,
        )
