"""MXNet's distributed kvstores: every rank is a worker of ps-lite, and servers have the parameters.

* `dist_sync`: a server waits for all workers' gradients and makes one update of their mean.
* `dist_device_sync`: as `dist_sync`; a worker with several devices sums on these. Here a worker has one device.
* `dist_async`: each worker's mean gradient is an update at once, at the same learning rate. Weights may have
  changed since they were pulled. In the time of a synchronous step there are as many updates as workers.

Momentum is on the servers and mixes all workers' gradients.

Row-sparse parameters, ps-lite's P3 scheduling and several devices per worker are not supported.
"""

from __future__ import annotations

from collections.abc import Mapping

from scaling.frameworks.base import Helper, Option, Traits, read_options
from scaling.frameworks.mx.plain import MXNetStrategy
from scaling.frameworks.options import one_of, positive_integer, positive_number
from scaling.records import crossing
from scaling.records.crossing import Parts
from scaling.records.point import EXCHANGING, SERVER, Point
from scaling.records.task import Server, Task
from scaling.workloads import models

ASYNCHRONOUS = "mxnet:dist_async"
SCHEDULER = "scheduler"
# MXNet reads the bound as an int, and fails on larger ones.
MOST = 2**31 - 1


class DistKvstore(MXNetStrategy):
    """A scheduler on rank 0, servers, and a worker for each rank."""

    names = ("mxnet:dist_sync", "mxnet:dist_device_sync", ASYNCHRONOUS)
    # MXNet's defaults.
    options = {
        "bigarray_bound": Option(
            type=positive_integer,
            default=1_000_000,
            help="arrays of at least so many elements are split over all servers",
        ),
        "compression": Option(
            type=one_of("none", "2bit"),
            default="none",
            help="2bit sends each gradient as -threshold, 0 or threshold and keeps the rest for the next step",
        ),
        "compression_threshold": Option(
            type=positive_number, default=0.5, help="threshold of 2bit, for gradients summed over a device's batch"
        ),
        "update_on_kvstore": Option(
            type=bool, default=True, help="true: servers update the weights; false: every rank does"
        ),
        **MXNetStrategy.options,
    }
    trainer = "scaling.frameworks.mx.dist_kvstore_trainer"
    server = "scaling.frameworks.mx.ps_lite"
    preload = (trainer, server)

    def traits(self, name: str) -> Traits:
        return Traits(ports=1, servers=True, synchronous=name != ASYNCHRONOUS, accuracy=("evaluate",))

    def refuse(self, point: Point) -> str | None:
        options, precision = read_options(self.options, point.options), point.workload.precision
        if point.strategy == ASYNCHRONOUS and not options["update_on_kvstore"]:
            return "--option update_on_kvstore=false: mxnet:dist_async only updates on its servers; leave it out"
        optimizer = models.of(point.workload).recipe.optimizer
        if point.strategy == ASYNCHRONOUS and optimizer != "sgd" and point.hardware.device != "emulated":
            return f"--optimizer {optimizer}: the servers of {ASYNCHRONOUS} update by SGD; add --optimizer sgd"
        if options["compression"] != "none" and precision != "fp32":
            return f"--option compression=2bit: mxnet only compresses fp32 gradients, not {precision}"
        return super().refuse(point)

    def helpers(self, task: Task) -> list[Helper]:
        servers = [
            Helper(name=f"{SERVER}{index}", server=index, awaited=False) for index in range(len(task.servers))
        ]
        return [Helper(name=SCHEDULER, awaited=False), *servers]

    def wire_parts(self, point: Point) -> Parts:
        """Return 2 of 32 bits outwards with 2bit compression. Servers send whole weights back."""
        small = read_options(self.options, point.options)["compression"] == "2bit"
        return (2 / 32, 1.0) if small else crossing.WHOLE

    def environ(self, task: Task, announced: Mapping[str, str]) -> dict[str, str]:
        """Return MXNet's settings and, for a point that exchanges, the variables of ps-lite. PORT is a server's
        own port. Without it, as in workers, ps-lite takes a free port."""
        common = super().environ(task, announced)
        if task.point.kind not in EXCHANGING:
            return common
        whole = read_options(self.options, task.point.options)["bigarray_bound"]
        found = {
            **common,
            "DMLC_ROLE": _role(task),
            "DMLC_PS_ROOT_URI": task.address,
            "DMLC_PS_ROOT_PORT": str(task.ports[0]),
            "DMLC_NUM_WORKER": str(task.point.world_size),
            "DMLC_NUM_SERVER": str(len(task.servers)),
            # A node binds this address and announces it. It takes precedence over the interface.
            "DMLC_NODE_HOST": address_of(task),
            "DMLC_INTERFACE": task.place.interface,
            "MXNET_KVSTORE_BIGARRAY_BOUND": str(min(MOST, max(1, round(whole / task.point.hardware.shrink)))),
        }
        if (server := server_of(task)) is not None:
            found["PORT"] = str(server.port)
        return found


def server_of(task: Task) -> Server | None:
    """Return the server that the task's process is; None for a worker and the scheduler."""
    return task.servers[int(task.role.removeprefix(SERVER))] if _role(task) == "server" else None


def address_of(task: Task) -> str:
    if task.role == SCHEDULER:
        return task.address
    server = server_of(task)
    return server.address if server is not None else task.addresses[task.rank]


def _role(task: Task) -> str:
    return task.role if task.role in ("worker", SCHEDULER) else "server"


STRATEGY = DistKvstore()
