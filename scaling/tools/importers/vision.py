"""Trainers of images: PyTorch's examples and torchvision, OpenMMLab, Detectron2, PaddlePaddle, Ultralytics, Keras.

Most print seconds of a step of all devices, with the wait for data: steps/s, or samples/s if the batch is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from scaling.records.run import ImportedUnit
from scaling.tools.importers.engine import (
    SHIFT,
    Grammar,
    Launch,
    Unfinished,
    Value,
    Values,
    form,
    of_bars,
    of_device,
    of_steps,
    unit_of_steps,
)
from scaling.tools.importers.lines import LogLine
from scaling.tools.importers.logs import Refused
from scaling.tools.importers.tensorflow import mirrored

# of a number without decimals: it rounds by 5 %
_LEAST_DIGITS = 10


def _per_line(what: str, *notes: str, by_epoch: bool = False) -> Values:
    """`<seconds>` of a step, the median after the first `what`, or after that of each epoch."""
    return lambda launch: of_steps(launch, 1 / launch.steady("seconds", what, by_epoch), *notes)


# ---------------------------------------------------------------- examples/imagenet
# imagenet of github.com/pytorch/examples and its many copies: seconds of one step, and in parentheses their mean
# since the epoch began. A step may hide the wait for data, so means of two lines are subtracted. Later versions
# count from 1. Swin Transformer has other words. Copies of Apex and DALI print `Speed` of all devices over the
# mean of a window.

_HALF, _MOST_ROUNDING = 0.0005, 0.05


def _spans(launch: Launch) -> Iterator[tuple[float, int]]:
    """Seconds and steps of each epoch after its first line."""
    origin = launch.integers("origin")
    first = 0 if 1 in origin and 0 not in origin else 1
    for rates in list(launch.rates["seconds"].values())[:1]:
        counts = np.frombuffer(rates.places, np.int64) % SHIFT + first
        for _, start, end in rates.epochs():
            steps = int(counts[end - 1] - counts[start])
            ends_s = rates.all()[[start, end - 1]] * counts[[start, end - 1]]
            if steps and _HALF * (counts[start] + counts[end - 1]) <= _MOST_ROUNDING * (ends_s[1] - ends_s[0]):
                yield float(ends_s[1] - ends_s[0]), steps


def _of_means(launch: Launch) -> Value:
    if launch.rates.get("rate"):
        return launch.steady("rate", "line", by_epoch=True), ("Speed of all devices",)
    spans = list(_spans(launch))
    if not spans:
        raise Unfinished("has no two lines of an epoch whose means have enough digits")
    seconds, steps = map(sum, zip(*spans, strict=True))
    return of_steps(launch, steps / seconds, "the mean of its epochs without their first lines")


def _of_speed(launch: Launch) -> list[int]:
    """Speed x Time of a line, if their digits leave one batch."""
    seconds, speed = (float(launch.last.get(name, "0")) for name in ("_now_s", "_speed"))
    batch = seconds * speed / launch.devices
    is_sure = 2 * _HALF * batch < 0.5 * seconds and abs(batch - round(batch)) < 0.25
    return [round(batch)] if is_sure and batch > 0.5 else []


IMAGENET = Grammar(
    name="pytorch_imagenet",
    marks=("Epoch: [", "Train: ["),
    sure=r"Epoch: \[\d+\]\[ *\d+/\d+\]\s+Time +[\d.]+ \( *[\d.]+\)"
    r"|Train: \[\d+/\d+\]\[\d+/\d+\]\s+eta .*\stime [\d.]+ \([\d.]+\)",
    unit=lambda launch: "samples" if launch.rates.get("rate") else unit_of_steps(launch),
    value=_of_means,
    batches=_of_speed,
    lines=(
        form(
            "Epoch: [",
            r"Epoch: \[<epoch>\]\[ *<step>/\d+\]\s+Time +[\d.]+ \( *(?P<seconds>\d+\.\d{3})\)\s(?!\s*Speed)"
            r"(?:.*Loss <loss> \()?",
        ),
        form(
            "Speed",
            r"Epoch: \[<epoch>\]\[ *<step>/\d+\]\s+Time +<_now_s> \( *\S+\)\s+Speed +(?=<_speed>)<rate> \(",
        ),
        form(
            "Train: [",
            r"Train: \[<epoch>/\d+\]\[<step>/\d+\]\s+eta .*?\stime \S+ \((?P<seconds>\d+\.\d{4})\)\s"
            r"(?:.*\sloss <loss> \()?",
        ),
        form("Epoch: [", r"Epoch: \[\d+\]\[ *<origin>/\d+\]\s+Time +(\d+\.\d+) \( *\2\)"),
        form("model '", r"=> (?:creating|using pre-trained) model '(?P<model>[\w.-]+)'", begins=True),
    ),
)


# ---------------------------------------------------------------- torchvision's references
# MetricLogger of torchvision's references, also of DETR, DeiT, DINO and MAE: the mean of up to 20 steps of rank 0.
# In the first lines of an epoch it includes the first step.

_WINDOW = 20


def _windows(launch: Launch) -> Value:
    each = launch.rates["seconds"].values()
    steps = np.concatenate([np.frombuffer(one.places, np.int64) % SHIFT for one in each])
    if not (later := launch.pooled("seconds")[steps >= _WINDOW]).size:
        raise Unfinished(f"has only lines of the first {_WINDOW} steps of an epoch, whose means include the start")
    return of_steps(launch, 1 / float(np.median(later)), f"the mean of {_WINDOW} steps, without an epoch's first")


METRIC_LOGGER = Grammar(
    name="metric_logger",
    marks=(" eta: ",),
    sure=r"Epoch: \[\d+(?:/\d+)?\]\s+\[ *\d+/\d+\]\s+eta: .*\btime: [\d.]+\s+data: ",
    unit=unit_of_steps,
    data="Epoch: [",
    no_data="Total time",
    value=_windows,
    lines=(
        form(
            " eta: ",
            r"Epoch: \[<epoch>(?:/\d+)?\]\s+\[ *<step>/\d+\]\s+eta: .*?(?:\sloss: <loss> .*)?"
            r"\btime: <seconds>\s+data: ",
        ),
        form("world_size=", r"\bworld_size=<world_size>[,)]"),
        form("distributed init", r"distributed init \(rank <_rank>\)", begins=True),
    ),
)


# ---------------------------------------------------------------- OpenMMLab
# mmdetection, mmsegmentation and mmpretrain with MMCV or MMEngine: the mean of a window.

MMENGINE = Grammar(
    name="mmengine",
    marks=("data_time: ",),
    sure=r"(?:Epoch|Iter)(?:\(train\))? +\[[^\]]*\].*\btime: [\d.]+,? +data_time: ",
    unit=unit_of_steps,
    data="data_time: ",
    no_data="(val)",
    value=_per_line("window", "the mean of a window; each epoch's first is left out", by_epoch=True),
    lines=(
        form(
            "data_time: ",
            r"(?:Epoch(?:\(train\))? +\[<epoch>\]|Iter(?:\(train\))? +)\[ *<step>/\d+\].*?"
            r"\btime: <seconds>,? +data_time: (?:.*\bloss: <loss>)?",
        ),
        form("GPU number", r"GPU number: <world_size>\s*$"),
        # of data; those of its val and test are further in
        form("samples_per_gpu", r"^(?:data = dict\(|    )samples_per_gpu=<batch_size>,"),
        form("Environment info", r"- Environment info:", begins=True),
    ),
)


# ---------------------------------------------------------------- Detectron2
# `time` is the mean of all steps since the third.


def _last(launch: Launch) -> Value:
    of_each = [rates.rates[-1] for rates in launch.rates["seconds"].values()]
    return of_steps(launch, 1 / of_each[-1], "the mean of all steps since the third")


DETECTRON2 = Grammar(
    name="detectron2",
    marks=("d2.utils.events",),
    sure=r"d2\.utils\.events\]: +eta: .* iter: \d+ .*\btime: [\d.]+ ",
    unit=unit_of_steps,
    value=_last,
    lines=(
        form(
            "d2.utils.events",
            r"\]: +eta: .* iter: <step> +total_loss: <loss> .*?(?<!_)time: <seconds> +(?:last|data)_time: ",
        ),
        form("World size", r"World size: <world_size>\s*$", begins=True),
        form("IMS_PER_BATCH", r"^\s*IMS_PER_BATCH: <global_batch>\s*$"),
        form("Auto-scaling the config", r"Auto-scaling the config to batch_size=<global_batch>,"),
    ),
)


# ---------------------------------------------------------------- PaddlePaddle
# PaddleClas, PaddleSeg, PaddleOCR and PaddleDetection print `ips` of one card: its batch over batch_cost. Static
# graphs before 2021 may count all cards of a process; their lines, without commas, are not read.

_PLACES = (
    r"\[Train\]\[Epoch <epoch>/\d+\]\[Iter: *<step>/\d+\]",
    r"\[TRAIN\]\s+epoch: <epoch>, iter: <step>/\d+,",
    r"epoch: ?\[<epoch>/\d+\], (?:iter|global_step): <step>,",
    r"epoch:<epoch> *, train step:<step> *,",
    r"Epoch: \[<epoch>\] \[ *<step>/\d+\]",
)
_COST = r".*batch_cost: *(?P<seconds>\d+\.\d+) ?s?, .*ips: *"
# the unit is missing in PaddleOCR until 2.4
_IPS = r"(?P<device_rate>\d+\.\d{4,5}(?= (?:images|samples)/s)|\d+\.\d{5}(?=\s*$))"


def _of_cost(launch: Launch) -> list[int]:
    batch = launch.steady("device_rate", "line", by_epoch=True) * launch.steady("seconds", "line", by_epoch=True)
    return [round(batch)] if abs(batch - round(batch)) < 0.02 * batch else []


PADDLE = Grammar(
    name="paddle",
    marks=("ips: ",),
    sure=r"[Ee]poch.*batch_cost: [\d.]+.*ips: [\d.]+",
    unit="samples",
    data="\0",
    value=of_device("line", "ips of one card x cards; each epoch's first line is left out", by_epoch=True),
    batches=_of_cost,
    lines=tuple(form("ips: ", place + _COST + _IPS) for place in _PLACES),
)


# ---------------------------------------------------------------- Ultralytics
# YOLO's bars of a training: steps/s of all devices. Later versions draw `━━ 8/8 1.5it/s 5.3s`. `batch` is of all.

_YOLO = re.compile(
    r"^\s*(\d+)/\d+ +[\d.]+G? .* \d+: +\d+% ?(?:\|.*?\| *(\d+)/\d+ \[[^,\]]*, *|\S* +(\d+)/\d+ +)"
    r"(\d+(?:\.\d+)?)(it/s|s/it)(?=[\s,\]])"
)


def _yolo(line: LogLine, _: Launch) -> Iterator[Mapping[str, Any]]:
    if "%" in line.text and (bar := _YOLO.search(line.text)) is not None and float(bar[4]):
        rate = float(bar[4]) if bar[5] == "it/s" else 1 / float(bar[4])
        yield {"epoch": bar[1], "step": bar[2] or bar[3], "bar_rate": rate}


ULTRALYTICS = Grammar(
    name="ultralytics",
    marks=("it/s", "s/it"),
    sure=_YOLO.pattern,
    unit=unit_of_steps,
    value=of_bars,
    sizes=lambda launch: [len(text.split(",")) for text in launch.texts("listed")],
    objects=_yolo,
    lines=(
        form("model=", r"\bmodel=(?P<model>[\w./-]+), ", begins=True),
        form("device=", r"\bdevice=(?P<listed>\d+(?:,\d+)*), "),
        # batch_size of the Namespace of YOLOv7 is of a device
        form("batch", r"(?:\bbatch|train: weights=.*\bbatch_size)=<global_batch>, "),
    ),
)


# ---------------------------------------------------------------- Keras
# Bars of model.fit: seconds of an epoch, or ms of a step if they have more digits. They include validation, so a
# bar with its results is no rate. A bar without a line `Epoch 1/3` before it evaluates. Before TensorFlow 2 bars
# may count samples; a bar at an odd number, one without an arrow or one of Keras 3 counts steps.

_FIT = re.compile(
    r"(?<!\d)(\d+)/\1 (?:\[=+\] - |(\u2501+ |- ))(\d+)s (?:.*?- )?(\d+)(s|ms|us|\u00b5s)/(?:step|(sample))(?:\s|$)"
)
_ODD = re.compile(r"(?<!\d)\d*[13579]/\d+ \[=*>\.+\]")
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "\u00b5s": 1e-6}


def _fit(line: LogLine, launch: Launch) -> Iterator[Mapping[str, Any]]:
    text = line.text
    if "Epoch " in text and (epoch := re.search(r"^\s*Epoch (\d+)/\d+\s*$", text)) is not None:
        yield {"_epoch": epoch[1], "begins": epoch[1] == "1"}
    elif ">." in text and _ODD.search(text) is not None:
        yield {"counts": "steps"}
    elif "/s" in text and (bar := _FIT.search(text)) is not None and (now := launch.last.get("_epoch")):
        if launch.last.get("_length", bar[1]) != bar[1]:
            raise ValueError  # an evaluation, after an epoch whose bar is missing
        whole, each = int(bar[3]), int(bar[4])
        if "val_" not in text and max(whole, each) >= _LEAST_DIGITS:
            yield {"step": now, "seconds": whole / int(bar[1]) if whole > each else each * _SECONDS[bar[5]]}
        is_listed = bar[6] or bar[1] in launch.texts("train_samples")
        yield {"_epoch": "", "_length": bar[1], "counts": "samples" if is_listed else "steps" if bar[2] else None}
    yield from mirrored(line, launch)


def _of_fit(launch: Launch) -> Value:
    per_s, note = 1 / launch.steady("seconds", "epoch"), "the first epoch is left out"
    counted = launch.texts("counts")
    if "samples" in counted:
        return per_s, (note,)
    if launch.given.batch_size and not counted:
        raise Refused("does not tell whether its bars count steps or samples, as some before TensorFlow 2")
    return of_steps(launch, per_s, note)


def _counted(launch: Launch) -> ImportedUnit:
    return "samples" if "samples" in launch.texts("counts") else unit_of_steps(launch)


KERAS = Grammar(
    name="keras",
    marks=("/step", "/sample"),
    sure=_FIT.pattern,
    unit=_counted,
    value=_of_fit,
    objects=_fit,
    lacks="has no epoch of model.fit without validation, whose seconds are in its bar",
    lines=(form("Train on", r"^\s*Train on <train_samples> samples", begins=True),),
)
