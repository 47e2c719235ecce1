"""The child's entry: read the task, take the CPUs, join the exchange, obey commands, end.

python -m scaling.worker      (started by an agent only)
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import cast

from msgspec.structs import replace

from scaling import frameworks
from scaling.frameworks.base import ServerModule, Strategy, Trainer, TrainerModule
from scaling.records.crossing import Bounds
from scaling.records.events import Announce, Hello, Ready
from scaling.records.point import EXCHANGING
from scaling.records.task import EVENTS_FD, Task
from scaling.worker.channel import Channel
from scaling.worker.failures import event_of
from scaling.worker.loop import Worker


def main() -> int:
    """Run one task; 0 after a result, 1 after an exception, which was reported."""
    # A hung worker is asked for its stacks (they go to its log) before it is ended.
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    channel = Channel(0, int(os.environ[EVENTS_FD]))
    task = channel.read_task()
    _pin(task)
    channel.listen()
    channel.send(Hello(pid=os.getpid(), affinity=tuple(sorted(os.sched_getaffinity(0)))))
    try:
        if task.role == "worker":
            _work(task, channel)
        else:
            server = cast(ServerModule, import_module(frameworks.load(task.point.strategy).server_module))
            server.serve(task, lambda values: channel.send(Announce(values=values)))
    except Exception as error:
        traceback.print_exc()
        channel.send(event_of(error))
        return 1
    return 0


def _pin(task: Task) -> None:
    # CPUs that a cgroup forbids: the agent reports what the worker really has.
    if task.cpus:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, task.cpus)


def _work(task: Task, channel: Channel) -> None:
    begun_s = time.monotonic()
    strategy = frameworks.load(task.point.strategy)
    module = cast(TrainerModule, import_module(strategy.trainer_module))
    # A file that the agent imports too cannot import its framework at its top.
    prepare: Callable[[], None] = getattr(module, "prepare", lambda: None)
    prepare()
    imported_s = time.monotonic()
    trainer = module.connect(task)
    ready = _ready(trainer, imported_s - begun_s, time.monotonic() - imported_s)
    channel.send(replace(ready, crossing_bytes_per_step=_crossing(strategy, task, trainer)))
    worker = Worker(trainer, channel.send, channel.waiting)
    while worker.obey(channel.receive()):
        pass


def _ready(trainer: Trainer, import_s: float, build_s: float) -> Ready:
    return Ready(
        import_s=import_s,
        build_s=build_s,
        parameters=trainer.parameters,
        gradient_bytes=trainer.gradient_bytes,
        device_name=trainer.device_name,
        versions={name: str(version) for name, version in trainer.versions.items()},
        notes=tuple(trainer.notes),
    )


def _crossing(strategy: Strategy, task: Task, trainer: Trainer) -> Bounds | None:
    return strategy.bytes_per_step(task, trainer.gradient_bytes) if task.point.kind in EXCHANGING else None


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Frameworks' threads abort at interpreter exit while others re-initialise; nothing is left to do.
    os._exit(code)
