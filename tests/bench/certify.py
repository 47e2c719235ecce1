"""Errors of `scaling certify`, its rounds, and how often it names what is slow, simulated with a seed.

python -m tests.bench.certify, or only what is named of healthy devices: python -m tests.bench.certify devices.

The line is 95 %. Each column of a round has noise of its own: the exchange, and two
seats that run the plain loop alone. The mean of every machine "at the line" is at the line: a PASS and a FAIL are
false there. A/A: against a reference of six rounds that the same machine gave, whose launches differ by 0.5 %.
Standard error of a share of 2,000: 0.2 points where it is 1 %.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from math import exp, expm1
from statistics import median
from typing import Any

from msgspec.structs import replace

from scaling.records.run import Criterion
from scaling.records.task import DeviceRates
from scaling.tools.check.verdicts.devices import QUANTITIES, Outlier, below_median, outliers, spreads
from scaling.tools.check.verdicts.links import slow_links, slow_senders
from tests.bench.simulated_nodes import right, searched
from tests.bench.verdicts import Noise, decided, line, referred

RUNS, NAMED_RUNS = 2000, 200
LINE, LAUNCH_SD = 0.95, 0.005
ROUNDS = (20, 60)
DEVICE_SD, SLOW_DEVICE = 0.01, 0.1
LINK_SD, SLOW_LINK, SLOW_NODE = 0.05, 0.5, 0.2

# Name -> noise and how far the efficiency is from the line, in points.
MACHINES: dict[str, tuple[Noise, float]] = {
    "exchange:plain 1:1": (Noise(0.01, 0.01), 0.0),
    "3:1": (Noise(0.01, 0.01 / 3), 0.0),
    "10:1": (Noise(0.01, 0.001), 0.0),
    "10:1, 5 %": (Noise(0.05, 0.005), 0.0),
    "correlated 0.3": (Noise(0.01, 0.003, ar=0.3), 0.0),
    "correlated 0.5": (Noise(0.01, 0.003, ar=0.5), 0.0),
    "correlated 0.8": (Noise(0.01, 0.003, ar=0.8), 0.0),
    "falls by 1 point": (Noise(0.003, 0.001, drift=-0.0105), 0.0),
    "rises by 1 point": (Noise(0.003, 0.001, drift=0.0105), 0.0),
    "1 of 10 rounds stalls": (Noise(0.003, 0.001, stalls=0.1), 0.0),
    "the same, 1 % noise": (Noise(0.01, 0.01, stalls=0.1), 0.0),
    "3 points above, 1 %": (Noise(0.01, 0.01), 0.03),
    "3 points above, 0.3 %": (Noise(0.003, 0.003), 0.03),
    "5 points above, 1 %": (Noise(0.01, 0.01), 0.05),
    "3 points below, 1 %": (Noise(0.01, 0.01), -0.03),
    "1 point below, 0.3 %": (Noise(0.003, 0.003), -0.01),
}


# Name -> standard deviation of healthy devices in each quantity, and the rule that names them.
Naming = Callable[[list[DeviceRates]], list[Outlier]]
HEALTHY: dict[str, tuple[Sequence[float], Naming]] = {
    "1 %": ((0.01,) * 5, outliers),
    "2 %": ((0.02,) * 5, outliers),
    "3 %": ((0.03,) * 5, outliers),
    "5 % in one, 1 % else": ((0.05, *(0.01,) * 4), outliers),
    "2 %, fixed limit": ((0.02,) * 5, below_median),
    "3 %, fixed limit": ((0.03,) * 5, below_median),
}
COUNTS = (2, 3, 4, 8, 16)


def main(argv: Sequence[str]) -> None:
    out = sys.stdout.write
    if "devices" in argv:
        return _devices()
    out("machine                  rounds        PASS %     FAIL %   NO VERDICT %   used: median, most\n")
    for name, (noise, apart) in MACHINES.items():
        for rounds in ROUNDS:
            _line(name, rounds, noise, LINE + apart, lambda _: line(LINE))
    for rounds in ROUNDS:
        _line("A/A, 0.5 %", rounds, Noise(0.005, 0.005), None, _own)
    out(f"\nnamed of {NAMED_RUNS}, %         4         8        16\n")
    for what, share in NAMED.items():
        out(f"{what:21}" + "".join(f"{share(nodes):10.1f}" for nodes in (4, 8, 16)) + "\n")
    return _devices()


def _devices() -> None:
    """Print how often a check names a healthy device, and the smallest loss named among devices that are alike."""
    out = sys.stdout.write
    out(f"\nhealthy named, %      {''.join(f'{count:10}' for count in COUNTS)}\n")
    for what, (sds, naming) in HEALTHY.items():
        rngs = ((count, random.Random(f"{what}/{count}")) for count in COUNTS)
        shares = (sum(bool(naming(rated(rng, count, sds))) for _ in range(RUNS)) / RUNS for count, rng in rngs)
        out(f"{what:22}{''.join(f'{100 * share:10.2f}' for share in shares)}\n")
    limits = (max(spreads(rated(random.Random(), count, (0.0,) * 5)).values()) for count in COUNTS)
    out(f"{'limit where alike':22}{''.join(f'{-100 * expm1(-limit):10.2f}' for limit in limits)}\n")


def rated(rng: random.Random, devices: int, sds: Sequence[float]) -> list[DeviceRates]:
    """Return healthy devices; `sds` is how they differ in each quantity."""
    found = []
    for rank in range(devices):
        fields: dict[str, Any] = {"launch_rank": rank, "host": f"node{rank}", "device": "cuda", "name": "GPU"}
        fields |= {one.field: rng.lognormvariate(0, sd) for one, sd in zip(QUANTITIES, sds, strict=True)}
        found.append(DeviceRates(**fields))
    return found


def _own(rng: random.Random) -> Criterion:
    return referred(Noise(0.005, 0.005), LAUNCH_SD, 6, LINE, rng)


def _line(
    name: str, rounds: int, noise: Noise, efficiency: float | None, of: Callable[[random.Random], Criterion]
) -> None:
    rng = random.Random(f"{name}/{rounds}")
    levels = (efficiency or exp(rng.gauss(0, LAUNCH_SD)) for _ in range(RUNS))
    found = [decided(level, of(rng), noise, rounds, rng) for level in levels]
    shares = Counter(one.result for one in found)
    told = "".join(f"{100 * shares[key] / RUNS:11.2f}" for key in ("PASS", "FAIL", "NO VERDICT"))
    spent = [one.rounds for one in found]
    sys.stdout.write(f"{name:24} {rounds:6} {told} {median(spent):18.0f} {max(spent):6}\n")
    sys.stdout.flush()


def links(nodes: int, *, whole_node: bool) -> float:
    """Return how often exactly the slow link, or the node with slow links, is named, in percent."""
    rng, hits = random.Random(nodes), 0
    for _ in range(NAMED_RUNS):
        slow = rng.randrange(nodes), rng.randrange(nodes - 1)
        pair = slow[0], slow[1] + (slow[1] >= slow[0])
        matrix = {
            (str(a), str(b)): rng.lognormvariate(0, LINK_SD)
            * (SLOW_LINK if (a == pair[0] if whole_node else (a, b) == pair) else 1.0)
            for a in range(nodes)
            for b in range(nodes)
            if a != b
        }
        if whole_node:
            hits += [*slow_senders(matrix)] == [str(pair[0])]
        else:
            hits += [*slow_links(matrix)] == [(str(pair[0]), str(pair[1]))]
    return 100 * hits / NAMED_RUNS


def slow_node(nodes: int) -> float:
    rng = random.Random(nodes)
    return right([searched(nodes, 1, SLOW_NODE, 0.03, rng) for _ in range(NAMED_RUNS)]) * 100


def slow_device(devices: int) -> float:
    """Return how often exactly the slow device is named, in percent."""
    rng, hits = random.Random(devices), 0
    for _ in range(NAMED_RUNS):
        slow, rates = rng.randrange(devices), rated(rng, devices, (DEVICE_SD,) * 5)
        slower = (1 - SLOW_DEVICE) * (rates[slow].matrix_flops_per_s or 0.0)
        rates[slow] = replace(rates[slow], matrix_flops_per_s=slower)
        hits += [one.device.launch_rank for one in outliers(rates)] == [slow]
    return 100 * hits / NAMED_RUNS


NAMED: dict[str, Callable[[int], float]] = {
    "device slower by 10 %": slow_device,
    "link at half": partial(links, whole_node=False),
    "node's links at half": partial(links, whole_node=True),
    "node slower by 20 %": slow_node,
}


if __name__ == "__main__":
    main(sys.argv[1:])
