"""How an agent starts its children: as fresh processes, or as forks of one that has imported the framework.

Forks cannot use CUDA if their parent has initialised it. Such a parent ends and its children start fresh, as do
those whose fork server fails.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import msgspec

from scaling import frameworks
from scaling.agent import interpreters, other_code, strategies
from scaling.agent.environment import child_environ
from scaling.errors import ScalingError
from scaling.records.task import (
    CHILD_MARK,
    FORK_FD,
    FORK_READY,
    FORK_TOUCHED,
    MOST_REQUEST_BYTES,
    OPTIONAL_MODULES,
    ForkRequest,
    Task,
)

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


def fresh(environ: Mapping[str, str], fds: Fds, python: str = sys.executable, code: str = "") -> Started:
    """Start a fresh child in a session of its own; `code` as in its task. Raises OSError."""
    process = subprocess.Popen(
        other_code.command(python, "scaling.worker", code),
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

    def __init__(self, python: str, modules: Collection[str], environ: Mapping[str, str], code: str = "") -> None:
        """Start the server. Raises OSError."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ready: bool | None = None
        self.is_touched = False
        with theirs:
            self._process = subprocess.Popen(
                [*other_code.command(python, "scaling.worker.fork_server", code), *modules],
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
        """The exit code of a fork. This process adopts forks of an ended server or of another revision."""
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


class Key(NamedTuple):
    """What children of one fork server share."""

    framework: str
    on_gpus: bool
    threads: int
    malloc: str
    code: str


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
            self._servers[key] = ForkServer(self._python(task), wanted, environ, task.code)

    def fds(self) -> list[int]:
        return [server.fd for server in self._servers.values() if server.ready is None]

    def settled(self) -> bool:
        for server in self._servers.values():
            server.look()
        return not self.fds()

    def touched(self) -> tuple[str, ...]:
        """Return the frameworks whose import has initialised CUDA."""
        return tuple(dict.fromkeys(key.framework for key, server in self._servers.items() if server.is_touched))

    def start(self, task: Task, environ: Mapping[str, str], fds: Fds) -> Started:
        """Start a child of this task, as a fork if possible. Raises OSError."""
        server = self._servers.get(self._key(task)) if _is_forked(task) else None
        if server is not None and server.ready:
            with suppress(OSError):
                return server.fork({**environ, **frameworks.named(_baseline(task)).preload_environ}, fds)
        return fresh(environ, fds, self._python(task), task.code)

    def close(self) -> None:
        for server in self._servers.values():
            server.close()
        self._servers.clear()

    def _python(self, task: Task) -> str:
        return interpreters.of(interpreters.framework_of(task.point.strategy), self._base)

    def _key(self, task: Task) -> Key:
        name, device = frameworks.named(_baseline(task)).name, task.point.hardware.device
        return Key(name, device == "cuda", task.threads, task.malloc, task.code)


def _is_forked(task: Task) -> bool:
    return frameworks.named(_baseline(task)).forks(task.point.hardware.device, fresh=task.fresh)


def _baseline(task: Task) -> str:
    return frameworks.load(task.point.strategy).baseline


def _optional(task: Task, names: Collection[str]) -> tuple[str, ...]:
    """Extra modules of strategies of the task's framework; none for another revision, which may lack them."""
    loaded = [] if task.code else [frameworks.load(name) for name in names]
    wanted = [getattr(one, "preload", ()) for one in loaded if one.baseline == _baseline(task)]
    found = dict.fromkeys(module for modules in wanted for module in modules)
    return (OPTIONAL_MODULES, *found) if found else ()
