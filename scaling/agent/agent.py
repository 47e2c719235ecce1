"""The agent of a rank: it takes orders, runs children, forwards their events and ends them.

It knows MPI only as a `Cluster`, and no framework. `turn` never blocks. `wait` sleeps until a child speaks or
ends, or until the next look for messages: MPI has no file descriptor to wait on.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial

from msgspec.structs import replace

from scaling.agent import strategies
from scaling.agent.child import Child, Starter
from scaling.agent.environment import child_environ, granted
from scaling.agent.supervisor import Supervisor
from scaling.agent.watch import IdleTraffic
from scaling.errors import ScalingError, StrategyError, UsageError
from scaling.hosts import proc
from scaling.hosts.connections import Attempts, Door
from scaling.quiet import agent as quiet
from scaling.records.events import Ended, Event, Exit, Failed, Measured
from scaling.records.host import HostInfo, Installed
from scaling.records.messages import (
    AGENT_DECODER,
    INTERRUPT_GRACE_S,
    Account,
    Admit,
    Admitting,
    Alive,
    Ask,
    Assign,
    Dismiss,
    Enrol,
    Listen,
    Listened,
    Locate,
    Located,
    Missing,
    Pause,
    Preload,
    Preloaded,
    Reach,
    Reached,
    Release,
    Report,
    Reserve,
    Reserved,
    Signalled,
    Tell,
    ToAgent,
    ToSweep,
)
from scaling.records.task import Task
from scaling.transport.base import Cluster, send_news
from scaling.workloads import data

# ---------------------------------------------------------------- connections between hosts


class Proving:
    """The open doors of one host, and its connection attempts to other hosts."""

    def __init__(self) -> None:
        self.doors: dict[str, Door] = {}
        self._attempts: dict[str, Attempts] = {}
        self._opened: list[Admitting] = []

    def obey(self, order: Admit | Reach, now_s: float) -> None:
        """Open or close a door, or start connecting to the doors of other hosts."""
        if isinstance(order, Reach):
            self._attempts[order.network] = Attempts(order.peers, now_s + order.within_s)
            return
        if old := self.doors.pop(order.network, None):
            old.close()
        if order.address:
            self._opened.append(self._open(order))

    def _open(self, order: Admit) -> Admitting:
        try:
            self.doors[order.network] = Door(order.address)
        except OSError as error:
            return Admitting(network=order.network, error=error.strerror or str(error))
        return Admitting(network=order.network, port=self.doors[order.network].port)

    def answers(self, now_s: float) -> list[Admitting | Reached]:
        for door in self.doors.values():
            door.read()
        ended = {network: attempts.ways(now_s) for network, attempts in self._attempts.items()}
        reached = [Reached(network=network, ways=ways) for network, ways in ended.items() if ways is not None]
        for answer in reached:
            del self._attempts[answer.network]
        opened, self._opened = self._opened, []
        return [*opened, *reached]


# ---------------------------------------------------------------- data


def data_located(order: Locate) -> Located:
    """Check that the data of a run is on this host. Files are searched, not opened: rank 0 has read them."""
    try:
        data.locate(data.spec(order.data), order.data_dir)
    except UsageError as error:
        return Located(error=str(error))
    return Located()


# ---------------------------------------------------------------- agent

QUICK_S = 0.002  # between looks for messages while ranks answer each other
TURNS_S = 0.005  # while other points have their turn: ranks that run together should begin together
CALM_S = 0.05  # while nothing happens
MEASURING_S = 0.25  # while windows are timed on the same cores; the end of a window wakes the agent
QUICK_FOR_S, FINISH_S = 0.1, 5.0
BEAT_S = 10.0  # longest time between two messages to rank 0
INTERRUPTED = Failed(cause="interrupted", message="ended by a signal")
Spawn = Callable[[Task, Mapping[str, str]], Child]


class Agent:
    """The agent of one rank. A signal makes `woken_fd` readable. Tests replace `clock` and `spawn`."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        spawn: Spawn | None = None,
        clock: Callable[[], float] = time.monotonic,
        environ: Mapping[str, str] = os.environ,
        woken_fd: int = -1,
    ) -> None:
        self.cluster = cluster
        self.dismissed, self.exit_code = False, 0
        self._starter = Starter(environ)
        self._spawn = spawn or partial(Child, start=self._starter.start)
        self._clock = clock
        self._environ = environ
        self._woken_fd = woken_fd
        self._supervisors: dict[tuple[int, str], Supervisor] = {}
        self._sockets: dict[int, list[list[socket.socket]]] = {}
        self._outgoing: list[ToSweep] = []
        self._quick_until_s = self._said_s = 0.0
        self._signal: int | None = None
        self._preloading = False
        self._suspicion = quiet.Suspicion()
        self._idle = IdleTraffic()
        self._proving = Proving()

    def enrol(self, host: HostInfo, *, version: str, code: str, lacking: Installed) -> None:
        """Register this rank at rank 0: its host, its version and what its strategies lack."""
        told = Enrol(
            host=host,
            version=version,
            code=code,
            missing=lacking.missing,
            missing_on_cuda=lacking.missing_on_cuda,
            name_addresses=lacking.name_addresses,
        )
        send_news(self.cluster, told)

    def serve(self) -> None:
        while not self.dismissed:
            self.turn()
            self.wait()
        self.finish()

    def finish(self) -> None:
        """Take turns until the last children end, at most `FINISH_S` seconds: one may hang in the kernel."""
        self._starter.close()
        deadline_s = self._clock() + FINISH_S
        while self.busy and self._clock() < deadline_s:
            self.turn()
            self.wait()

    def interrupt(self, signal: int) -> None:
        """Note a signal that asks for the end, from a signal handler; the next turn acts on it."""
        self._signal = signal

    @property
    def is_interrupted(self) -> bool:
        return self._signal is not None

    # ------------------------------------------------------------ one turn

    def turn(self) -> None:
        """Handle all messages, events and due steps, then send all reports."""
        if self._signal is not None:
            self._say(Signalled(signal=self._signal))
            self._signal = None
            for supervisor in self._supervisors.values():
                supervisor.end(self._clock(), INTERRUPTED, grace_s=INTERRUPT_GRACE_S)
        while (message := self.cluster.receive("agent")) is not None:
            self._obey(AGENT_DECODER.decode(message[1]))
        now_s = self._clock()
        for key, supervisor in list(self._supervisors.items()):
            self._look_after(key, supervisor, now_s)
        if self._preloading and self._starter.settled():
            self._preloading = False
            self._say(Preloaded(fresh=self._starter.touched()))
        if self._idle.is_due(now_s):
            self._say(Listened())
        for answer in self._proving.answers(now_s):
            self._say(answer)
        if self._proving.doors:
            self.hurry()
        if not self._outgoing and now_s - self._said_s >= BEAT_S:
            self._outgoing.append(Alive())
        if self._outgoing:
            self._said_s = now_s
            send_news(self.cluster, *self._outgoing)
            self._outgoing.clear()

    def wait(self) -> None:
        seconds = self._patience_s()
        poller = select.poll()
        for supervisor in self._supervisors.values():
            poller.register(supervisor.child.events_fd, select.POLLIN)
            if supervisor.child.exit_fd >= 0:
                poller.register(supervisor.child.exit_fd, select.POLLIN)
            if supervisor.child.unsent:
                poller.register(supervisor.child.stdin_fd, select.POLLOUT)
        for fd in self._starter.fds():
            poller.register(fd, select.POLLIN)
        if self._woken_fd >= 0:
            poller.register(self._woken_fd, select.POLLIN)
        if any(fd == self._woken_fd for fd, _ in poller.poll(1000 * seconds)):
            os.read(self._woken_fd, 64)

    def _patience_s(self) -> float:
        measuring = {role for (_, role), one in self._supervisors.items() if one.measuring}
        if measuring:
            return MEASURING_S if "worker" in measuring else CALM_S
        if self._clock() < self._quick_until_s:
            return QUICK_S
        return TURNS_S if any(one.is_stopped for one in self._supervisors.values()) else CALM_S

    @property
    def busy(self) -> bool:
        return bool(self._supervisors)

    def hurry(self) -> None:
        """Look for messages often for `QUICK_FOR_S`: an answer is expected."""
        self._quick_until_s = self._clock() + QUICK_FOR_S

    def _say(self, message: ToSweep) -> None:
        self._outgoing.append(message)
        self.hurry()

    # ------------------------------------------------------------ orders

    def _obey(self, order: ToAgent) -> None:
        match order:
            case Ask() | Locate():
                self._say(_answer(order))
            case Admit() | Reach():
                self._proving.obey(order, self._clock())
            case Reserve():
                self.hurry()
                ports = self._reserve(order)
                self._say(Reserved(attempt=order.attempt, slot=order.slot, ports=ports))
            case Listen(seconds=seconds):
                self._idle.listen(seconds, self._clock())
            case Preload():
                self._preload(order)
            case Assign(task=task):
                self._start(task)
            case Tell():
                self._tell(order)
            case Account(attempt=attempt):
                self._account(attempt)
            case Pause():
                self._pause(order)
            case Release():
                self._release(order)
            case Dismiss(exit_code=code):
                self.dismissed, self.exit_code = True, code
                for supervisor in self._supervisors.values():
                    supervisor.end(self._clock(), INTERRUPTED, grace_s=INTERRUPT_GRACE_S)

    def _preload(self, order: Preload) -> None:
        self._preloading = True
        for task in order.tasks:
            self._starter.preload(task, order.strategies)

    def _reserve(self, order: Reserve) -> tuple[int, ...]:
        """Bind ports without listening; only a server with SO_REUSEADDR can take them. Empty on a wrong host."""
        sockets: list[socket.socket] = []
        self._sockets.setdefault(order.attempt, []).append(sockets)
        try:
            for _ in range(order.count):
                sockets.append(socket.socket())
                sockets[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sockets[-1].bind((order.address, 0))
        except OSError:
            return ()
        return tuple(one.getsockname()[1] for one in sockets)

    def _start(self, task: Task) -> None:
        try:
            asked = granted(self._environ, strategies.environ(task), task.point.interconnect)
            child = self._spawn(task, child_environ(self._environ, task, asked))
        except (OSError, ValueError, ScalingError) as error:  # ValueError: a null byte in a variable
            trace = error.trace if isinstance(error, StrategyError) else ""
            hint = proc.limit_hint("", is_fork=True) if isinstance(error, BlockingIOError) else ""
            reason = Failed(cause="error", message=f"cannot start: {error}{hint}")
            self._report(task, Ended(exit=Exit(is_started=False, reason=reason, log_tail=trace)))
            return
        started = Supervisor(child, asked, self._clock(), self._idle, self._suspicion)
        self._supervisors[task.attempt, task.role] = started

    def _tell(self, order: Tell) -> None:
        now_s, worker = self._clock(), self._supervisors.get((order.attempt, "worker"))
        for role, supervisor in self._of(order.attempt):
            if role != "worker":
                supervisor.overhear(order.command, now_s)
        if worker is None:
            return
        worker.quiet.before(order.command)
        worker.tell(order.command, self._clock())

    def _pause(self, order: Pause) -> None:
        now_s, children = self._clock(), self._of(order.attempt)
        for _, supervisor in children:
            supervisor.pause(now_s)
        worker = next((one for role, one in children if role == "worker"), None)
        answer = quiet.stood(order, self.cluster.rank, worker.child.task.cpus if worker else None)
        self._say(replace(answer, gpus=worker.gpus() if worker else ()))

    def _account(self, attempt: int) -> None:
        for _, supervisor in self._of(attempt):
            self._report(supervisor.child.task, Measured(ended=supervisor.so_far()))

    def _of(self, attempt: int) -> list[tuple[str, Supervisor]]:
        return [(role, one) for (number, role), one in self._supervisors.items() if number == attempt]

    def _release(self, order: Release) -> None:
        now_s = self._clock()
        reason = Failed(cause="cancelled", message=order.reason)
        for _, supervisor in self._of(order.attempt):
            supervisor.end(now_s, reason, grace_s=order.grace_s)
        for sockets in self._sockets.pop(order.attempt, ()):
            for one in sockets:
                one.close()
        self.hurry()

    # ------------------------------------------------------------ children

    def _look_after(self, key: tuple[int, str], supervisor: Supervisor, now_s: float) -> None:
        # Check the end first: all events sent before the end are then readable.
        ended = supervisor.child.ended()
        for event in supervisor.child.events():
            self._report(supervisor.child.task, supervisor.heard(event, now_s))
        if ended:
            del self._supervisors[key]
            self._report(supervisor.child.task, supervisor.ended())
        else:
            supervisor.attend(now_s)

    def _report(self, task: Task, event: Event) -> None:
        self._say(Report(attempt=task.attempt, rank=task.rank, role=task.role, event=event))


def _answer(order: Ask | Locate) -> Missing | Located:
    if isinstance(order, Locate):
        return data_located(order)
    lacking = strategies.lacking(order.strategies)
    return Missing(missing=lacking.missing, missing_on_cuda=lacking.missing_on_cuda)
