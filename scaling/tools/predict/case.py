"""What a prediction stands on: one curve of a run, or one device and a data sheet. Plain data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from scaling.errors import UsageError, near
from scaling.records.point import Record
from scaling.tools.predict.known import Known
from scaling.tools.predict.setting import At, Link, Setting

GBIT_BYTES = 1e9 / 8
# Fast Ethernet; nobody trains over less.
SLOWEST_GBIT = 0.1
# The words of --network, and how the model takes them.
RDMA, TCP = ("ib", "roce", "rdma"), ("tcp", "eth", "ipoib")


class Measured(Record, frozen=True, kw_only=True):
    """A row that was measured, for the table: never compared with predicted ones."""

    at: At
    samples_per_s: float
    efficiency: float


class Case(NamedTuple):
    """`rate` is of one device alone, samples/s; `largest` the world size up to which something was measured;
    `rates` those of one device by batch size; `emulated` says that links are shaped and shares of them hold;
    `without` is a node that nobody waited for, supposedly. A sample is `units_per_sample` of `unit`: people are
    told, and ask, in these."""

    title: str
    setting: Setting
    known: Known
    rate: float
    batch_size: int
    unit: str
    devices_per_node: int
    measured: tuple[Measured, ...] = ()
    largest: int = 1
    rates: tuple[tuple[str, int, float], ...] = ()
    model: str = ""
    strategy: str = ""
    interconnect: str = ""
    options: Mapping[str, str] = MappingProxyType({})
    without: str = ""
    emulated: bool = False
    cold: bool = False
    device: str = ""
    accumulation: int = 1
    units_per_sample: int = 1
    notes: tuple[str, ...] = ()
    command: str = "python -m scaling.run"

    def layout(self, world_size: int) -> At:
        """Where so many devices are: nodes are filled one after the other."""
        nodes = -(-world_size // self.devices_per_node)
        return At(world_size=world_size, nodes=nodes, accumulation=self.accumulation)


def network(words: str, *, emulated: bool = False) -> tuple[Link, float]:
    """`ib:200`, `tcp:25x2` -> how the model takes it, and bytes per second of a node. Raises UsageError."""
    parsed = re.fullmatch(r"([a-z]+):(\d{1,6}(?:\.\d{1,6})?)(?:x(\d{1,3}))?", words.strip().lower())
    if not parsed:
        raise UsageError(f"--network {words}: not KIND:GBIT or KIND:GBITxCARDS, such as ib:200 or tcp:25x2")
    kind, gbit, cards = parsed[1], float(parsed[2]), int(parsed[3] or 1)
    if kind not in (*RDMA, *TCP):
        raise UsageError(f"--network {words}: no series taught what {kind} does; {near(kind, (*RDMA, *TCP))}")
    if gbit < SLOWEST_GBIT or cards < 1:
        raise UsageError(
            f"--network {words}: the rate must be {SLOWEST_GBIT:g} Gb/s or more, and one card at least"
        )
    line = gbit * cards * GBIT_BYTES
    if emulated:
        return "tcp10", line
    if kind in RDMA:
        return ("rdma_several" if cards > 1 else "rdma"), line
    return ("tcp10" if gbit <= 10 else "tcp"), line
