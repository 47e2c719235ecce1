"""Hugging Face's Trainer: what it says at the end of a training, over all devices, its start included.

Before 4.7 `train_samples_per_second` counted steps (transformers#11818): without `train_steps_per_second` beside
it a log is refused. Newer versions print numbers as strings and break lines. Both rates divide what was planned by
the seconds of this start (its speed_metrics): they are too large where it was resumed or stopped early.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from scaling.tools.importers.found import (
    NUMBER,
    Found,
    Given,
    Refused,
    Skipped,
    batch_size,
    compiled,
    number,
    row,
    world_size,
)
from scaling.tools.importers.gathered import Rates
from scaling.tools.importers.lines import LogLine

MARKS = ("train_samples_per_second",)
SURE = re.compile(r"['\"]train_samples_per_second['\"]: |\btrain_samples_per_second +=")
_KEY = compiled(r"\btrain_(samples|steps)_per_second['\"]?\s*[:=]\s*['\"]?", NUMBER)
_HEAD = re.compile(
    r"(Instantaneous batch size per device|Gradient Accumulation steps"
    r"|Total train batch size \([^)]*\)) = (\d[\d,]{0,30})\s*$"
)
_PLAN = re.compile(r"(?:(Num Epochs) =|Continuing training from global step) (\d[\d,]{0,30})\s*$")
_EPOCH = compiled(r"(?:['\"]epoch['\"]:|^\s*epoch +=)\s*['\"]?", NUMBER)
_RUNTIME = compiled(r"['\"]train_runtime['\"]:\s*['\"]?", NUMBER)
_STEPS = re.compile(r"\| *(\d{1,12})/(\d{1,12}) \[")
# Below this share of what was planned a training was stopped early.
_DONE = 0.97
_MOST_EPOCHS = 1 << 31
# As far as nodes of one training are apart, each of which tells it by its own clock.
_ALIKE = 0.02
# Samples of a step as the two rates say them: the last batch of an epoch may be smaller.
_APART = 0.3


def read(lines: Iterable[LogLine], given: Given) -> Found:
    """A row of the whole log. Raises Refused."""
    skipped, rates, plan = Skipped(), {"samples": Rates(), "steps": Rates()}, _Plan()
    head: dict[str, list[int]] = {}
    for line in lines:
        plan.read(line.text)
        if "_per_second" in line.text:
            keys = list(_KEY.finditer(line.text))
            for key in keys:
                rates[key[1]].add(number(key[2]))
            if not keys and "train_" in line.text:
                skipped.add(line)
        elif (said := _HEAD.search(line.text)) is not None:
            values, value = head.setdefault(said[1].partition(" ")[0], []), int(said[2].replace(",", ""))
            if value not in values:
                values.append(value)
    if not rates["steps"]:
        raise Refused(
            "has no train_steps_per_second: before transformers 4.7 train_samples_per_second counted steps"
        )
    rate = _of_one(rates["samples"])
    devices = world_size(_devices(head), given)
    batch = batch_size(head.get("Instantaneous", ()), given)
    _audit(rate, rates["steps"].middle(), head)
    plan.audit(rates["steps"].middle())
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


def _of_one(rates: Rates) -> float:
    """What all nodes say of one training. Raises Refused of several."""
    rate = rates.middle()
    low, high = rates.ends
    if high > (1 + _ALIKE) * low:
        raise Refused(f"tells of several trainings, of {low:g} to {high:g} samples/s: split it by launch")
    return rate


class _Plan:
    """What was to be trained, and how far it came."""

    def __init__(self) -> None:
        self.start = self.epochs = 0
        self.epoch = self.runtime_s = 0.0
        self.bars: dict[int, int] = {}

    def read(self, text: str) -> None:
        """What a line says of it."""
        if (said := _PLAN.search(text)) is not None:
            value = int(said[2].replace(",", ""))
            if said[1]:
                self.epochs = value
            else:
                self.start = max(value, self.start)
        elif ("it/s" in text or "s/it" in text) and (bar := _STEPS.search(text)) is not None:
            self.bars[int(bar[2])] = max(int(bar[1]), self.bars.get(int(bar[2]), 0))
        if "epoch" in text and (epoch := _EPOCH.search(text)) is not None:
            self.epoch = number(epoch[1])
        if "train_runtime" in text and (seconds := _RUNTIME.search(text)) is not None:
            self.runtime_s = number(seconds[1])

    def audit(self, steps_per_s: float) -> None:
        """Raises Refused of a training that was resumed or stopped early."""
        if self.start:
            raise Refused(
                f"was resumed from global step {self.start}: its rates count the steps before it, too, "
                "over the seconds after it alone"
            )
        # Num Epochs is rounded up: with max_steps the last may be a part; without a length it is sys.maxsize.
        if self.epoch and self.epoch <= self.epochs - 1 < _MOST_EPOCHS:
            raise Refused(
                f"was stopped early, at epoch {self.epoch:g} of {self.epochs}: "
                "its rates count all steps that were planned"
            )
        planned = steps_per_s * self.runtime_s
        for total, done in self.bars.items():
            if abs(total - planned) <= 0.01 * total and done < _DONE * total:
                raise Refused(
                    f"was stopped early, at step {done} of {total}: its rates count all steps that were planned"
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
