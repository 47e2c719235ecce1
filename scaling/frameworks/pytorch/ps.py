"""Parameter servers on torch.distributed, for PyTorch, the agent's side: `torch:ps-sync` and `torch:ps-async`.

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

from collections.abc import Mapping

from scaling.frameworks import network_env
from scaling.frameworks.base import Helper, Option, Traits, read_options
from scaling.frameworks.options import one_of, positive_number
from scaling.frameworks.pytorch.plain import TorchStrategy
from scaling.records import crossing
from scaling.records.crossing import Parts
from scaling.records.point import Point, Record
from scaling.records.task import Task
from scaling.workloads import models


class ParameterServer(TorchStrategy):
    """From GPUs buckets go through the host's memory."""

    names = ("torch:ps-sync", "torch:ps-async")
    options: Mapping[str, Option] = {
        "bucket_cap_mb": Option(
            type=positive_number, default=2.0, help="MiB of parameters that travel as one message"
        ),
        "compression": Option(
            type=one_of("none", "fp16"),
            default="none",
            help="fp16: gradients travel in half precision, parameters do not",
        ),
        **TorchStrategy.options,
    }
    trainer = "scaling.frameworks.pytorch.ps_trainer"
    server = "scaling.frameworks.pytorch.ps_server"
    preload = (trainer, server)

    def traits(self, name: str) -> Traits:
        """Server 0 hosts the rendezvous on its own port."""
        return Traits(servers=True, synchronous=name == "torch:ps-sync", accuracy=("evaluate",))

    def refuse(self, point: Point) -> str | None:
        """Float16 gradients are scaled by what no server knows."""
        if point.workload.precision == "fp16":
            return "--precision fp16: parameter servers take fp32, tf32 or bf16"
        if (optimizer := models.of(point.workload).recipe.optimizer) != "sgd":
            return f"--optimizer {optimizer}: these servers update by SGD; add --optimizer sgd"
        return super().refuse(point)

    def helpers(self, task: Task) -> list[Helper]:
        """The servers, where the launch places them."""
        return [Helper(name=f"server-{index}", server=index, awaited=False) for index in range(len(task.servers))]

    def environ(self, task: Task, _announced: Mapping[str, str]) -> dict[str, str]:
        """The interface that carries the exchange."""
        return network_env.gloo(task)

    def wire_parts(self, point: Point) -> Parts:
        """Halves go out where gradients travel as fp16; what servers send back is whole."""
        half = read_options(self.options, point.options)["compression"] == "fp16"
        return (0.5, 1.0) if half else crossing.WHOLE


class Terms(Record, frozen=True, kw_only=True):
    """What the workers and servers of a point must agree on: a bucket's size on this device, whether gradients
    travel in half precision, and whether servers wait for all workers."""

    cap_mb: float
    half: bool
    synchronous: bool


def terms(point: Point) -> Terms:
    """As the point's options and its strategy's name say."""
    options = read_options(STRATEGY.options, point.options)
    return Terms(
        cap_mb=options["bucket_cap_mb"] / point.hardware.shrink,
        half=options["compression"] == "fp16",
        synchronous=STRATEGY.traits(point.strategy).synchronous,
    )


STRATEGY = ParameterServer()
