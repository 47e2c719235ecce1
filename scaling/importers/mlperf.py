"""MLPerf's training logs: `:::MLLOG {json}`, and `:::MLL <time> key: {json}` of v0.6.

`tracked_stats` is no part of the rules: submitters log rates under it, of all devices. What a sample is goes by
the benchmark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from scaling.importers.found import Found, Given, Refused, Skipped, row, world_size
from scaling.importers.lines import CUT, LogLine
from scaling.records.imported import ImportedUnit

MARKS = (":::MLL",)
SURE = re.compile(r":::MLL(?:OG \{| [\d.]+ \w+: )")
_OLD = re.compile(r":::MLL [\d.]+ (\w+): (\{.*)$")
_RATES = ("throughput", "seq/sec", "seq_sec")
UNITS: Mapping[str, ImportedUnit] = {
    "resnet": "images", "ssd": "images", "maskrcnn": "images", "retinanet": "images", "unet3d": "images",
    "stable_diffusion": "images", "bert": "sequences", "gpt3": "sequences", "llama2_70b_lora": "sequences",
    "llama31_405b": "sequences", "llama31_8b": "sequences", "gnmt": "tokens", "transformer": "tokens",
    "rnnt": "samples", "dlrm": "samples", "dlrm_dcnv2": "samples", "minigo": "samples", "gnn": "samples",
}  # fmt: skip


def read(lines: Iterable[LogLine], given: Given) -> Found:
    """A row of the whole log. Raises Refused."""
    skipped, said, rates = Skipped(), dict[str, list[Any]](), list[float]()
    for line in lines:
        if ":::MLL" not in line.text:
            continue
        try:
            key, value = _event(line.text)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            skipped.add(line)
            continue
        if key != "tracked_stats":
            said.setdefault(key, []).append(value)
        elif isinstance(value, dict):
            rates += [float(value[name]) for name in _RATES if isinstance(value.get(name), int | float)]
    benchmarks = {str(one) for one in said.get("submission_benchmark", ())}
    if not rates:
        raise Refused("has no tracked_stats with a throughput")
    if len(benchmarks) != 1 or not benchmarks <= UNITS.keys():
        named = ", ".join(sorted(benchmarks)) or "none"
        raise Refused(f"is of no known benchmark ({named}): what a sample is cannot be told")
    benchmark = benchmarks.pop()
    later = rates[1:]
    if not later:
        raise Refused("has its first throughput alone, which holds the start")
    devices = world_size([], given)
    return Found(
        rows=(
            row(
                given,
                tool="mlperf",
                unit=UNITS[benchmark],
                rate=median(later),
                devices=devices,
                models=[benchmark],
                batches=_batches(said.get("global_batch_size", ()), devices),
                notes=("tracked_stats after the first",),
            ),
        ),
        notes=skipped.notes(),
    )


def _event(text: str) -> tuple[str, Any]:
    if (old := _OLD.search(text)) is not None:
        return old[1], json.loads(old[2].removesuffix(CUT)).get("value")
    found = json.loads(text[text.index(":::MLLOG ") + 9 :].removesuffix(CUT))
    return str(found["key"]), found.get("value")


def _batches(whole: Iterable[Any], devices: int) -> list[int]:
    """Of a device."""
    return sorted({one // devices for one in whole if isinstance(one, int) and one and one % devices == 0})
