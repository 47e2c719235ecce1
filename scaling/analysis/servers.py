"""What parameter servers beside the training cost it: CPU time on cores that ranks were given. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from scaling.analysis.cpu_time import CpuStep, Use


def delay_s(cpu: CpuStep, plain: Use, *, is_slowest: bool) -> float:
    """By how much servers can delay a step, at most.

    On each host, what its servers ran, as far as ranks queued for a CPU longer than plain loops do: a server goes
    where the kernel finds a CPU, and on cores that no rank was given it delays nobody. Ranks that wait for each
    other wait for the one that was delayed most (`is_slowest`), others lose the mean. Where nobody knows who
    queued, servers are shared out evenly among the ranks of their host.
    """
    by_rank = [delay for host, ran_s in cpu.servers_s.items() for delay in _delays(cpu, plain, host, ran_s)]
    if not by_rank:
        return 0.0
    devices = max(len(cpu.seats), len(by_rank))
    return max(by_rank) if is_slowest else sum(by_rank) / devices


def _delays(cpu: CpuStep, plain: Use, host: str, ran_s: float) -> Iterator[float]:
    seats = [seat for seat in cpu.sharing.get(host, ()) if seat in cpu.seats]
    for seat in seats:
        queued_s, before_s = cpu.seats[seat].queued_s, plain.queued_s
        if queued_s is None or before_s is None:
            yield ran_s / len(seats)
        else:
            yield min(max(queued_s - before_s, 0.0), ran_s)
