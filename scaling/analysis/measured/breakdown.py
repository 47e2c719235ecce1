"""Where lost efficiency went: the time of a step, split by cause, over rounds. Pure.

Of the exchange's step time t, with the plain loop alone (`each`, or `solo` for all) and on all devices at once
(`together`), u the CPU time of a step per core, off = wall - u, means over ranks:

    data wait      together - held, less what one device alone waits (alone - held), which is in the baseline; each
                   at most what feeds take by themselves (rounds.py)
    small batch    harmonic mean of alone at the point's batch - the ideal time of a step  (0 under the weak rule)
    contention     mean of together - mean of alone - data wait, where that is known: held(N) - held(1)
    straggling     slowest of together, step by step, - mean of together; and mean - harmonic mean of alone: the
                   sum of what devices do alone counts the fast ones that now wait
    exchange_cpu   u(exchange) - u(together): wrapper, hooks, copies, communication threads
    servers        what ranks queued for a CPU behind parameter servers, at most what those ran, and at most the
                   time off the CPU that is left
    waiting        off(exchange) - off(together) - straggling - servers: exposed communication, and all else that
                   ranks wait for. Where it comes out below zero, communication threads ran while the computing
                   ones waited (Horovod's, every millisecond): up to what they ran, that is no exchange_cpu
    exposed        where CPU time is unknown: t - slowest of together, from 0 up to what the exchange takes beside
                   compute; where that was not tried, alone (`comm`)
    unexplained    what is left of t - the ideal time

each divided by t, differenced first, then averaged over rounds, and only then kept within its bounds. The
definitions are this project's own; wall = CPU + off is an identity, so that on CPUs nothing is left where every
control was measured. Asynchronous modes differ as `Breakdown` says.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from msgspec.structs import replace

from scaling.analysis.measured.cpu import CpuStep, Use, new_seconds
from scaling.analysis.measured.rounds import Round, bounded
from scaling.analysis.statistics.intervals import Estimate, Residual, contrast, interval
from scaling.records.point import Record

# ---------------------------------------------------------------- causes
#
# The causes of lost efficiency, as fractions of a step. `breakdown.py` says how they are found.


class Breakdown(Record, frozen=True, kw_only=True):
    """Fractions of the exchange's step time, means over rounds; with `unexplained`, the rest, they add up to
    1 - efficiency. None: not told by the controls that were measured (its part is in `unexplained`), or told by
    another cause: `exposed` only where CPU time is unknown, `exchange_cpu`, `servers` and `waiting` only where it
    is known.

    contention: the plain loop is slower with all devices at work (`each` -> `together`); straggling: the slowest
    rank against the mean; exposed: communication that compute does not hide; exchange_cpu: the exchange's own CPU
    time on the cores that compute; servers: parameter servers on them; waiting: exposed communication and all else
    that ranks wait for; data_wait: for samples, longer than one device alone does (contention is then that of
    loops whose batch stays on the device); small_batch: a device's part of a fixed global batch costs more than
    its share of the whole (0 under the weak rule).

    An asynchronous mode waits for nobody: straggling is None, the mean of `together` is that of the rates
    (harmonic), as its own step time is.
    """

    contention: float | None
    straggling: float | None
    exposed: float | None
    small_batch: float | None
    unexplained: float
    exchange_cpu: float | None = None
    servers: float | None = None
    waiting: float | None = None
    data_wait: float | None = None


CAUSES = tuple(name for name in Breakdown.__struct_fields__ if name != "unexplained")


# ---------------------------------------------------------------- breakdown

# ---------------------------------------------------------------- servers
#
# What parameter servers beside the training cost it: CPU time on cores that ranks were given.


class Delay(NamedTuple):
    """Seconds of a step, of one rank: what it queued for a CPU behind servers, as far as that is known, and what
    the servers of its host ran, at most what its cores ran beside it. The first is a difference and may be
    negative: over rounds it is bounded by the second."""

    queued_s: float
    ran_s: float


def server_delays(cpu: CpuStep, plain: Use) -> dict[int, Delay]:
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


def joined_delays(by_round: Iterable[tuple[CpuStep, Use]], *, is_slowest: bool) -> list[Delay]:
    """Of each round the delay of all ranks together.

    Ranks that wait for each other wait for the one that was delayed most over all rounds (`is_slowest`), others
    lose the mean.
    """
    rounds = [(server_delays(cpu, plain), len(cpu.seats)) for cpu, plain in by_round]
    if not is_slowest:
        return [_mean(found.values(), max(devices, len(found))) for found, devices in rounds]
    seats = {seat for found, _ in rounds for seat in found}
    last = max(
        seats, key=lambda seat: _bounded_delay([found[seat] for found, _ in rounds if seat in found]), default=0
    )
    return [found.get(last, Delay(0.0, 0.0)) for found, _ in rounds]


def _mean(found: Collection[Delay], devices: int) -> Delay:
    return Delay(sum(one.queued_s for one in found) / devices, sum(one.ran_s for one in found) / devices)


def _bounded_delay(found: Collection[Delay]) -> float:
    return min(fmean(one.queued_s for one in found), fmean(one.ran_s for one in found))


# ---------------------------------------------------------------- breakdown

# What each round tells by itself, in fractions of its step.
Series = Mapping[str, Sequence[float]]
# Differences of two cells: their variance is that of the layout.
POOLED = ("contention", "small_batch")
# What a round tells of the causes that are bounded after averaging: growth of the time off the CPU less
# straggling; what was queued behind servers and what they ran, behind communication threads and what those ran;
# exchange less slowest of `together`, and `comm`.
_EXACT = ("small_batch", "contention", "straggling", "exchange_cpu")
_DATA = ("data", "data_alone", "feed", "feed_alone")
_CPU = ("off", "behind_servers", "servers_ran", "behind_threads", "threads_ran", "threads")
_RAW = (*_EXACT, *_DATA, *_CPU, "beyond", "comm")


def split(measured: Sequence[Round], efficiency: float) -> Breakdown:
    """Return the lost efficiency by cause over rounds.

    A cause is the mean over the rounds that tell all of them, or where none does over those that tell it; what is
    then left of 1 - efficiency, negative or not, is unexplained, so that the parts always add up to the whole.
    """
    means = {name: one.mean for name, one in _estimates(measured, None).items()}
    rest = 1 - efficiency - sum(means.values())
    return Breakdown(unexplained=rest, **{cause: means.get(cause) for cause in CAUSES})


def intervals(measured: Sequence[Round], efficiency: float, pooled: Residual | None) -> dict[str, Estimate]:
    """Return each cause with its 95 % interval; causes that no round tells are left out."""
    found = _estimates(measured, pooled)
    rest = 1 - efficiency - sum(one.mean for one in found.values())
    left = _left(measured, _series(measured))
    return {**found, "unexplained": _rest(interval(left), rest)} if left else found


def _rest(left: Estimate, rest: float) -> Estimate:
    """What rounds leave, around what the means leave: these are of logarithms for the efficiency and not for the
    causes, and a rest that comes of that alone is not told from zero."""
    moved, shifted = abs(rest - left.mean), _around(left, rest)
    low, high = shifted.low, shifted.high
    return replace(shifted, low=None if low is None else low - moved, high=None if high is None else high + moved)


# ---------------------------------------------------------------- one round after the other


def _series(measured: Sequence[Round]) -> dict[str, list[float]]:
    """By what is told, its values: of the rounds that tell as much as any, the same for all."""
    by_round = _all_told(measured)
    names = {name for one in by_round for name in one}
    whole = [one for one in by_round if set(one) == names]
    return {name: [one[name] for one in (whole or by_round) if name in one] for name in _RAW if name in names}


def _all_told(measured: Sequence[Round]) -> list[dict[str, float]]:
    """By round; where CPU time is known of some rounds, of those alone, since it tells other causes."""
    servers = _serving(measured)
    found = [{**told(one), **servers.get(one.number, {}), "lost": 1 - one.efficiency} for one in measured]
    return [one for one in found if "off" in one] or found


def _serving(measured: Sequence[Round]) -> dict[int, dict[str, float]]:
    """What is told of servers, by the number of the round."""
    known = [(one, one.uses) for one in measured if one.uses is not None and one.grown is not None]
    served = [(one, uses) for one, uses in known if uses[0].servers_s]
    delays = joined_delays((uses for _, uses in served), is_slowest=measured[0].synchronous)
    return {one.number: _of_step(one, delay) for (one, _), delay in zip(served, delays, strict=True)}


def _of_step(one: Round, delay: Delay) -> dict[str, float]:
    return {"behind_servers": delay.queued_s / one.exchange_s, "servers_ran": delay.ran_s / one.exchange_s}


def told(one: Round) -> dict[str, float]:
    """Fractions of the step that one round tells, bounded by nothing yet."""
    seconds: dict[str, float] = {}
    alone, together, mean_s = one.alone, one.together, one.together_s
    if alone is not None:
        seconds["small_batch"] = alone.harmonic_s - one.ideal_s
    if together is not None and mean_s is not None:
        late_s = together.last_s - mean_s if one.synchronous else 0.0
        if alone is not None:
            seconds["contention"] = mean_s - (alone.mean_s if one.synchronous else alone.harmonic_s)
        if one.synchronous:
            seconds["straggling"] = late_s + (alone.mean_s - alone.harmonic_s if alone else 0.0)
        if one.data is not None:
            seconds |= one.data.told()
        seconds |= _beyond(one, mean_s + late_s)
    return {name: value / one.exchange_s for name, value in seconds.items()}


def _beyond(one: Round, last_s: float) -> dict[str, float]:
    """What the exchange takes beyond the slowest of plain loops: by CPU time where it is known."""
    beyond_s = one.exchange_s - last_s
    grown, uses = one.grown, one.uses
    if grown is None or uses is None:
        return {} if one.most_exposed_s is None else {"beyond": beyond_s, "comm": one.most_exposed_s}
    cpu, plain = uses
    found = {"exchange_cpu": grown.run_s, "off": beyond_s - grown.run_s}
    if cpu.is_spare:
        found |= {"behind_threads": grown.queued_s, "threads_ran": grown.threads_s}
    elif plain.threads:
        found["threads"] = new_seconds(cpu.mean, plain)
    return found


# ---------------------------------------------------------------- over rounds


def _estimates(measured: Sequence[Round], pooled: Residual | None) -> dict[str, Estimate]:
    """Each cause with its interval."""
    series = _series(measured)
    if "behind_threads" in series:
        series |= _with_queue(series)
    found = {
        name: contrast(series[name], pooled if name in POOLED and any(series[name]) else None)
        for name in _EXACT
        if name in series
    }
    if "data" in series:
        found |= _data(series, pooled)
    if "off" in series:
        found |= _off_cpu(series)
        found |= _polled(found, fmean(series.get("threads", (0.0,))))
    if "beyond" in series:
        found["exposed"] = _bounded(series["beyond"], series["comm"])
    return found


def _data(series: Series, pooled: Residual | None) -> dict[str, Estimate]:
    """What waiting for data has grown by, and the contention that is left of what loops beside each other lose."""
    grown = bounded(series["data"], series.get("feed")) - bounded(series["data_alone"], series.get("feed_alone"))
    by_round = [beside - alone for beside, alone in zip(series["data"], series["data_alone"], strict=True)]
    kept = [whole - part for whole, part in _both(series["contention"], by_round)]
    contention = contrast(kept, pooled if any(kept) else None)
    return {
        "data_wait": _around(interval(by_round), grown),
        "contention": _around(contention, fmean(series["contention"]) - grown),
    }


def _with_queue(series: Series) -> dict[str, list[float]]:
    """On CPUs to spare: what computing threads queued behind the exchange's is its CPU time, and no waiting."""
    behind = _least(series["behind_threads"], series["threads_ran"])
    return {
        "exchange_cpu": [run + queued for run, queued in zip(series["exchange_cpu"], behind, strict=True)],
        "off": [off - queued for off, queued in zip(series["off"], behind, strict=True)],
    }


