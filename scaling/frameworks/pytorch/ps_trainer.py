"""Workers of torch:ps-sync and torch:ps-async: client, loop with servers as optimiser, and exchange alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed import Work

from scaling.frameworks.base import Trainer
from scaling.frameworks.pytorch.group import patience
from scaling.frameworks.pytorch.loop import Exchange, TorchRank, Training
from scaling.frameworks.pytorch.ps_wire import ELEMENTS, Link, Tags, cut, offsets, open_store, terms, touched
from scaling.records.task import Task

# ---------------------------------------------------------------- ps client
#
# Parameters and gradients are in one flat tensor each (ps_wire.py).
# * A bucket is sent with its last gradient. Its parameters arrive in the model's memory, where backward is done.
# * Each module waits for its own parameters before its next forward pass.
# * Gloo cannot send from a GPU: there buckets go through page-locked memory of the host (tested on CPUs only).
# * Copies out have a stream of their own: the host sends a bucket once its copy is done, while the device goes on.
#   Copies in are queued before the next forward pass.


class CopiesOut:
    """Copies of buckets from a GPU to the host, in order, on a stream of their own; on CPUs at once."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._begun: deque[tuple[int, torch.cuda.Event | None]] = deque()

    def begin(self, index: int, outbox: Tensor, outgoing: Tensor) -> None:
        """Copy a bucket once the device has computed it."""
        if self._stream is None:
            outbox.copy_(outgoing)
            self._begun.append((index, None))
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            outbox.copy_(outgoing, non_blocking=True)
            self._begun.append((index, self._stream.record_event()))

    def done(self, *, wait: bool) -> Iterator[int]:
        """Yield the buckets whose copies are done. With `wait`, wait for the others too."""
        while self._begun:
            index, event = self._begun[0]
            if event is not None and not wait and not event.query():
                return
            if event is not None:
                event.synchronize()
            self._begun.popleft()
            yield index


