"""NVIDIA's DLLogger (github.com/NVIDIA/dllogger): its file of `DLLL {json}` and its lines `DLL <time> - ...`.

`total_ips` counts all GPUs and the wait for data, `compute_ips` leaves the data out. Units stand in METADATA,
which may come after the data. `val.` is no training; steps come as words, with bars or as tuples.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from scaling.records.imported import ImportedUnit
from scaling.tools.importers.found import NUMBER, Found, Given, Refused, Skipped, compiled, number, row, world_size
from scaling.tools.importers.gathered import Rates
from scaling.tools.importers.lines import CUT, LogLine

MARKS = ("DLL",)
SURE = re.compile(r"^\s*DLLL \{|(?:^|\s)DLL \d{4}-\d\d-\d\d .*?- ")
_PLAIN = re.compile(r"(?:^|\s)DLL \d{4}-\d\d-\d\d [\d:.]+ - (.*)")
_METRIC = compiled(r"(?:^|[\s|])(?:train\.)?(total_ips|compute_ips) *: *", NUMBER, r"(?: +([A-Za-z]+/s\w*))?")
_STEPS = re.compile(r"\d+")
_UNITS: Mapping[str, ImportedUnit] = {
    "img": "images", "image": "images", "images": "images", "tokens": "tokens", "tok": "tokens",
    "sequences": "sequences", "seq": "sequences",
}  # fmt: skip
_DEVICES = ("world_size", "num_gpus", "ngpus", "gpus", "num_devices")
_BATCHES = ("local_batch_size", "batch_size_per_gpu", "per_gpu_batch_size")
_MODELS = ("arch", "model")
_SETTINGS = frozenset({*_DEVICES, *_BATCHES, *_MODELS})


class _Log:
    """What the lines say: rates by metric and number of words of a step, settings, units."""

    def __init__(self) -> None:
        self.rates: dict[str, dict[int, Rates]] = {}
        self.settings: dict[str, set[str]] = {}
        self.units: set[str] = set()

    def add(self, metric: str, step: tuple[int, ...], rate: float) -> None:
        """A rate of a step: (), an epoch, an epoch and an iteration."""
        self.rates.setdefault(metric, {}).setdefault(min(len(step), 2), Rates()).add(rate, *step)

    def set(self, name: str, value: object) -> None:
        """A setting that is looked for."""
        if name in _SETTINGS:
            self.settings.setdefault(name, set()).add(str(value))


def read(lines: Iterable[LogLine], given: Given) -> Found:
    """A row of the whole log. Raises Refused."""
    log, skipped = _Log(), Skipped()
    for line in lines:
        text = line.text
        if "DLLL {" in text:
            _object(line, log, skipped)
        elif (plain := _PLAIN.search(text)) is not None:
            _plain(plain[1], line, log, skipped)
        elif "_ips" in text:
            skipped.add(line)
    metric = "total_ips" if any(log.rates.get("total_ips", {}).values()) else "compute_ips"
    if not any(log.rates.get(metric, {}).values()):
        raise Refused("has no total_ips or compute_ips of a training")
    rate, notes = _steady(log.rates[metric])
    if metric == "compute_ips":
        notes.append("compute_ips: without the wait for data")
    units = {_UNITS.get(unit.partition("/")[0].lower(), "samples") for unit in log.units}
    if len(units) > 1:
        raise Refused(f"says several units: {', '.join(sorted(units))}")
    return Found(
        rows=(
            row(
                given,
                tool="dllogger",
                unit=units.pop() if units else "samples",
                rate=rate,
                devices=world_size(_integers(log, _DEVICES), given),
                models=_texts(log, _MODELS),
                batches=_integers(log, _BATCHES),
                notes=notes,
            ),
        ),
        notes=skipped.notes(),
    )


def _object(line: LogLine, log: _Log, skipped: Skipped) -> None:
    try:
        found = json.loads(line.text[line.text.index("DLLL {") + 5 :].removesuffix(CUT))
        data, step, kind = found.get("data") or {}, found.get("step"), found.get("type")
        if kind == "METADATA" and str(found.get("metric")).removeprefix("train.") in ("total_ips", "compute_ips"):
            log.units.add(str(found["metadata"].get("unit", "")))
        elif step == "PARAMETER":
            for name, value in data.items():
                log.set(str(name).rpartition(".")[2], value)
        else:
            for name, value in data.items():
                if str(name).removeprefix("train.") in ("total_ips", "compute_ips"):
                    numbers = step if isinstance(step, list) else [step]
                    log.add(name.removeprefix("train."), tuple(int(one) for one in numbers), float(value))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        skipped.add(line)


def _plain(said: str, line: LogLine, log: _Log, skipped: Skipped) -> None:
    if "PARAMETER" in said:
        for name, value in re.findall(r"(\w+) : (\S+)", said):
            log.set(name, value)
        return
    found = list(_METRIC.finditer(said))
    if not found and re.search(r"(?<!val\.)(?:total|compute)_ips", said):
        skipped.add(line)
    for metric in found:
        step = tuple(int(one) for one in _STEPS.findall(said[: metric.start()].partition("train.")[0])[:2])
        log.add(metric[1], step, number(metric[2]))
        if metric[3]:
            log.units.add(metric[3])


def _steady(by_depth: dict[int, Rates]) -> tuple[float, list[str]]:
    """The median of iterations after the first; where only epochs are told, of epochs after the first."""
    depth = max(depth for depth, rates in by_depth.items() if rates)
    rates, what = by_depth[depth], ("summary", "epoch", "iteration")[depth]
    if depth == 2 or rates.steps > 1:
        return rates.steady(what), [f"the median of {what}s after the first"]
    return rates.middle(), [f"of one {what}, the start included"]


def _integers(log: _Log, names: Iterable[str]) -> list[int]:
    return [int(text) for text in _texts(log, names) if text.isdigit() and int(text) > 0]


def _texts(log: _Log, names: Iterable[str]) -> list[str]:
    return [value for name in names for value in sorted(log.settings.get(name, ()))]
