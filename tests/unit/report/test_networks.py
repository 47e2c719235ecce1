"""What a report's header says of networks: on GPUs NCCL's cards beside the interface, on CPUs none."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from scaling.hosts.networks import choose
from scaling.report.formats import terminal
from tests.support import clouds
from tests.support.report_scenes import networks_run


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("cuda", "network ib0 (172.16.0.0/24, 400 Gb/s, NCCL: RDMA by mlx5_0, 1 of 8 cards)"),
        ("cpu", "network ib0 (172.16.0.0/24, 400 Gb/s)"),
    ],
)
def test_the_header_names_nccls_cards_where_nccl_may_run(device: str, said: str) -> None:
    made, records = networks_run()
    network = choose([clouds.dgx(name, number) for number, name in enumerate(("node1", "node2"), 1)], "ib0")
    text = " ".join(
        terminal.render(replace(made, networks=(network,), device=device), records, color=False).split()
    )
    assert f"{said} " in text