def _off_cpu(series: Series) -> dict[str, Estimate]:
    """Servers, and what ranks wait for beside them."""
    off = series["off"]
    if "behind_servers" not in series:
        return {"waiting": interval(off)}
    serving = _least(series["behind_servers"], series["servers_ran"])
    servers = _bounded(off, serving)
    waiting = fmean(off) - servers.mean
    return {"servers": servers, "waiting": _around(interval([a - b for a, b in _both(off, serving)]), waiting)}


def _polled(found: Mapping[str, Estimate], threads: float) -> dict[str, Estimate]:
    """The exchange's CPU time without what its `threads` ran while ranks waited, and the waiting that this hid."""
    waiting, work = found["waiting"], found["exchange_cpu"]
    hidden = min(max(-waiting.mean, 0.0), max(threads, 0.0))
    return {
        "waiting": _around(waiting, waiting.mean + hidden),
        "exchange_cpu": _around(work, work.mean - hidden),
    }


def _both(a: Sequence[float], b: Sequence[float]) -> list[tuple[float, float]]:
    """Round by round; where no round tells all causes, not all of them are told by the same rounds: the means."""
    return list(zip(a, b, strict=True)) if len(a) == len(b) else [(fmean(a), fmean(b))]


def _bounded(values: Sequence[float], most: Sequence[float]) -> Estimate:
    """The mean of `values` from 0 up to the mean of `most`."""
    found = min(interval(values), interval(most), key=lambda one: one.mean)
    return found if found.mean >= 0 else _around(found, 0.0)


