"""The loop's side of a script: a trainer whose step is the script's."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from multiprocessing import active_children
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

import psutil  # type: ignore[import-untyped, unused-ignore]

from scaling.frameworks import feeding
from scaling.frameworks.abilities import Rank, Tracer
from scaling.frameworks.base import Trainer
from scaling.frameworks.script.lead import ALONE, BATON, NO_STEP, is_own, shown
from scaling.frameworks.script.watch import OWN_PROCESSES, SEEN, ScriptError, collectives, has_joined
from scaling.hosts import proc
from scaling.records.point import EXCHANGING
from scaling.records.task import Task
from scaling.text import counted

PACKAGES = (
    "torch", "transformers", "accelerate", "lightning", "deepspeed", "jax", "tensorflow", "keras", "horovod",
)  # fmt: skip
# A step that takes so many medians, and so long, is a pause: evaluation, a checkpoint, the start of an epoch.
FAR, LEAST_PAUSE_S = 5.0, 0.5
# Steps that the median is of, and steps before the first pause: the first ones compile and allocate.
RECENT, FEWEST = 64, 8
# The script must step so long before the agent's own limit.
MARGIN_S = 5.0
LOOK_S = 0.5


def connect(task: Task) -> Trainer:
    return Script(task)


class Script(Rank):
    """One rank's script. It has `unsynced_step` if its DistributedDataParallel can leave out the exchange."""

    unsynced_step: Callable[[], None]

    def __init__(self, task: Task) -> None:
        """Run the script up to its first step that is known as one."""
        self.task = task
        self._marks: list[Any] = []
        self._recent: list[float] = []
        self.paused_s = 0.0
        self.pauses: list[tuple[float, str]] = []
        SEEN.counts_tokens = task.point.workload.unit == "tokens"
        self._first_step()
        self._collectives = collectives()
        torch = sys.modules.get("torch")
        on_gpu = task.point.hardware.device == "cuda"
        self.is_done_on_return = not on_gpu
        self.has_device_clock = self.cuda = on_gpu and torch is not None and torch.cuda.is_initialized()
        self.device_name = torch.cuda.get_device_name() if torch and self.cuda else proc.cpu_model(proc.cpuinfo())
        loaded = ((name, sys.modules[name]) for name in PACKAGES if name in sys.modules)
        self.versions = {name: str(getattr(module, "__version__", "unknown")) for name, module in loaded}
        self.parameters = sum(each.numel() for each in SEEN.parameters)
        sizes = sum(each.numel() * each.element_size() for each in SEEN.replicated)
        self.gradient_bytes = sizes if SEEN.parallel or "horovod" in self.versions else 0
        self._feed = _Feed(task.point.workload.samples_per_step, SEEN.probed_samples())
        feeding.add(self._feed)
        if ALONE in os.environ:
            also = ", incl. its DDP of one" if SEEN.parallel else ""
            self.notes += (f"the script needs torchrun's variables: one device has WORLD_SIZE=1{also}",)
        elif self._is_alone and SEEN.parallel:
            self.notes += ("the script has its DDP of one on one device too, which costs time",)
        if not self._feed.fed:
            self.notes += (
                "samples are unknown: steps are counted; give --samples-per-step N, or scaling.step(samples=N)",
            )
        if not self._is_alone and SEEN.parallel and not SEEN.is_static:
            self.unsynced_step = self._held_step

    def _first_step(self) -> None:
        limit_s = self.task.clocks.startup_s - MARGIN_S
        # The agent's clock began with this process, which may have started the script twice.
        end_s = time.monotonic() - (time.time() - psutil.Process().create_time()) + limit_s

        def look(frame: FrameType | None) -> None:
            if time.monotonic() > end_s:
                own = any(not each.daemon for each in active_children())
                what = OWN_PROCESSES if own else NO_STEP
                raise ScriptError(f"no step within {limit_s:.0f} s: {what}; it is in {_place(frame)}")

        BATON.step(LOOK_S, look)

    # ------------------------------------------------------------ steps

    def step(self) -> None:
        self.several(self.step, 1)

    def _held_step(self) -> None:
        self.several(self._held_step, 1)

    def several(self, step: Callable[[], None], count: int) -> tuple[float, ...]:
        """Do steps without a stop between them; return the seconds of each, without pauses."""
        usual_s = median(self._recent) if len(self._recent) >= FEWEST else 0.0
        limit_s = max(FAR * usual_s, usual_s + LEAST_PAUSE_S) if usual_s else 3600.0
        begun_s, places = time.monotonic(), dict[int, str]()

        def look(frame: FrameType | None) -> None:
            done_s = BATON.ends_s[-1:] or [begun_s]
            if time.monotonic() - done_s[0] > limit_s:
                places.setdefault(len(BATON.ends_s), _place(frame))

        SEEN.holds = step == self._held_step
        try:
            BATON.step(min(limit_s, LOOK_S), look, count)
        finally:
            if SEEN.holds:
                SEEN.release()
        took_s = [end_s - start_s for start_s, end_s in pairwise([begun_s, *BATON.ends_s])]
        for index, seconds in enumerate(took_s):
            if usual_s and seconds > limit_s:
                self.paused_s += seconds - usual_s
                self.pauses.append((seconds - usual_s, places.get(index, "")))
                took_s[index] = usual_s
        self._recent = [*self._recent, *took_s][-RECENT:]
        self._feed.told()
        return tuple(took_s)

    @property
    def samples(self) -> int:
        return self._feed.fed

    def sync(self) -> None:
        """Wait for the GPU. On CPUs a step is done when it returns."""
        if self.cuda:
            sys.modules["torch"].cuda.synchronize()

    def mark(self) -> None:
        """Mark the stream of the script's thread. Pauses are no time between marks."""

        def record() -> Any:
            event = sys.modules["torch"].cuda.Event(enable_timing=True)
            event.record()
            return event

        self._marks.append((BATON.call(record), self.paused_s))

    def between_marks_s(self, ahead: int = 0) -> tuple[float, ...]:
        last = len(self._marks) - ahead
        passed, self._marks = self._marks[:last], self._marks[last - 1 :] if ahead else []
        passed[-1][0].synchronize()
        return tuple(
            max(earlier[0].elapsed_time(later[0]) / 1000 - (later[1] - earlier[1]), 0.0)
            for earlier, later in pairwise(passed)
        )

    # ------------------------------------------------------------ facts

    def loss(self) -> None:
        """Return None: a script's loss is its own."""

    def digest(self) -> str | None:
        """Hash what is replicated. None if it is unknown or sharded, or if no gradients are exchanged."""
        found = SEEN.replicated
        if not found or SEEN.is_sharded or not self._exchanges:
            return None
        return str(BATON.call(lambda: _hashed(found)))

    def peak_memory_bytes(self) -> int:
        return int(sys.modules["torch"].cuda.max_memory_allocated()) if self.cuda else 0

    def release_memory(self) -> None:
        if self.cuda:
            sys.modules["torch"].cuda.empty_cache()

    def tracers(self) -> Sequence[Tracer]:
        return [_Traced(cuda=self.cuda)] if "torch" in sys.modules else []

    @property
    def _is_alone(self) -> bool:
        return self.task.point.kind not in EXCHANGING or self.task.point.world_size == 1

    @property
    def _exchanges(self) -> bool:
        """Whether gradients may be exchanged: by a collective in steps, or by a library that is not watched."""
        now, first = collectives(), self._collectives
        return self._is_alone or now is None or first is None or now != first or has_joined()

    def closing_notes(self) -> tuple[str, ...]:
        """Return what was seen up to the last step: pauses, faults."""
        return (*_told_pauses(self.pauses), *self._faults(), *SEEN.notes)

    def _faults(self) -> Sequence[str]:
        notes = list[str]()
        local = self.task.local_world_size if self.task.point.kind in EXCHANGING else 1
        cores = len(self.task.cpus) * local or 1
        if SEEN.loader_workers * local > 2 * cores:
            notes.append(
                f"loader workers: {SEEN.loader_workers * local} processes of DataLoaders on {cores} cores of this "
                f"host; lower num_workers"
            )
        if not self._exchanges:
            notes.append(f"audit: gradients are not exchanged between steps: {_why_not_exchanged()}")
        if outside := self.parameters - sum(each.numel() for each in SEEN.replicated):
            share = f"{outside:,} of {self.parameters:,} parameters"
            notes.append(f"{share} are outside of DistributedDataParallel: ranks were not compared by them")
        if SEEN.cycle.lost:
            notes.append(f"steps: the optimizers changed their order {counted(SEEN.cycle.lost, 'time')}")
        with suppress(Exception):
            if any(bool((each != each).any()) for each in SEEN.parameters):  # noqa: PLR0124 (NaN)
                notes.append("audit: parameters are NaN")
        return notes

    def found(self) -> dict[str, str]:
        """Return what must differ between the ranks of an exchange."""
        found: dict[str, str] = {}
        # Constant data says nothing.
        if len(set(SEEN.hashes)) > 1 and not SEEN.splits:
            found["samples"] = ",".join(SEEN.hashes)
        if self.cuda and (devices := {each.device for each in SEEN.parameters if each.is_cuda}):
            torch = sys.modules["torch"]
            uuids = (str(torch.cuda.get_device_properties(each).uuid) for each in devices)
            found["gpu"] = ",".join(sorted(uuids))
        return found


