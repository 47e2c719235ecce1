"""Points for tests: fields of the work and of the hardware are given by name, as those of the point itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from scaling.records.network import Place
from scaling.records.point import Hardware, Point, Workload
from scaling.records.task import Task


def make_point(**fields: Any) -> Point:
    """A point of these fields, each put where it belongs."""
    work, hardware, own = _sorted(fields)
    return Point(workload=Workload(**work), hardware=Hardware(**hardware), **own)


def changed(point: Point, **fields: Any) -> Point:
    """The point with other fields, each put where it belongs."""
    work, hardware, own = _sorted(fields)
    return replace(
        point, workload=replace(point.workload, **work), hardware=replace(point.hardware, **hardware), **own
    )


def _sorted(fields: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    of_work, of_hardware = set(Workload.__struct_fields__), set(Hardware.__struct_fields__)
    return (
        {name: value for name, value in fields.items() if name in of_work},
        {name: value for name, value in fields.items() if name in of_hardware},
        {name: value for name, value in fields.items() if name not in of_work | of_hardware},
    )


def placed(task: Task, addresses: Sequence[str], interface: str, hca: str = "") -> Task:
    """The task with its ranks at these addresses, all on one kind of card."""
    places = tuple(Place(address=address, interface=interface, hca=hca) for address in addresses)
    return replace(task, place=places[task.rank], places=places)


POINT = make_point(
    strategy="fake:a", kind="exchange", world_size=1, round=0, model="digits-cnn", data="digits",
    device="cpu", batch_rule="weak", batch_size=32,
)  # fmt: skip
TASK = Task(
    point=POINT, attempt=1, rank=0, launch_rank=0, local_rank=0, local_world_size=1, hosts=("node1",),
    device_index=0, cpus=(), threads=3, seed=1, log="log",
)  # fmt: skip
