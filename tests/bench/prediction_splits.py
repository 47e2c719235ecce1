"""Errors of predictions by bus, generation of device and step length. Each publisher counts once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from tests.bench.prediction_errors import KNOWN, Errors, Miss, errors
from tests.bench.published import Series

# The first pattern that a device's name matches; the years are those of its launch.
GENERATIONS = {
    "K80 to P100 (2014 to 2016)": r"k80|k520|m60|p100|gtx|titan x",
    "V100, RTX 2080 Ti (2017, 2018)": r"v100|2080|t4\b",
    "A100, RTX 3090, MI250X (2020, 2021)": r"a100|3090|mi250",
    "H100, RTX 4090, B200 (2022 to 2024)": r"h100|h200|4090|ada|b200|mi300",
}
STEPS_S = {"below 50 ms": 0.05, "50 to 200 ms": 0.2, "0.2 to 1 s": 1.0, "above 1 s": float("inf")}

HEADING = (
    "| known | of | points | publishers | median, points | naive rule | 80 % covers |\n"
    "| --- | --- | --: | --: | --: | --: | --: |"
)


def generation(device: str) -> str:
    found = (name for name, pattern in GENERATIONS.items() if re.search(pattern, device.lower()))
    return next(found, "other or not stated")


def step(series: Series) -> str:
    return next(name for name, below_s in STEPS_S.items() if series.setting.step_s < below_s)


def split_table(found: Sequence[Miss], judged: Iterable[Series], devices: Mapping[str, str]) -> str:
    """Write a line for each task and part that has points; `devices` is a series' device."""
    series = {one.name: one for one in judged}
    splits: tuple[tuple[Callable[[Series], str], Sequence[str]], ...] = (
        (lambda one: str(one.setting.bus), sorted({str(one.setting.bus) for one in series.values()})),
        (lambda one: generation(devices[one.name]), [*GENERATIONS, "other or not stated"]),
        (step, list(STEPS_S)),
    )
    lines = [HEADING]
    for task, known in KNOWN.items():
        for of, parts in splits:
            for part in parts:
                ours = [miss for miss in found if miss.task == task and of(series[miss.series]) == part]
                lines += _line(known, part, ours, series)
    return "\n".join(lines)


def single_nodes(found: Sequence[Miss], modern: Iterable[Series]) -> str:
    """Write the errors of C at points inside a node of these series, together and by publisher."""
    series = {one.name: one for one in modern}
    inside = {
        (one.name, seen.at.world_size) for one in series.values() for seen in one.observed if seen.at.nodes == 1
    }
    ours = [miss for miss in found if miss.task == "C" and (miss.series, miss.world_size) in inside]
    by_publisher: dict[str, list[Miss]] = {}
    for miss in ours:
        by_publisher.setdefault(series[miss.series].publisher, []).append(miss)
    parts = {"all": ours, **by_publisher} if ours else {}
    return "\n".join(f"single nodes, cold, {name}: {_said(errors(own, 'C', 'AB'))}" for name, own in parts.items())


def _said(one: Errors) -> str:
    return (
        f"{one.points} points, {one.median:.1f} / {one.p90:.1f}, naive rule {one.naive_median:.1f} / "
        f"{one.naive_p90:.1f}, 80 % covers {one.coverage:.0f} %"
    )


def _line(known: str, part: str, ours: Sequence[Miss], series: Mapping[str, Series]) -> list[str]:
    publishers = sorted({series[miss.series].publisher for miss in ours})
    each = [_errors(ours, publisher, series) for publisher in publishers]
    if not each:
        return []
    middle, naive, covers = (
        float(np.mean([getattr(one, name) for one in each])) for name in ("median", "naive_median", "coverage")
    )
    return [
        f"| {known} | {part} | {len(ours)} | {len(publishers)} | {middle:.1f} | {naive:.1f} | {covers:.0f} % |"
    ]


def _errors(ours: Sequence[Miss], publisher: str, series: Mapping[str, Series]) -> Errors:
    own = [miss for miss in ours if series[miss.series].publisher == publisher]
    return errors(own, own[0].task, "AB")
