"""Decide which points of a round take turns, side by side, as far as the memory of the hosts allows.

All points of a framework are one group if they fit. Otherwise it is divided by batch, then by world size, then
into single points.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from scaling import frameworks
from scaling.plan.placement import Slot, slots_of
from scaling.records.point import EXCHANGING, Point, Record, Workload
from scaling.workloads import models
from scaling.workloads.layers import training_operations

# The part of a host's memory that workers may use. Cached files need the rest, and the needs are estimates.
MEMORY_PART = 0.5
# Weights, gradients, momentum, buffers of the exchange.
COPIES = 4
FLOAT32_BYTES = 4
# Host memory of a worker on a GPU, a guess: CUDA's libraries and pinned buffers. The GPU's memory is measured once
# workers run (sweep/epoch.py).
ON_GPU_BYTES = 3 * 10**9
# The part of a GPU's memory that workers may use: allocators round up, and points differ a little.
GPU_PART = 0.92
# A CUDA context with cuDNN's handles, and the buffers of an NCCL communicator (up to 1.6 GB, NVIDIA/nccl issue
# 864): guesses, until GPUs are read.
CONTEXT_BYTES, COMMUNICATOR_BYTES = 1_000_000_000, 1_600_000_000


class Group(Record, frozen=True, kw_only=True):
    """Points of one round that take turns (`side_by_side`), or a single point measured alone."""

    points: tuple[Point, ...]
    side_by_side: bool

    @property
    def cells(self) -> frozenset[str]:
        """Its identity in any round."""
        return frozenset(point.cell for point in self.points)


def together(cells: Sequence[Point], slots: Sequence[Slot], memory_bytes: Mapping[str, int]) -> tuple[Group, ...]:
    """Group the points of a round. `memory_bytes` is by host."""

    def batch_of(cell: Point) -> int:
        return 0 if cell.workload.is_strong else cell.workload.batch_size

    def grouped(part: Sequence[Point], *keys: Callable[[Point], int]) -> list[Group]:
        own = without_doubles(part)
        if len(own) > 1 and _fit(own, slots, memory_bytes):
            return [Group(points=tuple(own), side_by_side=True)]
        if not keys:
            return [*apart(own)]
        first, *others = keys
        return [group for one in _divided(sorted(part, key=first), first) for group in grouped(one, *others)]

    families = _divided(cells, lambda cell: frameworks.load(cell.strategy).baseline)
    return tuple(group for one in families for group in grouped(one, batch_of, lambda cell: cell.world_size))


def apart(cells: Sequence[Point]) -> tuple[Group, ...]:
    """Put each point into a group of its own."""
    return tuple(Group(points=(cell,), side_by_side=False) for cell in without_doubles(cells))


def without_doubles(cells: Sequence[Point]) -> list[Point]:
    """Drop controls that another point measures too: the largest `each` covers the smaller ones and `solo`."""
    seats: dict[tuple[object, ...], int] = {}
    for cell in cells:
        if cell.kind == "each":
            seats[_work(cell)] = max(cell.world_size, seats.get(_work(cell), 0))
    return [
        cell for cell in cells if cell.kind not in ("solo", "each") or seats.get(_work(cell), 1) == cell.world_size
    ]


def _work(cell: Point) -> tuple[object, ...]:
    alone = cell.workload.alone()
    return cell.strategy, alone, cell.hardware, cell.placement, cell.sorted_options


def _divided(cells: Iterable[Point], key: Callable[[Point], object]) -> Iterable[list[Point]]:
    parts: dict[object, list[Point]] = defaultdict(list)
    for cell in cells:
        parts[key(cell)].append(cell)
    return parts.values()


def _fit(cells: Sequence[Point], slots: Sequence[Slot], memory_bytes: Mapping[str, int]) -> bool:
    needed: dict[str, int] = defaultdict(int)
    limit: dict[str, int] = {}
    for cell in cells:
        for slot in slots_of(cell, slots):
            machine = slot.machine or slot.host
            needed[machine] += worker_bytes(cell)
            limit[machine] = memory_bytes[slot.host]
    return all(needed[machine] <= MEMORY_PART * limit[machine] for machine in needed)


def worker_bytes(point: Point) -> int:
    """Estimate the host's memory for one worker of a point: every layer's output is kept for the backward pass."""
    own_bytes = ON_GPU_BYTES if point.hardware.device == "cuda" else training_bytes(point)
    return frameworks.resident_bytes(frameworks.load(point.strategy).baseline) + own_bytes


def training_bytes(point: Point) -> int:
    """Estimate the memory of a worker's tensors. Emulated devices have gradients only, of divided sizes."""
    spec, work = models.of(point.workload), point.workload
    weights = COPIES * FLOAT32_BYTES * spec.parameters
    if point.hardware.device == "emulated":
        return int(weights / point.hardware.shrink)
    values = 0 if point.kind == "comm" else sum(math.prod(each.output) for each in spec.placed)
    return weights + values * work.batch_size * (FLOAT32_BYTES if work.precision == "fp32" else FLOAT32_BYTES // 2)


def operations(work: Workload) -> int:
    """Return the floating-point operations of one step of a device, forward and backward."""
    model = models.of(work)
    return work.batch_size * training_operations(model.layers, model.input.shape)


def held_bytes(point: Point) -> int:
    """Guess the GPU memory that a worker of a point holds while others have their turns."""
    exchange_bytes = COMMUNICATOR_BYTES if point.kind in EXCHANGING and point.world_size > 1 else 0
    return CONTEXT_BYTES + exchange_bytes + COPIES * FLOAT32_BYTES * models.of(point.workload).parameters


def memory_order(point: Point) -> tuple[int, bool, int]:
    """Return a sort key: points that use more memory are larger."""
    return point.workload.batch_size, point.kind == "exchange", point.world_size


def gpus_hold(points: Sequence[Point], memory_bytes: int) -> int:
    """Guess how many of these points GPUs of this memory hold at the same time while one of them computes."""
    if not memory_bytes:
        return len(points)
    spare_bytes = GPU_PART * memory_bytes - max(map(training_bytes, points))
    return min(len(points), 1 + max(0, int(spare_bytes // max(map(held_bytes, points)))))


def short_of_memory(
    cells: Iterable[Point], slots: Sequence[Slot], host_bytes: Mapping[str, int], gpu_bytes: int
) -> tuple[str, ...]:
    """Return a text about the hungriest of the points for which a host has too little memory, and one about that
    for which a GPU has."""
    worst: dict[str, tuple[float, str]] = {}
    for cell in cells:
        on: dict[str, list[Slot]] = defaultdict(list)
        for slot in slots_of(cell, slots):
            on[slot.machine or slot.host].append(slot)
        ranks = [(of[0].host, len(of)) for of in on.values()]
        held = [(f"host {host}", count * worker_bytes(cell), host_bytes.get(host, 0)) for host, count in ranks]
        if cell.hardware.device == "cuda":
            held.append(("a GPU", training_bytes(cell), gpu_bytes))
        for where, count, limit in held:
            if limit and count > worst.get(where[:4], (limit,))[0]:
                text = (
                    f"{cell.strategy} {cell.kind} N={cell.world_size} needs about {count / 1e9:.3g} GB of memory "
                    f"on {where}, which has {limit / 1e9:.3g} GB: it will probably fail; lower --batch-size"
                )
                worst[where[:4]] = (count, text)
    return tuple(text for _, text in worst.values())


def seats(count: int, block: int, blocks: int) -> tuple[int, ...]:
    """Return the seats that run in a block. All of up to four run; more take turns, each in at least two
    blocks."""
    if count <= 4:
        return tuple(range(count))
    each = min(count, math.ceil(2 * count / blocks))
    return tuple((block * each + offset) % count for offset in range(each))
