"""Errors of `scaling certify`, its rounds, and how often it names what is slow, simulated with a seed.

python -m tests.bench.certify. The line is 95 %. A false FAIL: a machine one point above the line. A true FAIL: one
3 % below it. A/A: against a reference of three rounds that the same machine gave, whose launches differ by 0.5 %.
Standard error of a share of 2,000: 0.2 points where it is 1 %.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from math import exp
from statistics import median

from scaling.analysis.statistics.intervals import Side
from scaling.records.task import DeviceRates
from scaling.tools.certify import leading
from scaling.tools.check.verdicts.devices import outliers
from scaling.tools.check.verdicts.links import slow_links, slow_senders
from tests.support.simulated_nodes import right, searched
from tests.support.verdicts import Trial, decided, referred

RUNS, NAMED_RUNS = 2000, 200
LINE, LAUNCH_SD = 0.95, 0.005
# Rounds of 15 minutes at 45 and 90 s.
ROUNDS = (20, 10)
QUIET_SD = (0.003, 0.005, 0.01)
DEVICE_SD, SLOW_DEVICE = 0.01, 0.1
LINK_SD, SLOW_LINK, SLOW_NODE = 0.05, 0.5, 0.2

Trials = Iterable[Trial]


def main() -> None:
    out = sys.stdout.write
    out("machine              sd %  rounds   FAIL %   PASS %   NO VERDICT %   rounds: median, most\n")
    for name, of in MACHINES.items():
        for sd in QUIET_SD:
            for rounds in ROUNDS:
                rng = random.Random(f"{name}/{sd}/{rounds}")
                found = [of(sd, rounds, rng) for _ in range(RUNS)]
                shares = Counter(one.result for one in found)
                told = "".join(f"{100 * shares[key] / RUNS:9.2f}" for key in ("FAIL", "PASS", "NO VERDICT"))
                spent = [one.rounds for one in found]
                out(f"{name:20} {100 * sd:4.1f} {rounds:7} {told} {median(spent):18.0f} {max(spent):6}\n")
                sys.stdout.flush()
    out(f"\nnamed of {NAMED_RUNS}, %         4         8        16\n")
    for what, share in NAMED.items():
        out(f"{what:21}" + "".join(f"{share(nodes):10.1f}" for nodes in (4, 8, 16)) + "\n")


def _fixed(efficiency: float, sd: float, rounds: int, rng: random.Random) -> Trial:
    return decided(efficiency, leading.fixed(LINE), sd, rounds, rng)


def _same(sd: float, rounds: int, rng: random.Random) -> Trial:
    line: Side = referred(sd, LAUNCH_SD, 3, LINE, rng)
    return decided(exp(rng.gauss(0, LAUNCH_SD)), line, sd, rounds, rng)


MACHINES: dict[str, Callable[[float, int, random.Random], Trial]] = {
    "at the line": partial(_fixed, LINE),
    "1 point above": partial(_fixed, LINE + 0.01),
    "3 points above": partial(_fixed, LINE + 0.03),
    "3 % below": partial(_fixed, 0.97 * LINE),
    "A/A": _same,
}


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
        slow = rng.randrange(devices)
        rates = [
            DeviceRates(
                launch_rank=rank,
                host=f"node{rank}",
                device="cuda",
                name="GPU",
                matrix_flops_per_s=rng.lognormvariate(0, DEVICE_SD) * ((1 - SLOW_DEVICE) if rank == slow else 1.0),
            )
            for rank in range(devices)
        ]
        hits += [one.device.launch_rank for one in outliers(rates)] == [slow]
    return 100 * hits / NAMED_RUNS


NAMED: dict[str, Callable[[int], float]] = {
    "device slower by 10 %": slow_device,
    "link at half": partial(links, whole_node=False),
    "node's links at half": partial(links, whole_node=True),
    "node slower by 20 %": slow_node,
}


if __name__ == "__main__":
    main()
