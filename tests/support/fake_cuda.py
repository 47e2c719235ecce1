"""GPUs below the real torch.cuda: CPUs compute, Gloo exchanges for NCCL, and each process notes its devices.

* As in CUDA, each thread begins on device 0, and setting a device makes a context there.
* Streams and events are those of a device that may be slower than its host.
* Its memory is shared by all processes, and may be too small. Contexts of one driver start one after another.

A program runs on it with `environ(folder, ...)`: its Pythons then patch torch right after its import.
`touched(folder)` tells what was used. The stand-in shows no kernel, no time of a real GPU and no NCCL.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import sys
import threading
import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

FOLDER, SETTINGS = "FAKE_CUDA", "FAKE_CUDA_SETTINGS"
ROOT = Path(__file__).parents[2]
CONTEXT_BYTES = 500 << 20
CUDA = 1  # torch's number of the kind of device
H100 = SimpleNamespace(name="NVIDIA H100 80GB HBM3", major=9, minor=0, total_memory=80 << 30)


class Settings(NamedTuple):
    """`slower`: seconds of the device for one of the host. `start_s`: seconds of a context, one after another.
    `exclusive`: each device takes one process."""

    devices: int = 2
    bytes: int = 80 << 30
    slower: float = 1.5
    start_s: float = 0.0
    exclusive: bool = False


class Touch(NamedTuple):
    """A thread of a process used a device: for a context, a stream, an event, a tensor or pinned memory."""

    pid: int
    own: int | None
    device: int
    thread: str
    what: str


def environ(folder: Path, **settings: Any) -> dict[str, str]:
    """Prepare a folder; return variables by which Pythons, and all that these start, have such GPUs."""
    for name in ("site", "memory", "touched"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "site/sitecustomize.py").write_text(
        "from tests.support import fake_cuda\nfake_cuda.watch_imports()\n"
    )
    return {
        "PYTHONPATH": os.pathsep.join([str(folder / "site"), str(ROOT)]),
        FOLDER: str(folder),
        SETTINGS: json.dumps(settings),
        "FAKE_NVML_MEMORY": str(folder / "memory"),
        "FAKE_NVML_BYTES": str(Settings(**settings).bytes),
        "FAKE_NVML_MODE": "3" if Settings(**settings).exclusive else "0",
    }


def touched(folder: Path) -> set[Touch]:
    lines = [line for file in (folder / "touched").iterdir() for line in file.read_text().splitlines()]
    return {Touch(*json.loads(line)) for line in lines}


# ---------------------------------------------------------------- imports


def watch_imports() -> None:
    """Patch torch, and say that it is built for CUDA, once a module has been imported."""
    sys.meta_path.insert(0, _Watching())


class _Watching(MetaPathFinder):
    """Finds modules as the others do, and patches two of them."""

    _busy = False

    def find_spec(self, name: str, *_: Any) -> Any:
        patch = {"torch": _install, "scaling.frameworks.pytorch.installed": _built_for_cuda}.get(name)
        if patch is None or self._busy:
            return None
        self._busy = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._busy = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Patching(spec.loader, patch)
        return spec


class _Patching(Loader):
    def __init__(self, loader: Any, patch: Callable[[Any], None]) -> None:
        self._loader, self._patch = loader, patch

    def create_module(self, spec: Any) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._patch(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _built_for_cuda(module: Any) -> None:
    module.cuda = lambda: "12.4"
    module.arch_flags = lambda: "sm_80 sm_90"


# ---------------------------------------------------------------- devices


class Gpus:
    """What one process has on its GPUs, and what each of its threads has selected."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder, self.settings = folder, settings
        self.chosen = threading.local()
        self.own: int | None = None  # the device that the process set first
        self.busy_until_s: dict[tuple[int, int], float] = defaultdict(float)
        self.allocated, self.cached, self.peak = Counter[int](), Counter[int](), Counter[int]()
        self._contexts: set[tuple[int, int]] = set()  # by process: a fork has none
        self._streams = 0
        self._lock = threading.RLock()

    @property
    def current(self) -> int:
        return getattr(self.chosen, "device", 0)

    def select(self, device: int) -> int:
        """Set the thread's device, as cudaSetDevice: since CUDA 12 it makes a context. Return the one before."""
        before = self.current
        if self.own is None:
            self.own = device
        self.chosen.device = device
        self.touch(device, "set_device")
        return before

    def exchange(self, device: int) -> int:
        """Set the thread's device for a while, as torch's guards: they make no context."""
        before = self.current
        if device >= 0:
            self.chosen.device = device
        return before

    def touch(self, device: int, what: str) -> None:
        pid = os.getpid()
        said = Touch(pid, self.own, device, threading.current_thread().name, what)
        with self._lock, (self.folder / f"touched/{pid}").open("a") as file:
            file.write(json.dumps(said) + "\n")
            if (pid, device) in self._contexts:
                return
            with (self.folder / "driver.lock").open("w") as driver:
                fcntl.flock(driver, fcntl.LOCK_EX)
                time.sleep(self.settings.start_s)
                if self.settings.exclusive and used_bytes(self.folder / "memory", device):
                    raise RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable")
                self._contexts.add((pid, device))
                self.allocate(device, 0)

    def stream(self) -> int:
        """Return the thread's current stream of its current device."""
        return int(self.streams().get(self.current, 0))

    def streams(self) -> dict[int, int]:
        if not hasattr(self.chosen, "streams"):
            self.chosen.streams = {}
        found: dict[int, int] = self.chosen.streams
        return found

    def new_stream(self, device: int) -> int:
        self._streams += 1
        self.touch(device, "stream")
        return self._streams

    def queue(self, begun_s: float, host_s: float) -> None:
        """Queue what took the host so long: work of this process's own device."""
        device = self.current if self.own is None else self.own
        key = device, self.streams().get(device, 0)
        self.busy_until_s[key] = max(self.busy_until_s[key], begun_s) + self.settings.slower * host_s

    def ends_s(self, device: int) -> float:
        return max((end_s for (one, _), end_s in self.busy_until_s.items() if one == device), default=0.0)

    # ------------------------------------------------------------ memory

    def hold(self, device: int, owner: object, size: int) -> None:
        """Allocate until `owner` is gone; the allocator then keeps it in its cache."""
        self.allocate(device, size)
        weakref.finalize(owner, self._give_back, device, size)

    def allocate(self, device: int, size: int) -> None:
        with self._lock:
            self.cached[device] -= min(size, self.cached[device])
            self.allocated[device] += size
            self.peak[device] = max(self.peak[device], self.allocated[device])
            self._say(device)
            if used_bytes(self.folder / "memory", device) > self.settings.bytes:
                import torch

                self.allocated[device] -= size
                self._say(device)
                raise torch.OutOfMemoryError(
                    f"CUDA out of memory. Tried to allocate {size >> 20} MiB. GPU {device}"
                )

    def _give_back(self, device: int, size: int) -> None:
        with self._lock:
            self.allocated[device] -= size
            self.cached[device] += size

    def empty_cache(self) -> None:
        with self._lock:
            for device in list(self.cached):
                self.cached[device] = 0
                self._say(device)

    def _say(self, device: int) -> None:
        context = CONTEXT_BYTES if (os.getpid(), device) in self._contexts else 0
        used = context + self.allocated[device] + self.cached[device]
        (self.folder / f"memory/{device}.{os.getpid()}").write_text(str(used))


