"""Workers of torch:ps-sync and torch:ps-async: the shared loop with servers in place of its optimizer, or its
pushes and pulls alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numpy.typing import NDArray

from scaling.frameworks.base import Trainer
from scaling.frameworks.pytorch.exchange import Exchange
from scaling.frameworks.pytorch.loop import TorchRank, Training
from scaling.frameworks.pytorch.ps import terms
from scaling.frameworks.pytorch.ps_client import Client, Remote, trained
from scaling.frameworks.pytorch.ps_shards import offsets
from scaling.records.task import Task


def connect(task: Task) -> Trainer:
    """Raises what torch raises; ImportError when the model needs a package that is not installed."""
    if task.point.kind == "comm":
        return GradientExchange(task)
    return Served(task) if terms(task.point).synchronous else StaleServed(task)


def _client(rank: TorchRank, elements: int) -> Client:
    agreed = terms(rank.task.point)
    return Client(
        rank,
        elements,
        cap_mb=agreed.cap_mb,
        half=agreed.half,
        synchronous=agreed.synchronous,
        staged=rank.cuda,
    )


class Served(Training):
    """The shared loop, with servers in place of its optimizer."""

    _optimizer: Remote

    def make_optimizer(self) -> Remote:
        """Connect; all workers then have rank 0's parameters."""
        sizes = [each.numel() for each in trained(self._module)]
        self._client = _client(self, offsets(sizes)[1])
        remote = Remote(self._client, self._module, lazy=not self.task.point.workload.compile)
        self._client.start()
        return remote

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Nothing is pushed inside."""
        self._optimizer.held = True
        yield
        self._optimizer.held = False

    def sync(self) -> None:
        """Wait for the servers, then for the device."""
        self._client.wait()
        super().sync()

    def weights(self) -> dict[str, NDArray[Any]]:
        """Those that the servers sent last."""
        self._client.wait()
        return super().weights()

    def close(self) -> None:
        """Leave the servers."""
        self._client.close()

    def _compile(self) -> None:
        """The gradients of the first, uncounted pass are nobody's."""
        with self.hold():
            super()._compile()
        self._module.zero_grad(set_to_none=True)


class StaleServed(Served):
    """The same in the asynchronous mode."""

    def staleness(self) -> float:
        """As ps.py defines it."""
        return self._client.staleness()


class GradientExchange(Exchange):
    """The pushes and pulls of one step and nothing else, with the servers' whole work."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        module = self.build()
        self.describe(module)
        self._client = _client(self, offsets([each.numel() for each in trained(module)])[1])
        self._client.gradients.fill_(1.0)
        self._client.start()

    def send(self) -> None:
        """All buckets are in flight at once."""
        for bucket in self._client.buckets:
            self._client.push(bucket.index)
        self._client.pushed()
        self._client.wait()

    def close(self) -> None:
        """Leave the servers."""
        self._client.close()
