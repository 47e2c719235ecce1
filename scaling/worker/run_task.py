"""The life of a child: read the task, take the CPUs, join the exchange, obey commands, end.

The file also holds the causes of exceptions, the page cache of a point's data, and the pipes to the agent.
"""

from __future__ import annotations

import ctypes
import errno
import faulthandler
import mmap
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Literal, NoReturn, cast

import msgspec
import psutil  # type: ignore[import-untyped, unused-ignore]

from scaling import frameworks
from scaling.errors import ScalingError
from scaling.frameworks import feeding
from scaling.frameworks.abilities import of_trainer
from scaling.frameworks.base import ServerModule, Strategy, Trainer, TrainerModule, typed
from scaling.frameworks.feeding import FeedError
from scaling.hosts import proc
from scaling.records.events import Announce, Error, Event, Hello, Ready
from scaling.records.point import BESIDE, EXCHANGING, Point
from scaling.records.task import COMMANDS_FD, GIVEN_TASK, Command, Task
from scaling.text import error_line, readable
from scaling.worker.loop import NanLoss, Worker, digest_taken, trace_path
from scaling.worker.training import Learner, samples
from scaling.workloads import data, feeds, layers, models

# ---------------------------------------------------------------- failures
#
# No framework is imported here: exceptions are known by class name and text.


# Causes by words of libraries. The first cause counts that has a group with all its words in the text: RDMA and
# shared memory before memory in general.
WORDS: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...] = (
    # Pinned memory: the limit `ulimit -l` is too low.
    ("memlock", (("ibv_", "cannot allocate memory"), ("mr_reg", "cannot allocate memory"), ("memlock",))),
    ("shm", (
        ("/dev/shm", "no space left"), ("/dev/shm", "error while creating"), ("posix_fallocate", "no space left"),
        ("bus error", "shared memory"), ("allocate shared memory",), ("shared memory segment nccl",),
    )),
    ("driver", (
        ("driver", "is too old"), ("driver version is insufficient",), ("no nvidia driver",),
        ("no cuda-capable device",), ("cuda_error_no_device",), ("cuda driver combination",), ("driver mismatch",),
        ("system not yet initialized",), ("libcuda.so", "cannot open shared object file"),
    )),
    ("busy", (("busy or unavailable",), ("devices_unavailable",), ("devicesunavailable",))),
    ("no-kernel", (
        ("no kernel image",), ("nokernelimage",), ("status_arch_mismatch",), ("invalid device function",),
    )),
    ("oom", (
        ("out of memory",), ("out_of_memory",), ("bad_alloc",), ("not enough memory",), ("allocate memory",),
        ("oom when allocating",), ("unable to allocate",), ("failed to allocate",), ("_alloc_failed",),
        ("host_allocation_failed",), ("memoryerror",),
        # Libraries that do not say that their own memory is what is missing.
        ("cudnn_status_not_initialized",), ("cublas_status_not_initialized",), ("unable to find an engine",),
        ("unable to find a valid cudnn algorithm",), ("failed to cuda calloc",), ("failed to bind", "multicast"),
    )),
    ("port-taken", (("address already in use",), ("eaddrinuse",))),
    ("nccl", (("nccl", "error"), ("nccl", "failed"), ("nccl", "timeout"))),
    # torch raises it anywhere in the worker when a loader process dies.
    ("feed", (("dataloader worker", "exited unexpectedly"), ("dataloader worker", "killed by signal"))),
)  # fmt: skip
PEER_GONE = ("connection", "peer", "broken pipe", "socket", "remote", "unavailable", "aborted", "shut down")
# NCCL's own message follows these words; those before are the same for every failure.
LAST_ERROR = "Last error:"


def event_of(error: BaseException) -> Error:
    """Report an exception in words, as evidence for rank 0, which does not know its class or its host's limits."""
    return Error(
        cause=cause_of(error),
        message=readable(message_of(error) + proc.limit_hint(str(error))),
        traceback=readable("".join(traceback.format_exception(error))),
        may_follow=may_follow(error),
    )


