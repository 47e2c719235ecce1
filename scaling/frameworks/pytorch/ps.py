"""Parameter servers on torch.distributed, for PyTorch: `torch:ps-sync` and `torch:ps-async`.

Servers hold the parameters and their momentum and are the ones that update them: workers push gradients and
pull parameters. In `ps-sync` a server waits for the gradients of all workers and applies their mean once. In
`ps-async` it applies each at once and answers that worker alone.

Staleness (`ps-async`): for each bucket the server counts the updates that other workers made between its last
answer to a worker and that worker's next push; a step's staleness is the mean over the buckets.

Messages are c10d's, over Gloo, and not torch.distributed.rpc's: two workers and a server on 2 cores that others
used too, pushing and pulling in turns, took (medians of 5; in brackets CPU of a worker and of the server)

    floats              Gloo                  rpc over TCP          rpc as it comes (shared memory)
      813,546             6 ms  (2 +   5)       9 ms  (4 +   7)       7 ms  (6 +   6)
    25,557,032          195 ms (62 + 174)     172 ms (97 + 189)     349 ms (119 + 200)

rpc allocates every message anew and needs another copy to where it belongs; Gloo receives in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from scaling.frameworks import network_env
from scaling.frameworks.base import Helper, Option, Trainer, Traits, read_options
from scaling.frameworks.options import one_of, positive_number
from scaling.frameworks.pytorch import emulated, loop, ps_server
from scaling.frameworks.pytorch.loop import TorchRank, Training
from scaling.frameworks.pytorch.ps_client import Client, Remote, trained
from scaling.frameworks.pytorch.ps_shards import offsets
from scaling.records.point import Device, Point
from scaling.records.task import Task

NAMES: tuple[str, ...] = ("torch:ps-sync", "torch:ps-async")
BASELINE = "torch:plain"
OPTIONS: Mapping[str, Option] = {
    "bucket_cap_mb": Option(
        type=positive_number, default=2.0, help="MiB of parameters that travel as one message"
    ),
    "compression": Option(
        type=one_of("none", "fp16"),
        default="none",
        help="fp16: gradients travel in half precision, parameters do not",
    ),
    **loop.OPTIONS,
}


def traits(name: str) -> Traits:
    """Server 0 hosts the rendezvous on its own port."""
    return Traits(servers=True, synchronous=name == "torch:ps-sync")


def refuse(point: Point) -> str | None:
    """Float16 gradients are scaled by what no server knows."""
    if point.workload.precision == "fp16":
        return "--precision fp16: parameter servers take fp32, tf32 or bf16"
    return loop.refuse(point)


def devices(_name: str) -> tuple[Device, ...]:
    """From GPUs buckets go through the host's memory."""
    return ("cpu", "cuda", "emulated")


def missing(_name: str) -> str | None:
    """Torch alone is needed."""
    return loop.missing()


def helpers(task: Task) -> list[Helper]:
    """The servers, where the launch places them."""
    return [Helper(name=f"server-{index}", server=index) for index in range(len(task.servers))]


def environ(task: Task, _announced: Mapping[str, str]) -> dict[str, str]:
    """The interface that carries the exchange."""
    return network_env.gloo(task)


def server_index(role: str) -> int:
    """`server-3` -> 3."""
    return int(role.rpartition("-")[2])


def prepare() -> None:
    """Import torch."""
    loop.prepare()


def serve(task: Task, announce: Callable[[dict[str, str]], None]) -> None:
    """One server, until its workers have left."""
    options = read_options(OPTIONS, task.point.options)
    ps_server.serve(
        task,
        server_index(task.role),
        cap_mb=options["bucket_cap_mb"] / task.point.hardware.shrink,
        half=options["compression"] == "fp16",
        synchronous=traits(task.point.strategy).synchronous,
        announce=announce,
    )


# ---------------------------------------------------------------- in the worker


def connect(task: Task) -> Trainer:
    """Raises what torch raises; ImportError when the model needs a package that is not installed."""
    served = Served if traits(task.point.strategy).synchronous else StaleServed
    return emulated.made(GradientExchange if task.point.kind == "comm" else served, task)


def _client(rank: TorchRank, elements: int) -> Client:
    options = read_options(OPTIONS, rank.task.point.options)
    return Client(
        rank,
        elements,
        cap_mb=options["bucket_cap_mb"] / rank.task.point.hardware.shrink,
        half=options["compression"] == "fp16",
        synchronous=traits(rank.task.point.strategy).synchronous,
        staged=rank.cuda,
    )


class Served(Training):
    """The shared loop, with servers in place of its optimizer."""

    def make_optimizer(self) -> Any:
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

    def weights(self) -> dict[str, Any]:
        """Those that the servers sent last."""
        self._client.wait()
        return super().weights()

    def close(self) -> None:
        """Leave the servers."""
        self._client.close()

    def _compile(self) -> None:
        """The gradients of the trial are nobody's."""
        with self.hold():
            super()._compile()
        self._module.zero_grad(set_to_none=True)


class StaleServed(Served):
    """The same in the asynchronous mode."""

    def staleness(self) -> float:
        """As the module's docstring defines it."""
        return self._client.staleness()


class GradientExchange(TorchRank):
    """The pushes and pulls of one step and nothing else, with the servers' whole work."""

    samples = 0

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        module = self.build()
        self.describe(module)
        self._client = _client(self, offsets([each.numel() for each in trained(module)])[1])
        self._client.gradients.fill_(1.0)
        self._client.start()

    def step(self) -> None:
        """All buckets are in flight at once."""
        for bucket in self._client.buckets:
            self._client.push(bucket.index)
        self._client.pushed()
        self._client.wait()

    def loss(self) -> None:
        """Nothing is trained."""

    def digest(self) -> None:
        """Nothing is trained."""

    def close(self) -> None:
        """Leave the servers."""
        self._client.close()
