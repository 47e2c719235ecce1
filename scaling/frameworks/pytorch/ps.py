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

from collections.abc import Mapping

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


STRATEGY = ParameterServer()
