"""How far to shrink sizes and stretch times, so that this machine can emulate the whole cluster.

Emulated ranks use real CPU time for bytes, copies and wake-ups. `shrink` K divides bytes and link rates, `dilate`
D multiplies times and divides link rates again:

    cores in use = (bytes sent / K / BYTES_PER_CORE_S + what does not shrink) / (D x step)

The last bucket is fully exposed. `Load.late` is how much longer it takes here than on the links. It stays below
LATE of a step, because 4.5 % would hide the difference between 10 and 100 Gb/s.

Dilating is exact but takes time. Shrinking is free but leaves wake-ups and latencies. So dilate until shrinking by
MOST_SHRINK suffices, then shrink only as far as needed. The constants come from resnet50 on 16 ranks on 4 nodes,
on two cores of an x86 server, sizes / 7.5; benching that again does not confirm them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, inf, log10

from scaling.emulated.layers import BUCKET_BYTES
from scaling.records.point import Record

# bytes that a rank sends per CPU second, including receiving, summing and copying
BYTES_PER_CORE_S = 1.0e9
# CPU seconds of a layer's two wake-ups, of a hop of one bucket, of the rest of a step
LAYER_S = 160e-6
HOP_S = 240e-6
STEP_S = 4e-3

# share of the cores; one core always stays free for bursts
BUSY = 0.4
# largest delay of the last bucket, as a share of a step
LATE = 0.005
MOST_SHRINK = 10.0


class Load(Record, frozen=True, kw_only=True):
    """What is emulated on one machine.

    * world_size, ranks: emulated devices, and those on this machine
    * link_bits_per_s: fastest link of a node, None if unknown
    * polling: cores that a strategy keeps busy per rank
    """

    gradient_bytes: int
    tail_bytes: int
    layers: int
    step_s: float
    world_size: int
    ranks: int
    cores: int
    link_bits_per_s: float | None = None
    polling: float = 0.0

    @property
    def hops(self) -> int:
        return 2 * (self.world_size - 1)

    @property
    def sent_bytes(self) -> float:
        """Bytes that one rank sends in one exchange: 2 (N - 1) / N times the gradients."""
        return 2 * (self.world_size - 1) / self.world_size * self.gradient_bytes

    @property
    def wire_s(self) -> float:
        return 8 * self.sent_bytes / self.link_bits_per_s if self.link_bits_per_s else 0.0

    @property
    def shortest_s(self) -> float:
        """The shortest possible step: its compute or its exchange."""
        return max(self.step_s, self.wire_s)

    @property
    def exchange_s(self) -> float:
        """CPU seconds of one exchange of unshrunken gradients."""
        return self.ranks * self.sent_bytes / BYTES_PER_CORE_S

    @property
    def fixed_s(self) -> float:
        """CPU seconds of one step that do not shrink."""
        buckets = 1 + ceil(self.gradient_bytes / BUCKET_BYTES)
        woken_s = self.layers * LAYER_S + buckets * self.hops * HOP_S + STEP_S
        return self.ranks * (woken_s + self.polling * self.shortest_s)

    @property
    def budget(self) -> float:
        """Cores that emulation may use on average."""
        return BUSY * self.cores if self.cores == 1 else min(BUSY * self.cores, self.cores - 1.0)

    def cores_in_use(self, shrink: float, dilate: float) -> float:
        return (self.exchange_s / shrink + self.fixed_s) / (dilate * self.shortest_s)

    @property
    def tail_share(self) -> float:
        return self.tail_bytes / self.gradient_bytes

    @property
    def tail_sent_bytes(self) -> float:
        return self.tail_share * self.sent_bytes

    @property
    def tail_wire_s(self) -> float:
        return self.tail_share * self.wire_s

    def tail_s(self, shrink: float, dilate: float) -> float:
        moved_s = self.exchange_s * self.tail_share / shrink + self.ranks * self.hops * HOP_S
        return moved_s / self.cores / dilate

    def late(self, shrink: float, dilate: float) -> float:
        """Estimate the delay of the last bucket against the emulated links, as a share of a step."""
        return max(0.0, self.tail_s(shrink, dilate) - self.tail_wire_s) / self.shortest_s

    def needed_dilate(self, shrink: float) -> float:
        """Return the least dilation that meets the core budget and the limit for the last bucket."""
        average = self.cores_in_use(shrink, 1.0) / self.budget
        return max(1.0, average, self.tail_s(shrink, 1.0) / (LATE * self.shortest_s + self.tail_wire_s))


class Setting(Record, frozen=True, kw_only=True):
    """Scaling of sizes and times: `shrink` divides bytes, `dilate` multiplies times, both divide link rates."""

    shrink: float
    dilate: float


def setting(
    loads: Sequence[Load], shrink: float | None = None, dilate: float | None = None, most_dilate: float = inf
) -> Setting:
    """Choose `shrink` and `dilate`, unless given, so that the machine can emulate each load. A `most_dilate` may
    make the last bucket later than LATE, but the cores in use stay within the budget."""

    def needed(shrink: float) -> float:
        return max(load.needed_dilate(shrink) for load in loads)

    if dilate is None:
        within_budget = max(load.cores_in_use(shrink or MOST_SHRINK, 1.0) / load.budget for load in loads)
        dilate = rounded_up(min(needed(shrink or MOST_SHRINK), max(most_dilate, within_budget, 1.0)))
    if shrink is None:
        steps = (1 + half / 2 for half in range(int(2 * MOST_SHRINK) - 1))
        shrink = next((step for step in steps if needed(step) <= dilate), MOST_SHRINK)
    return Setting(shrink=shrink, dilate=dilate)


def rounded_up(value: float) -> float:
    """Round up to the next half below 10, to two digits above: 1.2 -> 1.5, 3.1 -> 3.5, 123 -> 130."""
    if value <= 10:
        return ceil(round(2 * value, 6)) / 2
    unit = 10.0 ** (floor(log10(value)) - 1)
    return float(ceil(round(value / unit, 6)) * unit)
