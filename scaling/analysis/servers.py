"""What parameter servers beside the training cost it: CPU time on cores that ranks were given. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from statistics import fmean
from typing import NamedTuple

from scaling.analysis.cpu_time import CpuStep, Use, new_seconds


class Delay(NamedTuple):
    """Seconds of a step, of one rank: what it queued for a CPU behind servers, as far as that is known, and what
    the servers of its host ran, at most what its cores ran beside it. The first is a difference and may be
    negative: over rounds it is bounded by the second."""

    queued_s: float
    ran_s: float


def delays(cpu: CpuStep, plain: Use) -> dict[int, Delay]:
    """By seat, by how much servers delayed a step.

    A server goes where the kernel finds a CPU, and on cores that no rank was given it delays nobody: a rank was
    delayed as far as it queued longer than plain loops do. It queues behind its own communication threads as well,
    so that servers have the part of it that they ran of what both ran. Where nobody knows who queued, servers are
    shared out evenly among the ranks of their host.
    """
    found: dict[int, Delay] = {}
    for host, ran_s in cpu.servers_s.items():
        seats = [seat for seat in cpu.sharing.get(host, ()) if seat in cpu.seats]
        for seat in seats:
            use = cpu.seats[seat]
            if use.queued_s is None or plain.queued_s is None:
                found[seat] = Delay(ran_s / len(seats), ran_s)
                continue
            here_s = ran_s if use.others_s is None else min(ran_s, use.others_s)
            part = here_s / (here_s + new_seconds(use, plain)) if here_s else 0.0
            found[seat] = Delay(part * (use.queued_s - plain.queued_s), here_s)
    return found


def joined(by_round: Iterable[tuple[CpuStep, Use]], *, is_slowest: bool) -> list[Delay]:
    """Of each round the delay of all ranks together.

    Ranks that wait for each other wait for the one that was delayed most over all rounds (`is_slowest`), others
    lose the mean.
    """
    rounds = [(delays(cpu, plain), len(cpu.seats)) for cpu, plain in by_round]
    if not is_slowest:
        return [_mean(found.values(), max(devices, len(found))) for found, devices in rounds]
    seats = {seat for found, _ in rounds for seat in found}
    last = max(seats, key=lambda seat: _bounded([found[seat] for found, _ in rounds if seat in found]), default=0)
    return [found.get(last, Delay(0.0, 0.0)) for found, _ in rounds]


def _mean(found: Collection[Delay], devices: int) -> Delay:
    return Delay(sum(one.queued_s for one in found) / devices, sum(one.ran_s for one in found) / devices)


def _bounded(found: Collection[Delay]) -> float:
    return min(fmean(one.queued_s for one in found), fmean(one.ran_s for one in found))
