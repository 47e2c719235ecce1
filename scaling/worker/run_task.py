"""What a child does: read the task, take the CPUs, join the exchange, obey commands, end."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, cast

from msgspec.structs import replace

from scaling import frameworks
from scaling.frameworks import answers, feeding
from scaling.frameworks.base import ServerModule, Strategy, Trainer, TrainerModule
from scaling.records.crossing import Bounds
from scaling.records.events import Announce, Hello, Ready
from scaling.records.point import BESIDE, EXCHANGING, Point
from scaling.records.task import Task
from scaling.worker import reading
from scaling.worker.channel import Channel
from scaling.worker.failures import event_of
from scaling.worker.inspection import trace_path
from scaling.worker.loop import Worker, digest_taken
from scaling.worker.training import data_samples, learner_of, training_samples
from scaling.workloads import models, walk

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)


def main(events_fd: int) -> int:
    """Run one task; 0 after a result, 1 after an exception, which was reported."""
    tell_faults()
    # A hung worker is asked for its stacks (they go to its log) before it is ended.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    # A child that is stopped while its agent dies must go on, or it would never see the end of its lifeline.
    at_parents_death(signal.SIGCONT)
    _keep_orphans()
    draw_nothing()
    channel = Channel(0, events_fd)
    task = channel.read_task()
    _pin(task)
    _go_first()
    channel.listen()
    channel.send(Hello(pid=os.getpid(), affinity=tuple(sorted(os.sched_getaffinity(0)))))
    try:
        if task.role == "worker":
            return _leave(_work(task, channel))
        server = cast(ServerModule, import_module(frameworks.load(task.point.strategy).server_module))
        server.serve(task, lambda values: channel.send(_announcement(task, values)))
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        channel.send(event_of(error))
        return 1
    finally:
        # A feed's processes would hold this one's pipes for seconds longer.
        feeding.close()
    return 0


def tell_faults() -> None:
    """Have a fault write all stacks and then end this process. MXNet's handler, which it installs when it is
    imported, does not: it runs what C++ does at an orderly end, which may fault again and hang."""
    faulthandler.disable()
    for number in _FAULTS:
        signal.signal(number, signal.SIG_DFL)
    faulthandler.enable()


def draw_nothing() -> None:
    """Keep a framework from importing matplotlib. Keras does so where it finds it, which takes half a second and
    writes into the user's home."""
    sys.modules.setdefault("matplotlib", cast(ModuleType, None))


def at_parents_death(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when its parent dies; its own forks do not inherit that."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def _keep_orphans() -> None:
    """Be the parent of whatever a strategy starts and leaves: its agent then adopts all of it at once, at the end
    of this process, and knows whose it is."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _pin(task: Task) -> None:
    # CPUs that a cgroup forbids: the agent reports what the worker really has.
    if task.cpus:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, task.cpus)


def _go_first() -> None:
    """Where memory runs out, the kernel is to end this process and not its agent, or others of the machine."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _work(task: Task, channel: Channel) -> Trainer:
    """Obey until the result is out; the trainer is still to be closed."""
    begun_s = time.monotonic()
    strategy = frameworks.load(task.point.strategy)
    module = cast(TrainerModule, import_module(strategy.trainer_module))
    # A file that the agent imports too cannot import its framework at its top.
    prepare: Callable[[], None] = getattr(module, "prepare", lambda: None)
    prepare()
    tell_faults()
    imported_s = time.monotonic()
    read_from, cached_fraction = reading.prepared(task)
    trainer = _connect(module, task)
    ready = _ready(trainer, imported_s - begun_s, time.monotonic() - imported_s)
    crossing = _crossing(strategy, task, trainer)
    is_first = task.point.round == 0 and task.point.kind in ("exchange", "train")
    first_digest = digest_taken(trainer) if is_first else None
    channel.send(
        replace(
            ready,
            crossing_bytes_per_step=crossing,
            operations_per_sample=operations_per_sample(task.point),
            training_samples=training_samples(task),
            fed_by=feeding.said(),
            read_from=read_from,
            cached_fraction=cached_fraction,
            data_samples=data_samples(task),
        )
    )
    worker = Worker(
        trainer,
        channel.send,
        channel.waiting,
        times_steps=task.point.kind in BESIDE,
        trace=trace_path(task.log),
        learner=learner_of(trainer, task, channel.send),
        waited_s=feeding.waited_s,
        fed=feeding.fed,
        first_digest=first_digest,
    )
    while worker.obey(channel.receive()):
        pass
    return trainer


def _connect(module: TrainerModule, task: Task) -> Trainer:
    """The trainer; of kind `feed` what feeds it, which is the same in all frameworks unless one has its own."""
    if task.point.kind != "feed":
        return module.connect(task)
    alone: Callable[[Task], Trainer] = getattr(module, "pipeline", feeding.connect)
    return alone(task)


def _announcement(task: Task, values: Any) -> Announce:
    """What a helper announces. Raises StrategyError for a wrong type."""
    return Announce(values=answers.typed(task.point.strategy, "announce()", values, dict[str, str]))


def _leave(trainer: Trainer) -> int:
    """Close it. Its result is out: what it raises now is for the log, and the agent ends it where it hangs."""
    try:
        trainer.close()
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def _ready(trainer: Trainer, import_s: float, build_s: float) -> Ready:
    versions = answers.of_trainer(trainer, "versions")
    return Ready(
        import_s=import_s,
        build_s=build_s,
        parameters=answers.of_trainer(trainer, "parameters"),
        gradient_bytes=answers.of_trainer(trainer, "gradient_bytes"),
        device_name=answers.of_trainer(trainer, "device_name"),
        versions={name: str(version) for name, version in versions.items()},
        notes=answers.of_trainer(trainer, "notes"),
    )


def operations_per_sample(point: Point) -> int:
    """Of the passes that a step runs, for one sample; 0 where nothing is computed."""
    if point.hardware.device == "emulated" or point.kind in ("comm", "feed"):
        return 0
    model = models.of(point.workload)
    counted = walk.forward_operations if point.workload.pass_ == "forward" else walk.training_operations
    return counted(model.layers, model.input.shape)


def _crossing(strategy: Strategy, task: Task, trainer: Trainer) -> Bounds | None:
    return strategy.bytes_per_step(task, trainer.gradient_bytes) if task.point.kind in EXCHANGING else None


def run_and_exit(events_fd: int) -> NoReturn:
    """Run the task that comes on fd 0 and end the process."""
    code = main(events_fd)
    sys.stdout.flush()
    sys.stderr.flush()
    # Frameworks' threads abort at interpreter exit while others re-initialise; nothing is left to do.
    os._exit(code)
