"""MLPerf's training logs: `:::MLLOG {json}`, and `:::MLL <time> key: {json}` of v0.6.

`tracked_stats` is no part of the rules: submitters log rates under it, of all devices. What a sample is goes by
the benchmark: of gpt3 NVIDIA's logs count tokens (v3.1: 5154997.27, beside steps in tokens), of Llama 2 70B LoRA
sequences (384 samples in 199.4 s beside 1.9258), as AMD's of Llama 3.1 8B do (172,032 in 5,744 s beside 30.69).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from scaling.records.imported import ImportedUnit
from scaling.tools.importers.found import Found, Given, Refused, Skipped, row, world_size
from scaling.tools.importers.gathered import Rates
from scaling.tools.importers.lines import CUT, LogLine

MARKS = (":::MLL",)
SURE = re.compile(r":::MLL(?:OG \{| [\d.]+ \w+: )")
_OLD = re.compile(r":::MLL [\d.]+ (\w+): (\{.*)$")
_KEPT = ("submission_benchmark", "global_batch_size")
_RATES = ("throughput", "seq/sec", "seq_sec")
UNITS: Mapping[str, ImportedUnit] = {
    "resnet": "images", "ssd": "images", "maskrcnn": "images", "retinanet": "images", "unet3d": "images",
    "stable_diffusion": "images", "bert": "sequences", "gpt3": "tokens", "gnmt": "tokens", "transformer": "tokens",
    "rnnt": "samples", "dlrm": "samples", "dlrm_dcnv2": "samples", "minigo": "samples", "gnn": "samples",
    "llama2_70b_lora": "sequences", "llama31_8b": "sequences",
}  # fmt: skip
# Whether sequences or tokens are counted no log has shown.
_UNPROVEN = {"llama31_405b"}
# They log one throughput: the average of the whole training.
_WHOLE = {"dlrm", "dlrm_dcnv2"}


def read(lines: Iterable[LogLine], given: Given) -> Found:
    """A row of the whole log. Raises Refused."""
    skipped, said, rates = Skipped(), {name: set[Any]() for name in _KEPT}, Rates()
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
            for name in _RATES:
                if isinstance(value.get(name), int | float):
                    place += 1
                    rates.add(float(value[name]), place)
    if not rates:
        raise Refused("has no tracked_stats with a throughput")
    benchmark = _benchmark({str(one) for one in said["submission_benchmark"]})
    whole = benchmark in _WHOLE and rates.steps == 1
    devices, rate = world_size([], given), rates.middle() if whole else rates.steady("throughput")
    return Found(
        rows=(
            row(
                given,
                tool="mlperf",
                unit=UNITS[benchmark],
                rate=rate,
                devices=devices,
                models=[benchmark],
                batches=_batches(said["global_batch_size"], devices),
                notes=("of the whole training" if whole else "tracked_stats after the first",),
            ),
        ),
        notes=skipped.notes(),
    )


def _benchmark(named: set[str]) -> str:
    """The one whose unit is known. Raises Refused."""
    if named and named <= _UNPROVEN:
        names = ", ".join(sorted(named))
        raise Refused(f"is of {names}: whether its throughput counts sequences or tokens cannot be told")
    if len(named) != 1 or not named <= UNITS.keys():
        names = ", ".join(sorted(named)) or "none"
        raise Refused(f"is of no known benchmark ({names}): what a sample is cannot be told")
    return min(named)


def _event(text: str) -> tuple[str, Any]:
    if (old := _OLD.search(text)) is not None:
        return old[1], json.loads(old[2].removesuffix(CUT)).get("value")
    found = json.loads(text[text.index(":::MLLOG ") + 9 :].removesuffix(CUT))
    return str(found["key"]), found.get("value")


def _batches(whole: Iterable[Any], devices: int) -> list[int]:
    """Of a device."""
    return sorted({one // devices for one in whole if isinstance(one, int) and one and one % devices == 0})
