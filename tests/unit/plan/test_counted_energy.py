"""Beside which child a machine's energy is read: one of each machine that no other host of the launch shares."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaling.hosts import rapl
from scaling.plan.placement import place_ranks
from scaling.plan.tasks import rank_tasks
from scaling.records.network import ALONE
from scaling.records.run import PointRecord
from tests.support.inline import Launch, enrol, host
from tests.support.points import make_point
from tests.support.powercap import Powercap

POINT = make_point(
    strategy="fake:a", kind="exchange", world_size=4, round=0, model="digits-cnn", data="digits",
    device="cpu", batch_rule="weak", batch_size=32,
)  # fmt: skip


def counting(*kernels: str) -> list[bool]:
    hosts = [host(f"node{at}", boot_id=kernel) for at, kernel in enumerate(kernels) for _ in range(2)]
    slots = place_ranks([enrol(one) for one in hosts], None)
    places = {slot.host: ALONE for slot in slots}
    tasks = rank_tasks(POINT, slots, (), places, attempt=1, seed=1, logs="logs")
    return [task.counts_energy for task in tasks]


@pytest.mark.parametrize(
    ("kernels", "found"),
    [
        (("a",), [True, False]),
        (("a", "b"), [True, False, True, False]),
        (("a", "a"), [False] * 4),  # a lab, or containers
        (("a", "a", "b"), [False] * 4 + [True, False]),
        (("",), [False] * 2),
    ],
)
def test_one_child_of_each_machine_that_is_its_hosts_alone(kernels: tuple[str, ...], found: list[bool]) -> None:
    assert counting(*kernels) == found


def test_a_sweep_records_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = Powercap(tmp_path / "powercap")
    monkeypatch.setattr(rapl, "ROOT", tree.root)
    launch = Launch(2, [host(boot_id="a")] * 2)
    found = launch.sweep(tmp_path, strategy=["fake:a"], rounds=1, windows=3, kinds=["exchange"], window_s=0.01)

    def read(record: PointRecord) -> list[bool]:
        return [rank.telemetry.machine_energy is not None for rank in record.ranks]

    assert [read(record) for record in found.of()] == [[True]] and read(*found.of(size=2)) == [True, False]
    (energy,) = [rank.telemetry.machine_energy for rank in found.of()[0].ranks]
    assert energy is not None and energy.joules == 0.0 and energy.seconds > 0
