"""One child as its agent supervises it: its clocks, the readings of its devices, why the agent ended it."""

from __future__ import annotations

from collections.abc import Set
from typing import Protocol

from msgspec.structs import replace

from scaling.agent.device_probe import DeviceProbe
from scaling.hosts import connections, interfaces
from scaling.records.events import Announce, Ended, Event, Failed, Outcome, Ready, Window
from scaling.records.task import Command, Finish, Run, Task
from scaling.records.telemetry import Telemetry, Traffic


class ChildLike(Protocol):
    """What is needed of a child (child.Child); tests run them inside the process."""

    task: Task
    pid: int
    strays: int
    events_fd: int
    exit_fd: int
    stdin_fd: int

    @property
    def unsent(self) -> bool: ...
    @property
    def sent(self) -> Set[str]: ...
    def tell(self, command: Command) -> None: ...
    def push(self) -> None: ...
    def events(self) -> list[Event]: ...
    def end(self, now_s: float, *, grace_s: float = 2.0, stacks: bool = False) -> None: ...
    def pursue(self, now_s: float) -> None: ...
    def ended(self) -> bool: ...
    def reap(self) -> Outcome: ...


class Supervisor:
    """A running child with what the agent knows of it. Times are the agent's clock."""

    def __init__(self, child: ChildLike, environ: dict[str, str], now_s: float) -> None:
        self.child = child
        self._environ = environ
        self._started_s = now_s
        self._spoke_s = now_s
        self._ready = False
        self._stepped = False
        self._told: Command | None = None  # the command that it has not answered in full
        self._reason: Failed | None = None
        self._probe: DeviceProbe | None = None
        self._counters: interfaces.Reading = {}
        self._connections: connections.Reading = {}
        self._connected: connections.Reading = {}
        self._carried: tuple[Traffic, ...] = ()
        self.measuring = False  # whether measured windows run
        self._sampled_s = 0.0
        self._telemetry = Telemetry()

    def tell(self, command: Command, now_s: float) -> None:
        """Hand it a command, from which on its silence counts."""
        self._told = command
        self._spoke_s = now_s
        self._count(command)
        self.child.tell(command)
        if isinstance(command, Run) and command.measured:
            self._start_probe(now_s)

    def _count(self, command: Command) -> None:
        """Read the host's traffic before the measured windows, and when all ranks are done with them: a rank
        that is done may have sent bytes that still wait for their turn on a slow link."""
        if not self.child.task.counts_traffic:
            return
        if isinstance(command, Run) and command.measured:
            self._counters, self._connections = interfaces.read(), connections.read()
        elif isinstance(command, Finish):
            self._carried = interfaces.since(self._counters, interfaces.read())
            self._read_flows()

    def _read_flows(self) -> None:
        """Also when this child is done with its windows: when all are, a peer may have left and its connections
        with it."""
        if self.child.task.counts_traffic:
            self._connected = {**self._connected, **connections.read()}

    def overhear(self, command: Command, now_s: float) -> None:
        """What a helper's workers are told: from then on, and until they finish, its CPU use counts."""
        self._count(command)
        if isinstance(command, Run) and command.measured:
            self._start_probe(now_s)
        elif isinstance(command, Finish):
            self._close_probe()

    def _start_probe(self, now_s: float) -> None:
        if self._probe is not None:
            self.measuring = True
            self._probe.start()
            self._sampled_s = now_s

    def heard(self, event: Event, now_s: float) -> None:
        """Note an event."""
        self._spoke_s = now_s
        if isinstance(event, Ready | Announce):
            self._ready = True
            task = self.child.task
            if task.counts_traffic:
                connections.read()  # what it imports, it imports now
            # Opening takes time, which no command should wait for. A server is watched for its CPU alone.
            computes = isinstance(event, Ready) or bool(task.device_indices)
            device = task.point.hardware.device if computes else "cpu"
            self._probe = DeviceProbe.open(device, task.device_indices, self.child.pid)
        elif isinstance(event, Window) and isinstance(self._told, Run):
            self._stepped = True
            if event.index == self._told.windows - 1:
                if self._told.measured:
                    self._close_probe()
                    self._read_flows()
                self._told = None

    def end(self, now_s: float, reason: Failed, *, grace_s: float = 2.0, stacks: bool = False) -> None:
        """End it, unless that was begun already or it is dead; `reason` explains the end."""
        if self._reason is None and not self.child.ended():
            self._reason = reason
            self.child.end(now_s, grace_s=grace_s, stacks=stacks)

    def attend(self, now_s: float) -> None:
        """Take the steps that are due: the rest of what it is told, the kill ladder, the clocks, a reading."""
        self.child.push()
        self.child.pursue(now_s)
        if (overdue := self._overdue(now_s)) is not None:
            self.end(now_s, overdue, stacks=True)
        if self.measuring and self._probe is not None and now_s - self._sampled_s >= self._probe.interval_s:
            self._sampled_s = now_s
            self._probe.sample()

    def _overdue(self, now_s: float) -> Failed | None:
        """Which of the three clocks has run out."""
        clocks = self.child.task.clocks
        age_s, quiet_s = now_s - self._started_s, now_s - self._spoke_s
        if not self._ready and age_s > clocks.startup_s:
            return Failed(cause="startup", message=f"not ready after {clocks.startup_s:g} s")
        # The first step compiles, tunes and connects: it belongs to the start.
        patience_s = clocks.stall_s if self._stepped else max(clocks.stall_s, clocks.startup_s)
        if self._told is not None and quiet_s > patience_s:
            return Failed(cause="hang", message=f"no event for {patience_s:g} s; stacks in the log")
        if age_s > clocks.deadline_s:
            return Failed(cause="timeout", message=f"not done after {clocks.deadline_s:g} s")
        return None

    def ended(self) -> Ended:
        """Reap it. An end that this agent brought about has this agent's reason.

        By one of the signals that it has sent: whoever was killed just before is some milliseconds in dying, and
        its peers notice earlier than its agent does.
        """
        outcome = self.child.reap()
        self._close_probe()
        if self._reason is not None and isinstance(outcome, Failed) and outcome.cause in self.child.sent:
            outcome = replace(self._reason, log=self.child.task.log, log_tail=outcome.log_tail)
        carried = connections.since(self._connections, self._connected)
        telemetry = replace(self._telemetry, traffic=self._carried, flows=carried)
        return Ended(outcome=outcome, environ=self._environ, telemetry=telemetry, strays=self.child.strays)

    def _close_probe(self) -> None:
        if self._probe is not None:
            self._telemetry = self._probe.stop()
            self._probe = None
            self.measuring = False
