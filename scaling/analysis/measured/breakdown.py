"""Causes of lost efficiency: the time of a step, split over rounds.

t is the exchange's step time. u is the CPU time of a step per core, off = wall - u. Both are means over ranks.
`alone` is the plain loop on one device (`each` or `solo`), `together` on all devices at once.

    data wait     (together - held) - (alone - held), each at most what feeds alone take (rounds.py)
    small batch   harmonic mean of alone at the point's batch - the ideal time of a step (0 under the weak rule)
    contention    mean of together - mean of alone - data wait; with data: held(N) - held(1)
    straggling    slowest of together, step by step, - mean of together; plus mean - harmonic mean of alone
    exchange_cpu  u(exchange) - u(together): wrapper, hooks, copies, communication threads
    servers       queueing behind parameter servers, at most what these ran and the time off the CPU that is left
    waiting       off(exchange) - off(together) - straggling - servers: exposed communication and other waits.
                  If negative, communication threads ran meanwhile: that part is moved from exchange_cpu
    exposed       if CPU time is unknown: t - slowest of together, from 0 up to the exchange during compute, or
                  else alone (`comm`)
    unexplained   the rest of t - the ideal time

A script that divides its batch has no plain loop at that batch. Its own steps without exchange are `together`:

    small batch   mean of together - the ideal time, contention included
    exposed       t - slowest of together

Each is divided by t, differenced, averaged over rounds, and then kept within its bounds. The definitions are this
project's own. On CPUs wall = CPU + off is an identity, so nothing is left if every control was measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from msgspec.structs import replace

from scaling.analysis.measured.cpu import CpuStep, Use, new_seconds
from scaling.analysis.measured.rounds import Round, bounded
from scaling.analysis.statistics.intervals import Estimate, interval

CAUSES = (
    "contention", "straggling", "exposed", "small_batch", "exchange_cpu", "servers", "waiting", "data_wait",
)  # fmt: skip


# ---------------------------------------------------------------- servers


class Delay(NamedTuple):
    """Seconds of a step: queued behind servers (a difference, may be negative); its bound, what servers ran."""

    queued_s: float
    ran_s: float


def server_delays(cpu: CpuStep, plain: Use) -> dict[int, Delay]:
    """Return by seat how much servers delayed a step: the growth of queueing, shared with communication threads.

    If queueing is unknown, servers count evenly for the ranks of their host.
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
    """Return by round the delay of the rank that is delayed most (`is_slowest`), or the mean over ranks."""
    rounds = [(server_delays(cpu, plain), len(cpu.seats)) for cpu, plain in by_round]
    if not is_slowest:
        return [
            Delay(*(sum(of) / max(devices, len(found)) for of in zip(*found.values(), strict=True)))
            if found
            else Delay(0.0, 0.0)
            for found, devices in rounds
        ]
    seats = {seat for found, _ in rounds for seat in found}

    def bounded_s(seat: int) -> float:
        return min(map(fmean, zip(*(found[seat] for found, _ in rounds if seat in found), strict=True)))

    last = max(seats, key=bounded_s, default=0)
    return [found.get(last, Delay(0.0, 0.0)) for found, _ in rounds]


# ---------------------------------------------------------------- breakdown

# Name -> value of each round, as a fraction of its step.
Series = Mapping[str, Sequence[float]]
# Names of the values of one round. Those after `_EXACT` are bounded after averaging.
#   off       growth of the time off the CPU, less straggling
#   behind_*  queued behind servers or communication threads, bounded by what these ran (*_ran)
#   data*     waiting for data, bounded by what feeds alone take (feed*)
#   beyond    exchange less the slowest of `together`; `comm` is its bound
_EXACT = ("small_batch", "contention", "straggling", "exchange_cpu")
_DATA = ("data", "data_alone", "feed", "feed_alone")
_CPU = ("off", "behind_servers", "servers_ran", "behind_threads", "threads_ran", "threads")
_RAW = (*_EXACT, *_DATA, *_CPU, "beyond", "comm")


def split(measured: Sequence[Round], efficiency: float) -> tuple[dict[str, float | None], dict[str, Estimate]]:
    """Return the lost efficiency by cause, and each cause that has a round with its 95 % interval. The rest of
    1 - efficiency, perhaps negative, is `unexplained`."""
    series = _series(measured)
    found = _estimates(series)
    means = {name: one.mean for name, one in found.items()}
    rest = 1 - efficiency - sum(means.values())
    if by_round := _left(measured, series):
        # Widened by the shift: a mere difference of logarithmic and plain means must not look significant.
        left = interval(by_round)
        moved, shifted = abs(rest - left.mean), _around(left, rest)
        low, high = shifted.low, shifted.high
        ends = {"low": None if low is None else low - moved, "high": None if high is None else high + moved}
        found["unexplained"] = replace(shifted, **ends)
    return {"unexplained": rest, **{cause: means.get(cause) for cause in CAUSES}}, found


# ---------------------------------------------------------------- single rounds


def _series(measured: Sequence[Round]) -> dict[str, list[float]]:
    """Only rounds with all values are used, if there is any."""
    by_round = _all_told(measured)
    names = {name for one in by_round for name in one}
    whole = [one for one in by_round if set(one) == names]
    return {name: [one[name] for one in (whole or by_round) if name in one] for name in _RAW if name in names}


