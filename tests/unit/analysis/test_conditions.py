"""Notes on a row about its machine: memory, quotas, clocks, stalls, slow ranks, another revision."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from math import log
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from scaling.analysis.measured import device_use
from scaling.analysis.statistics.intervals import Layout
from scaling.analysis.table.footnotes import odd
from scaling.records.events import Finished
from scaling.records.run import HelperRecord, PointRecord
from scaling.records.telemetry import POWER_CAP, CpuTime, Sample, Telemetry, ThreadTime
from scaling.report.material import Material
from tests.support import planted
from tests.support.golden_rows import check_rows
from tests.support.scripted_records import (
    by_one_worker,
    header,
    point,
    record,
    sweep,
    warning,
    with_window,
)

# What memory, quotas and clocks cost is said with its size; and nothing where it cost nothing.


def with_cpu(made: PointRecord, **changes: Any) -> PointRecord:
    wall_s = made.ranks[0].measured_s
    main = ThreadTime(name="python", threads=1, run_s=wall_s, queued_s=0.0)
    base: dict[str, Any] = {
        "steps": sum(window.steps for window in made.ranks[0].windows), "wall_s": wall_s, "kernel_s": 0.0,
        "minor_faults": 0, "major_faults": 0, "threads": (main,),
    }  # fmt: skip
    cpu = CpuTime(**{**base, **changes})
    return replace(made, ranks=tuple(replace(rank, telemetry=Telemetry(cpu=cpu)) for rank in made.ranks))


def at_rank(made: PointRecord, rank: int, changed: PointRecord) -> PointRecord:
    return replace(made, ranks=(*made.ranks[:rank], changed.ranks[rank], *made.ranks[rank + 1 :]))


def faulting(made: PointRecord, rank: int) -> PointRecord:
    """One rank spends a tenth of 3 s on 5,000 faults a step."""
    return at_rank(with_cpu(made), rank, with_cpu(made, kernel_s=0.3, minor_faults=150_000))


def threaded(kernel_s: float) -> PointRecord:
    """8 threads in 30 steps of 80 ms; all cores together spend so much of one core's time a step."""
    made = record(point("exchange"), 0.08)
    ranks = tuple(replace(rank, threads=8, cpus=tuple(range(8))) for rank in made.ranks)
    faults = {"kernel_s": 240 * kernel_s, "minor_faults": round(120e6 * kernel_s)}
    return with_cpu(replace(made, ranks=ranks), **faults)


def helped(*, counts_steps: bool) -> PointRecord:
    """As TensorFlow's coordinator has them: its worker computes nothing, and a helper per device does."""
    whole = with_cpu(record(point("exchange", 2), 0.1))
    cpus = [rank.telemetry.cpu for rank in faulting(whole, 1).ranks]
    helpers = tuple(
        HelperRecord(
            name=f"{name}-{index}", launch_rank=index, host="node1", outcome=Finished(),
            telemetry=Telemetry(cpu=cpu and replace(cpu, steps=cpu.steps if counts_steps else 0)),
        )
        for name in ("trainer", "server")
        for index, cpu in enumerate(cpus)
    )  # fmt: skip
    return replace(by_one_worker(whole), helpers=helpers)


def sample(clock_mhz: float | None, *throttle: str, utilisation_percent: float | None = 98.0) -> Sample:
    return Sample(
        unix_s=1.0, sm_clock_mhz=clock_mhz, throttle=throttle, utilisation_percent=utilisation_percent,
        device_index=0,
    )  # fmt: skip


def with_samples(made: PointRecord, *samples: Sample, max_mhz: float | None = 1410.0) -> PointRecord:
    read = Telemetry(samples=samples, max_sm_clock_mhz=max_mhz)
    return replace(made, ranks=tuple(replace(rank, telemetry=read) for rank in made.ranks))


def swept(solo: Sequence[Sample], exchange: Sequence[Sample]) -> list[PointRecord]:
    """Two ranks, three rounds."""
    read = {"solo": solo, "exchange": exchange}
    records = [one for number in range(3) for one in sweep(number, 0.1, {2: 0.125})]
    return [with_samples(one, *read.get(one.point.kind, ())) for one in records]


def older_warning() -> list[PointRecord]:
    """Older sweeps warned of the power limit."""
    made = [one for number in range(3) for one in sweep(number, 0.1, {2: 0.125})]
    said = warning("rank 0 on node1 was throttled: sw power cap", "throttled")
    told = replace(with_samples(made[1], sample(1000.0, POWER_CAP)), warnings=(said,))
    return [made[0], told, *made[2:]]


