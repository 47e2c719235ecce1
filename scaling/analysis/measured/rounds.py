"""An exchange and its control runs in one round, and the causes of lost efficiency over rounds.

Points measured side by side are compared over the blocks that both have, because a slow block hits both.

t is the exchange's step time. u is the CPU time of a step per core, off = wall - u. Both are means over ranks.
`alone` is the plain loop on one device (`each` or `solo`), `together` on all devices at once.

    data wait     (together - held) - (alone - held), each at most what feeds alone take
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

from collections.abc import Mapping, Sequence
from math import exp, log
from statistics import fmean

from msgspec.structs import replace

from scaling.analysis.measured.cell import Cell, waited_s
from scaling.analysis.measured.controls import AloneTime, Control, Controls
from scaling.analysis.measured.cpu import CpuStep, Growth, Use, growth, new_seconds
from scaling.analysis.measured.step_time import Blocks, StepTime, mean_s
from scaling.analysis.statistics.intervals import Estimate, interval, variance
from scaling.records.point import Kind, Point, Record

# ---------------------------------------------------------------- data wait
#
# beside  together - held, on all devices of a row at once
# alone   plain loop - held, on one device; this is in the baseline of efficiency
#
# Each is at most what the feeds alone take, as in DS-Analyzer (Mohan et al., "Analyzing and Mitigating Data Stalls
# in DNN Training", VLDB 2021).


class DataTimes(Record, frozen=True, kw_only=True):
    """Unbounded seconds of a step that devices wait for data in one round; `most_s` is what feeds alone take."""

    beside_s: float
    alone_s: float
    most_s: float | None = None
    most_alone_s: float | None = None


def bounded(waits: Sequence[float], most: Sequence[float] | None) -> float:
    """Return the mean over rounds, from 0 up to the mean of `most`, if given."""
    found = max(fmean(waits), 0.0)
    return min(found, fmean(most)) if most else found


def part(waits: Sequence[tuple[float, float | None, float]]) -> float:
    """Return the bounded mean of (seconds waited, bound, whole step), one per round, as a fraction of the step."""
    most = [most_s / whole_s for _, most_s, whole_s in waits if most_s is not None]
    known = most if len(most) == len(waits) else None
    return bounded([wait_s / whole_s for wait_s, _, whole_s in waits], known)


# ---------------------------------------------------------------- rounds


class Plain(Record, frozen=True, kw_only=True):
    """Seconds of a step of plain loops on a row's devices: slowest, mean of times, mean of rates."""

    last_s: float
    mean_s: float
    harmonic_s: float
    use: Use | None = None
    first_seat: int = 0


class Round(Record, frozen=True, kw_only=True):
    """The step times of one round that explain an exchange, in seconds; None if not measured.

    `ideal_s` is a step at efficiency 1. `alone` and `together` are plain loops one by one and at once. `noise` is
    the variance of ln(efficiency) implied by windows. `is_own`: `together` are the exchange's own steps without
    exchange, because its copies have another batch.
    """

    number: int
    exchange_s: float
    ideal_s: float
    alone: Plain | None
    together: Plain | None
    comm_s: float | None
    comm_beside_s: float | None = None
    synchronous: bool = True
    cpu: CpuStep | None = None
    noise: float = 0.0
    data: DataTimes | None = None
    is_own: bool = False

    @property
    def efficiency(self) -> float:
        return self.ideal_s / self.exchange_s

    @property
    def most_exposed_s(self) -> float | None:
        """Seconds of an exchange that nothing hides: during compute if measured, else alone."""
        return self.comm_s if self.comm_beside_s is None else self.comm_beside_s

    @property
    def uses(self) -> tuple[CpuStep, Use] | None:
        """CPU time of a step, and of plain loops at once; None if either is unknown."""
        plain = self.together.use if self.together else None
        return None if self.cpu is None or plain is None else (self.cpu, plain)

    @property
    def grown(self) -> Growth | None:
        """Growth of the CPU time of a step by the exchange; None if unknown."""
        if self.uses is None:
            return None
        cpu, plain = self.uses
        servers_s = sum(cpu.servers_s.values()) / len(cpu.seats)
        return growth(cpu.mean, plain, is_spare=cpu.is_spare, servers_s=servers_s)

    @property
    def untold_cpu(self) -> str:
        """Names the CPU time that is missing although its counterpart is known; else empty."""
        if self.together is None or self.is_own or self.grown is not None:
            return ""
        if self.together.use is None:
            return "of its together control" if self.cpu else ""
        return "by thread, with CPUs to spare" if self.cpu else "of its own processes"

    @property
    def together_s(self) -> float | None:
        """Mean of the plain loops at once: of times or, if asynchronous, of rates."""
        if self.together is None:
            return None
        return self.together.mean_s if self.synchronous else self.together.harmonic_s


