"""Parameter servers of torch:ps-* in this process: their links are wires in memory, all else is real."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from scaling import frameworks
from scaling.frameworks.pytorch import ps_server, ps_trainer
from scaling.records.task import Task
from tests.support import ranks

PATIENCE_S = 60.0
CLOSED = "Connection closed by peer"


class Message:
    """One end of a message; as Gloo's it must be waited for only once."""

    def __init__(self, wire: Wire, tensor: Any) -> None:
        self.tensor, self.done, self._wire, self._waited = tensor, False, wire, False

    def wait(self) -> None:
        assert not self._waited, "Gloo would wait for ever"
        self._waited = True
        with self._wire.moved:
            self._wire.moved.wait_for(lambda: self.done or self._wire.error, PATIENCE_S)
        if not self.done:
            raise RuntimeError(self._wire.error or "nothing came")


class Wire:
    """A connection in memory: a tensor is copied once both ends have named it. `error` breaks it."""

    def __init__(self) -> None:
        self.moved = threading.Condition()
        self.error = ""
        self.sent: list[tuple[int, Any]] = []
        self._offered: dict[Any, deque[Message]] = defaultdict(deque)
        self._wanted: dict[Any, deque[Message]] = defaultdict(deque)

    def put(self, boxes: dict[Any, deque[Message]], key: tuple[bool, int], tensor: Any) -> Message:
        """Name a tensor that is to be sent or filled."""
        message = Message(self, tensor)
        with self.moved:
            boxes[key].append(message)
            while self._offered[key] and self._wanted[key]:
                source, target = self._offered[key].popleft(), self._wanted[key].popleft()
                assert (source.tensor.shape, source.tensor.dtype) == (target.tensor.shape, target.tensor.dtype)
                target.tensor.copy_(source.tensor)
                source.done = target.done = True
                self.moved.notify_all()
        return message

    def offer(self, serves: bool, tag: int, tensor: Any) -> Message:
        self.sent.append((tag, tensor))
        return self.put(self._offered, (serves, tag), tensor)

    def want(self, serves: bool, tag: int, tensor: Any) -> Message:
        return self.put(self._wanted, (not serves, tag), tensor)

    def break_off(self, error: str = CLOSED) -> None:
        """From now on waiting fails."""
        with self.moved:
            self.error = error
            self.moved.notify_all()


class End:
    """A Link's twin."""

    def __init__(self, wire: Wire, serves: bool) -> None:
        self.wire, self.serves = wire, serves

    def send(self, tensor: Any, tag: int) -> Message:
        return self.wire.offer(self.serves, tag, tensor)

    def receive(self, tensor: Any, tag: int) -> Message:
        return self.wire.want(self.serves, tag, tensor)


class Store:
    """A rendezvous of one key."""

    def __init__(self) -> None:
        self._there, self._value = threading.Event(), ""

    def set(self, _key: str, value: str) -> None:
        self._value = value
        self._there.set()

    def get(self, _key: str) -> str:
        assert self._there.wait(PATIENCE_S)
        return self._value


class World:
    """A point whose servers run in threads; `trainers` are its workers, `wires[server, rank]` between."""

    def __init__(self, name: str, size: int, **fields: Any) -> None:
        self.tasks = ranks.tasks(name, fields.pop("kind", "exchange"), size, **fields)
        servers, workers = range(len(self.tasks[0].servers)), range(size)
        self.wires = {(server, worker): Wire() for server in servers for worker in workers}
        self.store = Store()
        self.ends: dict[str, BaseException | None] = {}
        roles = [helper.name for helper in frameworks.load(name).helpers(self.tasks[0])]
        self.threads = [threading.Thread(target=self._serve, args=(role,), daemon=True) for role in roles]
        self.trainers: list[Any] = []
        self.patch = pytest.MonkeyPatch()

    def link(self, _store: Any, *, server: int, worker: int, serves: bool, timeout: Any) -> End:
        assert timeout.total_seconds() > ranks.LIMIT_S
        return End(self.wires[server, worker], serves)

    def _serve(self, role: str) -> None:
        task: Task = replace(self.tasks[0], role=role)
        self.ends[role] = None
        try:
            ps_server.serve(task, lambda values: None)
        except RuntimeError as error:
            self.ends[role] = error

    def connect(self) -> None:
        for thread in self.threads:
            thread.start()
        self.trainers = [ps_trainer.connect(task) for task in self.tasks]

    def steps(self, count: int) -> None:
        for _ in range(count):
            for trainer in self.trainers:
                trainer.step()
        for trainer in self.trainers:
            trainer.sync()


@contextmanager
def world(name: str, size: int, edit: Callable[[World], None] = lambda _: None, **fields: Any) -> Iterator[World]:
    """A connected World; its workers leave at the end, upon which its servers end. `edit` changes it before it
    is connected."""
    made = World(name, size, **fields)
    for module in (ps_trainer, ps_server):
        made.patch.setattr(module, "Link", made.link)
        made.patch.setattr(module, "open_store", lambda *_args, **_fields: made.store)
    try:
        edit(made)
        made.connect()
        yield made
    finally:
        made.patch.undo()
        for wire in made.wires.values():
            wire.break_off()
    for thread in made.threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
