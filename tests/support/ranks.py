"""Ranks of one point as real processes, without agents: `run(tasks(...))` trains a few steps on each.

They are forks of a process that has imported their framework, or fresh ones. What they do: tests/support/rank.py.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import msgspec
import psutil  # type: ignore[import-untyped, unused-ignore]
from msgspec.structs import replace

from scaling import frameworks
from scaling.agent.child import Child, Fds, Started, log_tail
from scaling.agent.environment import child_environ
from scaling.plan.tasks import helper_task, worker_tasks
from scaling.records.events import Announce
from scaling.records.point import Kind
from scaling.records.task import CHILD_MARK, Task
from tests.support import kept_forks, paper_tasks
from tests.support.rank import ASKED, Trained, listening
from tests.support.waiting import eventually

LIMIT_S = paper_tasks.LIMIT_S
MOST_PORTS = 64  # of a point
# Below those that the kernel gives to whoever asks for any (ip_local_port_range, 32768 by default).
FIRST_PORT, LAST_PORT, SHARES = 20_000, 32_000, 4


def tasks(
    strategy: str, kind: Kind, size: int, *, ports: Iterable[int] | None = None, servers: int = 1, **fields: Any
) -> list[Task]:
    """One task per rank on this host, as paper_tasks says, with ports that nobody uses now."""
    given = free_ports(MOST_PORTS) if ports is None else ports
    return paper_tasks.tasks(strategy, kind, size, ports=given, servers=servers, **fields)


def one_task(strategy: str = "torch:plain", kind: Kind = "solo", **fields: Any) -> Task:
    """The task of a point of one rank."""
    (task,) = tasks(strategy, kind, 1, **fields)
    return task


def ports_of(task: Task) -> tuple[int, ...]:
    return (*task.ports, *task.rank_ports, *(server.port for server in task.servers))


def free_ports(count: int) -> tuple[int, ...]:
    """TCP ports of this host that nobody uses now, and that no other process of this run of tests is given."""
    with ExitStack() as stack:
        found: list[int] = []
        while len(found) < count:
            one = stack.enter_context(socket.socket())
            with suppress(OSError):  # somebody has it
                one.bind(("127.0.0.1", next(_ports)))
                found.append(one.getsockname()[1])
        return tuple(found)


def _own_ports() -> Iterator[int]:
    """Again and again the share of this process, where pytest-xdist runs tests in several."""
    share = range(FIRST_PORT + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % SHARES, LAST_PORT, SHARES)
    start = os.getpid() * MOST_PORTS % len(share)
    yield from cycle((*share[start:], *share[:start]))


_ports = _own_ports()


def bound(port: int) -> socket.socket:
    """A socket that holds a port as agents do: bound, not listened on."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind(("127.0.0.1", port))
    return one


def run(
    of: Sequence[Task], steps: int = 1, joined: int = 0, unsynced: int = 0, *, fresh: bool = False
) -> list[Trained]:
    """Train on all ranks at once, with the ports reserved as agents do: bound, not listened on.

    With `joined`, each batch is those of that many ranks, put together. The first `unsynced` steps exchange
    nothing. A strategy of one worker for all devices gives one result. With `fresh`, no process is a fork.
    Asserts that its helpers leave no process behind and no port.
    """
    traits = frameworks.load(of[0].point.strategy).traits(of[0].point.strategy)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        for port in ports_of(of[0]):
            stack.enter_context(bound(port))
        of = [replace(task, log=f"{folder}/{task.rank}.log", fresh=fresh) for task in of]
        announced = stack.enter_context(helping(of))
        files = [Path(folder, str(task.rank)) for task in of]
        workers = list(zip(worker_tasks(of, traits), files, strict=False))
        processes = [
            Rank(replace(task, announced=announced), file, steps, joined, unsynced) for task, file in workers
        ]
        for process in processes:
            stack.callback(process.end)
        for process in processes:
            process.wait()
        helpers = [address for child in psutil.Process().children(recursive=True) for address in listening(child)]
        found = [Trained(**pickle.loads(file.read_bytes())) for _, file in workers]
        return [one._replace(listening=one.listening.union(helpers)) for one in found]


class Rank:
    """The process of a rank, forked unless its task is to be fresh."""

    def __init__(self, task: Task, file: Path, *numbers: int) -> None:
        self._log = file.with_suffix(".out")
        asked = frameworks.load(task.point.strategy).environ(task, task.announced)
        wanted = msgspec.json.encode((str(file), *numbers)).decode()
        environ = {**child_environ(os.environ, task, asked), ASKED: wanted}
        given = file.with_suffix(".task")
        given.write_bytes(msgspec.json.encode(task))
        with given.open("rb") as stdin, self._log.open("wb") as log:
            fds = Fds(stdin.fileno(), log.fileno(), log.fileno())
            self._process = _fresh(environ, fds) if task.fresh else kept_forks.fork(task, _marked(environ), fds)
        self._exit_fd = os.pidfd_open(self._process.pid)
        self._over = False

    def wait(self) -> None:
        """Until it has ended well."""
        assert select.select([self._exit_fd], [], [], LIMIT_S)[0], f"a rank is not done: {log_tail(self._log)}"
        self._over = True
        assert self._process.wait() == 0, log_tail(self._log)

    def end(self) -> None:
        """See to it that it has ended."""
        if not self._over:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._exit_fd)


def _fresh(environ: Mapping[str, str], fds: Fds) -> Started:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.rank"],
        env=dict(environ), stdin=fds.commands, stdout=fds.log, stderr=fds.log,
    )  # fmt: skip
    return Started(process.pid, process.wait)


def _marked(environ: Mapping[str, str]) -> dict[str, str]:
    """A fork is given a mark; by this one it is no child of an agent."""
    return {**environ, CHILD_MARK: "rank"}


@contextmanager
def helping(of: Sequence[Task]) -> Iterator[dict[str, str]]:
    """The helpers of a point, up and announced: what they announced. Ends them, and asserts that nothing of
    them is left."""
    strategy = frameworks.load(of[0].point.strategy)
    exchanges = of[0].point.kind in ("exchange", "comm")
    children: list[Child] = []
    try:
        for wanted in strategy.helpers(of[0]) if exchanges else []:
            task = helper_task(of, wanted)
            environ = child_environ(os.environ, task, strategy.environ(task, {}))
            children.append(Child(task, environ, None if task.fresh else kept_forks.fork))
        announced: dict[str, str] = {}
        for child in children:
            announced.update(_announced(child))
        yield announced
    finally:
        for child in children:
            child.end(time.monotonic())
        for child in children:
            eventually(partial(over, child))
            child.reap()
    for port in ports_of(of[0]) if children else ():
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0, f"somebody still listens on {port}"


def over(child: Child) -> bool:
    """Whether a child that was ended is gone; pursues it where not."""
    child.pursue(time.monotonic())
    return child.ended()


def _announced(child: Child) -> dict[str, str]:
    def said() -> list[Announce]:
        assert not child.ended(), f"{child.task.role} ended: {log_tail(Path(child.task.log))}"
        return [event for event in child.events() if isinstance(event, Announce)]

    first, *_ = eventually(said, lambda: log_tail(Path(child.task.log)), within_s=LIMIT_S)
    return first.values