ONE, TWO = record(point("exchange"), 0.1), record(point("exchange", 2), 0.1)
HALF = sample(1000.0, POWER_CAP)
CASES: dict[str, Sequence[PointRecord]] = {
    # 30 steps of 0.1 s; 5,000 faults and 10 ms of kernel time a step
    "memory that is faulted in at each step": [with_cpu(ONE, kernel_s=0.3, minor_faults=150_000)],
    **{
        # 1.1 % of 3 s, both in the kernel and as 2 us a fault; the kernel took less; it did something else
        f"{kernel_s} s of kernel time and {faults} faults": [
            with_cpu(one, kernel_s=kernel_s, minor_faults=faults) for one in sweep(0, 0.1, {1: 0.1})
        ]
        for kernel_s, faults in ((0.033, 16_500), (0.027, 16_500), (0.033, 13_500))
    },
    # 2.2 of 20 %: the rest may be what sockets take
    "kernel time that faults explain in part": [with_cpu(ONE, kernel_s=0.6, minor_faults=33_000)],
    # all 16 together spend 0.6 % on it
    "one rank of 16": [faulting(record(point("exchange", 16), 0.1, hosts=("node1", "node2")), 9)],
    "all ranks": [at_rank(faulting(TWO, 0), 1, with_cpu(TWO, kernel_s=0.12, minor_faults=60_000))],
    "2.5 % of each of eight cores": [threaded(2e-3)],
    "0.6 % of each of eight cores": [threaded(0.5e-3)],
    "a process that drives four devices": [
        with_cpu(by_one_worker(record(point("exchange", 4), 0.1)), kernel_s=0.3, minor_faults=150_000)
    ],
    **{
        # 8 and 2.7 % of 3 s, for which 40 faults a step are too few. Sockets are the kernel's work: nothing is
        # said of the exchange itself.
        f"{kernel_s} s of kernel time that faults of single pages do not explain": [
            with_cpu(one, kernel_s=kernel_s, minor_faults=1_200) for one in sweep(0, 0.1, {2: 0.125})
        ]
        for kernel_s in (0.24, 0.08)
    },
    "kernel time of a GPU's driver": [with_cpu(record(point("solo", device="cuda"), 0.1), kernel_s=0.24)],
    "memory of the together control": [
        faulting(one, 1) if one.point.kind == "together" else one for one in sweep(0, 0.1, {2: 0.125})
    ],
    "helpers that compute and count steps": [helped(counts_steps=True)],
    "helpers that compute": [helped(counts_steps=False)],
    "a quiet machine": [*map(with_cpu, sweep(0, 0.1, {2: 0.125}))],
    # Both ranks of the cgroup read the same counts; a rank has 3 s of a core.
    "a quota that held ranks up": [with_cpu(TWO, periods=366, throttled_periods=330, throttled_s=2.7)],
    "a quota that held nothing up": [with_cpu(ONE, periods=366, throttled_periods=0, throttled_s=0.01)],
    "a quota that held hardly anything up": [with_cpu(ONE, periods=366, throttled_periods=3, throttled_s=0.01)],
    # as every V100 of 250 W, T4 and GeForce is under load
    "cards at their power limit": swept([HALF], [sample(1005.0, POWER_CAP), sample(1000.0)]),
    **{
        f"throttled by {reason}": swept([sample(1000.0)], [sample(1000.0), sample(1000.0, POWER_CAP, reason)])
        for reason in ("hw slowdown", "hw thermal", "sw thermal", "power brake")
    },
    **{
        f"{clock_mhz} MHz beside a baseline at 1000": swept([HALF], [sample(clock_mhz, POWER_CAP)])
        for clock_mhz in (1000.0, 985.0, 1019.0, 950.0, 1100.0)
    },
    "readings of an idle GPU": swept(
        [sample(1000.0)],
        [sample(210.0, utilisation_percent=0.0), sample(1000.0), sample(1000.0, utilisation_percent=None)],
    ),
    "nothing was read": [record(point("solo"), 0.1), TWO],
    "unknown clocks": swept([sample(None)], [sample(None)]),
    "an older sweep's warning": older_warning(),
}  # fmt: skip


def test_notes_about_the_machine_are_those_of_the_golden_file() -> None:
    check_rows("conditions", CASES)


def test_older_records_tell_the_power_limit_among_the_reasons_and_no_highest_clock() -> None:
    old = b'{"samples":[[1.0,98.0,249.0,1000.0,1,60.0,["sw power cap"]]]}'
    read = msgspec.json.decode(old, type=Telemetry)
    made = record(point("exchange", 2), 0.1)
    found = device_use.clocks([replace(made, ranks=(replace(made.ranks[0], telemetry=read),))])
    assert found == device_use.Clocks(sm_mhz=1000.0, of_max=None, power_limited=1.0)


def test_a_report_tells_the_clock_of_the_whole_run_once() -> None:
    made = with_samples(record(point("exchange", 2), 0.1), sample(1005.0, POWER_CAP), sample(1005.0))
    found = device_use.clocks([made])
    assert found is not None
    assert (
        device_use.describe(found)
        == "SM clock 1005 MHz, 71 % of the highest, at the power limit in 50 % of readings"
    )
    said = dict(Material(header(), [made]).doc.facts)
    assert said["clocks"] == device_use.describe(found)
    quiet = Material(header(), [record(point("exchange", 2), 0.1)]).doc
    assert "clocks" not in dict(quiet.facts)


