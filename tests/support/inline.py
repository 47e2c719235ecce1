"""A whole launch in this process: real agents and a real sweep, workers that follow the fake
strategy's script on a virtual clock. No sleeping, no threads: the order of events is always the same."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import msgspec

from scaling import __version__
from scaling.agent.agent import Agent
from scaling.agent.child import Child, Start
from scaling.hosts import connections
from scaling.hosts.proc import adopt_orphans
from scaling.plan import config, plan, validation
from scaling.records import store
from scaling.records.host import HostInfo
from scaling.records.messages import SWEEP_DECODER, Dismiss, Enrol, Reserve, ToAgent, ToSweep
from scaling.records.run import SCHEMA, Header, PointRecord
from scaling.records.task import Task
from scaling.run.enrolment import ask_of_outside
from scaling.sweep.sweep import Sweep
from scaling.sweep.view.live import make as make_view
from scaling.sweep.view.plain import View
from scaling.transport.base import SILENT_S, Hub, Mailbox
from tests.support.inline_child import Clock, InlineChild, Told

# Points by themselves, as many and as long as on devices that hold one model at a time.
KINDS = ["exchange", "solo", "together", "comm"]
ALONE: dict[str, Any] = {"interleave": False, "rounds": 3, "windows": 10, "kinds": KINDS}


class Run(NamedTuple):
    """A finished sweep, read back."""

    folder: Path
    header: Header
    records: tuple[PointRecord, ...]

    def of(self, kind: str = "exchange", size: int = 1, strategy: str | None = None) -> list[PointRecord]:
        """The records of one kind and world size."""
        return [
            record
            for record in self.records
            if (record.point.kind, record.point.world_size) == (kind, size)
            and strategy in (None, record.point.strategy)
        ]


class PaperAgent(Agent):
    """An agent whose host need not be this one: the ports that it reserves are made up."""

    def _reserve(self, order: Reserve) -> tuple[int, ...]:
        return tuple(range(5000, 5000 + order.count))


def host(name: str = "node1", cores: int = 16, **changes: Any) -> HostInfo:
    """A host of so many cores."""
    fields: dict[str, Any] = {
        "hostname": name, "os": "Debian 12", "kernel": "6.1", "cpu_model": "Test CPU", "sockets": 1,
        "cores": tuple((core,) for core in range(cores)), "memory_bytes": 1 << 34, "load_1m": 0.0,
        "python": "3.11", "versions": {"scaling": __version__}, "nics": (),
    }  # fmt: skip
    return HostInfo(**{**fields, **changes})


def enrol(one: HostInfo, **changes: Any) -> Enrol:
    """An agent's enrolment on a host."""
    fields: dict[str, Any] = {"host": one, "version": __version__, "code": "c0de", "missing": {}}
    return Enrol(**{**fields, **changes})


class Launch:
    """`size` inline ranks on `hosts` (default: one host with a core each).

    With `real` the workers are real processes and time is real; the ranks still live in this process. `start`
    is how such a worker is started, by default fresh.
    """

    def __init__(
        self, size: int, hosts: Sequence[HostInfo] | None = None, *, real: bool = False, start: Start | None = None
    ) -> None:
        self.real = real
        self.start = start
        if real:
            adopt_orphans()
        self.clock = Clock(1000.0)
        self.now: Callable[[], float] = time.monotonic if real else self.clock
        self.hub = Hub(size)
        self.hosts = list(hosts or [host(cores=size)] * size)
        self.enrolled = [enrol(one) for one in self.hosts]
        self.order: list[str] = []
        self.tasks: list[Task] = []
        self.children: list[InlineChild] = []
        self.told: list[Told] = []
        self.frozen: list[Agent] = []  # those that were stopped
        agent = Agent if real else PaperAgent
        self.agents = [
            agent(self.hub.rank(rank), spawn=self._spawn, clock=self.now, environ=os.environ)
            for rank in range(size)
        ]

    def _spawn(self, task: Task, environ: Mapping[str, str]) -> Child:
        self.order.append(f"{task.point.label} rank {task.rank}")
        self.tasks.append(task)
        if self.real:
            return Child(task, environ, self.start)
        self.children.append(InlineChild(task, self.clock, lambda command: self.told.append(Told(task, command))))
        return self.children[-1]

    def turn(self) -> None:
        """Give each agent a turn. Scripted workers send nothing, so the kernel is not asked for connections."""
        with nullcontext() if self.real else mock.patch.object(connections, "read", dict):
            self._turn()

    def _turn(self) -> None:
        begun = len(self.told)
        for agent in self.agents:
            if agent not in self.frozen:
                agent.turn()
        running = tuple(child.task for child in self.children if child.runs)
        self.told[begun:] = [told._replace(running=running) for told in self.told[begun:]]

    def wait(self) -> None:
        """Time passes when nothing happens."""
        if self.real:
            time.sleep(0.002)
        else:
            self.clock.now_s += 0.05

    def sweep(
        self,
        results: Path,
        *,
        view: View | None = None,
        resume: Path | None = None,
        unix_clock: Callable[[], float] | None = None,
        **fields: Any,
    ) -> Run:
        """Run a sweep of these SweepConfig fields and read back its file; by default of points by themselves."""
        own = {"strategy": ["fake:a"], "device": "cpu", "window_s": 0.02, "fresh_workers": self.real}
        settings = {**ALONE, **own, **fields}
        wanted = config.build(settings, source="test")
        validation.validate(wanted)
        mailbox = Mailbox[ToAgent, ToSweep](
            self.hub.rank(0), SWEEP_DECODER, turn=self.turn, wait=self.wait, clock=self.now, silent_s=SILENT_S
        )
        mailbox.hosts = [one.hostname for one in self.hosts]
        made = plan.make(wanted, ask_of_outside(mailbox, self.enrolled, wanted.strategy or ()))
        unix = unix_clock or (time.time if self.real else self.clock)
        now = datetime.fromtimestamp(unix(), timezone.utc)
        found = store.read(resume) if resume else None
        opened = store.Store.resume(resume) if resume else self._create(results, now, made, wanted)
        with opened:
            shown = view or make_view("none", sys.stdout)
            sweep = Sweep(
                made, mailbox, opened, shown, records=found.records if found else (),
                summaries=found.summaries if found else (), clock=self.now, unix_clock=unix,
            )  # fmt: skip
            try:
                sweep.run()
            finally:
                mailbox.order_all(Dismiss())
                self.turn()
        header, kept = store.load(opened.folder)
        return Run(folder=opened.folder, header=header, records=kept)

    def _create(self, results: Path, now: datetime, made: plan.Plan, wanted: config.SweepConfig) -> store.Store:
        return store.Store.create(results, "test", now, self.header(made, wanted))

    def header(self, made: plan.Plan, wanted: config.SweepConfig) -> Header:
        """The header of such a run."""
        return Header(
            schema=SCHEMA, version=__version__, code="c0de", git="", created_unix_s=self.clock.now_s, command=(),
            launch_size=len(self.agents), mpi="inline", seed=wanted.seed, config=msgspec.to_builtins(made.config),
            hosts=tuple({one.hostname: one for one in self.hosts}.values()),
            host_of_rank=tuple(one.hostname for one in self.hosts), device=made.device, why_default=made.why,
        )  # fmt: skip
