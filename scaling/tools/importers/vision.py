"""Trainers of images: PyTorch's examples and torchvision, OpenMMLab, Detectron2, Ultralytics.

Most print seconds of a step of all devices, with the wait for data: steps/s, or samples/s if the batch is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from scaling.tools.importers.engine import Grammar, Value, of_bars, of_steps, unit_of_steps
from scaling.tools.importers.launch import SHIFT, Launch, Unfinished, form
from scaling.tools.importers.lines import LogLine

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
    launch.median(steps / seconds for seconds, steps in spans)
    seconds, steps = map(sum, zip(*spans, strict=True))
    return of_steps(launch, steps / seconds, "the mean of its epochs without their first lines")


IMAGENET = Grammar(
    name="pytorch_imagenet",
    unit=lambda launch: "samples" if launch.rates.get("rate") else unit_of_steps(launch), value=_of_means,
    lines=(
        form(
            "Epoch: [",
            r"Epoch: \[<epoch>\]\[ *<step>/\d+\]\s+Time +[\d.]+ \( *(?P<seconds>\d+\.\d{3})\)\s(?!\s*Speed)"
            r"(?:.*Loss <loss> \()?",
        ),
        form("Speed", r"Epoch: \[<epoch>\]\[ *<step>/\d+\]\s+Time +\S+ \( *\S+\)\s+Speed +<rate> \("),
        form(
            "Train: [",
            r"Train: \[<epoch>/\d+\]\[<step>/\d+\]\s+eta .*?\stime \S+ \((?P<seconds>\d+\.\d{4})\)\s"
            r"(?:.*\sloss <loss> \()?",
        ),
        form("Epoch: [", r"Epoch: \[\d+\]\[ *<origin>/\d+\]\s+Time +(\d+\.\d+) \( *\2\)"),
        form("model '", r"=> (?:creating|using pre-trained) model '(?P<model>[\w.-]+)'", begins=True),
    ),
)  # fmt: skip


# ---------------------------------------------------------------- torchvision's references
# MetricLogger of torchvision's references, also of DETR, DeiT, DINO and MAE: the mean of up to 20 steps of rank 0.
# In the first lines of an epoch it includes the first step.

_WINDOW = 20


def _windows(launch: Launch) -> Value:
    each = launch.rates["seconds"].values()
    steps = np.concatenate([np.frombuffer(one.places, np.int64) % SHIFT for one in each])
    if not (later := launch.pooled("seconds")[steps >= _WINDOW]).size:
        raise Unfinished(f"has only lines of the first {_WINDOW} steps of an epoch, whose means include the start")
    return of_steps(launch, 1 / launch.median(later), f"the mean of {_WINDOW} steps, without an epoch's first")


METRIC_LOGGER = Grammar(
    name="metric_logger",
    data="Epoch: [",
    no_data="Total time", value=_windows,
    lines=(
        form(
            " eta: ",
            r"Epoch: \[<epoch>(?:/\d+)?\]\s+\[ *<step>/\d+\]\s+eta: .*?(?:\sloss: <loss> .*)?"
            r"\btime: <seconds>\s+data: ",
        ),
        form("world_size=", r"\bworld_size=<world_size>[,)]"),
        form("distributed init", r"distributed init \(rank <_rank>\)", begins=True),
    ),
)  # fmt: skip


# ---------------------------------------------------------------- OpenMMLab
# mmdetection, mmsegmentation and mmpretrain with MMCV or MMEngine: the mean of a window.

MMENGINE = Grammar(
    name="mmengine", no_data="(val)",
    value=lambda launch: of_steps(
        launch,
        1 / launch.steady("seconds", "window", by_epoch=True),
        "the mean of a window; each epoch's first is left out",
    ),
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
)  # fmt: skip


# ---------------------------------------------------------------- Detectron2
# `time` is the mean of all steps since the third.


def _last(launch: Launch) -> Value:
    of_each = [rates.rates[-1] for rates in launch.rates["seconds"].values()]
    return of_steps(launch, 1 / of_each[-1], "the mean of all steps since the third")


DETECTRON2 = Grammar(
    name="detectron2", value=_last,
    lines=(
        form(
            "utils.events",
            r"utils\.events\b.*? eta: .* iter: <step> +total_loss: <loss> .*?(?<!_)time: <seconds> +"
            r"(?:last|data)_time: ",
        ),
        form("World size", r"World size: <world_size>\s*$", begins=True),
        form("IMS_PER_BATCH", r"^\s*IMS_PER_BATCH: <global_batch>\s*$"),
        form("Auto-scaling the config", r"Auto-scaling the config to batch_size=<global_batch>,"),
    ),
)  # fmt: skip


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
    name="ultralytics", said=(("it/s", "s/it"), _YOLO.pattern), words=("it/s", "s/it"), value=of_bars,
    sizes=lambda launch: [len(text.split(",")) for text in launch.texts("listed")], objects=_yolo,
    lines=(
        form("model=", r"\bmodel=(?P<model>[\w./-]+), ", begins=True),
        form("device=", r"\bdevice=(?P<listed>\d+(?:,\d+)*), "),
        # batch_size of the Namespace of YOLOv7 is of a device
        form("batch", r"(?:\bbatch|train: weights=.*\bbatch_size)=<global_batch>, "),
    ),
)  # fmt: skip
