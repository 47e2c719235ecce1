"""Rank 0: for each point dispatch, collect, append; retries, further rounds, Ctrl-C.

One thread, never blocking: each turn takes what agents sent, folds it, answers, lets the view look.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from scaling import frameworks
from scaling.analysis.incremental import Analyser
from scaling.errors import Interrupted
from scaling.plan.plan import Plan
from scaling.records.events import Failed, Finished
from scaling.records.messages import INTERRUPT_GRACE_S, Report, Reserved, ToAgent, ToSweep
from scaling.records.point import Point
from scaling.records.run import PointRecord
from scaling.records.store import Store, done_keys
from scaling.sweep.attempt import Attempt, Bench
from scaling.sweep.outcome import record_of
from scaling.sweep.view.base import View
from scaling.transport.mailbox import Mailbox

RETRIED = ("port-taken",)


class Sweep:
    """Measures the points of a plan that `records` lack, in rounds, and appends their records."""

    def __init__(
        self,
        plan: Plan,
        mailbox: Mailbox[ToAgent, ToSweep],
        store: Store,
        view: View,
        *,
        records: Sequence[PointRecord] = (),
        target_half_width: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        self.plan = plan
        self.mailbox = mailbox
        self.store = store
        self.view = view
        self.records = list(records)
        self._keys = {record.point.key for record in records}
        self._analyser = Analyser(records)
        self._done = done_keys(records)
        self._target = target_half_width
        self._clock = clock
        self._unix_clock = unix_clock
        logs = store.folder.resolve() / "logs"
        # After those whose logs are there: a resumed run appends to no older log.
        self._attempt = max((int(log.name[:4]) for log in logs.glob("[0-9]" * 4 + "-*")), default=0)
        self._bench = Bench(plan=plan, mailbox=mailbox, logs=str(logs), clock=clock, unix_clock=unix_clock)

    def run(self) -> None:
        """Measure everything. Raises Interrupted after a signal, StoreError when a record cannot be kept;
        whatever was kept before stays."""
        begun_s, measured = self._clock(), 0
        number, planned = 0, self.plan.config.rounds
        while number < planned:
            for point in self.plan.round(number):
                if point.key not in self._done:
                    self._one(point, begun_s, measured, planned)
                    measured += 1
            number += 1
            if number == planned and self._too_wide() and planned < self.plan.config.max_rounds:
                planned += 1
                self.view.extended(len(self.plan.cells) * planned)

    def _one(self, point: Point, begun_s: float, measured: int, planned: int) -> None:
        total = len(self.plan.cells) * planned
        self._keys.add(point.key)
        number = len(self._keys)
        record = self._measured(point, number)
        self.store.append(record)
        self.records.append(record)
        self._analyser.add(record)
        each_s = (self._clock() - begun_s) / (measured + 1)
        self.view.finished(record, self._analyser.rows(), number, total, (total - number) * each_s)

    def _too_wide(self) -> bool:
        """Whether any claimed efficiency's interval is wider than `--target-ci` allows."""
        if self._target is None:
            return False
        found = [row.efficiency for row in self._analyser.rows() if row.efficiency is not None]
        return any(one.half_width is None or one.half_width > self._target for one in found)

    # ------------------------------------------------------------ one point

    def _measured(self, point: Point, number: int) -> PointRecord:
        """Measure a point; a cause that may be chance is tried once more, and the record says so."""
        if reason := self.plan.missing.get(point.strategy):
            return self._unmeasured(point, "missing", reason)
        if reason := self.plan.refused.get(point.cell):
            return self._unmeasured(point, "refused", reason)
        retries: tuple[str, ...] = ()
        while True:
            record = self._tried(point, number, retries)
            outcome = record.outcome
            if retries or isinstance(outcome, Finished) or outcome.cause not in RETRIED:
                return record
            retries = (f"{outcome.cause}: {outcome.message}",)
            self.view.note(f"{point.label}: {retries[0]}; trying once more")

    def _unmeasured(self, point: Point, cause: str, reason: str) -> PointRecord:
        failed = Failed(cause=cause, message=reason)
        traits = frameworks.load(point.strategy).traits(point.strategy)
        return PointRecord(
            point=point, outcome=failed, ranks=(), started_unix_s=self._unix_clock(), wall_s=0.0,
            startup_s=0.0, measured_s=0.0, synchronous=traits.synchronous,
        )  # fmt: skip

    def _tried(self, point: Point, number: int, retries: tuple[str, ...]) -> PointRecord:
        self._attempt += 1
        current = Attempt(self._bench, point, self._attempt, retries)
        self.view.began(current.state, number)
        try:
            while not current.over:
                for _, said in self.mailbox.news():
                    if isinstance(said, Report) and said.attempt == current.attempt:
                        current.hear(said)
                    elif isinstance(said, Reserved) and said.attempt == current.attempt:
                        current.reserved(said.slot, said.ports)
                if self.mailbox.signalled is not None:
                    raise Interrupted(self.mailbox.signalled)
                self.view.progress(current.state)
        finally:
            grace_s = 2.0 if self.mailbox.signalled is None else INTERRUPT_GRACE_S
            current.release("the point is over", grace_s=grace_s)
        return record_of(current.state, ended_s=self._clock())
