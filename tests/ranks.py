"""Ranks of one point as real processes, without agents: `run(tasks(...))` trains a few steps on each.

python -m tests.ranks RESULT STEPS JOINED < TASK      (one rank, started by `run`)
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from scaling import data, models, strategies
from scaling.process import child_environ
from scaling.records import Kind, Point
from scaling.tasks import Clocks, Task

LIMIT_S = 60


class Trained(NamedTuple):
    """What one rank tells: the weights before the first step and after it, the rest after the last."""

    before: dict[str, np.ndarray]
    after: dict[str, np.ndarray]
    digest: str | None
    losses: list[float | None]
    samples: int
    parameters: int
    gradient_bytes: int
    device_name: str
    versions: dict[str, str]


def tasks(
    strategy: str, kind: Kind, size: int, *, ports: tuple[int, ...] | None = None, **fields: Any
) -> list[Task]:
    """One task per rank on this host. `fields` are the point's, by default the digits at batch 4 on CPU."""
    settled = {"model": "digits-cnn", "data": "digits", "device": "cpu", "batch_size": 4, **fields}
    point = Point(strategy=strategy, kind=kind, world_size=size, round=0, batch_rule="weak", **settled)
    cpus = sorted(os.sched_getaffinity(0))
    reserved = free_ports(strategies.load(strategy).PORTS) if ports is None else ports
    return [
        Task(
            point=point,
            attempt=0,
            rank=rank,
            launch_rank=rank,
            local_rank=rank,
            local_world_size=size,
            hosts=("localhost",) * size,
            device_index=rank,
            cpus=(cpus[rank % len(cpus)],),
            threads=1,
            seed=1,
            log="",
            ports=reserved,
            clocks=Clocks(startup_s=LIMIT_S, stall_s=LIMIT_S, deadline_s=LIMIT_S),
        )
        for rank in range(size)
    ]


def one_task(strategy: str = "torch:plain", kind: Kind = "solo", **fields: Any) -> Task:
    """The task of a point of one rank."""
    (task,) = tasks(strategy, kind, 1, **fields)
    return task


def free_ports(count: int) -> tuple[int, ...]:
    """TCP ports of this host that nobody uses now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(_bound(0)) for _ in range(count)]
        return tuple(one.getsockname()[1] for one in sockets)


def _bound(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    return bound


def run(of: Sequence[Task], steps: int = 1, joined: int = 0) -> list[Trained]:
    """Train on all ranks at once, with the ports reserved as agents do: bound, not listened on.

    With `joined`, each batch is those of that many ranks, put together.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        for port in of[0].ports:
            stack.enter_context(_bound(port))
        files = [Path(folder, str(task.rank)) for task in of]
        processes = [_start(task, file, steps, joined) for task, file in zip(of, files, strict=True)]
        for process in processes:
            stack.callback(_end, process)
        for process in processes:
            output, _ = process.communicate(timeout=LIMIT_S)
            assert process.returncode == 0, output.decode()
        return [Trained(**pickle.loads(file.read_bytes())) for file in files]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def _start(task: Task, file: Path, steps: int, joined: int) -> subprocess.Popen[bytes]:
    asked = strategies.load(task.point.strategy).environ(task, {})
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.ranks", file, str(steps), str(joined)],
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

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        images, labels = zip(*(feed.batch(step) for feed in self.feeds), strict=True)
        return np.concatenate(images), np.concatenate(labels)


def join_feeds(size: int) -> None:
    """Every feed from now on is that of `size` ranks together."""
    feed = data.feed

    def joined(task: Task, spec: models.ModelSpec) -> Joined:
        point = msgspec.structs.replace(task.point, world_size=size)
        ranks = [msgspec.structs.replace(task, point=point, rank=rank) for rank in range(size)]
        return Joined([feed(each, spec) for each in ranks])

    data.feed = joined


def train(task: Task, steps: int) -> Trained:
    """Connect, train, tell."""
    trainer: Any = strategies.load(task.point.strategy).connect(task)
    weights = getattr(trainer, "weights", dict)
    before: dict[str, np.ndarray] = weights()
    after, losses = before, []
    for step in range(steps):
        trainer.step()
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
    )
    trainer.close()
    return told


def main() -> None:
    """One rank. Ends at once, as workers do: frameworks' threads may abort an orderly exit."""
    file, steps, joined = sys.argv[1:]
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    os.sched_setaffinity(0, task.cpus)
    if int(joined):
        join_feeds(int(joined))
    # As a plain dictionary: here the class is `__main__.Trained`, which the reader does not know.
    Path(file).write_bytes(pickle.dumps(train(task, int(steps))._asdict()))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
