"""The JAX training loop of all JAX strategies, and the trainer of `jax:plain`.

A step is one function, which XLA compiles: forward and backward pass, exchange, update. Strategies differ in how
gradients become means over ranks and in where parameters lie.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib.metadata import version
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from scaling.frameworks import feeding
from scaling.frameworks.abilities import Learnt, Rank, Tracer, Trained, filled
from scaling.frameworks.base import Trainer
from scaling.frameworks.jax import network
from scaling.frameworks.jax.network import Arrays, Statistics
from scaling.frameworks.options import accumulated
from scaling.hosts import proc
from scaling.records.point import Optimizer
from scaling.records.task import Task
from scaling.workloads import models
from scaling.workloads.feeds.batches import Fixed
from scaling.workloads.specs import Binary, MaskedTokens, Recipe, Target

# ---------------------------------------------------------------- tracing


class JaxTracer(Tracer):
    """jax.profiler: XLA's operations on the host and, on a GPU, kernels. Python's own calls would hide them."""

    def start(self, path: Path) -> None:
        self._path = path
        self._folder = tempfile.TemporaryDirectory(dir=path.parent)
        told = jax.profiler.ProfileOptions()
        told.python_tracer_level, told.host_tracer_level = 0, 3
        jax.profiler.start_trace(self._folder.name, create_perfetto_trace=True, profiler_options=told)

    def stop(self) -> None:
        with self._folder as folder:
            jax.profiler.stop_trace()
            (written,) = Path(folder).rglob("perfetto_trace.json.gz")
            shutil.move(written, self._path)


# ---------------------------------------------------------------- rank

# "fp32" would be TF32 on a GPU by default.
MATMULS = {"fp32": "float32", "tf32": "tensorfloat32"}


class JaxRank(Rank):
    """One worker's device, and the facts of it and its model."""

    notes: tuple[str, ...] = ("XLA compiles every step (--compile changes nothing), in channels_last",)

    def __init__(self, task: Task) -> None:
        self.task = task
        self.cuda = task.point.hardware.device == "cuda"
        self.spec = models.at(task.point)
        self.is_done_on_return = not self.cuda
        self._configure()
        self.join()
        self.device = jax.local_devices()[0]
        self.device_name = self.device.device_kind if self.cuda else proc.cpu_model(proc.cpuinfo())
        self.versions = {"jax": jax.__version__, "jaxlib": version("jaxlib")}

    def join(self) -> None:
        """Join the exchange. No device is open yet."""

    def sync(self) -> None:
        """Do nothing: on CPU a step is done when it returns."""

    def peak_memory_bytes(self) -> int:
        """Return the most that XLA's allocator has handed out, in bytes; 0 on CPU."""
        return int((self.device.memory_stats() or {}).get("peak_bytes_in_use", 0)) if self.cuda else 0

    def tracers(self) -> Sequence[Tracer]:
        return [JaxTracer()]

    def describe(self) -> dict[str, tuple[int, ...]]:
        """Set the model and its size. Return the shape of each parameter (float32), in the model's order."""
        self.own = network.Own(self.spec, self.task.seed) if models.is_own(self.spec.name) else None
        self.network = self.own or network.Network(self.spec, self.task.seed)
        self.parameters = sum(map(prod, self.network.shapes.values()))
        self.gradient_bytes = self.parameters * np.float32().itemsize
        return self.network.shapes

    def _configure(self) -> None:
        """Configure before JAX's first operation. Without asynchronous dispatch a step on CPU ends in its call."""
        jax.config.update("jax_platforms", "cuda" if self.cuda else "cpu")
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        jax.config.update("jax_default_matmul_precision", MATMULS.get(self.task.point.workload.precision))
        if self.cuda:
            jax.config.update("jax_cuda_visible_devices", str(self.task.device_index))


# ---------------------------------------------------------------- optimizers
#
# The optimisers of the recipes as functions of arrays, as published, with Keras's constants.


EPSILON, DECAYING, SECOND, RHO = 1e-7, 0.9, 0.999, 0.95
# Arrays that an optimiser keeps for each parameter.
KEPT: dict[Optimizer, int] = {"sgd": 1, "rmsprop": 1, "adadelta": 2, "adam": 2, "adamw": 2}
Kept: TypeAlias = tuple[jax.Array, ...]


def first_kept(recipe: Recipe, weights: Mapping[str, NDArray[Any]]) -> dict[str, tuple[NDArray[Any], ...]]:
    """Return what is kept before the first step, on the host."""
    count = KEPT[recipe.optimizer]
    return {name: tuple(np.zeros_like(each) for _ in range(count)) for name, each in weights.items()}


def updated(
    recipe: Recipe, weights: Arrays, gradients: Arrays, kept: dict[str, Kept], rate: jax.Array, step: jax.Array
) -> tuple[Arrays, dict[str, Kept]]:
    """Return the new weights and kept arrays. `step` counts from 1. Only AdamW decays weights apart from the
    gradients."""
    coupled = recipe.decay if recipe.optimizer != "adamw" else 0.0
    new = {
        name: _updated(recipe, each, gradients[name] + coupled * each, kept[name], rate, step)
        for name, each in weights.items()
    }
    return {name: each for name, (each, _) in new.items()}, {name: own for name, (_, own) in new.items()}


