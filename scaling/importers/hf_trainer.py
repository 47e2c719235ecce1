"""Hugging Face's Trainer: what it says at the end of a training, over all devices, its start included.

Before 4.7 `train_samples_per_second` counted steps (transformers#11818): without `train_steps_per_second` beside
it a log is refused. Newer versions print numbers as strings and break lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from scaling.importers.found import (
    NUMBER,
    Found,
    Given,
    Refused,
    Skipped,
    batch_size,
    compiled,
    middle,
    number,
    row,
    world_size,
)
from scaling.importers.lines import LogLine

MARKS = ("train_samples_per_second",)
SURE = re.compile(r"['\"]train_samples_per_second['\"]: |\btrain_samples_per_second +=")
_KEY = compiled(r"\btrain_(samples|steps)_per_second['\"]?\s*[:=]\s*['\"]?", NUMBER)
_HEAD = re.compile(
    r"(Instantaneous batch size per device|Gradient Accumulation steps"
    r"|Total train batch size \([^)]*\)) = ([\d,]+)\s*$"
)
# Samples of a step as the two rates say them: the last batch of an epoch may be smaller.
_APART = 0.3


def read(lines: Iterable[LogLine], given: Given) -> Found:
    """A row of the whole log. Raises Refused."""
    skipped, rates, head = Skipped(), {"samples": list[float](), "steps": list[float]()}, dict[str, list[int]]()
    for line in lines:
        if "_per_second" in line.text:
            keys = list(_KEY.finditer(line.text))
            for key in keys:
                rates[key[1]].append(number(key[2]))
            if not keys and "train_" in line.text:
                skipped.add(line)
        elif (said := _HEAD.search(line.text)) is not None:
            head.setdefault(said[1].partition(" ")[0], []).append(int(said[2].replace(",", "")))
    if not rates["steps"]:
        raise Refused(
            "has no train_steps_per_second: before transformers 4.7 train_samples_per_second counted steps"
        )
    rate = middle(rates["samples"])
    devices = world_size(_devices(head), given)
    batch = batch_size(head.get("Instantaneous", ()), given)
    _audit(rate, middle(rates["steps"]), head)
    return Found(
        rows=(
            row(
                given,
                tool="hf_trainer",
                unit="samples",
                rate=rate,
                devices=devices,
                batches=[batch] if batch else [],
                notes=("of the whole training, its start included",),
            ),
        ),
        notes=skipped.notes(),
    )


def _devices(head: dict[str, list[int]]) -> list[int]:
    """The batch of all over that of a device and its accumulation."""
    if not head.keys() >= {"Total", "Instantaneous", "Gradient"}:
        return []
    each = head["Instantaneous"][0] * head["Gradient"][0]
    return [total // each for total in head["Total"] if each and total % each == 0]


def _audit(rate: float, steps_per_s: float, head: dict[str, list[int]]) -> None:
    total = head.get("Total", [0])[0]
    if not total or steps_per_s < 0.1:  # too few digits
        return
    if not (1 - _APART) * total <= rate / steps_per_s <= (1 + _APART) * total:
        raise Refused(
            f"contradicts itself: {rate:g} samples/s and {steps_per_s:g} steps/s with a batch of {total} in all"
        )
