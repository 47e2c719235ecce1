"""The agent of a rank: it takes orders, supervises children, forwards their events and ends them.

It knows MPI only as a `Cluster`, and no framework. `turn` never blocks. `wait` sleeps until a child speaks or
ends, or until the next look for messages: MPI has no file descriptor to wait on.
"""

from __future__ import annotations

import glob
import os
import select
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from scaling.agent import strategies
from scaling.agent.child import Child, Starter
from scaling.agent.environment import child_environ, granted
from scaling.agent.watch import IdleTraffic, Watch
from scaling.errors import ScalingError, StrategyError, UsageError
from scaling.frameworks import network_env
from scaling.hosts import proc
from scaling.hosts.connections import Proving
from scaling.quiet import agent as quiet
from scaling.quiet.agent import Quiet, Suspicion
from scaling.records.events import (
    Announce,
    Ended,
    Evaluated,
    Event,
    Exit,
    Failed,
    Inspected,
    Measured,
    Ready,
    Rested,
    Result,
    Window,
)
from scaling.records.host import HostInfo, Installed
from scaling.records.messages import (
    AGENT_DECODER,
    INTERRUPT_GRACE_S,
    Account,
    Admit,
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
    Release,
    Report,
    Reserve,
    Reserved,
    Signalled,
    Tell,
    ToAgent,
    ToSweep,
)
from scaling.records.task import Command, Evaluate, Finish, Inspect, Rest, Run, Task, Train
from scaling.records.telemetry import Sample, Telemetry
from scaling.transport.base import Cluster, send_news
from scaling.workloads import data

# ---------------------------------------------------------------- limit of a log


LIMIT_BYTES, KEPT_BYTES = 64 << 20, 1 << 20
LOOKS_S = 1.0


class LogBound:
    """The limit of a child's log, which could fill the disk: a longer one is cut to `KEPT_BYTES`."""

    def __init__(self, path: str) -> None:
        self.dropped_bytes = 0
        self._path = Path(path)
        self._next_s = 0.0

    def look(self, now_s: float) -> None:
        if now_s >= self._next_s:
            self._next_s = now_s + LOOKS_S
            self.cut()

    def cut(self) -> None:
        """Cut the log if it is too long. Its writers append at its new end."""
        try:
            size_bytes = self._path.stat().st_size
            if size_bytes <= LIMIT_BYTES or not self._path.is_file():
                return
            with self._path.open("ab") as log:
                log.truncate(KEPT_BYTES)
                self.dropped_bytes += size_bytes - KEPT_BYTES
                log.write(f"\n[scaling: {self.dropped_bytes} bytes of this log were dropped here]\n".encode())
        except OSError:
            return


# ---------------------------------------------------------------- supervisor

# Time to leave the exchange: NCCL may hang (https://github.com/NVIDIA/nccl/issues/1013).
LEAVE_S = 30.0