def used_bytes(folder: Path, device: int) -> int:
    """What all living processes hold of a device; libnvidia-ml.c reads the same files."""
    used = 0
    for file in folder.glob(f"{device}.*"):
        if Path(f"/proc/{file.suffix[1:]}").exists():
            with suppress(ValueError, OSError):
                used += int(file.read_text())
    return used


# ---------------------------------------------------------------- torch.cuda


def _install(torch: Any) -> None:
    """Replace what torch.cuda asks of its C library; its own Python above that stays."""
    gpus = Gpus(Path(os.environ[FOLDER]), Settings(**json.loads(os.environ[SETTINGS])))
    for name, function in _library(torch, gpus).items():
        setattr(torch._C, name, function)
    torch.cuda._initialized = True
    torch.cuda._exchange_device = torch.cuda._maybe_exchange_device = gpus.exchange
    torch.cuda.Stream, torch.cuda.Event = _streams(torch, gpus)
    torch.cuda.default_generators = tuple(torch.Generator() for _ in range(gpus.settings.devices))
    torch.cuda._get_device_properties = lambda _: H100
    torch.cuda.nccl.version = lambda: (2, 28, 9)
    torch.version.cuda = "12.4"
    torch.nn.Module.to = _module_moved(torch, gpus)
    _patch_distributed(torch, gpus)
    _patch_threads(_mode(torch, gpus))


def _library(torch: Any, gpus: Gpus) -> dict[str, Callable[..., Any]]:
    def set_stream(stream_id: int, device_index: int, device_type: int) -> None:
        """Make the stream's device the current one, as THCPModule_setStream_wrap (torch/csrc/cuda/Module.cpp)."""
        assert device_type == CUDA
        if device_index != gpus.current:
            gpus.select(device_index)
        gpus.streams()[device_index] = stream_id

    def synchronize() -> None:
        gpus.touch(gpus.current, "synchronize")
        _sleep_until(gpus.ends_s(gpus.current))

    return {
        "_cuda_getDeviceCount": lambda: gpus.settings.devices,
        "_cuda_getDevice": lambda: gpus.current,
        "_cuda_setDevice": gpus.select,
        "_cuda_setStream": set_stream,
        "_cuda_getCurrentStream": lambda device: (gpus.streams().get(device, 0), device, CUDA),
        "_cuda_getDefaultStream": lambda device: (0, device, CUDA),
        "_cuda_getCurrentRawStream": lambda device: gpus.streams().get(device, 0),
        "_cuda_synchronize": synchronize,
        "_cuda_emptyCache": gpus.empty_cache,
        "_cuda_memoryStats": lambda device: {"allocated_bytes": {"all": {"peak": gpus.peak[device]}}},
        "_cuda_isInBadFork": lambda: False,
    }


