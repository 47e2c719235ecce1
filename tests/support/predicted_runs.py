"""A run of two nodes that was measured up to four devices, and questions about more."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from scaling.records.events import Ready
from scaling.records.network import Network, Place
from scaling.records.run import Header, PointRecord, Prediction
from tests.support.scripted_records import header, host, point, record, sweep

NETWORK = Network(
    word="auto", why="", rate_bits_per_s=10e9,
    places={name: Place(address="10.0.0.1", interface="eth0") for name in ("node1", "node2")},
)  # fmt: skip
HEADER = header((host("node1"), host("node2")), networks=(NETWORK,))


def run(step_s: dict[int, float] | None = None, rounds: int = 3, **changes: Any) -> list[PointRecord]:
    """Rounds of one device at 0.1 s a step, two on one node and four on two."""
    steps = step_s or {1: 0.1, 2: 0.105, 4: 0.125}
    made = [one for number in range(rounds) for one in sweep(number, 0.1, steps, **changes)]
    return [placed(one) for one in made]


def placed(one: PointRecord) -> PointRecord:
    """Four ranks on two nodes."""
    if one.point.world_size != 4:
        return one
    names = ("node1", "node1", "node2", "node2")
    ranks = tuple(replace(rank, host=name) for rank, name in zip(one.ranks, names, strict=True))
    return replace(one, ranks=ranks, hosts=names)


def large() -> tuple[Header, list[PointRecord]]:
    """A run of eight nodes with two devices each, and two batches of one device."""
    names = tuple(f"node{number}" for number in range(1, 9))
    network = replace(
        NETWORK,
        rate_bits_per_s=100e9,
        subnet="10.20.0.0/24",
        places={name: Place(address=f"10.20.0.{n}", interface="eth0") for n, name in enumerate(names, 1)},
    )
    records = []
    for one in run({1: 0.1, 2: 0.102, 4: 0.105, 8: 0.107, 16: 0.11}):
        seats = names[: max(1, one.point.world_size // 2)]
        ranks = tuple(replace(rank, host=seats[rank.rank * len(seats) // len(one.ranks)]) for rank in one.ranks)
        records.append(replace(one, ranks=ranks, hosts=tuple(rank.host for rank in ranks)))
    ready = Ready(
        import_s=1.0, build_s=0.1, parameters=25_557_032, gradient_bytes=102_228_128, device_name="Test CPU"
    )
    records = [replace(one, ranks=tuple(replace(rank, ready=ready) for rank in one.ranks)) for one in records]
    records += [record(point("solo", 1, number, batch_size=128), 0.35) for number in range(3)]
    return header(tuple(map(host, names)), networks=(network,)), records


def prediction(world_size: int, efficiency: float, half: float = 0.02, **changes: Any) -> Prediction:
    """Of the run's exchange, registered after four devices, where one does 320 samples/s."""
    rate = 320.0 * world_size
    made = Prediction(
        point=point("exchange", world_size), nodes=2, registered_unix_s=1.7e9, up_to=2, efficiency=efficiency,
        efficiency_low=efficiency - half, efficiency_high=efficiency + half, samples_per_s=rate * efficiency,
        samples_per_s_low=rate * (efficiency - half), samples_per_s_high=rate * (efficiency + half),
    )  # fmt: skip
    return replace(made, **changes)
