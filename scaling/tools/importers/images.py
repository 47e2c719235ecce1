"""Benchmarks and trainers of images: Horovod's synthetic ones (also of PyTorch), tf_cnn_benchmarks, PyTorch's
examples and torchvision, OpenMMLab, Detectron2, Ultralytics.

Most trainers print seconds of a step of all devices, with the wait for data: steps/s, or samples/s if the batch is
known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from scaling.tools.importers.engine import Grammar, Value, of_bars, of_steps, sizes, unit_of_steps
from scaling.tools.importers.launch import SHIFT, Launch, Unfinished, form
from scaling.tools.importers.lines import LogLine
from scaling.tools.importers.logs import APART, Refused

# ---------------------------------------------------------------- Horovod
# Its examples, and programs with the same output. Only rank 0 prints: the total is its rate times the ranks.
# ` +-` is the spread of windows within one launch, so it gives no interval. The Keras variant prints its warm-up.

_LACKS = "has no whole line `Total img/sec on N GPU(s): ... +-...`: it was broken off"
_OF_ALL = "the total is rank 0's rate times the number of ranks"
_OF_ONE = "one rank of PyTorch's example runs without Horovod's hooks: its rate flatters one device"
# rounding to one decimal; a larger relative difference is a contradiction
_ROUNDING, _APART = 0.06, 0.01


def _of_ranks(launch: Launch) -> Value:
    if not launch.rates.get("total"):
        raise Unfinished(_LACKS)
    launch.median(launch.pooled("rate"))
    return launch.middle("total", _APART), (_OF_ALL if launch.devices > 1 else _OF_ONE,)


def _is_its_mean(launch: Launch, total: float) -> None:
    """The total must be N times the mean of the iterations, maybe without the warm-up."""
    devices, each = launch.devices, total / launch.devices
    one = launch.pooled("device_rate")
    if one.size and all(abs(devices * one - total) > _ROUNDING * (devices + 1)):
        raise Refused(f"contradicts itself: {devices} x {one[0]:g} is not {total:g}")
    for rates in launch.rates.get("rate", {}).values():
        means = [part.mean() for part in (rates.all(), rates.later()) if part.size]
        if all(abs(mean - each) > _ROUNDING + _APART * each for mean in means):
            raise Refused(
                f"contradicts itself: its iterations are {means[0]:.1f} img/sec, a device's mean {each:.1f}"
            )


HOROVOD = Grammar(
    name="horovod", unit="images", data="mg/sec", lacks=_LACKS, value=_of_ranks, checks=(_is_its_mean,),
    lines=(
        form("Total img/sec", r"Total img/sec on <world_size> (?P<device_kind>\w+)\(s\): *<total> *\+- *\d"),
        form("Img/sec per", r"Img/sec per \w+: *<device_rate> *\+- *\d"),
        form("Iter #", r"Iter #<step>: *<rate> *img/sec per \w"),
        form("Model: ", r"(?:^|[\s:])Model: *<model>\s*$", begins=True),
        form("Batch size: ", r"(?:^|[\s:])Batch size: *<batch_size>\s*$", begins=True),
        form("Number of ", r"(?:^|[\s:])Number of \w+: *<world_size>\s*$", begins=True),
    ),
)  # fmt: skip


# ---------------------------------------------------------------- tf_cnn_benchmarks
# github.com/tensorflow/benchmarks: every process prints the total of the job, so totals are not added. A step's
# rate is the process's, or the job's in later versions with Horovod. Each worker's log names its task under
# Devices.


def _total(launch: Launch) -> Value:
    if not launch.rates.get("total"):
        raise Unfinished("has no whole line `total images/sec: ...`: it was broken off")
    launch.median(launch.pooled("rate"))
    return launch.middle("total"), ()


def _sizes(launch: Launch) -> Iterable[int]:
    said, given = sizes(launch), launch.given.world_size
    processes, left = divmod(given, min(said, default=1))
    lists_all = any(text.count("horovod/") > 1 for text in launch.texts("own"))
    if said and processes > 1 and not left and not lists_all and launch.rates.get("rate"):
        step = launch.median(launch.pooled("rate"))
        if abs(_total(launch)[0] - step * processes) <= APART * step:
            return [given]  # older versions print the batch of one process
    return said


def _agrees_with_steps(launch: Launch, total: float) -> None:
    if not launch.rates.get("rate"):
        return
    step, devices = launch.median(launch.pooled("rate")), launch.devices
    own = max((text.count("gpu:") + text.count("cpu:") for text in launch.texts("own")), default=0)
    processes = {1, devices, *([devices // own] if own and devices % own == 0 else [])}
    if not any(abs(total - step * count) <= APART * step * count for count in processes):
        raise Refused(
            f"contradicts itself: a total of {total:g} images/sec, steps of {step:g} on {devices} devices; "
            "the total was cut, or --world-size N must count devices of processes that the header leaves out"
        )


_JITTER = r"(?:^|\s)<step>\s+images/sec: *<rate> \+/- *\S+ \(jitter = [^)]*\)(?:\s+(?P<loss>[^\s,;]+))?"
_MODE = r"(?:^|\s)Mode: +(?!(?i:BenchmarkMode\.)?(?i:train))(\S.*?)\s*$"
TF_CNN = Grammar(
    name="tf_cnn_benchmarks", unit="images", data="images/sec", value=_total, sizes=_sizes,
    checks=(_agrees_with_steps,), worker="task",
    lines=(
        form("jitter", _JITTER),
        form("total images", r"total images/sec: *<total>\s*$"),
        form("TensorFlow: ", r"(?:^|\s)TensorFlow: +\S", begins=True),
        form("Model: ", r"(?:^|\s)Model: +(?P<model>\S.*?)\s*$", begins=True),
        form("Mode: ", _MODE, reason="is of mode {}: nothing was trained"),
        form("Batch size: ", r"(?:^|\s)Batch size: +<global_batch>(?:\.0*)? global\s*$"),
        form("per device", r"^\s+<batch_size>(?:\.0*)? per device\s*$"),
        form("Devices: ", r"(?:^|\s)Devices: +(?P<own>.*\b(?P<device_kind>[gc]pu):\d.*?)\s*$"),
        form("Devices: ", r"/job:worker/\S*?task:<task>/"),
        form("Variables: ", r"(?:^|\s)Variables: +(?P<variables>\S.*?)\s*$"),
        form("Sync: ", r"(?:^|\s)Sync: +(?P<asynchronous>False)\s*$"),
    ),
)  # fmt: skip


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
        form("Epoch: [", r"Epoch: \[<epoch>\]\[ *<step>/\d+\]\s+Time +[\d.]+ "
             r"\( *(?P<seconds>\d+\.\d{3})\)\s(?!\s*Speed)(?:.*Loss <loss> \()?"),
        form("Speed", r"Epoch: \[<epoch>\]\[ *<step>/\d+\]\s+Time +\S+ \( *\S+\)\s+Speed +<rate> \("),
        form("Train: [", r"Train: \[<epoch>/\d+\]\[<step>/\d+\]\s+eta .*?\stime \S+ "
             r"\((?P<seconds>\d+\.\d{4})\)\s(?:.*\sloss <loss> \()?"),
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
    name="metric_logger", data="Epoch: [", no_data="Total time", value=_windows,
    lines=(
        form(" eta: ", r"Epoch: \[<epoch>(?:/\d+)?\]\s+\[ *<step>/\d+\]\s+eta: .*?(?:\sloss: <loss> "
             r".*)?\btime: <seconds>\s+data: "),
        form("world_size=", r"\bworld_size=<world_size>[,)]"),
        form("distributed init", r"distributed init \(rank <_rank>\)", begins=True),
    ),
)  # fmt: skip


# ---------------------------------------------------------------- OpenMMLab
# mmdetection, mmsegmentation and mmpretrain with MMCV or MMEngine: the mean of a window.

MMENGINE = Grammar(
    name="mmengine", no_data="(val)",
    value=lambda launch: of_steps(launch, 1 / launch.steady("seconds", "window", by_epoch=True),
                                  "the mean of a window; each epoch's first is left out"),
    lines=(
        form("data_time: ", r""
             r"(?:Epoch(?:\(train\))? +\[<epoch>\]|Iter(?:\(train\))? +)\[ *<step>/\d+\].*?\btime: "
             r"<seconds>,? +data_time: (?:.*\bloss: <loss>)?"),
        form("GPU number", r"GPU number: <world_size>\s*$"),
        # of data; those of its val and test are further in
        form("samples_per_gpu", r"^(?:data = dict\(|    )samples_per_gpu=<batch_size>,"),
        form("Environment info", r"- Environment info:", begins=True),
    ),
)  # fmt: skip


# ---------------------------------------------------------------- Detectron2
# `time` is the mean of all steps since the third.

DETECTRON2 = Grammar(
    name="detectron2",
    value=lambda launch: of_steps(
        launch, 1 / [*launch.rates["seconds"].values()][-1].rates[-1], "the mean of all steps since the third"
    ),
    lines=(
        form("utils.events", r"utils\.events\b.*? eta: .* iter: <step> +total_loss: <loss> .*?(?<!_)time: "
             r"<seconds> +(?:last|data)_time: "),
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
    name="ultralytics", said=(("it/s", "s/it"), _YOLO.pattern), pattern="it/s|s/it", value=of_bars,
    sizes=lambda launch: [len(text.split(",")) for text in launch.texts("listed")], objects=_yolo,
    lines=(
        form("model=", r"\bmodel=(?P<model>[\w./-]+), ", begins=True),
        form("device=", r"\bdevice=(?P<listed>\d+(?:,\d+)*), "),
        # batch_size of the Namespace of YOLOv7 is of a device
        form("batch", r"(?:\bbatch|train: weights=.*\bbatch_size)=<global_batch>, "),
    ),
)  # fmt: skip