# Windows far longer than the others of their rank are named; none is left out.


def stalled(*ranks: int, by_s: float = 6.0, hosts: tuple[str, ...] = ("node1", "node2")) -> PointRecord:
    made = record(point("exchange", 2), 0.1, hosts=hosts)
    for rank in ranks:
        made = with_window(made, rank, 2, end_s=made.ranks[rank].windows[2].end_s + by_s)
    return made


def still(made: PointRecord, ranks: Collection[int], still_s: float = 6.0) -> PointRecord:
    told = (
        replace(one, telemetry=replace(one.telemetry, still_s=still_s)) if one.rank in ranks else one
        for one in made.ranks
    )
    return replace(made, ranks=tuple(told))


def suspended() -> PointRecord:
    made = record(point("exchange", 2), 0.1, hosts=("node1", "node2"))
    first = replace(made.ranks[0], telemetry=replace(made.ranks[0].telemetry, suspended_s=6.0))
    return replace(made, ranks=(first, made.ranks[1]))


STALLS: dict[str, Sequence[PointRecord]] = {
    "one rank": [stalled(1)],
    "both ranks": [stalled(0, 1)],
    "no longer": [stalled(0, by_s=0.0)],
    "by noise": [stalled(0, by_s=1.9)],
    "the job stood still": [still(stalled(0, 1), (0, 1))],
    "a node stood still": [still(stalled(0, 1), (0,))],
    "the job stood still, not for most of it": [still(stalled(0, 1), (0, 1), 1.5)],
    "one of a host's two ranks stood still": [still(stalled(1, hosts=("node1",)), (1,))],
    "the longest of two": [stalled(0), replace(stalled(0, by_s=9.0), point=point("exchange", 2, 1))],
    "a machine was suspended": [suspended()],
}


def test_notes_about_stalls_are_those_of_the_golden_file() -> None:
    check_rows("stalls", STALLS)


# Which ranks are named: who is apart from the others, and nobody by chance, however many there are.

# Of one start's step time, as on shared virtual machines.
NOISE = 0.02


def seats(dice: random.Random, count: int, rounds: int = 4, **slower: float) -> Layout:
    """Logarithms of step times of so many seats, some of which take longer by a part."""
    return {
        str(seat): {n: log(1 + slower.get(f"_{seat}", 0.0)) + dice.gauss(0, NOISE) for n in range(rounds)}
        for seat in range(count)
    }


@pytest.mark.parametrize("count", [2, 4, 16, 64])
def test_of_equal_ranks_none_is_named_in_nearly_all_runs_however_many_they_are(count: int) -> None:
    """At 99 % for each of 16 by itself somebody would be named in every sixth run, of 64 in every second."""
    dice = random.Random(count)
    assert sum(bool(odd(seats(dice, count))) for _ in range(100)) <= 5


@pytest.mark.parametrize("count", [4, 16, 64])
def test_a_slow_rank_of_many_is_found_and_no_other(count: int) -> None:
    dice = random.Random(count)
    found = [odd(seats(dice, count, rounds=6, _3=0.06)) for _ in range(50)]
    assert sum([one.seat for one in named] == [3] for named in found) >= 45


def test_of_two_ranks_the_slow_one_is_named() -> None:
    (one,) = odd({"0": {0: 0.0, 1: 0.001}, "1": {0: log(1.1), 1: log(1.1)}})
    assert one.seat == 1
    assert one.apart == pytest.approx(0.1, abs=0.001)


def test_what_noise_explains_is_nobodys() -> None:
    """5 % apart on the mean, by one round in which all of it happened."""
    assert odd({"0": {0: 0.0, 1: 0.0, 2: 0.0}, "1": {0: 0.0, 1: 0.0, 2: 0.15}}) == []


def slowed(*together_s: float) -> list[PointRecord]:
    """All ranks take 0.1 s alone, and so long while all run."""
    size = len(together_s)
    steps: dict[str, tuple[float, ...]] = {"each": (0.1,), "together": together_s, "exchange": (0.13,)}
    return [record(point(kind, size, number), *of) for number in range(3) for kind, of in steps.items()]


def alone(*times: float) -> list[PointRecord]:
    return planted.run(planted.Plan(size=len(times), alone=times))


RANKS: dict[str, Sequence[PointRecord]] = {
    "one of four slows by 15 % more when all run": slowed(0.11, 0.11, 0.1265, 0.11),
    "seven of sixteen slow by 10 to 16 % more when all run": slowed(
        *(0.1,) * 9, *(0.11 + 0.001 * number for number in range(7))
    ),
    "seven of sixteen are slow": alone(*(1.0,) * 9, *(1 + 0.02 * number for number in range(1, 8))),
    # in steps of 2 %: each differs from the median of the others
    "slow and fast ranks": alone(*(1 + 0.02 * number for number in range(16))),
    "one more than are named": alone(*(1.0,) * 11, *(1.1,) * 5),
}


def test_notes_about_ranks_are_those_of_the_golden_file() -> None:
    check_rows("ranks", RANKS)
