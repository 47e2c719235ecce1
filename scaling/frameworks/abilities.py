"""What a trainer may have besides what base.py requires, what trainers share, and how the worker asks."""

from __future__ import annotations

import errno
import gzip
import hashlib
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from scaling.frameworks.base import Trainer, declared, typed


class Learnt(NamedTuple):
    """What a network has learnt.

    * trained: parameters by the description's names, in its order and shapes.
    * statistics: mean and variance of every batch norm, in order.
    """

    trained: dict[str, NDArray[Any]]
    statistics: tuple[tuple[NDArray[Any], NDArray[Any]], ...]


class Able(Trainer, Protocol):
    """All that a trainer may have. It has what its strategy can do, and the worker looks for it (`able`).

    * is_done_on_return: its steps have ended when they return. Then each of them can be timed.
    * has_device_clock: the device's clock times windows and steps, which may return early, between marks.
    * paused_s: seconds in which a user's script paused between steps: evaluation, checkpoints.
    """

    is_done_on_return: bool
    has_device_clock: bool
    paused_s: float

    def weights(self) -> Mapping[str, NDArray[Any]]:
        """Return copies of the trained parameters, by name. The worker hashes them instead of calling `digest`."""

    def device_digest(self) -> str | None:
        """Return the device's hash, equal on all ranks with equal parameters; None if the host should hash."""

    def mark(self) -> None:
        """Make the device record its time when it reaches this mark. The host stays ahead of the device."""

    def between_marks_s(self, ahead: int = 0) -> tuple[float, ...]:
        """Wait until the device reaches all marks but the last `ahead`. Return the seconds between the reached
        marks by the device's clock, from the last one that an earlier call returned. `ahead=0` begins anew."""

    def release_memory(self) -> None:
        """Give back unused device memory, because other points have their turn. Steps take it again."""

    def staleness(self) -> float:
        """Return the mean staleness of this rank's steps since the last call, in an asynchronous mode. Staleness
        is the number of other ranks' steps between a step's pull and its push. Call it only after `sync`."""

    def unsynced_step(self) -> None:
        """Do the same step and leave out the exchange, nothing else. Call it only after the digest: the ranks'
        parameters then differ."""

    def enter_thread(self) -> None:
        """Select this rank's device in a thread that has just begun: CUDA selects GPU 0 for it."""

    def exchange_alone(self) -> Trainer | None:
        """Return a trainer of kind `comm` over the connected ranks, for a second thread during steps without
        exchange. Its `sync` waits only for its own work. All ranks call this. Return None if any rank lacks the
        memory."""

    def tracers(self) -> Sequence[Tracer]:
        """Return new tracers for all profilers that can run together."""

    # A user's script

    def several(self, step: Callable[[], None], count: int) -> tuple[float, ...]:
        """Do `step`, one of its own, so often, with no stop between; return the seconds of each."""

    def closing_notes(self) -> tuple[str, ...]:
        """Return what was seen up to the last step."""

    def found(self) -> dict[str, str]:
        """Return what must differ between ranks (`Result.found`)."""

    # A training to an accuracy, between steps

    def set_rate(self, rate: float) -> None:
        """Set the learning rate from the next step on."""

    def average_statistics(self) -> None:
        """Give all ranks the mean of their batch norm statistics. Collective."""

    def predict(self, inputs: NDArray[Any]) -> NDArray[np.int64]:
        """Return each sample's class in evaluation mode: (batch,). Every rank calls it equally often."""

    def learnt(self) -> Learnt:
        """Return what the network has learnt. Collective."""


EVALUATING = ("set_rate", "average_statistics", "predict", "learnt")


def able(trainer: object, *methods: str) -> Able | None:
    """Return the trainer if it has all of these methods, else None."""
    return cast(Able, trainer) if all(hasattr(trainer, method) for method in methods) else None


@cache
def _types() -> dict[str, Any]:
    return declared(Trainer, Able) | {"versions": dict[str, Any]}


def of_trainer(trainer: Any, what: str, *given: Any) -> Any:
    """Return a trainer's attribute, or its method's value. Raises StrategyError for a wrong type."""
    found = getattr(trainer, what)
    value, told = (found(*given), f"{what}()") if callable(found) else (found, what)
    made_by = type(trainer)
    return typed(made_by.__module__, f"{made_by.__qualname__}.{told}", value, _types()[what])


# ---------------------------------------------------------------- tracing
#
# The interface of a framework's profiler. It runs in the worker.


class Tracer:
    """A profiler of this rank.

    `start` and `stop` of a subclass may raise any error: a failed trace costs a note, not the point.

    * end: the end of its file's name.
    * tells_gpu: the file covers the rank's GPU, in torch.profiler's words (analysis/measured/device_use.py).
    """

    end = ".json.gz"
    tells_gpu = False

    def start(self, path: Path) -> None:
        """Begin to record for `path`: Chrome's trace events as JSON, which Perfetto reads."""
        raise NotImplementedError

    def window(self) -> AbstractContextManager[object]:
        """Return a context for the timed steps. A profiler may mark them in the trace."""
        return nullcontext()

    def stop(self) -> None:
        raise NotImplementedError


def pack(plain: Path, packed: Path) -> None:
    """Compress the file `plain` to `packed` and remove it."""
    with plain.open("rb") as source, gzip.open(packed, "wb") as target:
        shutil.copyfileobj(source, target)
    plain.unlink()


# ---------------------------------------------------------------- what trainers of all frameworks share


class Rank:
    """The facts of a rank's model. No exchange is joined."""

    parameters: int
    gradient_bytes: int
    notes: tuple[str, ...] = ()

    def close(self) -> None:
        """Do nothing: there is no exchange to leave."""


class Untrained:
    """A trainer that only exchanges or only takes batches."""

    samples = 0

    def loss(self) -> None:
        """Return None: nothing is trained."""

    def digest(self) -> None:
        """Return None: nothing is trained."""


class Trained:
    """A trainer that shows its parameters."""

    def weights(self) -> dict[str, NDArray[Any]]:
        raise NotImplementedError

    def digest(self) -> str:
        """Hash the parameters; running means are ignored, because each rank's own images change them."""
        return digest_of(self.weights())


def digest_of(weights: Mapping[str, NDArray[Any]]) -> str:
    """Hash the parameters' bytes in their order, as 16 hexadecimal digits. Synchronous ranks must agree."""
    digest = hashlib.sha256()
    for array in weights.values():
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]


def filled(inputs: NDArray[Any], size: int) -> NDArray[Any]:
    """Return a whole batch of `size` from a smaller one, whose first sample is repeated."""
    return np.concatenate([inputs, np.repeat(inputs[:1], size - len(inputs), axis=0)])


# ---------------------------------------------------------------- peers that do not listen yet

CONNECT_S = 1.0
# Between two tries.
LOOK_S = 0.005


def refuses(address: str, port: int) -> bool:
    """Return whether nothing listens there yet: a reserved port without a listener refuses connections. Other
    errors (unknown name, silent host) are left to the caller's own connection."""
    with suppress(OSError), socket.socket() as probe:
        probe.settimeout(CONNECT_S)
        return probe.connect_ex((address, port)) == errno.ECONNREFUSED
    return False


def until_it_listens(address: str, port: int, within_s: float) -> None:
    """Wait until a reserved address accepts connections, for at most `within_s`. Never raises. A library that is
    refused once waits long before it retries: torch's store and Horovod 0.5 s, ZeroMQ 0.1 s. After the timeout the
    library's own connection reports the failure."""
    for _ in range(round(within_s / LOOK_S)):
        if not refuses(address, port):
            return
        time.sleep(LOOK_S)