class Client:
    """Pushes buckets of `gradients` and pulls those of `parameters`: flat tensors, for a model's tensors of these
    `sizes`. With `staged`, buckets go through buffers of the host."""

    def __init__(self, rank: TorchRank, sizes: Sequence[int], *, staged: bool) -> None:
        task, agreed = rank.task, terms(rank.task.point)
        self.starts, elements = offsets(sizes)
        self.buckets = cut(elements, agreed.cap_mb, len(task.servers))
        self.parameters = torch.zeros(elements, device=rank.device)
        half = torch.float16 if agreed.half else torch.float32
        self.gradients = torch.zeros(elements, device=rank.device, dtype=half)
        self._tags = Tags(count=len(self.buckets))
        self._copies = CopiesOut(rank.device) if staged else None
        self._outgoing, self._outboxes = self._boxes(self.gradients)
        self._incoming, self._inboxes = self._boxes(self.parameters)
        self._pending: dict[int, tuple[Work, ...]] = {}
        self._first = task.rank == 0
        self._links = join(task, elements)
        self._tellers = [] if agreed.synchronous else sorted({each.server for each in self.buckets})
        self._behind = torch.zeros(len(self._tellers), 1, dtype=torch.float64)
        self._telling: list[Work] = []
        self._behind_sum, self._behind_steps = 0.0, 0

    def _boxes(self, flat: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        parts = [flat[each.start : each.stop] for each in self.buckets]
        if self._copies is None:
            return parts, parts
        pinned = flat.is_cuda
        return parts, [torch.empty(len(part), dtype=flat.dtype, pin_memory=pinned) for part in parts]

    def start(self) -> None:
        for bucket in self.buckets:
            link, inbox = self._links[bucket.server], self._inboxes[bucket.index]
            if self._first:
                if self._copies:
                    inbox.copy_(self._incoming[bucket.index])
                link.send(inbox, self._tags.push(bucket.index)).wait()
            self._pending[bucket.index] = (link.receive(inbox, self._tags.pull(bucket.index)),)
        self.wait()

    def push(self, index: int) -> None:
        """Begin to send a bucket's gradients and to receive its parameters."""
        self.wait_for((index,))
        link = self._links[self.buckets[index].server]
        self._pending[index] = (link.receive(self._inboxes[index], self._tags.pull(index)),)
        if self._copies is None:
            self._send(index)
        else:
            self._copies.begin(index, self._outboxes[index], self._outgoing[index])
            self._send_copied(wait=False)

    def _send(self, index: int) -> None:
        link = self._links[self.buckets[index].server]
        self._pending[index] += (link.send(self._outboxes[index], self._tags.push(index)),)

    def _send_copied(self, *, wait: bool) -> None:
        for index in self._copies.done(wait=wait) if self._copies else ():
            self._send(index)

    def pushed(self) -> None:
        """Send what is not sent yet. Then ask the servers for the step's staleness."""
        self._send_copied(wait=True)
        self._hear()
        links = (self._links[server] for server in self._tellers)
        pairs = zip(links, self._behind, strict=True)
        self._telling = [link.receive(box, self._tags.behind) for link, box in pairs]

    def wait_for(self, indices: Iterable[int]) -> None:
        for index in indices:
            if (works := self._pending.pop(index, None)) is not None:
                for work in works:
                    work.wait()
                if self._copies:
                    self._incoming[index].copy_(self._inboxes[index], non_blocking=True)

    def wait(self) -> None:
        self.wait_for(tuple(self._pending))
        self._hear()

    def _hear(self) -> None:
        if self._telling:
            for work in self._telling:
                work.wait()
            self._telling = []
            self._behind_sum += float(self._behind.sum()) / len(self.buckets)
            self._behind_steps += 1

    def staleness(self) -> float:
        """Return the mean staleness of steps since the last call; 0 without any."""
        mean = self._behind_sum / max(1, self._behind_steps)
        self._behind_sum, self._behind_steps = 0.0, 0
        return mean

    def close(self) -> None:
        self._links.clear()


def join(task: Task, elements: int) -> list[Link]:
    """Connect to each server. Raises RuntimeError if one does not answer."""
    timeout = patience(task)
    store = open_store(task, hosts=False, timeout=timeout)
    if task.rank == 0:
        store.set(ELEMENTS, str(elements))
    servers = range(len(task.servers))
    return [Link(store, server=each, worker=task.rank, serves=False, timeout=timeout) for each in servers]


class Remote:
    """An optimiser whose work is done on the servers.

    * lazy: each module waits for its own parameters. Otherwise the step first waits for all.
    * held: gradients add up here and are not sent.
    """

    def __init__(self, client: Client, module: nn.Module, *, lazy: bool) -> None:
        self.held = False
        self._client = client
        self._lazy = lazy
        self._parameters = trained(module)
        self._slots: list[Tensor] = []
        self._buckets_of: list[list[int]] = []
        for index, (parameter, start) in enumerate(zip(self._parameters, client.starts, strict=True)):
            self._buckets_of.append(touched(client.buckets, start, parameter.numel()))
            self._slots.append(like(parameter, client.gradients, start))
            place = like(parameter, client.parameters, start)
            place.copy_(parameter.data)
            parameter.data = place
            parameter.register_post_accumulate_grad_hook(partial(self._accumulated, index))
        self._sizes = [sum(each.index in touches for touches in self._buckets_of) for each in client.buckets]
        self.zero_grad()
        places = {each: index for index, each in enumerate(self._parameters)}
        for one in module.modules() if lazy else ():
            own = [places[each] for each in one.parameters(recurse=False) if each in places]
            buckets = sorted({bucket for index in own for bucket in self._buckets_of[index]})
            if buckets:
                one.register_forward_pre_hook(partial(self._before, buckets))

    def _before(self, buckets: list[int], _module: nn.Module, _given: object) -> None:
        self._client.wait_for(buckets)

    def zero_grad(self, **_how: bool) -> None:
        if not self._lazy:
            self._client.wait()
        self._lacking = list(self._sizes)
        self._awaited = set(range(len(self._slots)))

    def step(self) -> None:
        """End a step. Gradients of parameters that the loss does not depend on are zero."""
        for index in tuple(self._awaited):
            self._slots[index].zero_()
            self._arrived(index)
        self._client.pushed()

    def _accumulated(self, index: int, parameter: Tensor) -> None:
        if not self.held:
            assert parameter.grad is not None
            self._slots[index].copy_(parameter.grad)
            parameter.grad = None
            self._arrived(index)

    def _arrived(self, index: int) -> None:
        self._awaited.discard(index)
        for bucket in self._buckets_of[index]:
            self._lacking[bucket] -= 1
            if not self._lacking[bucket]:
                self._client.push(bucket)


def trained(module: nn.Module) -> list[nn.Parameter]:
    return [each for each in module.parameters() if each.requires_grad][::-1]


def like(parameter: Tensor, flat: Tensor, start: int) -> Tensor:
    """Return the part of a flat tensor from `start` on, with the parameter's shape and strides."""
    return flat.as_strided(parameter.size(), parameter.stride(), start)


# ---------------------------------------------------------------- ps trainer


def connect(task: Task) -> Trainer:
    return GradientExchange(task) if task.point.kind == "comm" else Served(task)


class Served(Training):
    """The shared loop with servers as its optimiser. It has `staleness` in the asynchronous mode."""

    _optimizer: Remote
    staleness: Callable[[], float]

    def make_optimizer(self) -> Remote:
        self._client = Client(self, [each.numel() for each in trained(self._module)], staged=self.cuda)
        remote = Remote(self._client, self._module, lazy=not self.task.point.workload.compile)
        self._client.start()
        if not terms(self.task.point).synchronous:
            self.staleness = self._client.staleness
        return remote

    @contextmanager
    def hold(self) -> Iterator[None]:
        self._optimizer.held = True
        yield
        self._optimizer.held = False

    def sync(self) -> None:
        self._client.wait()
        super().sync()

    def weights(self) -> dict[str, NDArray[Any]]:
        self._client.wait()
        return super().weights()

    def close(self) -> None:
        self._client.close()

    def _compile(self) -> None:
        with self.hold():
            super()._compile()
        self._module.zero_grad(set_to_none=True)


class GradientExchange(Exchange):
    """The pushes and pulls of one step alone, with all work of the servers."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        module, _ = self.described()
        self._client = Client(self, [each.numel() for each in trained(module)], staged=self.cuda)
        self._client.gradients.fill_(1.0)
        self._client.start()

    def send(self) -> None:
        for bucket in self._client.buckets:
            self._client.push(bucket.index)
        self._client.pushed()
        self._client.wait()

    def close(self) -> None:
        self._client.close()
