"""All that an agent reads beside a child while measured windows run: devices, CPU time, traffic, energy.

Measured windows come in one stretch, or in many where points take turns: `begin` before each, `done` when the
child itself is done with it, `settle` when all ranks are. Readings are added up.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from msgspec.structs import replace

from scaling.agent.cpu_meter import CpuMeter
from scaling.agent.device_probe import DeviceProbe
from scaling.agent.energy_meter import EnergyMeter
from scaling.agent.idle import IdleTraffic
from scaling.agent.suspicion import Suspicion
from scaling.hosts import connections, foreign, interfaces, proc
from scaling.records.task import Task
from scaling.records.telemetry import Flow, Foreign, Telemetry, Traffic

# An agent that has no turn for so long while windows run stood still itself: it has one four times a second.
STILL_S = 1.0


class Watch:
    """The readings beside one child. A server is watched for its CPU alone.

    `measuring` tells whether a stretch runs for this child.
    """

    def __init__(
        self,
        task: Task,
        pid: int,
        *,
        computes: bool,
        idle: IdleTraffic | None = None,
        suspicion: Suspicion | None = None,
    ) -> None:
        self.measuring = False
        self._suspicion = suspicion if task.role == "worker" and task.point.has_own_cpus else None
        self._idle = idle or IdleTraffic()
        self._counted_s = self._counting_s = self._sampled_s = 0.0
        self._looked_s = self._still_s = self._asleep_before_s = self._suspended_s = 0.0
        self._counts_traffic = task.counts_traffic
        if task.counts_traffic:
            connections.read()  # what it imports, it imports now
        device = task.point.hardware.device if computes else "cpu"
        # Opening takes time, which no command should wait for.
        self._devices = DeviceProbe.open(device, task.device_indices, pid, shown_gpu=task.shown_gpu)
        self._cpu = CpuMeter(pid, task.cpus)
        self._energy = EnergyMeter() if task.counts_energy else None
        self._steps = 0
        self._census: foreign.Census | None = None
        self._foreign: list[Foreign] = []
        self._counters: interfaces.Reading | None = None
        self._connections: connections.Reading = {}
        self._connected: connections.Reading = {}
        self._carried: tuple[Traffic, ...] = ()
        self._flows: tuple[Flow, ...] = ()

    def begin(self, steps: int, now_s: float) -> None:
        """A stretch of measured windows is about to begin, of so many steps in all."""
        if self._counts_traffic:
            self._counters, self._connections = interfaces.read(), connections.read()
            self._connected = {}
            self._counting_s = time.monotonic()
        self._steps = steps
        self._devices.start()
        if self._energy is not None:
            self._energy.start()
        self._cpu.start()
        self.measuring, self._sampled_s, self._looked_s = True, now_s, now_s
        self._asleep_before_s = proc.asleep_s()

    def suspect(self) -> None:
        """Look who else runs until the windows that come next are done."""
        self._census = foreign.census()

    def look(self, now_s: float) -> None:
        """The agent has a turn: note how long it had none while windows run."""
        if self.measuring:
            self._still_s = max(self._still_s, now_s - self._looked_s)
            self._looked_s = now_s

    def sample(self, now_s: float) -> None:
        """Read the devices and the machine, if that is due."""
        self.look(now_s)
        if self.measuring and now_s - self._sampled_s >= self._devices.interval_s:
            self._sampled_s = now_s
            self._devices.sample()
        if self._energy is not None:
            self._energy.sample()

    def done(self) -> None:
        """The child is done with its windows; others may not be.

        Connections are read now too: when all are done, a peer may have left and its connections with it.
        """
        if not self.measuring:
            return
        self.measuring = False
        self._suspended_s += proc.asleep_s() - self._asleep_before_s
        self._cpu.end(self._steps)
        if self._suspicion is not None:
            self._suspicion.ran_alone(self._cpu.others)
        if self._energy is not None:
            self._energy.pause()
        if self._census is not None:
            self._foreign += foreign.busiest(self._census, foreign.census())
            self._census = None
        self._devices.pause()
        if self._counts_traffic:
            self._connected = {**self._connected, **connections.read()}

    def settle(self) -> None:
        """All ranks are done: a rank that was done before may have sent bytes that still waited for their turn."""
        self.done()
        if self._counters is not None:
            self._counted_s += time.monotonic() - self._counting_s
            self._carried = _traffic((*self._carried, *interfaces.since(self._counters, interfaces.read())))
            self._keep_flows({**self._connected, **connections.read()})
            self._counters = None

    def _keep_flows(self, connected: connections.Reading) -> None:
        self._flows = _flows((*self._flows, *connections.since(self._connections, connected)))

    def close(self) -> Telemetry:
        """What was read in all; of a stretch that was broken off, what is known."""
        self.done()
        if self._counters is not None:
            self._keep_flows(self._connected)
        return replace(
            self._devices.stop(),
            cpu=self._cpu.total(),
            traffic=self._carried,
            idle_traffic=self._idle.over(self._counted_s) if self._carried else (),
            flows=self._flows,
            foreign=_foreign(self._foreign),
            machine_energy=self._energy.total() if self._energy is not None else None,
            still_s=self._still_s if self._still_s > STILL_S else 0.0,
            suspended_s=round(self._suspended_s, 1),
        )


def _traffic(found: Iterable[Traffic]) -> tuple[Traffic, ...]:
    """The sum of each card's."""
    by_name: dict[str, Traffic] = {}
    for one in found:
        old = by_name.get(one.name, Traffic(name=one.name, received_bytes=0, sent_bytes=0))
        by_name[one.name] = Traffic(
            name=one.name,
            received_bytes=old.received_bytes + one.received_bytes,
            sent_bytes=old.sent_bytes + one.sent_bytes,
        )
    return tuple(by_name.values())


def _flows(found: Iterable[Flow]) -> tuple[Flow, ...]:
    """The sum of each path's."""
    by_path: dict[tuple[str, str], Flow] = {}
    for one in found:
        old = by_path.get((one.address, one.peer))
        by_path[one.address, one.peer] = (
            one
            if old is None
            else replace(old, sent_bytes=old.sent_bytes + one.sent_bytes, busy_s=old.busy_s + one.busy_s)
        )
    return tuple(by_path.values())


def _foreign(found: Iterable[Foreign]) -> tuple[Foreign, ...]:
    """The sum of each process's, by name, busiest first."""
    by_name: dict[str, Foreign] = {}
    for one in found:
        old = by_name.get(one.name, Foreign(name=one.name, run_s=0.0, over_s=0.0))
        by_name[one.name] = replace(old, run_s=old.run_s + one.run_s, over_s=old.over_s + one.over_s)
    return tuple(sorted(by_name.values(), key=lambda one: -one.run_s))