def _updated(
    recipe: Recipe, w: jax.Array, g: jax.Array, kept: Kept, rate: jax.Array, step: jax.Array
) -> tuple[jax.Array, Kept]:
    match recipe.optimizer:
        case "sgd":
            moved = recipe.momentum * kept[0] + g
            return w - rate * moved, (moved,)
        case "rmsprop":
            squares = DECAYING * kept[0] + (1 - DECAYING) * g * g
            return w - rate * g / jnp.sqrt(squares + EPSILON), (squares,)
        case "adadelta":
            squares = RHO * kept[0] + (1 - RHO) * g * g
            delta = jnp.sqrt(kept[1] + EPSILON) / jnp.sqrt(squares + EPSILON) * g
            return w - rate * delta, (squares, RHO * kept[1] + (1 - RHO) * delta * delta)
        case "adamw":
            w = w * (1 - rate * recipe.decay)
    mean = DECAYING * kept[0] + (1 - DECAYING) * g
    squares = SECOND * kept[1] + (1 - SECOND) * g * g
    size = jnp.sqrt(squares / (1 - SECOND**step)) + EPSILON
    return w - rate * mean / (1 - DECAYING**step) / size, (mean, squares)


# ---------------------------------------------------------------- losses


def loss_of(target: Target) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Return a function of float32 logits and labels to their mean loss over everything that counts.

    Logits are (..., classes) with labels (...), or (batch, 1) with labels 0 or 1."""

    def loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
        if isinstance(target, Binary):
            one = logits[:, 0]
            return (jax.nn.softplus(one) - one * labels).mean()
        # IGNORED is negative.
        known = jnp.maximum(labels, 0) if isinstance(target, MaskedTokens) else labels
        losses = jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, known[..., None], -1)[..., 0]
        if not isinstance(target, MaskedTokens):
            return losses.mean()
        counts = labels >= 0
        return jnp.where(counts, losses, 0).sum() / counts.sum()

    return loss


# ---------------------------------------------------------------- loop

DTYPES = {"bf16": jnp.bfloat16}


class State(NamedTuple):
    """What a step changes: parameters, what the optimiser keeps, batch norm's statistics (first axis: ranks).
    Arrays of the host or of devices, or partition specs."""

    weights: Any
    kept: Any
    statistics: Any


def connect(task: Task) -> Trainer:
    return Training(task)


class Training(JaxRank, Trained):
    """The model's loss and optimiser: the plain loop. A strategy overrides what follows the constructor."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.shapes = self.describe()
        self._work = task.point.workload
        self._dtype = DTYPES.get(self._work.precision, jnp.float32)
        self._losses = self.own.losses if self.own and self.own.file.loss else loss_of(self.spec.target)
        self._parts = accumulated(task.point)
        self._feed = self._own_feed() if self.own else feeding.opened(task, self.spec, _no_pipeline)
        self._rate = self.spec.recipe.rate
        self._steps = self.samples = 0
        self._loss: jax.Array | None = None
        drawn, known = self.network.first(), jax.tree.map(lambda each: each[None], network.statistics(self.spec))
        self._state = self.placed(State(drawn, first_kept(self.spec.recipe, drawn), known))
        batch = self._moved(0)
        self._fixed = batch if self._feed.fixed else None
        # Compiled here: a slow step would count as stalled.
        self._step = self.mapped(self._training_step).lower(self._state, *batch, *self._scalars()).compile()

    # ------------------------------------------------------------ what strategies override

    def placed(self, state: State) -> State:
        """Return the first state, arrays of the host, on the devices."""
        placed: State = jax.device_put(state, self.device)
        return placed

    def fed(self, array: NDArray[Any]) -> jax.Array:
        """Return a rank's part of a batch on its device."""
        moved: jax.Array = jax.device_put(array, self.device)
        return moved

    def mapped(self, step: Callable[..., Any]) -> Any:
        """Return the jitted step of all ranks, for one rank's function."""
        return jax.jit(step, donate_argnums=0)

    def rank(self) -> jax.Array | int:
        """Return the rank's number within a step."""
        return self.task.rank

    def whole(self, arrays: Arrays) -> Arrays:
        """Return all parameters within a step."""
        return arrays

    def mean(self, gradients: Arrays) -> Arrays:
        """Return the mean of each gradient over all ranks, within a step."""
        return gradients

    def gathered(self) -> Arrays:
        """Return all parameters, outside of a step. Collective if they are sharded."""
        found: Arrays = self._state.weights
        return found

    # ------------------------------------------------------------ the trainer

    def step(self) -> None:
        inputs, labels = self._fixed or self._moved(self._steps)
        self._state, self._loss, *_ = self._step(self._state, inputs, labels, *self._scalars())
        self._steps += 1
        self.samples += self._work.batch_size

    def sync(self) -> None:
        jax.block_until_ready(self._loss)

    def loss(self) -> float | None:
        if self._loss is None or not self._work.trains:
            return None
        return float(np.asarray(self._loss.addressable_data(0))[0])

    def weights(self) -> dict[str, NDArray[Any]]:
        return {name: np.array(each) for name, each in self.gathered().items()}

    def set_rate(self, rate: float) -> None:
        self._rate = rate

    def average_statistics(self) -> None:
        """Do nothing: this rank is the only one."""

    def predict(self, inputs: NDArray[Any]) -> NDArray[np.int64]:
        """Return each sample's class: this rank's alone, in whole batches."""
        whole = filled(inputs, self._work.batch_size)
        arrays = jax.tree.map(lambda each: each.addressable_data(0), self.gathered())
        statistics = jax.tree.map(lambda each: each.addressable_data(0)[0], self._state.statistics)
        return np.asarray(self._classes(arrays, statistics, _last(whole)), np.int64)[: len(inputs)]

    def learnt(self) -> Learnt:
        known = jax.tree.map(lambda each: np.asarray(each.addressable_data(0))[0], self._state.statistics)
        return Learnt(self.weights(), known)

    # ------------------------------------------------------------ one step

    def _training_step(
        self, state: State, inputs: jax.Array, labels: jax.Array, rate: jax.Array, number: jax.Array
    ) -> Any:
        """Return the new state and the loss of this rank's batch; without an update the gradients too, which XLA
        would leave out."""
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(self.task.seed), number), self.rank())
        known = jax.tree.map(lambda each: each[0], state.statistics)
        gradients: Arrays = {}
        if self._work.pass_ == "forward":
            loss, known = self._forward(state.weights, known, inputs, labels, key)
        else:
            loss, known, gradients = self._backward(state.weights, known, inputs, labels, key)
        new = state._replace(statistics=jax.tree.map(lambda each: each[None], known))
        if self._work.pass_ != "step":
            return new, loss[None], gradients
        recipe, averaged = self.spec.recipe, self.mean(gradients)
        new_weights = updated(recipe, state.weights, averaged, state.kept, rate, number)
        return State(*new_weights, new.statistics), loss[None]

    def _forward(
        self, arrays: Arrays, known: Statistics, inputs: jax.Array, labels: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, Statistics]:
        whole = self.whole(arrays)
        logits, known = self.network.apply(whole, known, inputs, key, self._dtype)
        return self._losses(logits, labels), known

    def _backward(
        self, arrays: Arrays, known: Statistics, inputs: jax.Array, labels: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, Statistics, Arrays]:
        both = jax.value_and_grad(self._forward, has_aux=True)
        if self._parts == 1:
            (loss, known), gradients = both(arrays, known, inputs, labels, key)
            return loss, known, gradients
        parts = self._parts
        inputs, labels = (each.reshape(parts, -1, *each.shape[1:]) for each in (inputs, labels))

        def add(sums: Any, part: Any) -> Any:
            loss, known, gradients = sums
            (more, known), others = both(arrays, known, *part)
            return (loss + more, known, jax.tree.map(jnp.add, gradients, others)), None

        empty = jnp.zeros(()), known, jax.tree.map(jnp.zeros_like, arrays)
        (loss, known, gradients), _ = lax.scan(add, empty, (inputs, labels, jax.random.split(key, parts)))
        return loss / parts, known, jax.tree.map(lambda each: each / parts, gradients)

    # ------------------------------------------------------------ arrays

    def _moved(self, step: int) -> tuple[jax.Array, jax.Array]:
        inputs, labels = self._feed.batch(step)
        return self.fed(_narrow(inputs) if self.own else _last(inputs)), self.fed(_narrow(labels))

    def _own_feed(self) -> feeding.Opened:
        assert self.own is not None
        key = jax.random.fold_in(jax.random.key(self.task.seed), self.task.rank)
        inputs, labels = self.own.file.batch(self._work.batch_size, key)
        return feeding.Opened(Fixed((np.asarray(inputs), np.asarray(labels))))

    def _scalars(self) -> tuple[np.float32, np.int32]:
        return np.float32(self._rate), np.int32(self._steps + 1)

    @cached_property
    def _classes(self) -> Callable[..., jax.Array]:
        def classes(arrays: Arrays, known: Statistics, inputs: jax.Array) -> jax.Array:
            logits, _ = network.apply(self.spec, arrays, known, inputs, key=None, dtype=self._dtype)
            return logits[:, 0] > 0 if isinstance(self.spec.target, Binary) else logits.argmax(1)

        return jax.jit(classes)


def _last(inputs: NDArray[Any]) -> NDArray[Any]:
    """Return images channels last, and tokens as 32-bit integers, JAX's own."""
    return np.ascontiguousarray(inputs.transpose(0, 2, 3, 1)) if inputs.ndim == 4 else _narrow(inputs)


def _narrow(numbers: NDArray[Any]) -> NDArray[Any]:
    return numbers.astype(np.int32) if numbers.dtype == np.int64 else numbers


def _no_pipeline(_task: Task, _spec: Any) -> Any:
    raise feeding.FeedError("--feed native: JAX has no pipeline of its own; take --feed reference")