def _least(values: Sequence[float], most: Sequence[float]) -> Sequence[float]:
    """Those of the two whose mean is less; nothing where that is below 0."""
    least = min(values, most, key=fmean)
    return least if fmean(least) >= 0 else [0.0] * len(least)


def _around(estimate: Estimate, mean: float) -> Estimate:
    """The same width around another mean."""
    moved = mean - estimate.mean
    low, high = estimate.low, estimate.high
    return replace(
        estimate,
        mean=mean,
        low=None if low is None else low + moved,
        high=None if high is None else high + moved,
    )


def _left(measured: Sequence[Round], series: Series) -> list[float]:
    """What each round that tells all leaves unexplained, each bounded cause as its bounds are over all rounds."""
    kept = {*_EXACT, "off", _exposed_as(series)}
    return [
        one["lost"] - sum(value for name, value in one.items() if name in kept)
        for one in _all_told(measured)
        if {name for name in one if name != "lost"} == set(series)
    ]


def _exposed_as(series: Series) -> str:
    """Which of its bounds exposed communication keeps over all rounds; nothing where that is 0."""
    if "beyond" not in series:
        return ""
    beyond, most = fmean(series["beyond"]), fmean(series["comm"])
    return "comm" if beyond > most else "beyond" if beyond > 0 else ""
