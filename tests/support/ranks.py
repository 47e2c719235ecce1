"""Ranks of one point as real processes, without agents: `run(tasks(...))` trains a few steps on each.

python -m tests.support.ranks RESULT STEPS JOINED UNSYNCED < TASK      (one rank, started by `run`)
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import psutil  # type: ignore[import-untyped, unused-ignore]
from msgspec.structs import replace
from numpy.typing import NDArray

from scaling import frameworks
from scaling.agent.child import Child, log_tail
from scaling.agent.environment import child_environ
from scaling.frameworks.base import Stale
from scaling.plan.tasks import helper_task, worker_tasks
from scaling.records.events import Announce
from scaling.records.point import Kind
from scaling.records.task import Task
from scaling.workloads import feeds as data
from scaling.workloads.specs import ModelSpec
from tests.support import paper_tasks
from tests.support.waiting import eventually

LIMIT_S = paper_tasks.LIMIT_S
MOST_PORTS = 64  # of a point


class Trained(NamedTuple):
    """What one rank tells: the weights before the first step and after it, the rest after the last."""

    before: dict[str, NDArray[Any]]
    after: dict[str, NDArray[Any]]
    digest: str | None
    losses: list[float | None]
    samples: int
    parameters: int
    gradient_bytes: int
    device_name: str
    versions: dict[str, str]
    staleness: float | None
    listening: frozenset[str]


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
    """Every port that agents hold for its point."""
    return (*task.ports, *task.rank_ports, *(server.port for server in task.servers))


def free_ports(count: int) -> tuple[int, ...]:
    """TCP ports of this host that nobody uses now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(bound(0)) for _ in range(count)]
        return tuple(one.getsockname()[1] for one in sockets)


def bound(port: int) -> socket.socket:
    """A socket that holds a port as agents do: bound, not listened on."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind(("127.0.0.1", port))
    return one


def run(of: Sequence[Task], steps: int = 1, joined: int = 0, unsynced: int = 0) -> list[Trained]:
    """Train on all ranks at once, with the ports reserved as agents do: bound, not listened on.

    With `joined`, each batch is those of that many ranks, put together. The first `unsynced` steps exchange
    nothing. A strategy of one worker for all
    devices gives one result. Asserts that its helpers leave no process behind and no port.
    """
    traits = frameworks.load(of[0].point.strategy).traits(of[0].point.strategy)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        for port in ports_of(of[0]):
            stack.enter_context(bound(port))
        of = [replace(task, log=f"{folder}/{task.rank}.log") for task in of]
        announced = stack.enter_context(helping(of))
        files = [Path(folder, str(task.rank)) for task in of]
        processes = [
            _start(replace(task, announced=announced), file, steps, joined, unsynced)
            for task, file in zip(worker_tasks(of, traits), files, strict=False)
        ]
        for process in processes:
            stack.callback(_end, process)
        for process in processes:
            output, _ = process.communicate(timeout=LIMIT_S)
            assert process.returncode == 0, output.decode()
        helpers = [address for child in psutil.Process().children() for address in listening(child)]
        found = [Trained(**pickle.loads(file.read_bytes())) for file in files[: len(processes)]]
        return [one._replace(listening=one.listening.union(helpers)) for one in found]


def listening(process: psutil.Process) -> frozenset[str]:
    """The addresses on which a process waits for TCP connections."""
    with suppress(psutil.Error):
        found = process.net_connections("tcp")
        return frozenset(one.laddr.ip for one in found if one.status == psutil.CONN_LISTEN)
    return frozenset()


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
            children.append(Child(task, child_environ(os.environ, task, strategy.environ(task, {}))))
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


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def _start(task: Task, file: Path, *numbers: int) -> subprocess.Popen[bytes]:
    asked = frameworks.load(task.point.strategy).environ(task, task.announced)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.ranks", file, *map(str, numbers)],
        env=child_environ(os.environ, task, asked),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(task))
    process.stdin.close()
    process.stdin = None
    return process


# ---------------------------------------------------------------- in the rank's process


class Joined:
    """The batches of several ranks' feeds put together, as one device would see them."""

    def __init__(self, feeds: Sequence[data.Feed]) -> None:
        self.feeds = feeds
        self.fixed = feeds[0].fixed

    def batch(self, step: int) -> tuple[NDArray[Any], NDArray[Any]]:
        images, labels = zip(*(feed.batch(step) for feed in self.feeds), strict=True)
        return np.concatenate(images), np.concatenate(labels)


def join_feeds(size: int) -> None:
    """Every feed from now on is that of `size` ranks together."""
    feed = data.feed

    def joined(task: Task, spec: ModelSpec) -> Joined:
        point = replace(task.point, world_size=size)
        ranks = [replace(task, point=point, rank=rank) for rank in range(size)]
        return Joined([feed(each, spec) for each in ranks])

    data.feed = joined


def train(task: Task, steps: int, unsynced: int) -> Trained:
    """Connect, train, tell."""
    trainer: Any = import_module(frameworks.load(task.point.strategy).trainer_module).connect(task)
    weights = getattr(trainer, "weights", dict)
    before: dict[str, NDArray[Any]] = weights()
    after, losses = before, []
    for step in range(steps):
        (trainer.unsynced_step if step < unsynced else trainer.step)()
        trainer.sync()
        losses.append(trainer.loss())
        if step == 0:
            after = weights()
    told = Trained(
        before=before,
        after=after,
        digest=trainer.digest(),
        losses=losses,
        samples=trainer.samples,
        parameters=trainer.parameters,
        gradient_bytes=trainer.gradient_bytes,
        device_name=trainer.device_name,
        versions=trainer.versions,
        staleness=trainer.staleness() if isinstance(trainer, Stale) else None,
        listening=listening(psutil.Process()),
    )
    trainer.close()
    return told


def main() -> None:
    """One rank. Ends at once, as workers do: frameworks' threads may abort an orderly exit."""
    file, steps, joined, unsynced = sys.argv[1:]
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    if task.cpus:
        os.sched_setaffinity(0, task.cpus)
    if int(joined):
        join_feeds(int(joined))
    # As a plain dictionary: here the class is `__main__.Trained`, which the reader does not know.
    Path(file).write_bytes(pickle.dumps(train(task, int(steps), int(unsynced))._asdict()))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