# By kind (held, feed) and world size: the plain loops of each round.
Fed = Mapping[tuple[Kind, int], Mapping[int, Plain]]


def rounds(cell: Cell, controls: Controls) -> tuple[Round, ...]:
    """Join a cell's exchanges with the controls of their rounds; rounds without a baseline are left out."""
    point = cell.point
    reference = controls.times_alone(cell, point.reference.batch_size)
    own = controls.times_alone(cell, point.workload.batch_size)
    copies = _beside(cell, controls.together(point))
    together = copies or _without_exchange(cell)
    kinds: tuple[Kind, ...] = ("held", "feed")
    fed = {
        (kind, size): _beside(cell, controls.together(point, kind, size))
        for kind in kinds
        for size in {1, point.world_size}
    }
    control, scripts = controls.comm(point), _script_data(point, controls)
    comm = control.times if control else {}
    found = []
    for number, time in sorted(cell.times.items()):
        if number not in reference:
            continue
        ideal_s = _ideal_s(time, reference[number], own.get(number), point)
        alone = _alone(time, own.get(number), None if point.workload.share(point.world_size) > 1 else ideal_s)
        # With one device, `together` is `alone`.
        beside = together.get(number, alone if point.world_size == 1 else None)
        found.append(
            Round(
                number=number,
                exchange_s=time.step_s,
                ideal_s=ideal_s,
                alone=alone,
                together=beside,
                comm_s=comm[number].step_s if number in comm else None,
                comm_beside_s=cell.comm_beside.get(number),
                synchronous=cell.synchronous,
                cpu=cell.cpu.get(number),
                noise=_noise(time, reference[number]),
                is_own=not copies and number in together,
                data=scripts.get(number) or _data(number, cell, fed, own.get(number), alone, beside),
            )
        )
    return tuple(found)


def logs(measured: Sequence[Round]) -> list[float]:
    """Return the logarithm of efficiency of each round."""
    return [log(one.efficiency) for one in measured]


def relative(time: StepTime, blocks: Blocks, epoch: int | None, step_s: float) -> float:
    """Return a control's step time scaled by the blocks shared with the exchange; `step_s` without any."""
    shared = _shared(time, blocks, epoch)
    if not shared:
        return step_s
    return time.step_s * mean_s(blocks[index] for index in shared) / mean_s(time.blocks[index] for index in shared)


def _shared(time: StepTime, blocks: Blocks, epoch: int | None) -> list[int]:
    if time.epoch is None or time.epoch != epoch:
        return []
    return sorted(blocks.keys() & time.blocks.keys())


def _noise(time: StepTime, ideal: AloneTime) -> float:
    """Variance of ln(efficiency) by windows' scatter, as of a ratio (Cochran, "Sampling Techniques", ch. 6)."""
    shared = _shared(time, ideal.blocks, ideal.epoch)
    if len(shared) > 1:
        ours, ideals = ([exp(blocks[index]) for index in shared] for blocks in (time.blocks, ideal.blocks))
        scale = fmean(ideals) / fmean(ours)
        rest = [one - scale * own for own, one in zip(ours, ideals, strict=True)]
        return variance(rest) / len(rest) / fmean(ideals) ** 2
    if shared:
        return 0.0
    each = (list(blocks.values()) for blocks in (time.blocks, ideal.blocks))
    return sum(variance(values) / len(values) for values in each if len(values) > 1)