def cause_of(error: BaseException) -> str:
    """Return a cause of `records.Failed`; "error" if no other fits."""
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
    """Whether it may only mean that a peer is gone, which survivors notice before the peer's agent does."""
    words = message_of(error).lower()
    return cause_of(error) in ("error", "nccl") and any(word in words for word in PEER_GONE)


def message_of(error: BaseException, limit: int = 500) -> str:
    """Return the exception's type and the line that says what happened, with NCCL's last error. A message for
    users stands alone. A longer text is cut between words."""
    if isinstance(error, ScalingError):
        return str(error)
    text, stripped = error_line(error), [line.strip() for line in str(error).splitlines() if line.strip()]
    if LAST_ERROR in stripped[:-1]:
        text += f" ({stripped[stripped.index(LAST_ERROR) + 1]})"
    if len(text) <= limit:
        return text
    head = text[: limit - 1]
    words, _, _ = head.rpartition(" ")
    return f"{words} …" if len(words) > limit / 2 else f"{head}…"


# ---------------------------------------------------------------- page cache

_LIBC = ctypes.CDLL(None, use_errno=True)
LOOKED_AT = 64


def drop_cached(paths: Iterable[str]) -> None:
    """Drop files from the page cache if written to disk and not mapped (posix_fadvise(2)). Raises OSError."""
    for path in paths:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


