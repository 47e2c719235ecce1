"""One child under its agent: its clocks, its log, the readings of its devices, why the agent ended it."""

from __future__ import annotations

import glob
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from scaling.agent.child import Child
from scaling.agent.watch import IdleTraffic, Watch
from scaling.frameworks import network_env
from scaling.quiet.agent import Quiet, Suspicion
from scaling.records.events import (
    Announce,
    Ended,
    Evaluated,
    Event,
    Exit,
    Failed,
    Inspected,
    Ready,
    Rested,
    Result,
    Window,
)
from scaling.records.task import Command, Evaluate, Finish, Inspect, Rest, Run, Train
from scaling.records.telemetry import Sample, Telemetry

# ---------------------------------------------------------------- limit of a log


LIMIT_BYTES, KEPT_BYTES = 64 << 20, 1 << 20
EVERY_S = 1.0


class LogBound:
    """The limit of a child's log, which could fill the disk: a longer one is cut to `KEPT_BYTES`."""

    def __init__(self, path: str) -> None:
        self.dropped_bytes = 0
        self._path = Path(path)
        self._next_s = 0.0

    def look(self, now_s: float) -> None:
        if now_s >= self._next_s:
            self._next_s = now_s + EVERY_S
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
