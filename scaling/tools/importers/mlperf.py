"""MLPerf's logs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from scaling.records.run import ImportedUnit
from scaling.tools.importers.engine import Grammar, Value
from scaling.tools.importers.launch import Launch
from scaling.tools.importers.lines import CUT, LogLine
from scaling.tools.importers.logs import Refused

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
