"""One child process: its start, its pipes, its signals, and the evidence of its end.

It leads its own session. Its pidfd reports its end, because a grandchild may hold its pipe open. Grandchildren of
its group are killed while it is a zombie, so that the group's id is not reused. Those that left the group are this
process's children by then (hosts/proc.py).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from scaling import frameworks
from scaling.agent import environment, strategies
from scaling.agent.environment import child_environ
from scaling.errors import ScalingError
from scaling.hosts import proc
from scaling.records.events import Event, Exit
from scaling.records.store import unlinked
from scaling.records.task import (
    CHILD_MARK,
    EVENTS_FD,
    FORK_FD,
    FORK_READY,
    FORK_TOUCHED,
    MOST_REQUEST_BYTES,
    OPTIONAL_MODULES,
    Command,
    ForkRequest,
    Task,
)

# ---------------------------------------------------------------- fresh and forked processes
# How an agent starts its children: as fresh processes, or as forks of one that has imported the framework.
#
# Forks cannot use CUDA if their parent has initialised it. Such a parent ends and its children start fresh, as do
# those whose fork server fails.

# Room in the environment of a fork server; a fork writes its mark over it.
MARK_ROOM = "-" * 200
ANSWER_S = 10.0
# Sessions of the children and fork servers that this process has started and not yet waited for.
SESSIONS: set[int] = set()


class Started(NamedTuple):
    """A running child. `wait` returns its exit code, or minus the number of the signal that ended it."""

    pid: int
    wait: Callable[[], int]


class Fds(NamedTuple):
    commands: int
    events: int
    log: int


def fresh(environ: Mapping[str, str], fds: Fds, python: str = sys.executable) -> Started:
    """Start a fresh child in a session of its own. Raises OSError."""
    process = subprocess.Popen(
        [python, "-m", "scaling.worker"],
        stdin=fds.commands,
        stdout=fds.log,
        stderr=subprocess.STDOUT,
        env=dict(environ),
        pass_fds=(fds.events,),
        start_new_session=True,
    )
    return Started(process.pid, process.wait)


class ForkServer:
    """A process that has imported a framework. `ready` is None until it reports, and False if it has failed;
    `is_touched` if the import has initialised CUDA."""

    def __init__(self, python: str, modules: Collection[str], environ: Mapping[str, str]) -> None:
        """Start the server. Raises OSError."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ready: bool | None = None
        self.is_touched = False
        with theirs:
            self._process = subprocess.Popen(
                [python, "-m", "scaling.worker.fork_server", *modules],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**environ, CHILD_MARK: MARK_ROOM, FORK_FD: str(theirs.fileno())},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        SESSIONS.add(self._process.pid)

    @property
    def fd(self) -> int:
        return self._socket.fileno()

    def look(self) -> None:
        if self.ready is None and select.select([self._socket], [], [], 0)[0]:
            said = self._socket.recv(MOST_REQUEST_BYTES)
            self.ready, self.is_touched = said == FORK_READY, said == FORK_TOUCHED

    def fork(self, environ: Mapping[str, str], fds: Fds) -> Started:
        """Fork a child. Raises OSError; the server is then unusable, unless only the environment was at fault."""
        if not self.ready:
            raise ConnectionError("the fork server is gone")
        try:
            request = msgspec.json.encode(ForkRequest(environ=dict(environ)))
        except UnicodeEncodeError as error:  # a variable in another encoding
            raise OSError(f"this environment cannot be sent to the fork server: {error}") from None
        pid = self._asked(request, fds)
        return Started(pid, partial(self._reaped, pid))

    def _reaped(self, pid: int) -> int:
        """The exit code of a fork. This process adopts forks of an ended server."""
        try:
            status = os.waitpid(pid, 0)[1]
        except ChildProcessError:
            status = self._status(pid)
        return os.waitstatus_to_exitcode(status)

    def _status(self, pid: int) -> int:
        try:
            return self._asked(str(pid).encode())
        except OSError:
            return os.waitpid(pid, 0)[1]

    def _asked(self, request: bytes, fds: Collection[int] = ()) -> int:
        """The server's answer to a request. Raises OSError; the server has then ended."""
        try:
            self._socket.settimeout(ANSWER_S)
            socket.send_fds(self._socket, [request], list(fds))
            answer = self._socket.recv(MOST_REQUEST_BYTES)
        except OSError:
            self.close()
            raise
        if not answer:
            self.close()
            raise ConnectionError("the fork server has died")
        return int(answer)

    def close(self) -> None:
        """End the server. Its children go on, and this process adopts them."""
        self.ready = False
        self._socket.close()
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        SESSIONS.discard(self._process.pid)