def _ideal_s(time: StepTime, reference: AloneTime, own: AloneTime | None, point: Point) -> float:
    """Strong rule: the global batch on one device over its share, scaled by the speed of the other seats."""
    ideal_s = relative(time, reference.blocks, reference.epoch, reference.harmonic_s)
    share = point.workload.share(point.world_size)
    if share == 1:
        return ideal_s
    ideal_s /= share
    if own is None or len(own.seats) < 2 or len(reference.seats) != 1:
        return ideal_s
    first = own.seats.get(*reference.seats)
    return ideal_s if first is None else ideal_s * own.harmonic_s / first


def _alone(time: StepTime, own: AloneTime | None, ideal_s: float | None) -> Plain | None:
    if own is None:
        return None
    harmonic_s = ideal_s if ideal_s is not None else relative(time, own.blocks, own.epoch, own.harmonic_s)
    scale = harmonic_s / own.harmonic_s
    last_s = max(own.seats.values(), default=own.harmonic_s) * scale
    return Plain(last_s=last_s, mean_s=own.mean_s * scale, harmonic_s=harmonic_s, use=own.use)


def _beside(cell: Cell, control: Control | None) -> dict[int, Plain]:
    found = {}
    for number, plain in control.times.items() if control else ():
        time, cpu = cell.times.get(number), control.cpu.get(number) if control else None
        if time is None:
            continue
        whole_s = mean_s(plain.blocks.values()) if plain.blocks else 1.0
        scale = relative(time, plain.blocks, plain.epoch, whole_s) / whole_s
        last_s, plain_s, use = plain.step_s * scale, plain.mean_s * scale, cpu.mean if cpu else None
        if late := cell.script_unsynced.get(number):
            # As if a script's slowest copy were as late as in its own steps without exchange. The mean rank's
            # lateness is CPU time of its own work, and not of the exchange.
            last_s = plain_s + late.last_s - late.first_s
            use = use and replace(use, run_s=use.run_s + late.mean_s - late.first_s)
        harmonic_s = plain.harmonic_s * scale
        seat = min(plain.seats)
        found[number] = Plain(last_s=last_s, mean_s=plain_s, harmonic_s=harmonic_s, use=use, first_seat=seat)
    return found


def _without_exchange(cell: Cell) -> dict[int, Plain]:
    """Return the steps without exchange of a script that divides its batch: its copies have the whole batch."""
    if not cell.point.workload.is_strong:
        return {}
    return {
        number: Plain(last_s=one.last_s, mean_s=one.mean_s, harmonic_s=one.mean_s)
        for number, one in cell.script_unsynced.items()
    }


def _data(
    number: int, cell: Cell, fed: Fed, own: AloneTime | None, alone: Plain | None, beside: Plain | None
) -> DataTimes | None:
    size = cell.point.world_size
    held_alone, held = fed["held", 1].get(number), fed["held", size].get(number)
    if own is None or alone is None or beside is None or held_alone is None or held is None:
        return None
    # Compare on the same seat: a difference of seats must not look like data.
    seat_s = own.seats.get(held_alone.first_seat, own.mean_s) * alone.harmonic_s / own.harmonic_s
    alone_s = seat_s - held_alone.mean_s
    beside_s = beside.mean_s - held.mean_s if cell.synchronous else beside.harmonic_s - held.harmonic_s
    most, most_alone = fed["feed", size].get(number), fed["feed", 1].get(number)
    return DataTimes(
        beside_s=alone_s if size == 1 else beside_s,
        alone_s=alone_s,
        most_s=most.harmonic_s if most else None,
        most_alone_s=most_alone.harmonic_s if most_alone else None,
    )