def _why_not_exchanged() -> str:
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return "it makes no process group; does the script ignore WORLD_SIZE?"
    if torch.distributed.get_world_size() < SEEN.world_size:
        return "its process group has fewer ranks; scaling sets RANK and WORLD_SIZE, and no MPI"
    return "no DistributedDataParallel around the model?"


class _Feed(feeding.Source):
    """The script's own loaders as a feed of the worker. Without a loader of torch it is `fixed`: how long the
    script waits for data is then unknown."""

    def __init__(self, samples_per_step: int, probed: float) -> None:
        self._each, self._probed = samples_per_step, probed
        self.told()

    def told(self) -> None:
        """Count up to the last step."""
        self.fed = self._each * BATON.steps or SEEN.counted or round(self._probed * BATON.steps)
        self.fixed, self.waited_s = not SEEN.in_loaders, SEEN.waited_s


def _place(frame: FrameType | None) -> str:
    """Return `DataLoader.__iter__, train.py:40`: the innermost frame of the user, and what it called."""
    every = list[FrameType]()
    while frame is not None:
        every.append(frame)
        frame = frame.f_back
    own = next((index for index, one in enumerate(every) if is_own(one.f_code.co_filename)), None)
    if own is None:
        return every[0].f_code.co_name if every else "an unknown place"
    line = f"{shown(every[own].f_code.co_filename, Path.cwd())}:{every[own].f_lineno}"
    if not own:
        return line
    code = every[own - 1].f_code
    return f"`{getattr(code, 'co_qualname', code.co_name)}`, {line}"


