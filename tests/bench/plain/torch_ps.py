"""A parameter server on torch.distributed.rpc, as in PyTorch's tutorial "Implementing batch RPC processing using
asynchronous executions": a step sends its gradients and gets the new parameters back. MODE is `sync` (the
server updates once all workers have sent) or `async` (at once). The rank after the last is the server.

Unlike the tutorial it sends the parameters alone and not the pickled model, which is faster.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
import torch.distributed.rpc

from scaling.frameworks.pytorch.network import build
from tests.bench.plain import work

rpc: Any = torch.distributed.rpc
SERVER = "server"


class ParameterServer:
    """The model, updated by the mean of every `pushes` gradients."""

    def __init__(self, pushes: int) -> None:
        torch.manual_seed(1)
        self.parameters: list[Any] = list(build(work.SPEC, 1).parameters())
        self.optimizer = torch.optim.SGD(self.parameters, lr=work.SPEC.recipe.rate, momentum=0.9)
        self.lock = threading.Lock()
        self.updated: Any = torch.futures.Future()
        self.pushes, self.arrived = pushes, 0
        for each in self.parameters:
            each.grad = torch.zeros_like(each)

    def get(self) -> list[torch.Tensor]:
        """The parameters."""
        return [each.detach() for each in self.parameters]

    @staticmethod
    @rpc.functions.async_execution  # type: ignore[misc, untyped-decorator, unused-ignore]
    def push(server: Any, gradients: list[torch.Tensor]) -> Any:
        """The parameters once the update with these gradients is made."""
        self = server.local_value()
        with self.lock:
            torch._foreach_add_([each.grad for each in self.parameters], gradients)
            self.arrived += 1
            updated = self.updated
            if self.arrived == self.pushes:
                self.update()
        return updated

    def update(self) -> None:
        """One step of SGD; whoever waits gets its result."""
        if self.pushes > 1:
            torch._foreach_div_([each.grad for each in self.parameters], self.pushes)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)
        waited, self.updated, self.arrived = self.updated, torch.futures.Future(), 0
        waited.set_result(self.get())


def train(told: work.Work) -> None:
    rpc.init_rpc(f"worker{told.rank}", rank=told.rank, world_size=told.world_size + 1)
    server = rpc.remote(SERVER, _the_server)
    model = build(work.SPEC, 1)
    criterion = torch.nn.CrossEntropyLoss()
    parameters: list[Any] = list(model.parameters())
    feed = work.digits(told)
    with torch.no_grad():
        torch._foreach_copy_(parameters, server.rpc_sync().get())

    def step(number: int) -> Any:
        images, labels = map(torch.from_numpy, feed.batch(number))
        loss = criterion(model(images), labels)
        loss.backward()
        gradients = [each.grad for each in parameters]
        model.zero_grad()
        fresh = rpc.rpc_sync(SERVER, ParameterServer.push, args=(server, gradients))
        with torch.no_grad():
            torch._foreach_copy_(parameters, fresh)
        return loss.detach()

    work.serve(told, step, linger=told.mode == "async")


_served: list[ParameterServer] = []


def _the_server() -> ParameterServer:
    return _served[0]


def main() -> None:
    told = work.read()
    if told.rank == told.world_size:
        _served.append(ParameterServer(told.world_size if told.mode == "sync" else 1))
        rpc.init_rpc(SERVER, rank=told.rank, world_size=told.world_size + 1)
    else:
        train(told)
    rpc.shutdown()


if __name__ == "__main__":
    main()
