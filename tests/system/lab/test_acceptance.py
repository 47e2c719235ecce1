"""What is promised of a lab, as users would type it: sixteen emulated devices on four nodes over two networks."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaling.analysis.table import analyse
from scaling.analysis.table.rows import Row
from scaling.records import store
from tests.support import labs
from tests.support.labs import needs_lab

# The large size of what test_sweeps.py tries on two nodes.
pytestmark = [needs_lab, pytest.mark.matrix]
LIMIT_S = 1200.0
NETWORKS = ("ib0", "eth0")
SWEEP = (
    "--device", "emulated:p100", "--interconnect", ",".join(NETWORKS), "--rounds", "1", "--kinds", "solo,exchange",
    "--windows", "3", "--dilate", "5",  # by itself it takes 25, for an error that nothing here looks at
)  # fmt: skip


def lab_command(*words: str) -> str:
    done = labs.command(*words, timeout_s=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(LIMIT_S)
def test_sixteen_devices_over_two_networks_in_one_table(tmp_path: Path) -> None:
    pytest.importorskip("torch", exc_type=ImportError)
    name, before = labs.name("accept"), labs.outside()
    lab_command("up", "--name", name)
    lab = labs.load("accept")
    try:
        launch = ("-np", "16", "python", "-m", "scaling.run", *SWEEP, "--verbose", "--results", str(tmp_path))
        text = lab_command("run", "--name", name, "--", *launch)
    finally:
        lab_command("down", "--name", name, "--force")
    assert labs.traces(lab) == []
    assert labs.outside() <= before
    (run,) = tmp_path.iterdir()
    rows = {(row.interconnect, row.world_size): row for row in analyse.rows(store.load(run)[1])}
    for network in NETWORKS:
        for world_size in (8, 16):
            check_across_nodes(rows[network, world_size], network)
    assert {world_size for _, world_size in rows} == {1, 2, 4, 8, 16}
    assert all("EMULATED" in row.flags and row.efficiency is not None for row in rows.values())
    assert "intra-node x inter-node" in text


def check_across_nodes(row: Row, network: str) -> None:
    assert "VERIFIED" in row.flags, row.footnotes
    assert row.receipt is not None
    assert row.receipt.wanted == (network,)
    assert row.receipt.over_expected == pytest.approx((1.03, 1.03), abs=0.05)
    assert row.intra_node is not None and row.inter_node is not None
    # Each node's last rank sends to the next node's first, or the other way round: a ring.
    assert len(row.paths) == row.nodes