def _told_pauses(pauses: Sequence[tuple[float, str]]) -> Sequence[str]:
    if not pauses:
        return ()
    by_place: dict[str, list[float]] = {}
    for seconds, place in pauses:
        by_place.setdefault(place, []).append(seconds)
    place, longest = max(by_place.items(), key=lambda item: sum(item[1]))
    where = f", in {place}" if place else ""
    return (f"pauses: {len(longest)} of {sum(longest) / len(longest):.2g} s{where}",)


def _hashed(parameters: Sequence[Any]) -> str:
    digest = hashlib.sha256()
    for each in parameters:
        digest.update(each.detach().contiguous().view(-1).view(sys.modules["torch"].uint8).cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


class _Traced(Tracer):
    """torch.profiler in the script's thread."""

    def __init__(self, *, cuda: bool) -> None:
        self.tells_gpu = cuda

    def start(self, path: Path) -> None:
        profiler = sys.modules["torch"].profiler
        kinds = [profiler.ProfilerActivity.CPU, *([profiler.ProfilerActivity.CUDA] if self.tells_gpu else [])]
        self._path, self._profile = path, profiler.profile(activities=kinds)
        BATON.call(self._profile.start)

    def stop(self) -> None:
        BATON.call(self._profile.stop)
        self._profile.export_chrome_trace(str(self._path))
