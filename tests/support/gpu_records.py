"""Records of points on GPUs that nobody has: telemetry, libraries and NCCL's choices are chosen."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from scaling.records.events import Result
from scaling.records.host import Gpu
from scaling.records.network import NcclChoice, Network, Place
from scaling.records.run import Header, PointRecord, RankRecord
from scaling.records.telemetry import Sample, Telemetry
from tests.support.scripted_records import UNIX_S, header, host, point, record

GIB = 1 << 30
H100 = "NVIDIA H100 80GB HBM3"
LIBRARIES = {"torch": "2.13.0+cu130", "cuda": "13.0", "cudnn": "92000", "nccl": "2.29.7"}
NODES = ("node1", "node2")
# A step on one GPU; what each world size adds to it.
STEP_S = 0.1
SLOWER = {1: 1.004, 2: 1.03, 4: 1.12}
INSIDE = NcclChoice(
    version="2.29.7", network="IB", cards=("mlx5_0", "mlx5_1"), transports={"P2P/CUMEM": 32}, nvls=True
)
ACROSS = replace(INSIDE, cards=("mlx5_0",), transports={"P2P/CUMEM": 16, "NET/IB": 16}, gpu_direct=16)
TOLD = {"tree LL128": 1 << 20, "tree simple": 1 << 30}


def sample(**changes: Any) -> Sample:
    made = Sample(
        unix_s=UNIX_S, utilisation_percent=98.0, power_w=412.0, sm_clock_mhz=1395.0, memory_used_bytes=40 * GIB,
        temperature_c=61.0, device_index=0,
    )  # fmt: skip
    return replace(made, **changes)


def on_gpu(rank: RankRecord, choice: NcclChoice | None = None, **changes: Any) -> RankRecord:
    """The same on a GPU that was read twice and used 1,000 J."""
    assert rank.ready is not None
    index = rank.rank % 2
    readings = (sample(device_index=index, **changes), sample(device_index=index, sm_clock_mhz=1410.0))
    return replace(
        rank,
        ready=replace(rank.ready, device_name=H100, versions=LIBRARIES),
        result=Result(digest="d", peak_memory_bytes=31 * GIB, peak_rss_bytes=GIB),
        telemetry=Telemetry(samples=readings, energy_j=1000.0),
        nccl=choice,
    )


def with_gpus(made: PointRecord, choice: NcclChoice | None = None, **changes: Any) -> PointRecord:
    return replace(made, ranks=tuple(on_gpu(rank, choice, **changes) for rank in made.ranks))


def gpus_run() -> tuple[Header, list[PointRecord]]:
    """Two nodes of two GPUs: NCCL inside a node over NVLink, between them over InfiniBand; the last one's clock is
    lower on both nodes."""
    work: dict[str, Any] = {
        "device": "cuda", "model": "resnet50", "data": "synthetic", "batch_size": 256, "precision": "bf16",
    }  # fmt: skip
    records = []
    for number, drift in enumerate((0.998, 1.0, 1.003)):
        records.append(with_gpus(record(point("solo", 1, number, strategy="torch:plain", **work), STEP_S * drift)))
        for n, slower in SLOWER.items():
            at = point("exchange", n, number, strategy="torch:nccl", **work)
            hosts = NODES[: max(1, n // 2)]
            choice = None if n == 1 else INSIDE if n == 2 else ACROSS
            made = with_gpus(record(at, STEP_S * slower * drift, hosts=hosts), choice)
            records.append(_with_a_slow_one(made) if n == 4 else made)
            if n > 1:
                comm = with_gpus(record(replace(at, kind="comm"), 0.02, hosts=hosts), choice)
                records.append(_told(comm) if number == 0 and n == 4 else comm)
    hosts_ = [host(name, gpus=_gpus(name), gpu_driver="580.65.06") for name in NODES]
    places = {name: Place(address=f"10.0.0.{n}", interface="ib0", hca="any") for n, name in enumerate(NODES)}
    network = Network(
        word="auto", why="the only network that all hosts share", places=places, subnet="10.0.0.0/24"
    )
    return header(hosts_, device="cuda", why_default="every host has GPUs", networks=(network,)), records


def _gpus(node: str) -> tuple[Gpu, ...]:
    return tuple(Gpu(index=n, name=H100, uuid=f"GPU-{node}-{n}", memory_bytes=80 * GIB) for n in range(2))


def _with_a_slow_one(made: PointRecord) -> PointRecord:
    *others, last = made.ranks
    return replace(made, ranks=(*others, on_gpu(last, last.nccl, sm_clock_mhz=990.0)))


def _told(comm: PointRecord) -> PointRecord:
    first, *others = comm.ranks
    assert first.nccl is not None
    return replace(comm, ranks=(replace(first, nccl=replace(first.nccl, algorithms=TOLD)), *others))
