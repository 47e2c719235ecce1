"""Records with chosen counters: what each node says that its cards carried while four ranks exchanged."""

from __future__ import annotations

from msgspec.structs import replace

from scaling.records.crossing import bytes_per_step, nccl_bounds
from scaling.records.events import Finished, Ready, Window
from scaling.records.network import Place
from scaling.records.point import Pattern
from scaling.records.run import HelperRecord, PointRecord, RankRecord
from scaling.records.telemetry import Telemetry, Traffic
from tests.support.points import make_point

S = 1_000_000
STEPS = 9  # measured; one more gives all ranks a common start
POINT = make_point(
    strategy="fake:a", kind="exchange", world_size=4, round=0, model="m", data="d", device="cpu",
    batch_rule="weak", batch_size=1,
)  # fmt: skip
WINDOW = Window(index=0, measured=True, steps=STEPS, samples=STEPS, start_s=0.0, end_s=1.0, end_unix_s=1.0)
READY = Ready(import_s=0, build_s=0, parameters=S // 4, gradient_bytes=S, device_name="cpu")


def carried(**sent_bytes: float) -> Telemetry:
    """What a node sent over each card; `__` stands for the `/` of a port."""
    return Telemetry(
        traffic=tuple(
            Traffic(name=name.replace("__", "/"), received_bytes=0, sent_bytes=int(sent))
            for name, sent in sent_bytes.items()
        )
    )


def point(
    hosts: tuple[str, ...],
    counted: dict[str, Telemetry],
    *,
    pattern: Pattern = "ring",
    servers: tuple[str, ...] = (),
    interface: str = "ib0",
    hca: str = "",
    told: bool = True,
    nccl: bool = False,
    own_addresses: bool = True,
    **options: str,
) -> PointRecord:
    """A record whose counters were read beside the first rank of each host, or its server; its strategy `told`
    what must cross nodes, and had `nccl` carry it."""
    bounds = nccl_bounds(S, hosts) if nccl else bytes_per_step(pattern, S, hosts, servers)
    ready = replace(READY, crossing_bytes_per_step=bounds if told else None)
    ranks = tuple(
        RankRecord(
            rank=rank, launch_rank=rank, host=host, outcome=Finished(), ready=ready, windows=(WINDOW,),
            place=Place(address=host if own_addresses else "10.0.0.1", interface=interface, hca=hca),
            environ={"NCCL_SOCKET_IFNAME": f"={interface}"} if nccl else {},
            telemetry=counted.get(host, Telemetry()) if host not in hosts[:rank] else Telemetry(),
        )
        for rank, host in enumerate(hosts)
    )  # fmt: skip
    helpers = tuple(
        HelperRecord(
            name=f"server-{index}", launch_rank=0, host=host, outcome=Finished(),
            place=Place(address=host if own_addresses else "10.0.0.1", interface=interface, hca=hca),
            telemetry=counted.get(host, Telemetry()) if host not in hosts else Telemetry(),
        )
        for index, host in enumerate(servers)
    )  # fmt: skip
    return PointRecord(
        point=replace(POINT, world_size=len(hosts), options=options), outcome=Finished(), ranks=ranks,
        helpers=helpers, hosts=hosts, pattern=pattern, started_unix_s=0, wall_s=1, startup_s=0, measured_s=1,
    )  # fmt: skip