class Supervisor:
    """A running child and what the agent knows of it. Times are of the agent's clock."""

    def __init__(
        self,
        child: Child,
        environ: dict[str, str],
        now_s: float,
        idle: IdleTraffic | None = None,
        suspicion: Suspicion | None = None,
    ) -> None:
        self.child = child
        self.quiet = Quiet(child.task, suspicion)
        self._environ = environ
        self._idle = idle
        self._log = LogBound(child.task.log)
        self._began_s = now_s  # start, moved on by the time while it was stopped
        self._spoke_s = now_s
        self._stopped_s: float | None = None
        self._ready = False
        self._stepped = False
        self._told: Command | None = None  # the command that is not answered in full
        self._reason: Failed | None = None
        self._result_s: float | None = None
        self._is_late = False  # to leave, after its result
        self._watch: Watch | None = None

    @property
    def measuring(self) -> bool:
        is_later = isinstance(self._told, Inspect) or (isinstance(self._told, Run) and self._told.is_later)
        return is_later or (self._watch is not None and self._watch.measuring)

    @property
    def is_stopped(self) -> bool:
        return self._stopped_s is not None

    def tell(self, command: Command, now_s: float) -> None:
        """Send a command and resume the child. Its silence counts from now on."""
        self._told = command
        self._observe(command, now_s)
        self.resume(now_s)
        self._spoke_s = now_s
        self.child.tell(command)

    def overhear(self, command: Command, now_s: float) -> None:
        """Note a command to a helper's workers: the helper's CPU use counts until they are done."""
        self._observe(command, now_s)
        self.resume(now_s)

    def _observe(self, command: Command, now_s: float) -> None:
        if self._watch is None:
            return
        if isinstance(command, Rest | Inspect | Evaluate | Finish):
            self._watch.settle()
        elif isinstance(command, Train):
            self._watch.begin(command.steps, now_s)
        elif command.measured:
            self._watch.begin(command.windows * command.steps + command.lead, now_s)

    def pause(self, now_s: float) -> None:
        """Stop the child once all ranks are done, so that it takes nothing from the next point."""
        if self._watch is not None:
            self._watch.settle()
        if self._stopped_s is None and self._reason is None:  # a child that is being ended must receive signals
            self._stopped_s = now_s
            self.child.pause()

    def resume(self, now_s: float) -> None:
        """Continue the child. Its start-up and deadline clocks exclude the time while it was stopped."""
        if self._stopped_s is not None:
            self._began_s += now_s - self._stopped_s
            self._stopped_s = None
            self.child.resume()

    def heard(self, event: Event, now_s: float) -> Event:
        """Note an event and return it with what the agent adds."""
        self._spoke_s = now_s
        if self._watch is not None:
            self._watch.look(now_s)
        if isinstance(event, Ready | Announce):
            self._ready = True
            task = self.child.task
            computes = isinstance(event, Ready) or bool(task.device_indices)
            self._watch = Watch(task, self.child.pid, computes=computes, idle=self._idle, quiet=self.quiet)
        elif isinstance(event, Window) and isinstance(self._told, Run | Train):
            self._stepped = True
            if isinstance(self._told, Train) or event.index == self._told.last:
                self._answered(event)
            if not event.measured:
                event = replace(event, gpus=self.gpus())
            return self.quiet.noted(event)
        elif isinstance(event, Rested | Inspected | Evaluated):
            self._told = None
        elif isinstance(event, Result):
            self._result_s = now_s
        return event

    def gpus(self) -> tuple[Sample, ...]:
        """Read the child's GPUs; nothing before it is ready."""
        return () if self._watch is None else self._watch.gpus()

    def _answered(self, last: Window) -> None:
        self._told = None
        if last.measured and self._watch is not None:
            self._watch.done()

    def end(self, now_s: float, reason: Failed, *, grace_s: float = 2.0, stacks: bool = False) -> None:
        """End the child for `reason`, unless it is dead or already being ended."""
        if self._reason is None and not self.child.ended():
            self._reason = reason
            self.child.end(now_s, grace_s=grace_s, stacks=stacks)

    def attend(self, now_s: float) -> None:
        self.child.push()
        self.child.pursue(now_s)
        self._log.look(now_s)
        if self._stopped_s is None and (overdue := self._overdue(now_s)) is not None:
            self._is_late |= self._reason is None and self._result_s is not None
            self.end(now_s, overdue, stacks=True)
        if self._watch is not None:
            self._watch.sample(now_s)

    def _overdue(self, now_s: float) -> Failed | None:
        clocks = self.child.task.clocks
        age_s, quiet_s = now_s - self._began_s, now_s - self._spoke_s
        if not self._ready and age_s > clocks.startup_s:
            return Failed(cause="startup", message=f"not ready after {clocks.startup_s:g} s")
        if self._result_s is not None:
            late = now_s - self._result_s > min(clocks.stall_s, LEAVE_S)
            return Failed(cause="hang", message="did not leave its exchange") if late else None
        # The first step compiles, tunes and connects: it belongs to start-up.
        patience_s = clocks.stall_s if self._stepped else max(clocks.stall_s, clocks.startup_s)
        if self._told is not None and quiet_s > patience_s:
            return Failed(cause="hang", message=f"no event for {patience_s:g} s; stacks in the log")
        if age_s > clocks.deadline_s:
            return Failed(cause="timeout", message=f"not done after {clocks.deadline_s:g} s")
        return None

    def ended(self) -> Ended:
        seen = self.child.reap()
        self._log.cut()
        ended = self._account(replace(seen, reason=self._reason, is_late=self._is_late))
        if not self.child.task.keeps_log and ended.exit == Exit():
            log = Path(self.child.task.log)
            with suppress(OSError):
                for path in (log, *log.parent.glob(f"{glob.escape(log.name)}.nccl.*")):
                    path.unlink(missing_ok=True)
        return ended

    def so_far(self) -> Ended:
        """Report what is known after the measured windows, as for a child that ends well now."""
        if self._watch is not None:
            self._watch.settle()
        return self._account(Exit())

    def _account(self, seen: Exit) -> Ended:
        return Ended(
            exit=seen,
            environ=self._environ,
            telemetry=self._watch.close() if self._watch is not None else Telemetry(),
            log_dropped_bytes=self._log.dropped_bytes,
            nccl=network_env.read_nccl_log(self._environ.get("NCCL_DEBUG_FILE", ""), self.child.pid),
        )


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
        self._suspicion = Suspicion()
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


def data_located(order: Locate) -> Located:
    """Check that the data of a run is on this host. Files are searched, not opened: rank 0 has read them."""
    try:
        data.locate(data.spec(order.data), order.data_dir)
    except UsageError as error:
        return Located(error=str(error))
    return Located()
