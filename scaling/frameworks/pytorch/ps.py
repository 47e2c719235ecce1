"""Parameter servers on torch.distributed: the agent's side of `torch:ps-sync` and `torch:ps-async`.

Servers have the parameters and their momentum and do the updates. Workers push gradients and pull parameters.

* `ps-sync`: a server waits for all workers' gradients and applies their mean once.
* `ps-async`: a server applies each gradient at once and answers that worker only.

Staleness (`ps-async`): for each bucket, the updates by other workers between the server's last answer to a worker
and the worker's next push. A step's staleness is the mean over buckets.

Messages are those of c10d over Gloo, which receives in place. torch.distributed.rpc allocates and copies every
message, and used more CPU: 97 + 189 ms against 62 + 174 ms for 25.6 M floats (worker + server).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scaling.frameworks import network_env
from scaling.frameworks.base import Helper, Option, Traits, read_options
from scaling.frameworks.options import one_of, positive_number
from scaling.frameworks.pytorch.plain import TorchStrategy, fused
from scaling.records import crossing
from scaling.records.crossing import Parts
from scaling.records.point import Point, Record
from scaling.records.task import Task
from scaling.workloads import models


class ParameterServer(TorchStrategy):
    """Workers with parameter servers. From GPUs, buckets go through the host's memory."""

    names = ("torch:ps-sync", "torch:ps-async")
    options: Mapping[str, Option] = {
        "bucket_cap_mb": Option(type=positive_number, default=2.0, help="MiB of parameters per message"),
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
        return Traits(servers=True, synchronous=name == "torch:ps-sync", accuracy=("evaluate",))

    def refuse(self, point: Point) -> str | None:
        """Refuse fp16, whose scale of gradients servers do not know, and optimisers other than their SGD."""
        if fused(point):
            return "--option fused=true: servers update the parameters; leave it out"
        if point.workload.precision == "fp16":
            return "--precision fp16: parameter servers take fp32, tf32 or bf16"
        if (optimizer := models.of(point.workload).recipe.optimizer) != "sgd":
            return f"--optimizer {optimizer}: torch's servers only update by SGD; add --optimizer sgd"
        return super().refuse(point)

    def helpers(self, task: Task) -> list[Helper]:
        return [Helper(name=f"server-{index}", server=index, awaited=False) for index in range(len(task.servers))]

    def environ(self, task: Task, _announced: Mapping[str, str]) -> dict[str, str]:
        return network_env.gloo(task)

    def wire_parts(self, point: Point) -> Parts:
        """Return a half outwards if gradients travel as fp16. Servers send whole parameters back."""
        half = read_options(self.options, point.options)["compression"] == "fp16"
        return (0.5, 1.0) if half else crossing.WHOLE


class Terms(Record, frozen=True, kw_only=True):
    """What workers and servers of a point must agree on.

    * cap_mb: MiB of a bucket on this device.
    * half: gradients travel in half precision.
    * synchronous: servers wait for all workers.
    """

    cap_mb: float
    half: bool
    synchronous: bool


def terms(point: Point) -> Terms:
    options = read_options(STRATEGY.options, point.options)
    return Terms(
        cap_mb=options["bucket_cap_mb"] / point.hardware.shrink,
        half=options["compression"] == "fp16",
        synchronous=STRATEGY.traits(point.strategy).synchronous,
    )


# ---------------------------------------------------------------- buckets
#
# How parameters are cut into buckets, and buckets are assigned to servers. Sizes are in float32 elements.
#
# All parameters are in one flat vector in backward's order (the model's, reversed). It is cut every
# `bucket_cap_mb`, also inside tensors. Only the last bucket is smaller: it has the model's first layers. Their
# gradients come last and their parameters are needed first, so nothing hides its exchange.


MIB = 1 << 20
FLOAT32_BYTES = 4
# 64 bytes, torch's alignment of tensors, so that computing is not slower.
ALIGNMENT = 16


class Bucket(Record, frozen=True, kw_only=True):
    """Elements `start` to `stop` of the flat vector, with its number `index`, on server `server`."""

    index: int
    start: int
    stop: int
    server: int


class Tags(Record, frozen=True, kw_only=True):
    """The tags of one connection's messages; `count` is the number of all buckets."""

    count: int

    def push(self, index: int) -> int:
        """Tag a gradient, to the server."""
        return index

    def pull(self, index: int) -> int:
        """Tag parameters, to a worker."""
        return self.count + index

    @property
    def behind(self) -> int:
        """Tag a step's staleness, summed over the server's buckets (float64), to a worker."""
        return 2 * self.count


def offsets(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return where each tensor starts in the flat vector, and its length. Gaps have up to 15 elements."""
    starts, end = [], 0
    for size in sizes:
        starts.append(end)
        end += -(-size // ALIGNMENT) * ALIGNMENT
    return starts, end


def cut(elements: int, cap_mb: float, servers: int) -> list[Bucket]:
    """Cut a flat vector into buckets, each for the least loaded server: loads differ by at most one bucket."""
    cap = max(1, int(cap_mb * MIB / FLOAT32_BYTES) // ALIGNMENT) * ALIGNMENT
    load = [0] * servers
    made: list[Bucket] = []
    for start in range(0, elements, cap):
        stop = min(start + cap, elements)
        server = load.index(min(load))
        load[server] += stop - start
        made.append(Bucket(index=len(made), start=start, stop=stop, server=server))
    return made


def touched(buckets: Sequence[Bucket], start: int, size: int) -> list[int]:
    """Return the buckets with some of the `size` elements from `start` on."""
    return [each.index for each in buckets if each.start < start + size and start < each.stop]


STRATEGY = ParameterServer()