def _sleep_until(end_s: float) -> None:
    time.sleep(max(0.0, end_s - time.monotonic()))


def _streams(torch: Any, gpus: Gpus) -> tuple[type, type]:
    class Stream:
        """A queue of a device; without a device it is one of the thread's current device."""

        device_type = CUDA

        def __init__(
            self,
            device: Any = None,
            priority: int = 0,
            *,
            stream_id: int | None = None,
            device_index: int | None = None,
            device_type: int = CUDA,
        ) -> None:
            index = torch.cuda._utils._get_device_index(device, optional=True)
            self.device_index = index if device_index is None else device_index
            self.stream_id = gpus.new_stream(self.device_index) if stream_id is None else stream_id
            self.key = self.device_index, self.stream_id
            self.device = torch.device("cuda", self.device_index)

        def wait_event(self, event: Event) -> None:
            gpus.busy_until_s[self.key] = max(gpus.busy_until_s[self.key], event.at_s)

        def wait_stream(self, stream: Stream) -> None:
            self.wait_event(stream.record_event())

        def record_event(self, event: Event | None = None) -> Event:
            event = event or Event()
            event.record(self)
            return event

        def synchronize(self) -> None:
            _sleep_until(gpus.busy_until_s[self.key])

    class Event:
        """A mark of a queue, which the device reaches when all before it is done."""

        def __init__(self, enable_timing: bool = False, **_: Any) -> None:
            self.at_s = 0.0

        def record(self, stream: Stream | None = None) -> None:
            stream = stream or torch.cuda.current_stream()
            gpus.touch(stream.device_index, "event")
            self.at_s = max(time.monotonic(), gpus.busy_until_s[stream.key])

        def query(self) -> bool:
            return time.monotonic() >= self.at_s

        def synchronize(self) -> None:
            _sleep_until(self.at_s)

        def elapsed_time(self, later: Event) -> float:
            return 1000 * (later.at_s - self.at_s)

    return Stream, Event


def _module_moved(torch: Any, gpus: Gpus) -> Callable[..., Any]:
    move = torch.nn.Module.to

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        device = _of(torch, (*args, *kwargs.values()))
        if device is not None:
            size = sum(each.nbytes for each in (*self.parameters(), *self.buffers()))
            gpus.touch(_index(gpus, device), "module")
            gpus.hold(_index(gpus, device), self, size)
            args = tuple(torch.device("cpu") if one is device else one for one in args)
            kwargs = {name: torch.device("cpu") if one is device else one for name, one in kwargs.items()}
        return move(self, *args, **kwargs)

    return to


def _of(torch: Any, values: Any) -> Any:
    return next((one for one in values if isinstance(one, torch.device) and one.type == "cuda"), None)


def _index(gpus: Gpus, device: Any) -> int:
    return gpus.current if device.index is None else int(device.index)


def _patch_distributed(torch: Any, gpus: Gpus) -> None:
    join = torch.distributed.init_process_group
    wrapped = torch.nn.parallel.DistributedDataParallel.__init__

    def init_process_group(backend: str, *, device_id: Any = None, **how: Any) -> None:
        if backend == "nccl":
            gpus.touch(gpus.current if device_id is None else device_id.index, "nccl")
        join("gloo" if backend == "nccl" else backend, **how)

    def init(self: Any, module: Any, device_ids: Any = None, **how: Any) -> None:
        wrapped(self, module, **how)

    torch.distributed.init_process_group = init_process_group
    torch.nn.parallel.DistributedDataParallel.__init__ = init


def _mode(torch: Any, gpus: Gpus) -> Callable[[], Any]:
    class OnGpus(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        """Keeps tensors that are sent to a GPU on the CPU, and queues each function's time on the device."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            pinned = kwargs.pop("pin_memory", False) or func is torch.Tensor.pin_memory
            if pinned:
                gpus.touch(gpus.current, "pinned")
            if func is torch.Tensor.pin_memory:
                return args[0]
            device = _of(torch, (*args, *kwargs.values()))
            if device is not None:
                args = tuple(torch.device("cpu") if one is device else one for one in args)
                kwargs = {name: torch.device("cpu") if one is device else one for name, one in kwargs.items()}
            begun_s = time.monotonic()
            found = func(*args, **kwargs)
            gpus.queue(begun_s, time.monotonic() - begun_s)
            if device is not None and isinstance(found, torch.Tensor):
                gpus.touch(_index(gpus, device), "tensor")
                gpus.hold(_index(gpus, device), found, found.nbytes)
            return found

    return OnGpus


def _patch_threads(mode: Callable[[], Any]) -> None:
    """Enter the mode in this thread and in each later one: torch has it by thread."""
    mode().__enter__()
    run = threading.Thread.run

    def inside(self: threading.Thread) -> None:
        with mode():
            run(self)

    threading.Thread.run = inside  # type: ignore[method-assign]