def _script_data(point: Point, controls: Controls) -> dict[int, DataTimes]:
    """A script's own loaders tell how long they block: in its copies at once, and in one alone."""
    together, alone = controls.together(point), controls.alone(point, point.workload.batch_size)
    if together is None or alone is None or not point.workload.script:
        return {}
    of_copies, of_one = (
        {one.point.round: waited for one in records if (waited := waited_s([one])) is not None}
        for records in (together.records, alone.records)
    )
    return {
        number: DataTimes(beside_s=waited, alone_s=of_one[number])
        for number, waited in of_copies.items()
        if number in of_one
    }


# ---------------------------------------------------------------- servers

# Seconds of a step: queued behind servers (a difference, may be negative); its bound, what servers ran.
Delay = tuple[float, float]


def _by_seat(cpu: CpuStep, plain: Use) -> dict[int, Delay]:
    """How much servers delayed a step: the growth of queueing, shared with communication threads. If queueing is
    unknown, servers count evenly for the ranks of their host."""
    found: dict[int, Delay] = {}
    for host, ran_s in cpu.servers_s.items():
        seats = [seat for seat in cpu.sharing.get(host, ()) if seat in cpu.seats]
        for seat in seats:
            use = cpu.seats[seat]
            if use.queued_s is None or plain.queued_s is None:
                found[seat] = ran_s / len(seats), ran_s
                continue
            here_s = ran_s if use.others_s is None else min(ran_s, use.others_s)
            share = here_s / (here_s + new_seconds(use, plain)) if here_s else 0.0
            found[seat] = share * (use.queued_s - plain.queued_s), here_s
    return found


def _served(measured: Sequence[Round]) -> dict[int, dict[str, float]]:
    """By round, the delay of the rank that is delayed most; if ranks do not wait, the mean over ranks."""
    served = [
        (one, _by_seat(*one.uses), len(one.uses[0].seats))
        for one in measured
        if one.uses is not None and one.grown is not None and one.uses[0].servers_s
    ]

    def bounded_s(seat: int) -> float:
        return min(map(fmean, zip(*(delays[seat] for _, delays, _ in served if seat in delays), strict=True)))

    last = max({seat for _, delays, _ in served for seat in delays}, key=bounded_s, default=0)
    found = {}
    for one, delays, devices in served:
        if measured[0].synchronous:
            queued_s, ran_s = delays.get(last, (0.0, 0.0))
        else:
            queued_s, ran_s = (sum(each[at] for each in delays.values()) / devices for at in (0, 1))
        found[one.number] = {"behind_servers": queued_s / one.exchange_s, "servers_ran": ran_s / one.exchange_s}
    return found


# ---------------------------------------------------------------- causes of loss

# Name -> value of each round, as a fraction of its step. Values after `_EXACT` are bounded after averaging.
#   data*     waiting for data, bounded by what feeds alone take (feed*)
#   off       growth of the time off the CPU, less straggling
#   behind_*  queued behind servers or communication threads, bounded by what these ran (*_ran)
#   beyond    exchange less the slowest of `together`; `comm` is its bound
#   lost      all that is lost
Series = Mapping[str, Sequence[float]]
_EXACT = ("small_batch", "contention", "straggling", "exchange_cpu")


