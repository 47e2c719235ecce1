"""A running point's ranks as bars: how far each is, how fast, in which state. Pure."""

from __future__ import annotations

from typing import NamedTuple

from scaling.records.events import Failed
from scaling.sweep.state import PointState, RankState
from scaling.sweep.view.plain import number

HOST_MAX = 12
# From what holds a point up most to what does least.
STATES = ("failed", "cancelled", "start", "import", "ready", "warming", "measuring", "done")


class Gauge(NamedTuple):
    """A bar: one rank, or the slowest rank of a node. `host` is empty where the name or the point says it."""

    name: str
    host: str
    done: int
    total: int
    value: str
    unit: str
    state: str


def worst(gauges: list[Gauge], count: int) -> tuple[list[Gauge], int]:
    """The `count` that hold up the others, in their order, and the number of the others."""
    slowest = sorted(range(len(gauges)), key=lambda index: _advance(gauges[index]))
    return [gauges[index] for index in sorted(slowest[:count])], len(gauges) - count


def _advance(gauge: Gauge) -> tuple[int, int]:
    return STATES.index(gauge.state), gauge.done


def ranks(state: PointState) -> list[Gauge]:
    """A gauge of each rank, named by its number; with its host where there are several."""
    hosts = state.ranks[0].task.hosts
    several = len(set(hosts)) > 1
    return [
        _gauge(str(rank.task.rank), _short(host) if several else "", rank, state)
        for host, rank in zip(hosts, state.ranks, strict=True)
    ]


def nodes(state: PointState) -> list[Gauge]:
    """A gauge of each node, which is its slowest rank's."""
    by_host: dict[str, list[RankState]] = {}
    for host, rank in zip(state.ranks[0].task.hosts, state.ranks, strict=True):
        by_host.setdefault(host, []).append(rank)
    slowest = []
    for host, local in by_host.items():
        name = f"{_short(host)} x{len(local)}"
        slowest.append(min((_gauge(name, "", rank, state) for rank in local), key=_advance))
    return slowest


def _short(host: str) -> str:
    return host.partition(".")[0][:HOST_MAX]


def _gauge(name: str, host: str, rank: RankState, state: PointState) -> Gauge:
    is_warm = bool(rank.windows) or state.phase not in ("starting", "warming")
    done, total = len(rank.windows), state.expected
    if not is_warm and state.command is not None:
        done, total = rank.in_chunk, getattr(state.command, "windows", 0)
    value, unit = _pace(rank, state)
    return Gauge(name, host, done, total, value, unit, _state_of(rank, state))


def _state_of(rank: RankState, state: PointState) -> str:
    outcome = rank.ended.outcome if rank.ended else None
    if rank.error is not None or isinstance(outcome, Failed):
        return "cancelled" if isinstance(outcome, Failed) and outcome.cause == "cancelled" else "failed"
    if len(rank.windows) >= state.expected or rank.result is not None:
        return "done"
    if state.phase in ("warming", "measuring"):
        return state.phase
    if state.phase == "evaluating":
        return "measuring"
    return "ready" if rank.ready else "import" if rank.pid else "start"


def _pace(rank: RankState, state: PointState) -> tuple[str, str]:
    """The speed of the last window and its unit; of `comm`, the time of one exchange."""
    windows = rank.windows or rank.warmup
    if not windows or windows[-1].seconds <= 0:
        return "", ""
    last, point = windows[-1], state.point
    seconds = last.seconds / point.hardware.dilate
    if point.kind == "comm":
        return number(seconds / last.steps * 1e3), " ms"
    return number(last.samples * point.workload.units_per_sample / seconds), f" {point.workload.unit}/s"
