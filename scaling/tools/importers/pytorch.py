"""Importers for PyTorch trainers: Hugging Face's Trainer, Lightning, AWS' FSDP examples, torchtitan."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import prod
from statistics import median

from scaling.tools.importers.lines import LogLine
from scaling.tools.importers.logs import (
    NUMBER,
    Found,
    Given,
    Rates,
    Refused,
    Skipped,
    Tool,
    batch_size,
    compiled,
    number,
    row,
    world_size,
)

# ---------------------------------------------------------------- Hugging Face's Trainer
# It prints one rate of all devices, including the start. Before 4.7 `train_samples_per_second` counted steps
# (transformers#11818), so a log needs `train_steps_per_second`. Rates divide the planned work by this start's
# seconds (speed_metrics), so a resumed or stopped training is refused.


_SURE_HF = re.compile(r"['\"]train_samples_per_second['\"]: |\btrain_samples_per_second +=")
_PER_SECOND = compiled(r"\btrain_(samples|steps)_per_second['\"]?\s*[:=]\s*['\"]?", NUMBER)
_HF_HEAD = re.compile(
    r"(Instantaneous batch size per device|Gradient Accumulation steps"
    r"|Total train batch size \([^)]*\)) = (\d[\d,]{0,30})\s*$"
)
_PLAN = re.compile(r"(?:(Num Epochs) =|Continuing training from global step) (\d[\d,]{0,30})\s*$")
_EPOCH = compiled(r"(?:['\"]epoch['\"]:|^\s*epoch +=)\s*['\"]?", NUMBER)
_RUNTIME = compiled(r"['\"]train_runtime['\"]:\s*['\"]?", NUMBER)
_HF_STEPS = re.compile(r"\| *(\d{1,12})/(\d{1,12}) \[")
# below this share of the planned steps, a training was stopped early
_DONE = 0.97
_MOST_EPOCHS = 1 << 31
# largest relative difference between nodes of one training, because each uses its own clock
_ALIKE = 0.02
# tolerance for samples per step from the two rates: an epoch's last batch may be smaller
_APART = 0.3


def _read_hf_trainer(lines: Iterable[LogLine], given: Given) -> Found:
    skipped, rates, plan = Skipped(), {"samples": Rates(), "steps": Rates()}, _Plan()
    head: dict[str, list[int]] = {}
    for line in lines:
        plan.read(line.text)
        if "_per_second" in line.text:
            keys = list(_PER_SECOND.finditer(line.text))
            for key in keys:
                rates[key[1]].add(number(key[2]))
            if not keys and "train_" in line.text:
                skipped.add(line)
        elif (said := _HF_HEAD.search(line.text)) is not None:
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
    return skipped.found(
        row(
            given,
            tool="hf_trainer",
            unit="samples",
            rate=rate,
            devices=devices,
            batches=[batch] if batch else [],
            notes=("of the whole training, its start included",),
        )
    )


def _of_one(rates: Rates) -> float:
    rate = rates.middle()
    low, high = rates.ends
    if high > (1 + _ALIKE) * low:
        raise Refused(f"has several trainings, of {low:g} to {high:g} samples/s: split it by launch")
    return rate


class _Plan:
    def __init__(self) -> None:
        self.start = self.epochs = 0
        self.epoch = self.runtime_s = 0.0
        self.bars: dict[int, int] = {}

    def read(self, text: str) -> None:
        if (said := _PLAN.search(text)) is not None:
            value = int(said[2].replace(",", ""))
            if said[1]:
                self.epochs = value
            else:
                self.start = max(value, self.start)
        elif ("it/s" in text or "s/it" in text) and (bar := _HF_STEPS.search(text)) is not None:
            self.bars[int(bar[2])] = max(int(bar[1]), self.bars.get(int(bar[2]), 0))
        if "epoch" in text and (epoch := _EPOCH.search(text)) is not None:
            self.epoch = number(epoch[1])
        if "train_runtime" in text and (seconds := _RUNTIME.search(text)) is not None:
            self.runtime_s = number(seconds[1])

    def audit(self, steps_per_s: float) -> None:
        """Check the plan. Raises Refused for a training that was resumed or stopped early."""
        if self.start:
            raise Refused(
                f"was resumed from global step {self.start}: its rates count the steps before it, too, "
                "over the seconds after it alone"
            )
        # Num Epochs is rounded up for a partial last epoch; without a length it is sys.maxsize.
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


HF_TRAINER = Tool(("train_samples_per_second",), _SURE_HF, _read_hf_trainer)


# ---------------------------------------------------------------- Lightning
# Its bar counts steps; `--batch-size` of a device turns them into samples. ThroughputMonitor prints the stage in
# front of `device/samples_per_sec` and `samples_per_sec` (`train|`). A bar's seconds include validation, so the
# first rate of a count is used, and none after a validation's bar.


_SURE_LIGHTNING = re.compile(
    r"(?:Epoch \d+|Training[^:|]*): +\d+%\|.*\| *\d+/\d+ \[[^\]]*(?:it/s|s/it)"
    r"|(?<!train_)\bdevice[^\w\s]samples_per_sec['\"]?\s*[:=]"
)
_BAR = re.compile(
    r"(?:Epoch (\d{1,9})|Training[^:|]*): +\d+%\|.*?\| *(\d{1,12})/(\d{1,12}) "
    r"\[[^,\]]*, *(\d+(?:\.\d+)?)(it/s|s/it)"
)
_TRAINS = re.compile(r"Epoch (\d{1,9})|Training")
_VALIDATES = re.compile(r"(?:^|\s)Validat(?:ing|ion)(?: DataLoader \d+)?: ")
# The stage and `device` precede the key, with separators that users choose.
_BEFORE = r"[^\s'\"{}()\[\],]"
_MONITOR = compiled(rf"(?<!{_BEFORE})({_BEFORE}{{0,200}}?)samples_per_sec['\"]?\s*[:=]\s*['\"]?", NUMBER)
_WORLD = re.compile(r"Starting with (\d+) processes|MEMBER: \d+/(\d+)(?![\d\u2026])")


def _read_lightning(lines: Iterable[LogLine], given: Given) -> Found:
    skipped, sizes = Skipped(), set[int]()
    bars, rates, place = _Bars(), {True: Rates(), False: Rates()}, 0
    for line in lines:
        text = line.text
        if "samples_per_sec" in text:
            found = list(_MONITOR.finditer(text))
            place += 1
            for one in found:
                stage, device = _prefix(one[1])
                if stage in ("", "train"):
                    rates[device].add(number(one[2]), place)
            if not found:
                skipped.add(line)
        elif "it/s" in text or "s/it" in text:
            bars.read(line, skipped)
        elif (size := _WORLD.search(text)) is not None:
            sizes.add(int(size[1] or size[2]))
    if rates[True] or rates[False]:
        return _monitored(rates, sizes, given, skipped)
    return _counted(bars.rates, sizes, given, skipped)


def _prefix(text: str) -> tuple[str, bool]:
    words = re.findall(r"\w+", text)
    device = words[-1:] == ["device"]
    return "|".join(words[:-1] if device else words), device


class _Bars:
    """By epoch: the first rate at the largest count before its validation."""

    def __init__(self) -> None:
        self.rates: dict[int, float] = {}
        self._done: dict[int, int] = {}
        self._validated: set[int] = set()
        self._epoch: int | None = None

    def read(self, line: LogLine, skipped: Skipped) -> None:
        if (trains := _TRAINS.search(line.text)) is not None:
            self._epoch = int(trains[1] or 0)
            bar = _BAR.search(line.text)
            if bar is not None:
                self._add(int(bar[1] or 0), int(bar[2]), number(bar[4]), bar[5] == "it/s")
            elif "?it/s" not in line.text and "?s/it" not in line.text:
                skipped.add(line)
        elif self._epoch is not None and _VALIDATES.search(line.text):
            self._validated.add(self._epoch)

    def _add(self, epoch: int, done: int, value: float, per_s: bool) -> None:
        if not done or not value:
            return
        if epoch in self._validated:
            if epoch not in self.rates:
                raise Refused(f"says no rate of epoch {epoch} before its validation, whose seconds are in the bar")
        elif done > self._done.get(epoch, 0):
            self._done[epoch], self.rates[epoch] = done, value if per_s else 1 / value


def _counted(bars: dict[int, float], sizes: set[int], given: Given, skipped: Skipped) -> Found:
    if not bars:
        raise Refused("has no whole bar of an epoch with its rate")
    epochs = sorted(bars)
    later = epochs[1:] or epochs
    steps = median(bars[epoch] for epoch in later)
    devices = world_size(sizes, given)
    left_out = "the first epoch left out" if len(epochs) > 1 else "its start included"
    notes = [f"the last rate of each epoch's bar before a validation, {left_out}"]
    if not given.batch_size:
        notes.append("steps/s: --batch-size N makes samples of them")
    rate = steps * given.batch_size * devices if given.batch_size else steps
    one = row(
        given,
        tool="lightning",
        unit="samples" if given.batch_size else "steps",
        rate=rate,
        devices=devices,
        notes=notes,
    )
    return skipped.found(one)


def _monitored(rates: dict[bool, Rates], sizes: set[int], given: Given, skipped: Skipped) -> Found:
    both = {key: of.steady("window") for key, of in rates.items() if of}
    said = {*sizes, *([round(both[False] / both[True])] if len(both) == 2 else [])}
    devices = world_size(said, given)
    rate = both[False] if False in both else devices * both[True]
    notes = ("the first window is left out",)
    one = row(given, tool="lightning", unit="samples", rate=rate, devices=devices, notes=notes)
    return skipped.found(one)


LIGHTNING = Tool(("it/s", "s/it", "samples_per_sec"), _SURE_LIGHTNING, _read_lightning)


# ---------------------------------------------------------------- AWS
# `Speed` of rank 0 in AWS' examples of FSDP and SageMaker libraries (awslabs/awsome-distributed-training) is the
# speed of all devices: input.shape[0] x the data-parallel size. Some variants count their own samples: `--speed-of
# worker`.


_SURE_AWS = re.compile(r"Batch:? \d+,? Loss: \S+, Speed: \S+ samples/sec")
_SPEED = compiled(r"Batch:? (\d+),? Loss: (\S+), Speed: *", NUMBER, " samples/sec")


def _read_aws_fsdp(lines: Iterable[LogLine], given: Given) -> Found:
    skipped, speeds, diverged = Skipped(), Rates(), False
    for line in lines:
        if "samples/sec" not in line.text or "Running Avg" in line.text:
            continue
        if (found := _SPEED.search(line.text)) is None:
            skipped.add(line)
            continue
        speeds.add(number(found[3]), int(found[1]))
        diverged |= found[2].lower() in ("nan", "inf")
    if not speeds:
        raise Refused("has no whole line with a speed")
    devices, speed = world_size([], given), speeds.steady("line")
    own = given.speed_of == "worker"
    one = row(
        given,
        tool="aws_fsdp",
        unit="samples",
        rate=None if diverged else speed * (devices if own else 1),
        devices=devices,
        failed="the loss is no number" if diverged else "",
        notes=(
            f"one worker's own speed x {devices}" if own else "the speed of all, as rank 0 counts it",
            "the first line is left out",
        ),
    )
    return skipped.found(one)


AWS_FSDP = Tool(("samples/sec",), _SURE_AWS, _read_aws_fsdp)


# ---------------------------------------------------------------- torchtitan
# github.com/pytorch/torchtitan prints `tps`, tokens/s of one device. Ranks may repeat a step, so they are not
# added.

_SURE_TORCHTITAN = re.compile(r"step: *\d+ .*loss: *\S+ .*tps: *[\d,]+")
_STEP = compiled(r"step: *(\d+) .*?loss: *(\S+) .*?tps: *", NUMBER)
_MESH = re.compile(r"[Bb]uilding \d+-D device mesh with [\[(][^\])]*[\])], \[([\d, ]*)\](?:\s|$)")
_PARALLEL = re.compile(r"[Bb]uilding device mesh with parallelism: (.*)")
_DEGREES = re.compile(r"\b(pp|dp_replicate|dp_shard|cp|tp)=(-?\d+)")
_BATCH = re.compile(r"local batch size:? (\d+)")
_MODEL = re.compile(r"Model (\S+ \S+) size: ")


def _read_torchtitan(lines: Iterable[LogLine], given: Given) -> Found:
    skipped, steps, diverged = Skipped(), Rates(), False
    sizes, batches, models = set[int](), set[int](), set[str]()
    for line in lines:
        text = line.text
        if "tps:" in text:
            if "validate step" in text:
                continue
            if (step := _STEP.search(text)) is None:
                skipped.add(line)
            else:
                steps.add(number(step[3]), int(step[1]))
                diverged |= step[2].lower().strip(",") in ("nan", "inf")
        elif "device mesh" in text:
            sizes |= _size(text)
        elif (batch := _BATCH.search(text)) is not None:
            batches.add(int(batch[1]))
        elif (model := _MODEL.search(text)) is not None:
            models.add(model[1])
    if not steps:
        raise Refused("has no whole line with a step and its tps")
    devices = world_size(sizes, given)
    return skipped.found(
        row(
            given,
            tool="torchtitan",
            unit="tokens",
            rate=None if diverged else devices * steps.steady("step"),
            devices=devices,
            models=models,
            batches=batches,
            failed="the loss is no number" if diverged else "",
            notes=("tps of one device x devices; the first step that was logged is left out",),
        )
    )


def _size(text: str) -> set[int]:
    """Devices of a mesh, in older and newer formats; none if a degree is -1 (all that remain)."""
    if (mesh := _MESH.search(text)) is not None:
        return {prod(int(one) for one in mesh[1].split(",") if one.strip())}
    if (parallel := _PARALLEL.search(text)) is not None and (degrees := _DEGREES.findall(parallel[1])):
        sizes = [int(size) for _, size in degrees]
        return {prod(sizes)} if min(sizes) > 0 else set()
    return set()


TORCHTITAN = Tool(("tps:",), _SURE_TORCHTITAN, _read_torchtitan)
