"""Importers for suites of benchmarks: HPE's DLBS, MLPerf, NVIDIA's DLLogger."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from scaling.records.run import ImportedUnit
from scaling.tools.importers.lines import CUT, LogLine
from scaling.tools.importers.logs import (
    NUMBER,
    Found,
    Given,
    Rates,
    Refused,
    Skipped,
    Tool,
    compiled,
    number,
    row,
    world_size,
)

# ---------------------------------------------------------------- DLBS
# HPE's Deep Learning Benchmarking Suite prints `__key__=json`; the last value counts. The throughput is the
# effective batch over the mean time of local rank 0, cut to an integer. `results.time` is in ms.


_SURE_DLBS = re.compile(r"^[ \t]*__(?:results|exp)\.\w+__[ \t]*=")
_DLBS_PAIR = re.compile(r"^[ \t]*__(results|exp)\.(\w+)__[ \t]*=[ \t]*(.*)$")
_DLBS_KEPT = frozenset(
    f"exp.{name}"
    for name in ("phase", "status", "model", "dtype", "gpus", "num_nodes", "replica_batch", "effective_batch")
) | {"results.throughput", "results.time"}
_APART = 0.02


def _read_dlbs(lines: Iterable[LogLine], given: Given) -> Found:
    skipped, said = Skipped(), dict[str, Any]()
    for line in lines:
        if "__" not in line.text or (pair := _DLBS_PAIR.match(line.text)) is None:
            if "__results." in line.text:
                skipped.add(line)
            continue
        if f"{pair[1]}.{pair[2]}" not in _DLBS_KEPT:
            continue
        try:
            if CUT in pair[3] and not pair[3].endswith(f'"{CUT}'):
                raise ValueError
            said[f"{pair[1]}.{pair[2]}"] = json.loads(pair[3].removesuffix(CUT))
        except (ValueError, RecursionError):
            skipped.add(line)
    if str(said.get("exp.phase", "training")) != "training":
        raise Refused(f"is of phase {said['exp.phase']}: nothing was trained")
    rate = _positive(said.get("results.throughput"))
    if not rate:
        raise Refused(f"has no results.throughput (status {said.get('exp.status', 'unknown')})")
    devices = world_size(_dlbs_devices(said), given)
    _audit(rate, said)
    replica = int(_positive(said.get("exp.replica_batch")))
    return skipped.found(
        row(
            given,
            tool="dlbs",
            unit="images",
            rate=rate,
            devices=devices,
            models=[str(said.get("exp.model", ""))],
            batches=[replica] if replica else [],
            precisions=[str(said.get("exp.dtype", ""))],
            notes=("cut to an integer by the tool",) if rate == int(rate) else (),
        )
    )


def _positive(value: Any) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError):
        return 0.0
    return found if 0 < found < float("inf") else 0.0


def _dlbs_devices(said: dict[str, Any]) -> list[int]:
    effective, replica = _positive(said.get("exp.effective_batch")), _positive(said.get("exp.replica_batch"))
    if effective and replica:
        if effective % replica:
            raise Refused(f"contradicts itself: a batch of {effective:g} in all with {replica:g} per replica")
        return [int(effective / replica)]
    gpus = str(said.get("exp.gpus", ""))
    if not gpus or _positive(said.get("exp.num_nodes", 1)) > 1:
        return []
    return [len([one for one in gpus.split(",") if one.strip()])]


def _audit(rate: float, said: dict[str, Any]) -> None:
    time_ms, effective = _positive(said.get("results.time")), _positive(said.get("exp.effective_batch"))
    if time_ms and effective and abs(1000 * effective / time_ms - rate) > max(1.0, _APART * rate):
        raise Refused(f"contradicts itself: a throughput of {rate:g}, but {effective:g} samples in {time_ms:g} ms")


DLBS = Tool(("__results.throughput__", "__results.time__", "__exp."), _SURE_DLBS, _read_dlbs)


# ---------------------------------------------------------------- MLPerf
# `:::MLLOG {json}`, in v0.6 `:::MLL <time> key: {json}`. Submitters log rates of all devices in `tracked_stats`,
# which the rules do not define. Samples of gpt3 are tokens (NVIDIA v3.1: 5154997.27), of llama2_70b_lora sequences
# (384 in 199.4 s, logged as 1.9258), of llama31_8b sequences (AMD: 172,032 in 5,744 s, logged as 30.69).


_SURE_MLPERF = re.compile(r":::MLL(?:OG \{| [\d.]+ \w+: )")
_OLD = re.compile(r":::MLL [\d.]+ (\w+): (\{.*)$")
_MLPERF_KEPT = ("submission_benchmark", "global_batch_size")
_MLPERF_RATES = ("throughput", "seq/sec", "seq_sec")
_BENCHMARK_UNITS: Mapping[str, ImportedUnit] = {
    "resnet": "images", "ssd": "images", "maskrcnn": "images", "retinanet": "images", "unet3d": "images",
    "stable_diffusion": "images", "bert": "sequences", "gpt3": "tokens", "gnmt": "tokens", "transformer": "tokens",
    "rnnt": "samples", "dlrm": "samples", "dlrm_dcnv2": "samples", "minigo": "samples", "gnn": "samples",
    "llama2_70b_lora": "sequences", "llama31_8b": "sequences",
}  # fmt: skip
# no log shows whether it counts sequences or tokens
_UNPROVEN = {"llama31_405b"}
# one throughput, the average of the whole training
_WHOLE = {"dlrm", "dlrm_dcnv2"}


def _read_mlperf(lines: Iterable[LogLine], given: Given) -> Found:
    skipped, said, rates = Skipped(), {name: set[Any]() for name in _MLPERF_KEPT}, Rates()
    place = 0
    for line in lines:
        if ":::MLL" not in line.text:
            continue
        try:
            key, value = _event(line.text)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            skipped.add(line)
            continue
        if key in said and isinstance(value, str | int):
            said[key].add(value)
        elif key == "tracked_stats" and isinstance(value, dict):
            for name in _MLPERF_RATES:
                if isinstance(value.get(name), int | float):
                    place += 1
                    rates.add(float(value[name]), place)
    if not rates:
        raise Refused("has no tracked_stats with a throughput")
    benchmark = _benchmark({str(one) for one in said["submission_benchmark"]})
    whole = benchmark in _WHOLE and rates.steps == 1
    devices, rate = world_size([], given), rates.middle() if whole else rates.steady("throughput")
    return skipped.found(
        row(
            given,
            tool="mlperf",
            unit=_BENCHMARK_UNITS[benchmark],
            rate=rate,
            devices=devices,
            models=[benchmark],
            batches=_mlperf_batches(said["global_batch_size"], devices),
            notes=("of the whole training" if whole else "tracked_stats after the first",),
        )
    )


def _benchmark(named: set[str]) -> str:
    if named and named <= _UNPROVEN:
        names = ", ".join(sorted(named))
        raise Refused(f"is of {names}: whether its throughput counts sequences or tokens is unknown")
    if len(named) != 1 or not named <= _BENCHMARK_UNITS.keys():
        names = ", ".join(sorted(named)) or "none"
        raise Refused(f"is of no known benchmark ({names}): what a sample is is unknown")
    return min(named)


def _event(text: str) -> tuple[str, Any]:
    if (old := _OLD.search(text)) is not None:
        return old[1], json.loads(old[2].removesuffix(CUT)).get("value")
    found = json.loads(text[text.index(":::MLLOG ") + 9 :].removesuffix(CUT))
    return str(found["key"]), found.get("value")


def _mlperf_batches(whole: Iterable[Any], devices: int) -> list[int]:
    return sorted({one // devices for one in whole if isinstance(one, int) and one and one % devices == 0})


MLPERF = Tool((":::MLL",), _SURE_MLPERF, _read_mlperf)


# ---------------------------------------------------------------- DLLogger
# NVIDIA's DLLogger (github.com/NVIDIA/dllogger) writes `DLLL {json}` or `DLL <time> - ...`. `total_ips` counts all
# GPUs, `compute_ips` excludes the wait for data. METADATA has the units and may follow the data. `val.` is not
# training.

_SURE_DLLOGGER = re.compile(r"^\s*DLLL \{|(?:^|\s)DLL \d{4}-\d\d-\d\d .*?- ")
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
    def __init__(self) -> None:
        self.rates: dict[str, dict[int, Rates]] = {}
        self.settings: dict[str, set[str]] = {}
        self.units: set[str] = set()

    def add(self, metric: str, step: tuple[int, ...], rate: float) -> None:
        """Add a rate. `step` is (), an epoch, or an epoch and an iteration."""
        self.rates.setdefault(metric, {}).setdefault(min(len(step), 2), Rates()).add(rate, *step)

    def set(self, name: str, value: object) -> None:
        if name in _SETTINGS:
            self.settings.setdefault(name, set()).add(str(value))


def _read_dllogger(lines: Iterable[LogLine], given: Given) -> Found:
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
    return skipped.found(
        row(
            given,
            tool="dllogger",
            unit=units.pop() if units else "samples",
            rate=rate,
            devices=world_size(_integers(log, _DEVICES), given),
            models=_texts(log, _MODELS),
            batches=_integers(log, _BATCHES),
            notes=notes,
        )
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
    """The median of iterations after the first, else of epochs after the first."""
    depth = max(depth for depth, rates in by_depth.items() if rates)
    rates, what = by_depth[depth], ("summary", "epoch", "iteration")[depth]
    if depth == 2 or rates.steps > 1:
        return rates.steady(what), [f"the median of {what}s after the first"]
    return rates.middle(), [f"of one {what}, the start included"]


def _integers(log: _Log, names: Iterable[str]) -> list[int]:
    return [int(text) for text in _texts(log, names) if text.isdigit() and int(text) > 0]


def _texts(log: _Log, names: Iterable[str]) -> list[str]:
    return [value for name in names for value in sorted(log.settings.get(name, ()))]


DLLOGGER = Tool(("DLL",), _SURE_DLLOGGER, _read_dllogger)
