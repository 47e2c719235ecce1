"""How many bytes the ranks of a point really send in a step: `counted(points)`, in a network namespace of their
own, whose loopback carries nothing else. Needs root.

python -m tests.support.counted_bytes            (in the namespace: starts the ranks)
python -m tests.support.counted_bytes RANK       (a rank: all points, one after the other)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from scaling import frameworks
from scaling.records.crossing import Bounds
from scaling.records.task import Task
from tests.support.paper_tasks import LIMIT_S

STEPS = 2
# What a busy core makes TCP send twice or in small segments is in some stretches, not in all.
STRETCHES = 4
kept: list[Any] = []


def counted(points: Sequence[Sequence[Task]]) -> list[tuple[float, Bounds]]:
    """Of each point, given by the tasks of its ranks: the bytes that all of them sent in a step, and what its
    strategy expects if every rank had a node of its own."""
    command = ["unshare", "--net", sys.executable, "-m", "tests.support.counted_bytes"]
    done = subprocess.run(
        command, input=msgspec.json.encode(points), capture_output=True, check=False, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr.decode()
    return [(sent, (least, most)) for sent, least, most in json.loads(done.stdout)]


def main() -> None:
    """Start all ranks; rank 0 tells."""
    told = sys.stdin.buffer.read()
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    count = len(msgspec.json.decode(told, type=list[list[Task]])[0])
    processes = [
        subprocess.Popen([sys.executable, "-m", "tests.support.counted_bytes", str(rank)], stdin=subprocess.PIPE)
        for rank in range(count)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(told)
        process.stdin.close()
    sys.exit(max(process.wait() for process in processes))


def of_rank(rank: int) -> None:
    points = msgspec.json.decode(sys.stdin.buffer.read(), type=list[list[Task]])
    found = [measured(tasks[rank]) for tasks in points]
    if rank == 0:
        print(json.dumps(found), flush=True)
    os._exit(0)


def measured(task: Task) -> tuple[float, ...]:
    """What all ranks send in a step, and what must be sent, at least and at most."""
    strategy = frameworks.load(task.point.strategy)
    os.environ.update(strategy.environ(task, {}))
    trainer: Any = import_module(strategy.trainer_module).connect(task)
    distributed = import_module("torch.distributed")
    # DDP forms its buckets after the first step.
    for _ in range(2):
        trainer.step()
    sent = min(sent_in_a_step(trainer, distributed) for _ in range(STRETCHES))
    bounds = strategy.bytes_per_step(apart(task), trainer.gradient_bytes)
    assert bounds is not None
    # Nothing of it is freed: a gloo thread that is just ending would be waited for with Python's lock held.
    kept.append((trainer, distributed.group.WORLD))
    trainer.close()
    return sent, *bounds


def sent_in_a_step(trainer: Any, distributed: Any) -> float:
    before = sent_bytes(distributed)
    for _ in range(STEPS):
        trainer.step()
    return (sent_bytes(distributed) - before) / STEPS


def sent_bytes(distributed: Any) -> int:
    """By the loopback, since it is there, while no rank sends anything."""
    distributed.barrier()
    found = loopback_bytes()
    distributed.barrier()
    return found


def loopback_bytes() -> int:
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split()[9]) for line in lines if line.strip().startswith("lo:"))


def apart(task: Task) -> Task:
    """The task of a point whose ranks and servers have a node each."""
    servers = tuple(replace(one, host=f"server-{index}") for index, one in enumerate(task.servers))
    return replace(task, hosts=tuple(f"node-{rank}" for rank in range(len(task.hosts))), servers=servers)


if __name__ == "__main__":
    if sys.argv[1:]:
        of_rank(int(sys.argv[1]))
    else:
        main()
