"""PyTorch's DistributedDataParallel over NCCL or Gloo; `torch:plain` is the same loop without it.

It does not know torchrun's elastic restarts or sharded optimisers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scaling.frameworks import network_env
from scaling.frameworks.base import Helper, Option, Trainer, Traits, read_options
from scaling.frameworks.options import positive_number
from scaling.frameworks.pytorch import loop, store
from scaling.frameworks.pytorch.emulated import made
from scaling.frameworks.pytorch.loop import TorchRank, Training
from scaling.hosts.gpus import gather_gpus
from scaling.records.point import EXCHANGING, Device, Point
from scaling.records.task import Task

NAMES: tuple[str, ...] = ("torch:nccl", "torch:gloo", "torch:plain")
BASELINE = "torch:plain"

MIB = 1 << 20
DEFAULT_BUCKET_MB = 25.0
FIRST_BUCKET_BYTES = MIB
FLOAT32_BYTES = 4
# The defaults are DistributedDataParallel's own.
PLAIN_OPTIONS: Mapping[str, Option] = loop.OPTIONS
OPTIONS: Mapping[str, Option] = {
    "bucket_cap_mb": Option(
        type=positive_number,
        default=DEFAULT_BUCKET_MB,
        help="MiB of a gradient bucket; at 25 the first is 1 MiB",
    ),
    "gradient_as_bucket_view": Option(
        type=bool, default=False, help="gradients live in the buckets: less memory, one copy less"
    ),
    "static_graph": Option(type=bool, default=False, help="the same parameters are used in every step"),
    **loop.OPTIONS,
}

# The agent's clocks end a hung point and find its cause; torch's own timeout only comes after them.
TIMEOUT_MARGIN_S = 30.0


# ---------------------------------------------------------------- before the worker


def traits(_name: str) -> Traits:
    """Rank 0's worker hosts torch's rendezvous."""
    return Traits(ports=1)


def refuse(point: Point) -> str | None:
    """Torch does all precisions, memory formats and models."""
    return loop.refuse(point)


def devices(name: str) -> tuple[Device, ...]:
    """NCCL needs CUDA; Gloo and the plain loop run on all."""
    return ("cuda",) if name == "torch:nccl" else ("cpu", "cuda", "emulated")


def missing(name: str) -> str | None:
    """Found in the installed files and by NVML; torch is not imported."""
    if name != "torch:nccl" or loop.missing():
        return loop.missing()
    package = find_spec("torch")
    assert package is not None and package.origin is not None
    if not (Path(package.origin).parent / "lib/libtorch_cuda.so").exists():
        version = metadata.version("torch")
        return f"torch {version} is built without CUDA: install a CUDA build (https://pytorch.org)"
    gpus, driver = gather_gpus()
    if not gpus:
        return f"no NVIDIA GPU on this host (driver {driver or 'not installed'}); use torch:gloo"
    return None


def helpers(_task: Task) -> list[Helper]:
    """None: the rendezvous is a TCP store in rank 0's worker."""
    return []


def serve(task: Task, _announce: Any) -> None:
    """There are no helpers."""
    raise NotImplementedError(f"{task.point.strategy} has no helper {task.role!r}")


def environ(task: Task, _announced: Mapping[str, str]) -> dict[str, str]:
    """What torchrun would set, and the interface that carries the exchange; nothing for the plain loop."""
    if task.point.kind not in EXCHANGING:
        return {}
    return {
        "MASTER_ADDR": task.address,
        "MASTER_PORT": str(task.ports[0]),
        "RANK": str(task.rank),
        "WORLD_SIZE": str(task.point.world_size),
        "LOCAL_RANK": str(task.local_rank),
        **network_env.gloo(task),
        **network_env.nccl(task),
    }


# ---------------------------------------------------------------- in the worker


def prepare() -> None:
    """Import torch."""
    loop.prepare()


def connect(task: Task) -> Trainer:
    """Raises what torch raises; ImportError when the model needs a package that is not installed."""
    match task.point.kind:
        case "exchange":
            return made(Distributed, task)
        case "comm":
            return made(GradientExchange, task)
        case _:
            return made(Training, task)