# What children of one fork server share: framework, whether they use GPUs, threads, malloc.
Key = tuple[str, bool, int, str]


class Starter:
    """The starter of an agent's children, with its fork servers."""

    def __init__(self, base: Mapping[str, str]) -> None:
        self._base = base
        self._servers: dict[Key, ForkServer] = {}

    def preload(self, task: Task, names: Collection[str] = ()) -> None:
        """Start a fork server for children like this task's, with extra modules of the strategies `names`."""
        key, framework = self._key(task), frameworks.named(_baseline(task))
        if not _is_forked(task) or key in self._servers:
            return
        with suppress(OSError, ScalingError):  # children then start fresh
            environ = child_environ(self._base, task, strategies.environ(task)) | framework.preload_environ
            wanted = (*framework.preload, *_optional(task, names))
            self._servers[key] = ForkServer(self._python(task), wanted, environ)

    def fds(self) -> list[int]:
        return [server.fd for server in self._servers.values() if server.ready is None]

    def settled(self) -> bool:
        for server in self._servers.values():
            server.look()
        return not self.fds()

    def touched(self) -> tuple[str, ...]:
        """Return the frameworks whose import has initialised CUDA."""
        return tuple(dict.fromkeys(framework for (framework, *_), one in self._servers.items() if one.is_touched))

    def start(self, task: Task, environ: Mapping[str, str], fds: Fds) -> Started:
        """Start a child of this task, as a fork if possible. Raises OSError."""
        server = self._servers.get(self._key(task)) if _is_forked(task) else None
        if server is not None and server.ready:
            with suppress(OSError):
                return server.fork({**environ, **frameworks.named(_baseline(task)).preload_environ}, fds)
        return fresh(environ, fds, self._python(task))

    def close(self) -> None:
        for server in self._servers.values():
            server.close()
        self._servers.clear()

    def _python(self, task: Task) -> str:
        return environment.python_of(frameworks.running(task.point.strategy).name, self._base)

    def _key(self, task: Task) -> Key:
        name, device = frameworks.named(_baseline(task)).name, task.point.hardware.device
        return name, device == "cuda", task.threads, task.malloc


def _is_forked(task: Task) -> bool:
    return frameworks.named(_baseline(task)).forks(task.point.hardware.device, fresh=task.fresh)


def _baseline(task: Task) -> str:
    return frameworks.load(task.point.strategy).baseline


def _optional(task: Task, names: Collection[str]) -> tuple[str, ...]:
    """Extra modules of strategies of the task's framework."""
    loaded = [frameworks.load(name) for name in names]
    wanted = [getattr(one, "preload", ()) for one in loaded if one.baseline == _baseline(task)]
    found = dict.fromkeys(module for modules in wanted for module in modules)
    return (OPTIONAL_MODULES, *found) if found else ()


# ---------------------------------------------------------------- child

LOG_TAIL_BYTES = 4000
STACKS_S = 0.3

Start = Callable[[Task, Mapping[str, str], Fds], Started]


