"""What a child does: read the task, take the CPUs, join the exchange, obey commands, end."""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import os
import queue
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NoReturn, cast

import msgspec
import psutil  # type: ignore[import-untyped, unused-ignore]
from msgspec.structs import replace

from scaling import frameworks
from scaling.frameworks import answers, feeding
from scaling.frameworks.base import ServerModule, Strategy, Trainer, TrainerModule
from scaling.frameworks.feeding import FeedError
from scaling.hosts import page_cache, parents, process_limits
from scaling.records.crossing import Bounds
from scaling.records.events import Announce, Error, Event, Hello, Ready
from scaling.records.point import BESIDE, EXCHANGING, Point
from scaling.records.task import Command, Task
from scaling.text import readable
from scaling.worker.inspection import trace_path
from scaling.worker.loop import NanLoss, Worker, digest_taken
from scaling.worker.training import data_samples, learner_of, training_samples
from scaling.workloads import data, feeds, models, walk

# ---------------------------------------------------------------- failures
#
# An exception -> the cause of a failed point. Frameworks' classes are told by name: none is imported.
#
# What an exception means stands in its text alone where a framework raises; here it is read, and nowhere else.


# What a failure is called, by the words of libraries in lower case: the first line of which all of one group are
# in the text counts. What libraries of RDMA and shared memory say of memory comes before what frameworks say.
WORDS: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...] = (
    # Pinned memory for a card: `ulimit -l`, not memory, is what is short.
    ("memlock", (("ibv_", "cannot allocate memory"), ("mr_reg", "cannot allocate memory"), ("memlock",))),
    (
        "shm",
        (
            ("/dev/shm", "no space left"),
            ("/dev/shm", "error while creating"),
            ("posix_fallocate", "no space left"),
            ("bus error", "shared memory"),
            ("allocate shared memory",),
            ("shared memory segment nccl",),
        ),
    ),
    (
        "driver",
        (
            ("driver", "is too old"),
            ("driver version is insufficient",),
            ("no nvidia driver",),
            ("no cuda-capable device",),
            ("cuda_error_no_device",),
            ("cuda driver combination",),
            ("driver mismatch",),
            ("system not yet initialized",),
            ("libcuda.so", "cannot open shared object file"),
        ),
    ),
    (
        "no-kernel",
        (("no kernel image",), ("nokernelimage",), ("status_arch_mismatch",), ("invalid device function",)),
    ),
    (
        "oom",
        (
            ("out of memory",),
            ("out_of_memory",),
            ("bad_alloc",),
            ("not enough memory",),
            ("allocate memory",),
            ("oom when allocating",),
            ("unable to allocate",),
            ("failed to allocate",),
            ("_alloc_failed",),
            ("host_allocation_failed",),
        ),
    ),
    ("port-taken", (("address already in use",), ("eaddrinuse",))),
    ("nccl", (("nccl", "error"), ("nccl", "failed"), ("nccl", "timeout"))),
    # torch raises it wherever the worker is when a loader process dies.
    ("feed", (("dataloader worker", "exited unexpectedly"), ("dataloader worker", "killed by signal"))),
)
PEER_GONE = ("connection", "peer", "broken pipe", "socket", "remote", "unavailable", "aborted", "shut down")
# Lines that do not say what happened: headings, and frames of Python, TensorFlow (`[[`) and MXNet (`[bt]`).
FRAME = 'File "'
HEADING = re.compile(rf"\s*({FRAME}|\[bt\]|\[\[|\d+ root error|.*:$)")
# After these words NCCL's own say what happened; those before are the same for every failure.
LAST_ERROR = "Last error:"


def event_of(error: BaseException) -> Error:
    """Report a caught exception in words: evidence for rank 0, which never sees its class or its host's limits."""
    return Error(
        cause=cause_of(error),
        message=readable(message_of(error) + process_limits.hint(str(error))),
        traceback=readable("".join(traceback.format_exception(error))),
        may_follow=may_follow(error),
    )


def cause_of(error: BaseException) -> str:
    """Return a cause of `records.Failed`; "error" for what has no name of its own."""
    if isinstance(error, NanLoss):
        return "nan-loss"
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "oom"
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return "port-taken"
    text = str(error).lower()
    found = (cause for cause, groups in WORDS if any(all(word in text for word in words) for words in groups))
    named = next(found, "feed" if isinstance(error, FeedError) else "error")
    return "missing" if isinstance(error, ImportError) and named != "driver" else named


def may_follow(error: BaseException) -> bool:
    """Whether it may only tell that a peer is gone: a survivor notices that before the peer's agent does."""
    words = message_of(error).lower()
    return cause_of(error) in ("error", "nccl") and any(word in words for word in PEER_GONE)


