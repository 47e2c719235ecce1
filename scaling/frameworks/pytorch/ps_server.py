"""A parameter server of torch:ps-sync and torch:ps-async: it has its buckets' parameters and momentum.

Memory with N workers is N + 2 times its buckets, in ps-async 2 N + 2 times. Fewer receive buffers would make
senders wait and cost a third more CPU. It computes in one thread, in ps-async in one per worker. Gloo has one
thread per connection for the transfer.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import timedelta
from functools import partial

import torch
from torch import Tensor
from torch.distributed import Work

from scaling.frameworks.base import TIMEOUT_MARGIN_S
from scaling.frameworks.pytorch.ps_wire import ELEMENTS, Bucket, Link, Tags, cut, gone, open_store, terms
from scaling.records.task import Task
from scaling.workloads import models
from scaling.workloads.specs import Recipe


class Held:
    """One bucket on its server: `parameters`, and `room` for each worker's gradient."""

    def __init__(self, bucket: Bucket, tags: Tags, links: Sequence[Link], recipe: Recipe, *, half: bool) -> None:
        size = bucket.stop - bucket.start
        self.links = links
        self.push, self.pull = tags.push(bucket.index), tags.pull(bucket.index)
        self.parameters = torch.empty(size)
        self.room = [torch.empty(size, dtype=torch.float16 if half else torch.float32) for _ in links]
        # Bit for bit the plain loop's optimiser, in one pass over memory.
        self.optimizer = torch.optim.SGD(
            [self.parameters], lr=recipe.rate, momentum=recipe.momentum, weight_decay=recipe.decay, fused=True
        )
        self.prepare()

    def prepare(self) -> None:
        raise NotImplementedError

    def start(self) -> None:
        self.links[0].receive(self.parameters, self.push).wait()
        self.answer()

    def answer(self) -> None:
        """Begin to send the parameters to all workers, and to receive the next gradient of each."""
        self.outgoing = [link.send(self.parameters, self.pull) for link in self.links]
        self.incoming = [self.expect(worker) for worker in range(len(self.links))]

    def expect(self, worker: int) -> Work:
        return self.links[worker].receive(self.room[worker], self.push)

    def update(self, gradient: Tensor) -> None:
        self.parameters.grad = gradient
        self.optimizer.step()


class Averaged(Held):
    """A bucket of torch:ps-sync: one update by the mean of all workers' gradients, sent to all."""

    def prepare(self) -> None:
        self.total = self.room[0].float()
        if len(self.links) > 1:
            # As GradScaler does: the optimiser divides by this.
            self.optimizer.grad_scale = self.total.new_tensor(float(len(self.links)))  # type: ignore[attr-defined]

    def step(self) -> None:
        """Sum all workers' gradients in the order of ranks, so that sums are reproducible. Update and answer."""
        for worker, room in enumerate(self.room):
            self.incoming[worker].wait()
            if worker:
                self.total.add_(room)
            elif self.total is not room:
                self.total.copy_(room)
        for work in self.outgoing:
            work.wait()
        self.update(self.total)
        self.answer()


class Immediate(Held):
    """A bucket of torch:ps-async: each worker's gradient is an update, sent to this worker only. `version` counts
    updates; `pulled[worker]` is the worker's version."""

    def prepare(self) -> None:
        self.lock = threading.Lock()
        # Copies: what is being sent must not change during another worker's update.
        self.answers = [self.parameters.clone() for _ in self.links]
        self.version = 0
        self.pulled = [0] * len(self.links)

    def step(self, worker: int) -> int:
        """Apply the worker's next gradient. Return the number of other updates since the worker's pull."""
        self.incoming[worker].wait()
        self.outgoing[worker].wait()
        with self.lock:
            behind = self.version - self.pulled[worker]
            self.update(self.room[worker].float())
            self.version += 1
            self.pulled[worker] = self.version
            self.answers[worker].copy_(self.parameters)
        self.outgoing[worker] = self.links[worker].send(self.answers[worker], self.pull)
        self.incoming[worker] = self.expect(worker)
        return behind


def serve(task: Task, announce: Callable[[dict[str, str]], None]) -> None:
    """Serve as one server until its workers have left. Raises RuntimeError if a worker does not connect, or is
    silent for longer than the point may last."""
    torch.set_num_threads(1)
    me, agreed, recipe = int(task.role.rpartition("-")[2]), terms(task.point), models.at(task.point).recipe
    timeout = timedelta(seconds=task.clocks.deadline_s + TIMEOUT_MARGIN_S)
    store = open_store(task, hosts=me == 0, timeout=timeout)
    announce({task.role: task.servers[me].address})
    ranks = range(task.point.world_size)
    links = [Link(store, server=me, worker=rank, serves=True, timeout=timeout) for rank in ranks]
    buckets = cut(int(store.get(ELEMENTS)), agreed.cap_mb, len(task.servers))
    tags, mine = Tags(count=len(buckets)), [one for one in buckets if one.server == me]
    if not mine:  # more servers than buckets: wait for the workers to leave
        _until_gone(lambda: links[0].receive(torch.empty(1), tags.behind).wait())
    elif agreed.synchronous:
        averaged = [Averaged(one, tags, links, recipe, half=agreed.half) for one in mine]
        _until_gone(partial(_in_step, averaged))
    else:
        immediate = [Immediate(one, tags, links, recipe, half=agreed.half) for one in mine]
        _until_gone(partial(_each_for_itself, immediate, links, tags))


def _in_step(held: Sequence[Averaged]) -> None:
    for one in held:
        one.start()
    while True:
        for one in held:
            one.step()


def _each_for_itself(held: Sequence[Immediate], links: Sequence[Link], tags: Tags) -> None:
    for one in held:
        one.start()
    pool = ThreadPoolExecutor(len(links))
    serving = [partial(_one_worker, held, link, worker, tags) for worker, link in enumerate(links)]
    for ended in as_completed([pool.submit(_until_gone, each) for each in serving]):
        ended.result()


def _one_worker(held: Sequence[Immediate], link: Link, worker: int, tags: Tags) -> None:
    torch.set_num_threads(1)
    behind = torch.zeros(1, dtype=torch.float64)
    while True:
        behind.fill_(sum(one.step(worker) for one in held))
        link.send(behind, tags.behind).wait()


def _until_gone(serving: Callable[[], object]) -> None:
    """Serve until a worker leaves or dies. Its agent knows which, and the server does not fail."""
    try:
        serving()
    except RuntimeError as error:
        if not gone(error):
            raise
        sys.stderr.write(f"a worker has left: {error}\n")
