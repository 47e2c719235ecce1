"""Logs of suites of benchmarks: MLPerf, NVIDIA's DLLogger."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from scaling.records.run import ImportedUnit
from scaling.tools.importers.engine import Grammar, Value
from scaling.tools.importers.launch import Launch, Unfinished
from scaling.tools.importers.lines import CUT, LogLine
from scaling.tools.importers.logs import NUMBER, Refused, compiled

# ---------------------------------------------------------------- MLPerf
# `:::MLLOG {json}`, in v0.6 `:::MLL <time> key: {json}`. Submitters log rates of all devices in `tracked_stats`,
# which the rules do not define. Samples of gpt3 are tokens (NVIDIA v3.1: 5154997.27), of llama2_70b_lora sequences
# (384 in 199.4 s, logged as 1.9258), of llama31_8b sequences (AMD: 172,032 in 5,744 s, logged as 30.69) and of
# llama31_405b (CoreWeave, v5.0: a batch of 1152 in 8.6313 s, logged as 133.468). A rate after `run_stop` is the
# average of the whole training. NVIDIA's RetinaNet counts one device in v4.0 (GigaComputing: 1,170,432 images in
# 541 s on 8 devices, logged as 287.1) and all in v5.0: `--speed-of` says which.

_OLD = re.compile(r":::MLL (\d+)\.\d+ (\w+): (\{.*)$")
_MLPERF_FACTS = {
    "submission_benchmark": "benchmark",
    "global_batch_size": "global_batch",
    "number_of_ranks": "world_size",
}
_MLPERF_RATES = ("throughput", "seq/sec", "seq_sec")
_BENCHMARK_UNITS: Mapping[str, ImportedUnit] = {
    "resnet": "images", "ssd": "images", "maskrcnn": "images", "retinanet": "images", "unet3d": "images",
    "stable_diffusion": "images", "bert": "sequences", "gpt3": "tokens", "gnmt": "tokens", "transformer": "tokens",
    "rnnt": "samples", "dlrm": "samples", "dlrm_dcnv2": "samples", "minigo": "samples", "gnn": "samples",
    "llama2_70b_lora": "sequences", "llama31_8b": "sequences", "llama31_405b": "sequences",
}  # fmt: skip
# one throughput, the average of the whole training
_WHOLE = {"dlrm", "dlrm_dcnv2"}


def _event(line: LogLine, launch: Launch) -> Iterator[Mapping[str, Any]]:
    text = line.text
    if ":::MLL" not in text:
        return
    if (old := _OLD.search(text)) is not None:
        time, key, value = old[1], old[2], json.loads(old[3].removesuffix(CUT)).get("value")
    else:
        found = json.loads(text[text.index(":::MLLOG ") + 9 :].removesuffix(CUT))
        time, key, value = found.get("time_ms"), str(found["key"]), found.get("value")
    if key in _MLPERF_FACTS and isinstance(value, str | int):
        yield {_MLPERF_FACTS[key]: value, "begins": key == "submission_benchmark"}
    elif key == "run_stop":
        yield {"_stopped": "yes"}
    elif key == "tracked_stats" and isinstance(value, dict):
        name = "whole_total" if "_stopped" in launch.last else "rate"
        yield from (
            {"step": time, name: value[of]} for of in _MLPERF_RATES if isinstance(value.get(of), int | float)
        )


def _tracked(launch: Launch) -> Value:
    benchmark, rates = _benchmark(launch), launch.pooled("rate")
    if len(rates) > 1:
        rate, notes = launch.steady("rate", "throughput"), ("tracked_stats after the first",)
        if benchmark in ("ssd", "retinanet") and not launch.given.speed_of:
            raise Refused("does not tell whether its throughput is of one device or of all: say --speed-of")
        if launch.given.speed_of == "worker":
            return rate * launch.devices, (*notes, f"one device's own rate x {launch.devices}")
        return rate, notes
    if launch.rates.get("whole_total"):
        return launch.middle("whole_total"), ("of the whole training",)
    if benchmark in _WHOLE and len(rates):
        return float(rates[0]), ("of the whole training",)
    return launch.steady("rate", "throughput"), ()


def _benchmark(launch: Launch) -> str:
    named = set(launch.texts("benchmark"))
    names = ", ".join(sorted(named)) or "none"
    if len(named) != 1 or not named <= _BENCHMARK_UNITS.keys():
        raise Refused(f"is of no known benchmark ({names}): what a sample is is unknown")
    return min(named)


MLPERF = Grammar(
    name="mlperf",
    said=((":::MLL",), r":::MLL(?:OG \{| [\d.]+ \w+: )"),
    unit=lambda launch: _BENCHMARK_UNITS[_benchmark(launch)],
    value=_tracked,
    objects=_event,
    models=lambda launch: launch.texts("benchmark"),
    lacks="has no tracked_stats with a throughput",
)


# ---------------------------------------------------------------- DLLogger
# NVIDIA's DLLogger (github.com/NVIDIA/dllogger) writes `DLLL {json}` or `DLL <time> - ...`, maybe behind a bar.
# METRICS and the items or frames of FastPitch and HiFi-GAN count all GPUs; `compute_ips` excludes the wait for
# data. METADATA has the units and may follow the data. `val.` is not training.

_DLL = r"(?:^|[\s\]])DLL \d{4}-\d\d-\d\d "
_PLAIN = re.compile(rf"{_DLL}[\d:.]+ - (.*)")
# `Epoch: 0 Iteration: 1`, `(0, 1)`, `epoch    1 | iter   1/19`
_STEP = re.compile(r"(?:(?:[A-Z][a-z]+ ?)+: \d+ *)+(?! *:)|\([\d, ]*\)|epoch +\d+ \|(?: iter +\d+)?")
# METRICS, with the unit that they have without METADATA
_METRICS = {
    "total_ips": "", "compute_ips": "", "items_per_sec": "items/s", "throughput_train": "",
    "training_sequences_per_second": "seq/s", "perf_fps": "img/s",
}  # fmt: skip
_METRIC = compiled(
    rf"(?:^|[\s|])(?:train[._])?({'|'.join(_METRICS)}) *: *",
    NUMBER,
    r"(?: +([A-Za-z]+/s\w*)| *$| +\|| {2,}| (?=\w+ : ))",
)
_SPOKEN = compiled(r"(\|) +", NUMBER, r" (items/s|frames/s) \|")
# by the number of parts of a step
_DEPTHS = ("summary", "epoch", "iteration")
_UNITS: Mapping[str, ImportedUnit] = {
    "img": "images", "image": "images", "images": "images", "tokens": "tokens", "tok": "tokens",
    "sequences": "sequences", "seq": "sequences",
}  # fmt: skip
_SETTINGS = {
    **dict.fromkeys(("world_size", "num_gpus", "ngpus", "gpus", "num_devices"), "world_size"),
    **dict.fromkeys(("local_batch_size", "batch_size_per_gpu", "per_gpu_batch_size"), "batch_size"),
    "global_batch_size": "global_batch", **dict.fromkeys(("arch", "model"), "model"),
    "precision": "precision", "amp": "amp", "mode": "mode",
}  # fmt: skip


def _logged(line: LogLine, _: Launch) -> Iterator[Mapping[str, Any]]:
    text = line.text
    if "DLLL {" in text:
        yield from _object(json.loads(text[text.index("DLLL {") + 5 :].removesuffix(CUT)))
    elif (plain := _PLAIN.search(text)) is not None:
        yield from _plain(plain[1])
    elif "_ips" in text:
        raise ValueError


def _object(found: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    data, step = found.get("data") or {}, found.get("step")
    if found.get("type") == "METADATA":
        if str(found.get("metric")).removeprefix("train.") in _METRICS:
            yield {"unit": found["metadata"].get("unit", "")}
    elif step == "PARAMETER":
        yield from _settings(data.items())
    else:
        for name, value in data.items():
            if (metric := re.sub(r"^train[._]", "", str(name))) in _METRICS:
                steps: list[Any] = step if isinstance(step, list) else [step]
                yield _at(metric, list(map(int, steps)), float(value))


def _plain(said: str) -> Iterator[Mapping[str, Any]]:
    if "PARAMETER" in said:
        yield from _settings(re.findall(r"(\w+) : (\S+)(?= )", f"{said} "))
        return
    found = [*_METRIC.finditer(said), *(() if " val" in said else _SPOKEN.finditer(said))]
    if not found and re.search(r"(?<!val\.)(?:total|compute)_ips", said):
        raise ValueError
    step = re.findall(r"\d+", head[0])[:2] if (head := _STEP.match(said)) is not None else []
    for metric in found:
        unit = metric[3] or _METRICS.get(metric[1])
        yield {**_at(metric[1], list(map(int, step)), metric[2]), "unit": unit or None}


def _at(metric: str, step: list[int], rate: object) -> dict[str, Any]:
    depth = min(len(step), 2)
    at = dict(zip(("epoch", "step"), [*step, 0], strict=False)) if step else {}
    return {**at, f"{'compute_' * (metric == 'compute_ips')}{_DEPTHS[depth]}_rate": rate}


def _settings(said: Iterable[tuple[object, object]]) -> Iterator[Mapping[str, Any]]:
    for name, value in said:
        if (fact := _SETTINGS.get(str(name).rpartition(".")[2])) == "amp":
            yield {"precision": "amp" if str(value).lower() == "true" else None}
        elif fact == "mode":
            if re.search(r"infer|predict|eval", str(value)) and "train" not in str(value):
                raise Refused(f"is of mode {value}: nothing was trained")
        elif fact is not None:
            yield {fact: value, "begins": True}


def _ips(launch: Launch) -> Value:
    """The median of iterations after the first, else of epochs after the first, else the summary."""
    counted = [unit for unit in launch.texts("unit") if unit and _unit_of(unit) == "samples"]
    own = tuple(f"a sample is one of its {unit.partition('/')[0]}" for unit in counted)
    for prefix, notes in (("", own), ("compute_", ("compute_ips: without the wait for data", *own))):
        for what in reversed(_DEPTHS):
            metric = f"{prefix}{what}_rate"
            if (count := len(launch.pooled(metric))) and what != "summary" and (count > 1 or what == "iteration"):
                return launch.steady(metric, what), (f"the median of {what}s after the first", *notes)
            if count:
                return launch.middle(metric), (f"of one {what}, the start included", *notes)
    raise Unfinished(_NO_IPS)


def _unit_of(text: str) -> ImportedUnit:
    return _UNITS.get(text.partition("/")[0].lower(), "samples")


def _unit(launch: Launch) -> ImportedUnit:
    units = set(map(_unit_of, launch.texts("unit")))
    if len(units) > 1:
        raise Refused(f"says several units: {', '.join(sorted(units))}")
    return units.pop() if units else "samples"


_NO_IPS = "has no rate of a training (total_ips, items_per_sec, throughput_train, training_sequences_per_second)"

DLLOGGER = Grammar(
    name="dllogger",
    said=(("DLL",), rf"^\s*DLLL \{{|{_DLL}.*?- "),
    unit=_unit,
    value=_ips,
    objects=_logged,
    lacks=_NO_IPS,
)