def cached_fraction(paths: Sequence[str]) -> float | None:
    """Return the cached part of a sample of these files; None without write access (mincore(2)). Raises
    OSError."""
    some = [path for path in paths[:: max(1, len(paths) // LOOKED_AT)] if Path(path).stat().st_size]
    if not some or not all(os.access(path, os.W_OK) for path in some):
        return None
    found = [_pages(path) for path in some]
    return sum(cached for cached, _ in found) / sum(pages for _, pages in found)


def _pages(path: str) -> tuple[int, int]:
    with Path(path).open("rb") as file, closing(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)) as mapped:
        pages = -(-len(mapped) // mmap.PAGESIZE)
        states = (ctypes.c_ubyte * pages)()
        # A view would keep the file mapped.
        view = ctypes.c_char.from_buffer(mapped)
        code = _LIBC.mincore(ctypes.c_void_p(ctypes.addressof(view)), ctypes.c_size_t(len(mapped)), states)
        del view
        if code:
            raise OSError(ctypes.get_errno(), "mincore", path)
        return sum(state & 1 for state in states), pages


# The source of data in files, and which part is still cached.
Files = tuple[Literal["", "page cache", "disk"], float | None]


def prepared(task: Task) -> Files:
    """Drop this rank's share of its host's files from the page cache, if the point asks for that. Returns the
    source of data in files, "" for other data, and which part of the share is still cached: other ranks may
    have read a batch or two already. Raises UsageError or OSError."""
    work = task.point.workload
    drives = frameworks.load(task.point.strategy).traits(task.point.strategy).drives
    held = data.spec(work.data).format not in data.DECODED or drives == "point"
    if held or task.point.kind == "comm" or task.point.hardware.device == "emulated":
        return "", None
    if not work.drop_caches:
        return "page cache", None
    # All of a few large files: finding their records has just read some of each.
    paths = feeds.encoded_pictures(task, models.of(work)).encoded.paths
    several = drives == "device" and len(paths) > task.local_world_size
    share = paths[task.local_rank :: task.local_world_size] if several else paths
    drop_cached(share)
    return "disk", cached_fraction(share)


# ---------------------------------------------------------------- channel


HOLD_S = 0.5


class Channel:
    """The worker's two pipes: commands in on fd 0, events out on an inherited fd, both as JSON lines. fd 0 ends
    with the agent: the worker then kills its descendants and its group. A thread uses os.read, because a thread
    blocked in a buffered read turns every exit into SIGABRT."""

    def __init__(self, commands_fd: int, events_fd: int) -> None:
        self._in, self._out = commands_fd, events_fd
        self._buffer, self._held, self._sent_s = b"", b"", 0.0
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._encoder = msgspec.json.Encoder()

    def read_task(self) -> Task:
        """Read the first line. Call `listen` later, once the CPUs are taken: its thread inherits them."""
        return msgspec.json.decode(self._line(), type=Task)

    def listen(self) -> None:
        """Start a thread that reads commands and watches for the agent's end."""
        threading.Thread(target=self._listen, daemon=True, name="lifeline").start()

    def receive(self) -> Command:
        return self._commands.get()

    def waiting(self) -> bool:
        return not self._commands.empty()

    def send(self, event: Event, *, hold: bool = False) -> None:
        """Report an event. With `hold` it may wait for more: its reader uses the cores that are being measured."""
        self._held += self._encoder.encode(event) + b"\n"
        now_s = time.monotonic()
        if hold and now_s - self._sent_s < HOLD_S:
            return
        data, self._held, self._sent_s = self._held, b"", now_s
        while data:
            data = data[os.write(self._out, data) :]

    def _line(self) -> bytes:
        while b"\n" not in self._buffer:
            data = os.read(self._in, 65536)
            if not data:
                with suppress(psutil.Error):
                    for one in psutil.Process().children(recursive=True):  # those that left the group
                        one.kill()
                os.killpg(0, signal.SIGKILL)
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line

    def _listen(self) -> None:
        decoder = msgspec.json.Decoder(Command)
        while True:
            self._commands.put(decoder.decode(self._line()))


# ---------------------------------------------------------------- task

_FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)


def main(events_fd: int) -> int:
    """Run one task; return 0 after a result, 1 after an exception, which was reported."""
    tell_faults()
    # A hung worker is asked for its stacks, which go to its log.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    # A stopped child goes on when its agent dies: it then sees the end of fd 0.
    proc.signal_at_parents_death(signal.SIGCONT)
    # The agent then adopts what a strategy leaves behind, at the end of this process.
    proc.adopt_orphans()
    draw_nothing()
    channel = Channel(_commands(events_fd), events_fd)
    given = os.environ.pop(GIVEN_TASK, "")
    task = msgspec.json.decode(given, type=Task) if given else channel.read_task()
    with suppress(OSError):  # a cgroup may forbid CPUs: the agent reports the affinity that results
        if task.cpus:
            os.sched_setaffinity(0, task.cpus)
    with suppress(OSError):  # if memory runs out, the kernel should end this process, not its agent or others
        Path("/proc/self/oom_score_adj").write_text("1000")
    channel.listen()
    channel.send(Hello(pid=os.getpid(), affinity=tuple(sorted(os.sched_getaffinity(0)))))
    act = partial(_act, task, channel)
    lead = ""
    with suppress(Exception):  # reported by `act`
        lead = frameworks.load(task.point.strategy).lead if task.role == "worker" else ""
    return int(import_module(lead).lead(task, act)) if lead else act()


def _commands(events_fd: int) -> int:
    """Move the pipe of commands away from stdin, which then reads nothing. Programs that the worker starts inherit
    neither pipe."""
    commands_fd = os.dup(0)
    os.environ[COMMANDS_FD] = str(commands_fd)
    os.set_inheritable(events_fd, False)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return commands_fd


def _act(task: Task, channel: Channel) -> int:
    """Do the task; return the exit code."""
    try:
        if task.role == "worker":
            return _leave(_work(task, channel))
        server = cast(ServerModule, import_module(frameworks.load(task.point.strategy).server_module))
        checked = partial(typed, task.point.strategy, "announce()", wanted=dict[str, str])
        server.serve(task, lambda values: channel.send(Announce(values=checked(value=values))))
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        channel.send(event_of(error))
        return 1
    finally:
        # A feed's processes would hold this process's pipes for seconds.
        feeding.close()
    return 0


def tell_faults() -> None:
    """Make a fault write all stacks and end the process. MXNet's own handler may fault again and hang."""
    faulthandler.disable()
    for number in _FAULTS:
        signal.signal(number, signal.SIG_DFL)
    faulthandler.enable()


def draw_nothing() -> None:
    """Keep frameworks from importing matplotlib: Keras would take 0.5 s for it and write into the user's home."""
    sys.modules.setdefault("matplotlib", cast(ModuleType, None))


def _work(task: Task, channel: Channel) -> Trainer:
    """Obey until the result is out; the trainer is not closed."""
    begun_s = time.monotonic()
    strategy = frameworks.load(task.point.strategy)
    module = trainer_module(strategy)
    if not strategy.lead:  # a script has the main thread, which alone may set signals
        tell_faults()
    imported_s = time.monotonic()
    files = prepared(task)
    trainer = _connect(module, task)
    ready = _ready(trainer, task, files, imported_s - begun_s, time.monotonic() - imported_s)
    is_first = task.point.round == 0 and task.point.kind in ("exchange", "train")
    first_digest = digest_taken(trainer) if is_first else None
    channel.send(ready)
    worker = Worker(
        trainer,
        channel.send,
        channel.waiting,
        times_steps=task.times_steps or task.point.kind in BESIDE,
        trace=trace_path(task.log),
        learner=Learner(trainer, task, channel.send) if task.point.regime else None,
        waited_s=feeding.waited_s,
        fed=feeding.fed,
        first_digest=first_digest,
    )
    while worker.obey(channel.receive()):
        pass
    return trainer


def trainer_module(strategy: Strategy) -> TrainerModule:
    """Import the module of a strategy's trainer, and its framework."""
    module = cast(TrainerModule, import_module(strategy.trainer_module))
    # A file that the agent imports too cannot import its framework at its top.
    prepare: Callable[[], None] = getattr(module, "prepare", lambda: None)
    prepare()
    return module


def _connect(module: TrainerModule, task: Task) -> Trainer:
    if task.point.kind != "feed":
        return module.connect(task)
    alone: Callable[[Task], Trainer] = getattr(module, "pipeline", feeding.connect)
    return alone(task)


def _leave(trainer: Trainer) -> int:
    """The result is out: exceptions go to the log, and the agent ends a worker that hangs here."""
    try:
        trainer.close()
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def _ready(trainer: Trainer, task: Task, files: Files, import_s: float, build_s: float) -> Ready:
    told = partial(of_trainer, trainer)
    exchanges, strategy = task.point.kind in EXCHANGING, frameworks.load(task.point.strategy)
    training_samples, data_samples = samples(task)
    return Ready(
        import_s=import_s, build_s=build_s, fed_by=feeding.said(), read_from=files[0], cached_fraction=files[1],
        parameters=told("parameters"), gradient_bytes=told("gradient_bytes"), device_name=told("device_name"),
        versions={name: str(version) for name, version in told("versions").items()}, notes=told("notes"),
        crossing_bytes_per_step=strategy.bytes_per_step(task, trainer.gradient_bytes) if exchanges else None,
        operations_per_sample=operations_per_sample(task.point),
        training_samples=training_samples, data_samples=data_samples,
    )  # fmt: skip


def operations_per_sample(point: Point) -> int:
    """Return the operations of a step's passes for one sample; 0 if nothing is computed."""
    if point.hardware.device == "emulated" or point.kind in ("comm", "feed"):
        return 0
    model = models.of(point.workload)
    counted = layers.forward_operations if point.workload.pass_ == "forward" else layers.training_operations
    return counted(model.layers, model.input.shape)


def run_and_exit(events_fd: int) -> NoReturn:
    code = main(events_fd)
    sys.stdout.flush()
    sys.stderr.flush()
    # Frameworks' threads may abort at the interpreter's exit.
    os._exit(code)
