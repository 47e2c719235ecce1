"""How far predictions of published series miss: the tasks, the naive rules beside them, and a table of errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import log
from typing import NamedTuple

import numpy as np

from scaling.tools.predict.model import class_of, fit, predict
from scaling.tools.predict.setting import Measured, Priors, Setting
from tests.bench.published import Series

# What data sheets say of a bus: PCIe 3.0 x16, six links of NVLink 2 (and of an NVSwitch).
BUS_BYTES_PER_S = {"pcie": 15.75e9, "nvlink": 150e9, "nvswitch": 150e9}
# Task, trust: ceilings of the median and the 90th percentile of the error, in points of efficiency.
CEILINGS = {
    ("E2", "A"): (1.5, 5.0), ("E2", "AB"): (2.0, 10.0),
    ("E1", "A"): (3.0, 8.0), ("E1", "AB"): (3.5, 14.0),
    ("C", "A"): (3.5, 11.0), ("C", "AB"): (4.5, 15.0),
}  # fmt: skip
COVERAGE = (75.0, 92.0)
# how far above an efficiency is for one that is as far below: losses that no equation has are more frequent
UP = {"cold": 0.6, "hard": 0.6, "one": 0.6, "two": 1.0}


class Miss(NamedTuple):
    """One predicted point: efficiencies relative to the first point of its series, and what a naive rule says."""

    task: str
    trust: str
    series: str
    world_size: int
    published: float
    predicted: float
    low: float
    high: float
    naive: float
    deviation: float = 0.0
    kind: str = ""

    @property
    def score(self) -> float:
        return log(self.published / self.predicted) / self.deviation


Task = tuple[str, tuple[Measured, ...], tuple[Measured, ...]]


class Errors(NamedTuple):
    """Of one task: points of efficiency and per cent."""

    points: int
    median: float
    p90: float
    naive_median: float
    naive_p90: float
    coverage: float
    half_width: float


def tasks(series: Series) -> list[Task]:
    """What is known and what is asked: C one device, E1 up to one full node, E2 up to two nodes."""
    seen = series.observed
    found: list[Task] = []
    inside, beyond = (tuple(one for one in seen if (one.at.nodes > 1) == several) for several in (False, True))
    two, more = (tuple(one for one in seen if (one.at.nodes > 2) == several) for several in (False, True))
    if series.setting.anchor.world_size == 1:
        found.append(("C", (), seen))
    if series.setting.anchor.nodes == 1 and beyond:
        found.append(("E1", inside, beyond))
    if more and any(one.at.nodes == 2 for one in two):
        found.append(("E2", two, more))
    return found


def misses(series: Series, priors: Priors) -> list[Miss]:
    """Predict what every task asks of one series."""
    found = []
    for task, known, asked in tasks(series):
        model = fit(series.setting, known, priors)
        for one in asked:
            naive = _data_sheet(series.setting, one) if task == "C" else known[-1].efficiency if known else 1.0
            middle, low, high, deviation, *_ = predict(model, one.at)
            said = (middle, low, high, naive, deviation, class_of(model, one.at))
            found.append(Miss(task, series.trust, series.name, one.at.world_size, one.efficiency, *said))
    return found


def quantiles(found: Sequence[Miss], whose: Mapping[str, str]) -> dict[str, tuple[float, float]]:
    """Return factors on the standard deviation, below and above, by what was known: 80 % of the points are inside
    (conformal). A publisher counts once, with fewer than ten points less."""
    return {kind: _quantile([one for one in found if one.kind == kind], whose, UP[kind]) for kind in UP}


def _quantile(found: Sequence[Miss], whose: Mapping[str, str], up: float) -> tuple[float, float]:
    counts = Counter(whose[one.series] for one in found)
    scores = sorted((max(-one.score, one.score / up), 1 / max(10, counts[whose[one.series]])) for one in found)
    reached = np.cumsum([weight for _, weight in scores])
    factor = scores[int(np.searchsorted(reached, 0.8 * reached[-1]))][0]
    return factor, up * factor


def _data_sheet(setting: Setting, one: Measured) -> float:
    """One device and a ring at the rates of the data sheet, nothing hidden (Paleo's idea, ICLR 2017)."""
    size, at, bus = setting.gradient_bytes, one.at, BUS_BYTES_PER_S[setting.bus]
    line = setting.line_bytes_per_s or bus
    rate = bus if at.nodes == 1 else line if at.devices_per_node == 1 else min(bus, line)
    step_s = at.accumulation * setting.step_s
    return step_s / (step_s + 2 * (at.world_size - 1) / at.world_size * size / rate)


def errors(found: Iterable[Miss], task: str, trust: str) -> Errors:
    """Of the points of one task, of series whose trust is in `trust`."""
    ours = [miss for miss in found if miss.task == task and miss.trust in trust]
    off = np.array([100 * abs(miss.predicted - miss.published) for miss in ours])
    naive = np.array([100 * abs(miss.naive - miss.published) for miss in ours])
    inside = [miss.low <= miss.published <= miss.high for miss in ours]
    return Errors(
        points=len(ours),
        median=float(np.median(off)),
        p90=float(np.percentile(off, 90)),
        naive_median=float(np.median(naive)),
        naive_p90=float(np.percentile(naive, 90)),
        coverage=100 * float(np.mean(inside)),
        half_width=50 * float(np.median([miss.high - miss.low for miss in ours])),
    )


def verdict(task: str, trust: str, found: Errors) -> str:
    """`reached`, or what was not and by how much."""
    median, p90 = CEILINGS[task, trust]
    missed = [
        f"{what} {value:.1f} above {most:g}"
        for what, value, most in (("median", found.median, median), ("90th", found.p90, p90))
        if value > most
    ]
    if not COVERAGE[0] <= found.coverage <= COVERAGE[1]:
        missed.append(f"coverage {found.coverage:.0f} outside {COVERAGE[0]:g} to {COVERAGE[1]:g}")
    if found.median >= found.naive_median or found.p90 >= found.naive_p90:
        missed.append("no better than the naive rule")
    return f"MISSED: {', '.join(missed)}" if missed else "reached"


HEADING = (
    "| known | trust | points | median / 90th, points | naive rule | 80 % covers | half width | bar |\n"
    "| --- | --- | --: | --: | --: | --: | --: | --- |"
)
KNOWN = {"C": "C: one device, data sheet", "E1": "E1: up to one full node", "E2": "E2: up to two nodes"}


def table(found: Sequence[Miss]) -> str:
    lines = [HEADING]
    for (task, trust), (median, p90) in CEILINGS.items():
        if not any(miss.task == task and miss.trust in trust for miss in found):
            continue
        one = errors(found, task, trust)
        who = "A" if trust == "A" else "A and B"
        lines.append(
            f"| {KNOWN[task]} | {who} | {one.points} | {one.median:.1f} / {one.p90:.1f} "
            f"| {one.naive_median:.1f} / {one.naive_p90:.1f} | {one.coverage:.0f} % | ± {one.half_width:.1f} "
            f"| {median:g} / {p90:g}: {verdict(task, trust, one)} |"
        )
    return "\n".join(lines)


def of_each(found: Sequence[Miss], whose: Mapping[str, str]) -> str:
    """A line for each task: how publishers differ, of which each counts as one; `whose` is a series' publisher."""
    lines = []
    for task, known in KNOWN.items():
        own = {name: [miss for miss in found if miss.task == task and whose[miss.series] == name]
               for name in sorted(set(whose.values()))}  # fmt: skip
        told = {name: errors(misses_, task, "AB") for name, misses_ in own.items() if misses_}
        if told:
            lines.append(f"{known}: {_range(told)}")
    return "\n".join(lines)


def _range(told: Mapping[str, Errors]) -> str:
    covers = {name: one.coverage for name, one in told.items()}
    least, most = min(covers, key=lambda name: covers[name]), max(covers.values())
    worst = max(told, key=lambda name: told[name].median)
    return (
        f"80 % covers {float(np.mean(list(covers.values()))):.0f} % in the mean over {len(told)} publishers, "
        f"{covers[least]:.0f} % ({least}) to {most:.0f} %; worst median {told[worst].median:.1f} points ({worst}; "
        f"naive rule {told[worst].naive_median:.1f})"
    )