def _all_told(measured: Sequence[Round]) -> list[dict[str, float]]:
    """If some rounds have CPU time, only those are used, because their causes differ."""
    servers = _serving(measured)
    found = [{**told(one), **servers.get(one.number, {}), "lost": 1 - one.efficiency} for one in measured]
    return [one for one in found if "off" in one] or found


def _serving(measured: Sequence[Round]) -> dict[int, dict[str, float]]:
    known = [(one, one.uses) for one in measured if one.uses is not None and one.grown is not None]
    served = [(one, uses) for one, uses in known if uses[0].servers_s]
    delays = joined_delays((uses for _, uses in served), is_slowest=measured[0].synchronous)
    return {
        one.number: {"behind_servers": queued_s / one.exchange_s, "servers_ran": ran_s / one.exchange_s}
        for (one, _), (queued_s, ran_s) in zip(served, delays, strict=True)
    }


def told(one: Round) -> dict[str, float]:
    """Return the unbounded causes of one round as fractions of its step."""
    seconds: dict[str, float] = {}
    alone, together, mean_s = one.alone, one.together, one.together_s
    if alone is not None:
        seconds["small_batch"] = alone.harmonic_s - one.ideal_s
    if one.is_own and together is not None:
        seconds["small_batch"] = together.mean_s - one.ideal_s
        seconds["straggling"] = together.last_s - together.mean_s
        seconds["beyond"] = seconds["comm"] = one.exchange_s - together.last_s
    elif together is not None and mean_s is not None:
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
    """The exchange less the slowest plain loop; split by CPU time if that is known."""
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


def _estimates(series: Mapping[str, list[float]]) -> dict[str, Estimate]:
    if "behind_threads" in series:
        series = {**series, **_with_queue(series)}
    found = {name: interval(series[name]) for name in _EXACT if name in series}
    if "data" in series:
        found |= _data(series)
    if "off" in series:
        found |= _off_cpu(series)
        found |= _polled(found, fmean(series.get("threads", (0.0,))))
    if "beyond" in series:
        found["exposed"] = _bounded(series["beyond"], series["comm"])
    return found


def _data(series: Series) -> dict[str, Estimate]:
    """Growth of waiting for data, and the contention less that growth."""
    grown = bounded(series["data"], series.get("feed")) - bounded(series["data_alone"], series.get("feed_alone"))
    by_round = [beside - alone for beside, alone in zip(series["data"], series["data_alone"], strict=True)]
    kept = [whole - part for whole, part in _both(series["contention"], by_round)]
    contention = interval(kept)
    return {
        "data_wait": _around(interval(by_round), grown),
        "contention": _around(contention, fmean(series["contention"]) - grown),
    }


def _with_queue(series: Series) -> dict[str, list[float]]:
    """With spare CPUs: queueing behind the exchange's threads counts as its CPU time."""
    behind = _least(series["behind_threads"], series["threads_ran"])
    return {
        "exchange_cpu": [run + queued for run, queued in zip(series["exchange_cpu"], behind, strict=True)],
        "off": [off - queued for off, queued in zip(series["off"], behind, strict=True)],
    }


def _off_cpu(series: Series) -> dict[str, Estimate]:
    off = series["off"]
    if "behind_servers" not in series:
        return {"waiting": interval(off)}
    serving = _least(series["behind_servers"], series["servers_ran"])
    servers = _bounded(off, serving)
    waiting = fmean(off) - servers.mean
    return {"servers": servers, "waiting": _around(interval([a - b for a, b in _both(off, serving)]), waiting)}


def _polled(found: Mapping[str, Estimate], threads: float) -> dict[str, Estimate]:
    waiting, work = found["waiting"], found["exchange_cpu"]
    hidden = min(max(-waiting.mean, 0.0), max(threads, 0.0))
    return {
        "waiting": _around(waiting, waiting.mean + hidden),
        "exchange_cpu": _around(work, work.mean - hidden),
    }


def _both(a: Sequence[float], b: Sequence[float]) -> list[tuple[float, float]]:
    return list(zip(a, b, strict=True)) if len(a) == len(b) else [(fmean(a), fmean(b))]


def _bounded(values: Sequence[float], most: Sequence[float]) -> Estimate:
    found = min(interval(values), interval(most), key=lambda one: one.mean)
    return found if found.mean >= 0 else _around(found, 0.0)


def _least(values: Sequence[float], most: Sequence[float]) -> Sequence[float]:
    """The series with the smaller mean; zeros if that mean is negative."""
    least = min(values, most, key=fmean)
    return least if fmean(least) >= 0 else [0.0] * len(least)


def _around(estimate: Estimate, mean: float) -> Estimate:
    return replace(estimate.plus(mean - estimate.mean), mean=mean)


def _left(measured: Sequence[Round], series: Series) -> list[float]:
    """The unexplained part of each round with all values; bounds are applied as over all rounds."""
    kept = {*_EXACT, "off"}
    if "beyond" in series:  # the bound that exposed communication takes over all rounds; none if it is 0
        beyond = fmean(series["beyond"])
        kept |= {"comm"} if beyond > fmean(series["comm"]) else {"beyond"} if beyond > 0 else set()
    return [
        one["lost"] - sum(value for name, value in one.items() if name in kept)
        for one in _all_told(measured)
        if {name for name in one if name != "lost"} == set(series)
    ]