class Distributed(Training):
    """The shared loop with its model inside DistributedDataParallel."""

    def wrap(self, module: Any) -> Any:
        """Join the process group; DDP then gives all ranks rank 0's weights."""
        _join(self)
        options = read_options(OPTIONS, self.task.point.options)
        emulated = self.task.point.hardware.device == "emulated"
        self._parallel = self.torch.nn.parallel.DistributedDataParallel(
            module,
            device_ids=[self.device.index] if self.cuda else None,
            **_caps(options["bucket_cap_mb"], self.task.point.hardware.shrink),
            # Copying gradients out of the buckets takes a GPU no time, and would take this CPU much of a step.
            gradient_as_bucket_view=emulated or options["gradient_as_bucket_view"],
            static_graph=options["static_graph"],
            # Emulated parameters are alike from the start; slowed links would take seconds to say so.
            init_sync=not emulated,
        )
        return self._parallel

    def hold(self) -> AbstractContextManager[Any]:
        """DDP's own way to accumulate."""
        held: AbstractContextManager[Any] = self._parallel.no_sync()
        return held

    def close(self) -> None:
        """Leave the process group."""
        self.torch.distributed.destroy_process_group()


class GradientExchange(TorchRank):
    """The all-reduces of one DDP step and nothing else: what network and backend take for this model's
    gradients when no compute hides them."""

    samples = 0

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        _join(self)
        sizes = self.describe(self.build())
        cap_mb = read_options(OPTIONS, task.point.options)["bucket_cap_mb"]
        self._buckets = [
            self.torch.ones(size // FLOAT32_BYTES, device=self.device)
            for size in bucket_bytes(reversed(sizes), cap_mb, task.point.hardware.shrink)
        ]

    def step(self) -> None:
        """As DDP does: each bucket divided by the ranks and summed over them, all in flight at once."""
        works = []
        for bucket in self._buckets:
            bucket.div_(self.task.point.world_size)
            works.append(self.torch.distributed.all_reduce(bucket, async_op=True))
        for work in works:
            work.wait()

    def loss(self) -> None:
        """Nothing is trained."""

    def digest(self) -> None:
        """Nothing is trained."""

    def close(self) -> None:
        """Leave the process group."""
        self.torch.distributed.destroy_process_group()


def _join(rank: TorchRank) -> None:
    task = rank.task
    backend = task.point.strategy.partition(":")[2]
    timeout = timedelta(seconds=max(task.clocks.startup_s, task.clocks.stall_s) + TIMEOUT_MARGIN_S)
    rank.torch.distributed.init_process_group(
        backend,
        store=store.open_store(task.address, task.ports[0], hosts=task.rank == 0, timeout=timeout),
        rank=task.rank,
        world_size=task.point.world_size,
        timeout=timeout,
        # NCCL connects now, and not inside the first step.
        device_id=rank.device if backend == "nccl" else None,
    )


def _caps(cap_mb: float, shrink: float) -> dict[str, Any]:
    """The limits of DDP's buckets. It makes its first bucket small, so that the exchange starts early, only
    without a cap: where all sizes are divided, both limits must be named."""
    if cap_mb != DEFAULT_BUCKET_MB:
        return {"bucket_cap_mb": cap_mb / shrink}
    if shrink == 1:
        return {}
    return {"bucket_cap_mb_list": [FIRST_BUCKET_BYTES / MIB / shrink, cap_mb / shrink]}


def bucket_bytes(sizes: Iterable[int], cap_mb: float, shrink: float = 1.0) -> list[int]:
    """Bytes of the buckets that DDP forms of gradients of these `sizes`, given in the order in which
    backward makes them (the model's, reversed); its limits are divided by `shrink`, as the sizes are.

    A bucket is full once it reaches the cap; at the default cap the first one has 1 MiB
    (torch/csrc/distributed/c10d/reducer.cpp, compute_bucket_assignment_by_size).
    """
    cap = cap_mb * MIB / shrink
    limit = FIRST_BUCKET_BYTES / shrink if cap_mb == DEFAULT_BUCKET_MB else cap
    buckets, filling = [], 0
    for size in sizes:
        filling += size
        if filling >= limit:
            buckets.append(filling)
            filling, limit = 0, cap
    return [*buckets, filling] if filling else buckets
