"""How far to shrink sizes and stretch times, so that this machine can play the whole cluster. Pure.

Everything that the emulated ranks do for real costs CPU here: Gloo moves and sums bytes, DDP copies them, each
layer and each hop of a ring wakes its worker. `shrink` K divides the bytes (and the links' rates), `dilate` D
multiplies all times (and divides the rates again): of an emulated step the machine then uses

    cores in use = (bytes sent / K / BYTES_PER_CORE_S + what does not shrink) / (D x step)

That is an average. The last bucket goes out when nothing else is left to do, and its exchange shows in full: where
the machine moves it more slowly than the links would, the step is too long by the difference, `Load.late`. That is
kept below LATE of a step at every world size, or a fast network could not be told from a slow one: with 4.5 % of a
step, GoogLeNet's 16 P100s lost as much over 100 Gb/s as over 10 Gb/s.

Dilating costs time, and is exact but for what it costs; shrinking is free, but wake-ups and latencies stay. So:
dilate as far as shrinking by MOST_SHRINK does not help, then shrink no further than that needs.

The figures are of two cores of a current x86 server, resnet50 on 16 ranks on 4 nodes at sizes / 7.5: the exchange
alone took a rank 38 ms of CPU for its 5 buckets of 30 hops, 320 ms on the clock with both cores busy; with
training around it 68 ms; the last bucket, of 30 hops, was there 70 to 120 ms after backward had ended.
The constants below were set from these runs: to bench the same model on the same machine is no proof of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log10

from scaling.records.point import Record
from scaling.tools.emulated.buckets import BUCKET_BYTES

# Bytes of gradients that a rank sends, receives, sums and copies per second of CPU; counted are those it sends.
BYTES_PER_CORE_S = 1.0e9
# CPU of a layer's two wake-ups, of a hop of one bucket's ring, of a step's rest.
LAYER_S = 160e-6
HOP_S = 240e-6
STEP_S = 4e-3

# Of the machine's cores, and never the last one: bursts run on the others.
BUSY = 0.4
# By how much of a step the last bucket may be too late.
LATE = 0.005
MOST_SHRINK = 10.0


class Load(Record, frozen=True, kw_only=True):
    """What is emulated on one machine of `cores` cores: `ranks` of the `world_size` devices, each with
    `gradient_bytes` in `layers` spans, `tail_bytes` of them in the last bucket, and `step_s` seconds of compute in
    a step, over links of nodes that carry `link_bits_per_s` (None: unknown); of each rank a strategy's own clock
    keeps `polling` cores busy meanwhile."""

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
        """How many hops a ring over all ranks makes: to sum, and to tell the sum."""
        return 2 * (self.world_size - 1)

    @property
    def sent_bytes(self) -> float:
        """What one rank sends in one exchange: in a ring 2 (N - 1) / N times the gradients."""
        return 2 * (self.world_size - 1) / self.world_size * self.gradient_bytes

    @property
    def wire_s(self) -> float:
        """Seconds of an exchange on the fastest link there is."""
        return 8 * self.sent_bytes / self.link_bits_per_s if self.link_bits_per_s else 0.0

    @property
    def shortest_s(self) -> float:
        """Seconds that no step is shorter than: its compute, or its exchange."""
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
        """Cores that emulating may use on average."""
        return BUSY * self.cores if self.cores == 1 else min(BUSY * self.cores, self.cores - 1.0)

    def cores_in_use(self, shrink: float, dilate: float) -> float:
        """How many cores are in use on average over a step."""
        return (self.exchange_s / shrink + self.fixed_s) / (dilate * self.shortest_s)

    @property
    def tail_share(self) -> float:
        """Which part of the gradients is in the last bucket."""
        return self.tail_bytes / self.gradient_bytes

    @property
    def tail_sent_bytes(self) -> float:
        """What one rank sends to exchange the last bucket."""
        return self.tail_share * self.sent_bytes

    @property
    def tail_wire_s(self) -> float:
        """Seconds of the last bucket on the links that are emulated."""
        return self.tail_share * self.wire_s

    def tail_s(self, shrink: float, dilate: float) -> float:
        """Seconds of the last bucket on this machine, all cores at work, in the time that is emulated."""
        moved_s = self.exchange_s * self.tail_share / shrink + self.ranks * self.hops * HOP_S
        return moved_s / self.cores / dilate

    def late(self, shrink: float, dilate: float) -> float:
        """By how much of a step the last bucket is later here than on the links."""
        return max(0.0, self.tail_s(shrink, dilate) - self.tail_wire_s) / self.shortest_s

    def needed_dilate(self, shrink: float) -> float:
        """The least dilation at this shrink that keeps the average to the budget and the last bucket to its
        fraction."""
        average = (self.exchange_s / shrink + self.fixed_s) / (self.budget * self.shortest_s)
        return max(1.0, average, self.tail_s(shrink, 1.0) / (LATE * self.shortest_s + self.tail_wire_s))


class Setting(Record, frozen=True, kw_only=True):
    """How sizes and times are scaled: bytes are divided by `shrink`, times multiplied by `dilate`, links' rates
    divided by both."""

    shrink: float
    dilate: float


def setting(loads: Sequence[Load], shrink: float | None = None, dilate: float | None = None) -> Setting:
    """Shrink and dilate, as far as they are not given, such that the machine can play its part in each load."""

    def needed(shrink: float) -> float:
        return max(load.needed_dilate(shrink) for load in loads)

    if dilate is None:
        dilate = rounded_up(needed(shrink or MOST_SHRINK))
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