def split(measured: Sequence[Round], efficiency: float) -> tuple[float, dict[str, Estimate]]:
    """Return the rest of 1 - efficiency, perhaps negative, and each cause that has a round with its 95 % interval;
    if all causes have one round, also the rest (`unexplained`).

    Only rounds with all values are used, if there is any.
    """
    by_round = _told(measured)
    names = {name for one in by_round for name in one}
    whole = [one for one in by_round if set(one) == names]
    series = {name: [one[name] for one in whole or by_round if name in one] for name in names}
    found = _estimates(series)
    rest = 1 - efficiency - sum(one.mean for one in found.values())
    if whole:
        kept = {*_EXACT, "off"}
        if "beyond" in series:  # the bound that exposed communication takes over all rounds; none if it is 0
            beyond = fmean(series["beyond"])
            kept |= {"comm"} if beyond > fmean(series["comm"]) else {"beyond"} if beyond > 0 else set()
        explained = (sum(value for name, value in one.items() if name in kept) for one in whole)
        left = interval([one["lost"] - causes for one, causes in zip(whole, explained, strict=True)])
        # Widened by the shift: a mere difference of logarithmic and plain means must not look significant.
        moved, shifted = abs(rest - left.mean), _around(left, rest)
        low, high = shifted.low, shifted.high
        ends = {"low": None if low is None else low - moved, "high": None if high is None else high + moved}
        found["unexplained"] = replace(shifted, **ends)
    return rest, found


def _told(measured: Sequence[Round]) -> list[dict[str, float]]:
    """If some rounds have CPU time, only those are used, because their causes differ."""
    servers = _served(measured)
    found = [{**told(one), **servers.get(one.number, {}), "lost": 1 - one.efficiency} for one in measured]
    return [one for one in found if "off" in one] or found


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
        if (data := one.data) is not None:
            seconds |= {"data": data.beside_s, "data_alone": data.alone_s}
            if data.most_s is not None and data.most_alone_s is not None:
                seconds |= {"feed": data.most_s, "feed_alone": data.most_alone_s}
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


def _estimates(series: Series) -> dict[str, Estimate]:
    if "behind_threads" in series:  # with spare CPUs it counts as the exchange's CPU time
        behind = _least(series["behind_threads"], series["threads_ran"])
        work, off = (
            [value + sign * queued for value, queued in zip(series[name], behind, strict=True)]
            for name, sign in (("exchange_cpu", 1), ("off", -1))
        )
        series = {**series, "exchange_cpu": work, "off": off}
    found = {name: interval(series[name]) for name in _EXACT if name in series}
    if "data" in series:  # growth of waiting for data, and the contention less that growth
        grown = bounded(series["data"], series.get("feed"))
        grown -= bounded(series["data_alone"], series.get("feed_alone"))
        waits = [beside - alone for beside, alone in zip(series["data"], series["data_alone"], strict=True)]
        contention = interval(_less(series["contention"], waits))
        found["data_wait"] = _around(interval(waits), grown)
        found["contention"] = _around(contention, fmean(series["contention"]) - grown)
    if "off" in series:
        waiting = interval(series["off"])
        if "behind_servers" in series:
            serving = _least(series["behind_servers"], series["servers_ran"])
            servers = found["servers"] = _bounded(series["off"], serving)
            waiting = _around(interval(_less(series["off"], serving)), waiting.mean - servers.mean)
        # Threads that ran while their rank waited.
        hidden = min(max(-waiting.mean, 0.0), max(fmean(series.get("threads", (0.0,))), 0.0))
        found["waiting"] = _around(waiting, waiting.mean + hidden)
        found["exchange_cpu"] = _around(found["exchange_cpu"], found["exchange_cpu"].mean - hidden)
    if "beyond" in series:
        found["exposed"] = _bounded(series["beyond"], series["comm"])
    return found


def _less(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """Differences by round; of the means if some round lacks one."""
    if len(values) != len(others):
        return [fmean(values) - fmean(others)]
    return [value - other for value, other in zip(values, others, strict=True)]


def _bounded(values: Sequence[float], most: Sequence[float]) -> Estimate:
    found = min(interval(values), interval(most), key=lambda one: one.mean)
    return found if found.mean >= 0 else _around(found, 0.0)


def _least(values: Sequence[float], most: Sequence[float]) -> Sequence[float]:
    """The series with the smaller mean; zeros if that mean is negative."""
    least = min(values, most, key=fmean)
    return least if fmean(least) >= 0 else [0.0] * len(least)


def _around(estimate: Estimate, mean: float) -> Estimate:
    return replace(estimate.plus(mean - estimate.mean), mean=mean)
