"""What is seen of a script while it runs: steps, samples, waiting for data, its model, its exchange.

Nothing is imported for it. A hook on imports adds to a library's module once the script itself has imported it.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from time import perf_counter
from types import CodeType, FrameType, ModuleType
from typing import Any

import scaling
from scaling.errors import ScalingError

# A script that reads no more batches than this is not judged by their hashes.
HASHED = 2
SHARDED = ("DTensor", "ShardedTensor", "ZeroRedundancyOptimizer")
# A cycle counts once it has repeated so often. Longer ones are not looked for.
REPEATS = 3
MOST = 4096
# After so many events that follow a cycle again, an optimizer was replaced, and the events before are forgotten.
REPLACED = 256
# A limit for missing heartbeats, in milliseconds, seconds or numbers: an hour or more.
PATIENCE = 3_600_000


OWN_PROCESSES = (
    "starts processes of its own: call the function directly; scaling starts the ranks, with torchrun's RANK and "
    "WORLD_SIZE"
)
NO_BATCH = "its DataLoader gives this rank no batch: too few samples for so many ranks, with drop_last"


class ScriptError(ScalingError):
    """The script failed, ended early, or makes no steps. The message begins with its file and line."""


class Cycle:
    """Tells which event of a sequence of optimizers ends a step.

    One optimizer ends a step each time. Of several, one that steps once in their cycle does, as in adversarial
    training: the last such one. The others may then step more or less often, as at the end of a loader. Without
    such a one, a step ends with each repetition of the cycle. A sequence that leaves its cycle has another one,
    which must explain where it left. `lost` counts how often.
    """

    def __init__(self) -> None:
        self._seen: list[int] = []
        self.length = 0
        self.lost = 0
        self._place = 0  # events since the last end of a step
        self._members = frozenset[int]()
        self._mark: int | None = None
        self._since = 0  # events since the last loss

    def ends(self, event: int) -> bool:
        """Add an optimizer's step; return whether it ends a step of the training."""
        self._seen.append(event)
        del self._seen[: -REPEATS * MOST]
        self._since += 1
        if not self.length:
            return self._is_learnt()
        if not self._follows(event):
            self.length, self.lost, self._since = 0, self.lost + 1, 0
            return self._is_learnt()
        self._place += 1
        if event == self._mark or (self._mark is None and self._place == self.length):
            self._place = 0
        return self._place == 0

    def _follows(self, event: int) -> bool:
        if self._mark is None:
            return event == self._seen[-1 - self.length]
        return event in self._members and self._place < REPEATS * self.length

    def _is_learnt(self) -> bool:
        found = len(self._seen)
        for length in range(1, min(MOST, found // REPEATS) + 1):
            last = self._seen[-length:]
            explains = not self.lost or REPEATS * length > self._since or self._since >= REPLACED
            if explains and self._seen[-REPEATS * length :] == last * REPEATS:
                self.length, self._place, self._members = length, 0, frozenset(last)
                often = Counter(last)
                self._mark = next((one for one in reversed(last) if often[one] == 1), None)
                return True
        return False


class Seen:
    """What was seen so far in this process. `ends` is called at the end of each step, in the script's thread."""

    def __init__(self) -> None:
        self.ends: Callable[[], None] = lambda: None
        self.world_size = 1
        self.port = 0  # of torch's store
        self.starts_ranks = False  # the script, more than one
        self.counts_tokens = False
        self.waited_s = 0.0
        self.optimizers: dict[int, Any] = {}
        self.cycle = Cycle()
        self.is_explicit = False
        self.forwards: dict[int, int] = {}  # samples by the forward passes of each DistributedDataParallel
        self.in_loaders = 0
        # Batches since the last event, by a mark on their iterator (identities are reused): samples, hash.
        self.read: dict[object, list[tuple[int, str]]] = {}
        self.reader = object()
        self.gave = False  # a loader, any batch
        self.empty = 0  # loaders that ended, if none has given a batch
        self.first = (0, 0)  # samples by loaders and by forward passes at the first event
        self.told = 0
        self.events = 0  # of optimizers
        self.probed: dict[int, int] = {}  # samples by the forward passes of each model, since the first event
        self.probe: Any = None
        self.keras_batch = 0
        self.parallel: dict[int, Any] = {}
        self.is_static = False
        self.is_fsdp = False
        self.holds = False  # gradients are not exchanged
        self.loader_workers = 0
        self.hashes: list[str] = []
        self.notes: list[str] = []

    @property
    def in_forward(self) -> int:
        """Samples of the model with the fewest: the parts of one model have the same, a discriminator has more."""
        return min(self.forwards.values(), default=0)

    @property
    def counted(self) -> int:
        """Samples so far, by the first source that has any: told, loaders, forward passes. A model may see a batch
        several times, in each step of LBFGS or of a generator. If the script splits the batches of its loaders
        between the ranks, its forward passes have their parts."""
        in_loaders = 0 if self.splits else self.in_loaders
        return self.told or in_loaders or self.in_forward

    @property
    def splits(self) -> bool:
        """Whether the script itself splits each batch of its loaders between the ranks. Loaders read ahead of the
        first event."""
        in_loaders, in_forward = self.in_loaders - self.first[0], self.in_forward - self.first[1]
        return 1 < self.world_size == round(in_loaders / (in_forward or 1))

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    # ------------------------------------------------------------ steps

    def told_step(self, samples: int) -> None:
        """Hear `scaling.step` or Keras. From then on optimizers end no step."""
        self.is_explicit = True
        self.told += samples
        self._take()
        self.ends()

    def stepped(self, optimizer: Any) -> None:
        if not self.is_explicit:
            self.events += 1
            self._take()
            if self.events == 1:
                self.probed, self.first = {}, (self.in_loaders, self.in_forward)
            self.optimizers.setdefault(id(optimizer), optimizer)
            if self.cycle.ends(id(optimizer)):
                self.ends()

    def release(self) -> None:
        """Let gradients be exchanged again, by models of scripts that do not set it at each step."""
        self.holds = False
        for model in self.parallel.values():
            model.require_backward_grad_sync = True

    # ------------------------------------------------------------ samples

    def probed_samples(self) -> float:
        """End the probe of forward passes; return the samples of a step by those before a worker was ready."""
        if self.probe is not None:
            self.probe.remove()
        steps = (self.events - 1) / (self.cycle.length or 1)
        return min(self.probed.values(), default=0) / steps if steps else 0.0

    def size(self, batch: Any) -> int:
        found = first_tensor(batch)
        if found is None:
            return len(batch) if isinstance(batch, Sequence) and not isinstance(batch, str) else 0
        return int(found.numel()) if self.counts_tokens else int(found.shape[0])

    def batch(self, iterator: Any, batch: Any) -> None:
        """Hear of a loader's batch. It counts once an optimizer steps, unless another loader was read since then:
        evaluation reads batches between two steps."""
        size, digest = self.size(batch), ""
        most = getattr(getattr(iterator, "_index_sampler", None), "batch_size", None)
        if most and not self.counts_tokens and (size > most or most in _lengths(batch)):
            size = most
        if len(self.hashes) < HASHED and (found := first_tensor(batch)) is not None:
            with suppress(Exception):
                digest = hashlib.sha256(found.detach().cpu().numpy().tobytes()).hexdigest()[:16]
        self.reader = vars(iterator).setdefault("_scaling_mark", object())
        self.read.setdefault(self.reader, []).append((size, digest))

    def ended_empty(self) -> None:
        """Hear that a loader ended. Raises ScriptError if none ever gives a batch."""
        self.empty += not self.gave
        if self.empty >= REPEATS:
            raise ScriptError(NO_BATCH)

    def _take(self) -> None:
        for size, digest in self.read.get(self.reader, ()):
            self.in_loaders += size
            if digest and len(self.hashes) < HASHED:
                self.hashes.append(digest)
        self.read.clear()

    # ------------------------------------------------------------ model

    @property
    def parameters(self) -> list[Any]:
        groups = (group for one in self.optimizers.values() for group in getattr(one, "param_groups", ()))
        every = {id(each): each for group in groups for each in group["params"]}
        # A script may freeze one model while it trains another.
        return [each for each in every.values() if each.requires_grad or each.grad is not None]

    @property
    def replicated(self) -> list[Any]:
        """The parameters that must be alike on all ranks: those of DistributedDataParallel, else all."""
        inside = {id(each) for model in self.parallel.values() for each in model.parameters()}
        return [each for each in self.parameters if not inside or id(each) in inside]

    @property
    def is_sharded(self) -> bool:
        kinds = {type(each).__name__ for each in (*self.parameters, *self.optimizers.values())}
        return self.is_fsdp or bool(kinds & set(SHARDED)) or "DeepSpeed" in " ".join(kinds)


SEEN = Seen()


def first_tensor(batch: Any, depth: int = 0) -> Any:
    """Return the first tensor or array with a dimension in a nested batch; None without one."""
    if getattr(batch, "ndim", 0) and hasattr(batch, "shape"):
        return batch
    if depth > 4 or isinstance(batch, str | bytes):
        return None
    parts: Iterable[Any] = ()
    if isinstance(batch, Mapping) or (hasattr(batch, "keys") and hasattr(batch, "values")):
        parts = batch.values()
    elif isinstance(batch, list | tuple):
        parts = batch
    return next((found for one in parts if (found := first_tensor(one, depth + 1)) is not None), None)


def _lengths(batch: Any) -> set[int]:
    """Return where else the samples of a batch may be: its lists, and the second dimension of its first tensor."""
    parts = [batch, *batch] if isinstance(batch, list | tuple) else []
    lengths = {len(one) for one in parts if isinstance(one, list | tuple)}
    return lengths if (found := first_tensor(batch)) is None else lengths | set(found.shape[1:2])


# ---------------------------------------------------------------- hooks on imports


class _Finder(MetaPathFinder):
    """Calls a hook after a module of HOOKS was executed."""

    def __init__(self) -> None:
        self._busy: set[str] = set()

    def find_spec(self, name: str, _path: object, _target: object = None) -> ModuleSpec | None:
        if name not in HOOKS or name in self._busy:
            return None
        self._busy.add(name)
        try:
            found = find_spec(name)
        finally:
            self._busy.discard(name)
        if found is not None and found.loader is not None:
            found.loader = _After(found.loader)
        return found


class _After(Loader):
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        HOOKS[module.__name__](module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def install(ends: Callable[[], None], world_size: int, port: int) -> None:
    """Begin to watch. `ends` is called at the end of each step. `port`: of torch's store."""
    SEEN.ends, SEEN.world_size, SEEN.port = ends, world_size, port
    scaling._HEARS = SEEN.told_step
    os.register_at_fork(after_in_child=_forget)
    for name in HOOKS.keys() & sys.modules.keys():
        HOOKS[name](sys.modules[name])
    sys.meta_path.insert(0, _Finder())


def _forget() -> None:
    """A fork of the script, such as a loader's process, has no loop that waits."""
    SEEN.ends = lambda: None


def _optimizer(module: Any) -> None:
    """Only the outermost step counts: a wrapper's or subclass's step calls another one."""
    constants = module.Optimizer.profile_hook_step.__code__.co_consts
    wrapper = next(one for one in constants if isinstance(one, CodeType) and one.co_name == "wrapper")

    def stepped(optimizer: Any, *_: object) -> None:
        if _is_outermost(wrapper):
            SEEN.stepped(optimizer)

    module.register_optimizer_step_post_hook(stepped)


def _is_outermost(code: CodeType) -> bool:
    """Return whether the code runs once on the stack of the caller. A call that raises leaves nothing behind."""
    frame: FrameType | None = sys._getframe(2)
    depth = 0
    while frame is not None and depth < 2:
        depth += frame.f_code is code
        frame = frame.f_back
    return depth < 2


def _wrapped(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Replace a function of a module or class by `around(original, *arguments)`."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def act(*given: Any, **named: Any) -> Any:
        return around(original, *given, **named)

    setattr(owner, name, act)


def _models(module: Any) -> None:
    """Probe the samples of a step until a worker is ready: a model without loaders has no other source. Later,
    hooks of all modules would slow each step."""
    call = module.Module._call_impl.__code__

    def called(model: Any, inputs: Any) -> None:
        trains = model.training and sys.modules["torch"].is_grad_enabled()
        if trains and _is_outermost(call) and next(model.parameters(), None) is not None:
            with suppress(Exception):
                SEEN.probed[id(model)] = SEEN.probed.get(id(model), 0) + SEEN.size(inputs)

    SEEN.probe = module.register_module_forward_pre_hook(called)


def _parallel(module: Any) -> None:
    def forward(original: Any, model: Any, *given: Any, **named: Any) -> Any:
        torch = sys.modules["torch"]
        if not torch.compiler.is_compiling() and model.training and torch.is_grad_enabled():
            SEEN.parallel[id(model)], SEEN.is_static = model, SEEN.is_static or model.static_graph
            with suppress(Exception):
                samples = SEEN.size([*given, *named.values()])
                SEEN.forwards[id(model)] = SEEN.forwards.get(id(model), 0) + samples
            if SEEN.holds:
                model.require_backward_grad_sync = False
        return original(model, *given, **named)

    _wrapped(module.DistributedDataParallel, "forward", forward)


def _loader(module: Any) -> None:
    def following(original: Any, loader: Any) -> Any:
        begun_s = perf_counter()
        try:
            batch = original(loader)
        except StopIteration:
            SEEN.ended_empty()
            raise
        SEEN.waited_s, SEEN.gave = SEEN.waited_s + perf_counter() - begun_s, True
        SEEN.loader_workers = max(SEEN.loader_workers, loader._num_workers)
        # Evaluation reads its batches without gradients.
        if sys.modules["torch"].is_grad_enabled():
            with suppress(Exception):
                SEEN.batch(loader, batch)
        return batch

    _wrapped(module._BaseDataLoaderIter, "__next__", following)


def collectives() -> int | None:
    """Return the collectives of torch so far, by the sequence numbers of its process groups of several ranks.

    None if a backend does not count them, as MPI's.
    """
    module = sys.modules.get("torch.distributed.distributed_c10d")
    groups = module._world.pg_map if module else ()
    try:
        shared = [each for each in groups if each.size() > 1]
        backends = [each._get_backend(device) for each in shared for device in each._device_types]
        return sum(int(one._get_sequence_number_for_group()) for one in backends)
    except (AttributeError, RuntimeError):
        return None


def has_joined() -> bool:
    """Return whether a library whose collectives are not counted has joined the ranks; True if it may have."""
    horovods = (sys.modules.get(f"horovod.{name}") for name in ("torch", "tensorflow", "mxnet"))
    jax, tensorflow = map(sys.modules.get, ("jax._src.distributed", "tensorflow.python.eager.context"))
    try:
        of_google = (jax and jax.global_state.client) or (tensorflow and tensorflow.context().coordination_service)
        sizes = [one.size() for one in horovods if one and one.is_initialized()]
        return bool(of_google) or max(sizes, default=1) > 1 or "deepspeed" in sys.modules
    except AttributeError:  # private
        return True


def _patient(owner: Any, name: str) -> None:
    """Raise a library's limits for missing heartbeats: ranks are stopped while other points are measured."""
    if not hasattr(owner, name):  # private
        return
    signature = inspect.signature(getattr(owner, name))
    limits = [one for one in signature.parameters if "heartbeat" in one and "interval" not in one]

    def called(original: Any, *given: Any, **named: Any) -> Any:
        bound = signature.bind(*given, **named)
        bound.arguments.update(dict.fromkeys(limits, PATIENCE))
        return original(*bound.args, **bound.kwargs)

    _wrapped(owner, name, called)


def _rendezvous(module: Any) -> None:
    """Give each point its own port: a script may name one, and copies of it run at once. A world of another size
    is the script's own, such as that of each rank alone."""

    def stored(original: Any, host: str, port: int, rank: int, size: int, *given: Any, **named: Any) -> Any:
        if size > SEEN.world_size == 1:
            SEEN.starts_ranks = True
            raise ScriptError(
                f"starts {size} ranks for one device: give their number by {{devices}} in an argument, "
                "or by WORLD_SIZE"
            )
        is_the_points = SEEN.port and size == SEEN.world_size
        return original(host, SEEN.port if is_the_points else port, rank, size, *given, **named)

    if hasattr(module, "_create_c10d_store"):  # private: without it, a port of the script remains
        _wrapped(module, "_create_c10d_store", stored)


def _before(owner: Any, name: str, act: Callable[[], object]) -> None:
    _wrapped(owner, name, lambda original, *given, **named: (act(), original(*given, **named))[1])


def _shards() -> None:
    SEEN.is_fsdp = True


def _replicates() -> None:
    SEEN.note("audit: DataParallel in a launch of several processes; use DistributedDataParallel")


def _spawns() -> None:
    raise ScriptError(OWN_PROCESSES)


def _keras_batches(module: Any) -> None:
    def made(original: Any, iterator: Any, *given: Any, **named: Any) -> None:
        original(iterator, *given, **named)
        if not SEEN.keras_batch:  # that of `fit` is made first
            SEEN.keras_batch = getattr(iterator.data_adapter, "batch_size", 0) or 0

    _wrapped(module.EpochIterator, "__init__", made)


def _keras_steps(module: Any) -> None:
    def ended(original: Any, callbacks: Any, *given: Any, **named: Any) -> None:
        original(callbacks, *given, **named)
        strategy = getattr(getattr(callbacks, "_model", None), "distribute_strategy", None)
        SEEN.told_step(SEEN.keras_batch // getattr(strategy, "num_replicas_in_sync", 1))

    _wrapped(module.CallbackList, "on_train_batch_end", ended)


HOOKS: Mapping[str, Callable[[Any], None]] = {
    "torch.optim.optimizer": _optimizer,
    "torch.nn.modules.module": _models,
    "torch.nn.parallel.distributed": _parallel,
    "torch.nn.parallel.data_parallel": lambda one: _before(one.DataParallel, "__init__", _replicates),
    "torch.utils.data.dataloader": _loader,
    "torch.distributed.fsdp.fully_sharded_data_parallel": lambda one: _before(
        one.FullyShardedDataParallel, "__init__", _shards
    ),
    "torch.distributed.rendezvous": _rendezvous,
    "torch.multiprocessing.spawn": lambda one: _before(one, "start_processes", _spawns),
    "tensorflow.python.eager.context": lambda one: _patient(
        vars(one).get("Context"), "configure_coordination_service"
    ),
    "jax._src.distributed": lambda one: _patient(vars(one).get("State"), "initialize"),
    "keras.src.trainers.epoch_iterator": _keras_batches,
    "keras.src.callbacks.callback_list": _keras_steps,
}