class Child:
    """A running child. The agent calls `ended`, `events`, `push` and `pursue` from its loop; none blocks."""

    def __init__(self, task: Task, environ: Mapping[str, str], start: Start | None = None) -> None:
        """Start the child; without `start`, as a fresh process. Raises OSError if it cannot be started."""
        self.task = task
        self.mark = f"{os.getpid()}-{task.attempt}-{task.rank}-{task.role}"
        self._decoder = msgspec.json.Decoder(Event)
        self._buffer = b""
        self._unsent = b""
        self._oom_kills = proc.oom_kills()[0]
        self._kill_at_s: float | None = None
        self._term_at_s: float | None = None
        self._grace_s = 2.0
        self.strays = 0
        self._signals: set[int] = set()
        unlinked(Path(task.log).parent).mkdir(parents=True, exist_ok=True)
        self.pid, self._wait = self._start(environ, start or (lambda _, *asked: fresh(*asked)))
        SESSIONS.add(self.pid)
        self._began = _session_and_start(self.pid)[1]
        self.exit_fd = _pidfd(self.pid)
        self._exit = select.poll()
        if self.exit_fd >= 0:
            self._exit.register(self.exit_fd, select.POLLIN)
        self._send(msgspec.json.encode(task))

    def _start(self, environ: Mapping[str, str], start: Start) -> Started:
        self.events_fd, events_fd = os.pipe()
        commands_fd, self.stdin_fd = os.pipe()
        os.set_blocking(self.events_fd, False)
        os.set_blocking(self.stdin_fd, False)
        own = {**environ, CHILD_MARK: self.mark, EVENTS_FD: str(events_fd)}
        try:
            with unlinked(Path(self.task.log)).open("ab") as log:
                return start(self.task, own, Fds(commands_fd, events_fd, log.fileno()))
        except (OSError, ValueError):
            os.close(self.events_fd)
            os.close(self.stdin_fd)
            raise
        finally:
            os.close(events_fd)
            os.close(commands_fd)

    def tell(self, command: Command) -> None:
        """Send a command. The end of a dead child is noticed elsewhere."""
        self._send(msgspec.json.encode(command))

    def _send(self, line: bytes) -> None:
        self._unsent += line + b"\n"
        self.push()

    @property
    def unsent(self) -> bool:
        """Whether part of a message waits for room in the pipe: the task of a few thousand ranks does."""
        return bool(self._unsent)

    def push(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self.stdin_fd, self._unsent) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self._unsent = b""

    def events(self) -> list[Event]:
        """Return the events that have arrived. Raises msgspec's error for a line that is no event."""
        while True:
            try:
                data = os.read(self.events_fd, 65536)
            except BlockingIOError:
                break
            if not data:
                break
            self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        return [self._decoder.decode(line) for line in lines]

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def end(self, now_s: float, *, grace_s: float = 2.0, stacks: bool = False) -> None:
        """Begin to end it, once: stacks into the log if asked, SIGTERM, SIGKILL after `grace_s`."""
        if self._term_at_s is not None:
            return
        self._grace_s = grace_s
        self.resume()  # a stopped process receives only SIGKILL
        if stacks:
            self._signals.add(signal.SIGUSR1)
            os.kill(self.pid, signal.SIGUSR1)
        self._term_at_s = now_s + (STACKS_S if stacks else 0.0)
        self.pursue(now_s)

    def pursue(self, now_s: float) -> None:
        if self._term_at_s is None:
            return
        if self._kill_at_s is None and now_s >= self._term_at_s:
            self._signals.add(signal.SIGTERM)
            self._signal(signal.SIGTERM)
            self._kill_at_s = now_s + self._grace_s
        elif self._kill_at_s is not None and now_s >= self._kill_at_s:
            self._signals.add(signal.SIGKILL)
            self._signal(signal.SIGKILL)
            self._kill_at_s = now_s + 1.0

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def ended(self) -> bool:
        """Whether it has ended. Its events can be read until `reap`."""
        if self.exit_fd >= 0:
            return bool(self._exit.poll(0))
        return proc.is_over(self.pid)

    def reap(self) -> Exit:
        """Kill what is left of it, close its pipes and return the evidence of its end."""
        self._signal(signal.SIGKILL)
        code = self._wait()
        SESSIONS.discard(self.pid)
        self.strays = reap_strays(self._began)
        self._close()
        return self._exit_of(code)

    def _close(self) -> None:
        for fd in (self.stdin_fd, self.exit_fd, self.events_fd):
            if fd >= 0:
                os.close(fd)

    def _exit_of(self, code: int) -> Exit:
        if code == 0:
            return Exit()
        tail = log_tail(Path(self.task.log))
        kills, file = proc.oom_kills()
        return Exit(
            code=code,
            signals=frozenset(self._signals),
            oom_kills=max(0, kills - self._oom_kills),
            oom_file=file,
            limit=proc.limit_hint(tail),
            log_tail=tail,
        )


def _pidfd(pid: int) -> int:
    """A file descriptor that is readable when a child ends; -1 before Linux 5.3, and in Pythons built there
    (https://github.com/python-trio/trio/issues/2855)."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return -1


def log_tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - LOG_TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError as error:
        return f"(no log: {error.strerror})"


def reap_strays(began: int) -> int:
    """Kill and reap the orphans of a child that began at `began` (clock ticks since boot); return their number.
    Sessions of this process and of running children are spared. Killing an orphan may leave new ones."""
    count, sessions = 0, {os.getsid(0), *SESSIONS}

    def is_stray(session: int, start: int) -> bool:
        return session not in sessions and start >= began

    while strays := [pid for pid in _children() if is_stray(*_session_and_start(pid))]:
        for pid in strays:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        count += len(strays)
    return count


def _session_and_start(pid: int) -> tuple[int, int]:
    """The session of a process, and its start in clock ticks since boot; (0, -1) if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0, -1
    return int(stat[3]), int(stat[19])


def _children() -> list[int]:
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    try:
        return [int(pid) for pid in path.read_text().split()]
    except OSError:
        import psutil

        return [child.pid for child in psutil.Process().children()]