def message_of(error: BaseException, limit: int = 500) -> str:
    """Return the exception's type and the line that says what happened, with NCCL's last error."""
    name, lines = type(error).__name__, [line for line in str(error).splitlines() if line.strip()]
    text = f"{name}: {_telling(lines).removeprefix(f'{name}: ')}" if lines else name
    stripped = [line.strip() for line in lines]
    if LAST_ERROR in stripped[:-1]:
        text += f" ({stripped[stripped.index(LAST_ERROR) + 1]})"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _telling(lines: Sequence[str]) -> str:
    """The first line that is no heading, no frame, and no source line indented below one; else the first."""
    for before, line in zip(["", *lines], lines, strict=False):
        is_source = before.lstrip().startswith(FRAME) and _indent(line) > _indent(before)
        if not is_source and not HEADING.match(line):
            return line.strip()
    return lines[0].strip()


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


# ---------------------------------------------------------------- reading
#
# Where a point's data is read from: the kernel's page cache, or the disk because it was dropped from there.


def prepared(task: Task) -> tuple[Literal["", "page cache", "disk"], float | None]:
    """Drop this rank's share of its host's files from the page cache, where the point asks for that.

    Returns where data in files comes from, and which part of the share is still cached; of other data nothing.

    Other ranks may have begun to read: a batch or two each. Raises UsageError, or OSError.
    """
    work = task.point.workload
    drives = frameworks.load(task.point.strategy).traits(task.point.strategy).drives
    # Where helpers compute, files are read once, before the first window.
    held = data.spec(work.data).format not in data.DECODED or drives == "point"
    if held or task.point.kind == "comm" or task.point.hardware.device == "emulated":
        return "", None
    if not work.drop_caches:
        return "page cache", None
    # All of a few large files: finding their records has just read some of each.
    paths = feeds.encoded_pictures(task, models.of(work)).encoded.paths
    several = drives == "device" and len(paths) > task.local_world_size
    share = paths[task.local_rank :: task.local_world_size] if several else paths
    page_cache.drop(share)
    return "disk", page_cache.cached_fraction(share)


# ---------------------------------------------------------------- channel
#
# The worker's two pipes: commands in on fd 0, events out on an inherited fd, both JSON lines.
#
# fd 0 is also the lifeline: at its end the agent is gone, and the worker kills its descendants and its group. It
# is read by os.read in a thread: a thread blocked in a buffered read turns every exit into SIGABRT.


HOLD_S = 0.5


class Channel:
    """The worker's end of its pipes."""

    def __init__(self, commands_fd: int, events_fd: int) -> None:
        self._in = commands_fd
        self._out = events_fd
        self._buffer = b""
        self._held = b""
        self._sent_s = 0.0
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._encoder = msgspec.json.Encoder()

    def read_task(self) -> Task:
        """Read the first line. `listen` follows, once the CPUs are taken: threads inherit them."""
        while b"\n" not in self._buffer:
            self._buffer += self._read()
        line, self._buffer = self._buffer.split(b"\n", 1)
        return msgspec.json.decode(line, type=Task)

    def listen(self) -> None:
        """From now on a thread reads commands and watches the lifeline."""
        threading.Thread(target=self._listen, daemon=True, name="lifeline").start()

    def receive(self) -> Command:
        """Wait for the next command."""
        return self._commands.get()

    def waiting(self) -> bool:
        """Whether a command has arrived that was not received yet."""
        return not self._commands.empty()

    def send(self, event: Event, *, hold: bool = False) -> None:
        """Report an event. With `hold` it may wait for company: whoever reads it runs on the cores that are
        being measured."""
        self._held += self._encoder.encode(event) + b"\n"
        now_s = time.monotonic()
        if hold and now_s - self._sent_s < HOLD_S:
            return
        data, self._held, self._sent_s = self._held, b"", now_s
        while data:
            data = data[os.write(self._out, data) :]

    def _read(self) -> bytes:
        data = os.read(self._in, 65536)
        if not data:
            with suppress(psutil.Error):
                for one in psutil.Process().children(recursive=True):  # those that left the group
                    one.kill()
            os.killpg(0, signal.SIGKILL)
        return data

    def _listen(self) -> None:
        decoder = msgspec.json.Decoder(Command)
        while True:
            while b"\n" not in self._buffer:
                self._buffer += self._read()
            line, self._buffer = self._buffer.split(b"\n", 1)
            self._commands.put(decoder.decode(line))


# ---------------------------------------------------------------- run task

_FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)


def main(events_fd: int) -> int:
    """Run one task; 0 after a result, 1 after an exception, which was reported."""
    tell_faults()
    # A hung worker is asked for its stacks (they go to its log) before it is ended.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    # A child that is stopped while its agent dies must go on, or it would never see the end of its lifeline.
    parents.signal_at_parents_death(signal.SIGCONT)
    # Its agent then adopts whatever a strategy starts and leaves, all at once at the end of this process.
    parents.adopt_orphans()
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
    read_from, cached_fraction = prepared(task)
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
