"""Trainers of any model (Hugging Face's, Lightning, torchtitan), and of language models: Megatron-LM, GPT-NeoX,
NeMo, MaxText, DeepSpeed.

The batch of a device is that of a data-parallel rank: devices that share a split model count as one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from scaling.tools.importers.engine import (
    Grammar,
    Value,
    accumulated,
    degrees,
    mesh,
    of_bars,
    of_device,
    per_step,
    sizes,
    split,
)
from scaling.tools.importers.launch import Launch, Line, form
from scaling.tools.importers.lines import LONGEST_SHAPE, LogLine
from scaling.tools.importers.logs import Refused, number

# ---------------------------------------------------------------- Hugging Face's Trainer
# It prints one rate of all devices, including the start. Before 4.7 `train_samples_per_second` counted steps
# (transformers#11818), so a log needs `train_steps_per_second`. Rates divide the planned work by this start's
# seconds (speed_metrics), so a resumed or stopped training is refused.

# below this share of the planned steps, a training was stopped early
_DONE = 0.97
# without a length of the data set, Num Epochs is sys.maxsize
_MOST_EPOCHS = 1 << 31
# largest relative difference between nodes of one training, because each uses its own clock
_ALIKE = 0.02
# tolerance for samples per step from the two rates: an epoch's last batch may be smaller
_APART = 0.3


def _of_the_trainer(launch: Launch) -> Value:
    if not launch.rates.get("steps_total"):
        raise Refused("has no train_steps_per_second: before transformers 4.7 its samples per second were steps")
    return launch.middle("total", _ALIKE), ("of the whole training, its start included",)


def _was_not_stopped(launch: Launch, _: float) -> None:
    epochs, epoch, where = launch.only("epochs"), number(launch.last.get("_epoch", "0")), ""
    if epoch and epoch <= epochs - 1 < _MOST_EPOCHS:
        where = f"epoch {epoch:g} of {epochs}"
    planned = launch.middle("steps_total") * number(launch.last.get("_runtime", "0"))
    for length, done in launch.bars.items():
        if abs(int(length) - planned) <= 0.01 * planned and done < _DONE * int(length):
            where = where or f"step {done} of {length}"
    if where:
        raise Refused(f"was stopped early, at {where}: its rates count all steps that were planned")


def _samples_of_a_step(launch: Launch, rate: float) -> None:
    """Samples per step are the global batch, or with flags a multiple of the devices' batches (accumulation)."""
    steps_per_s, batch = launch.middle("steps_total"), launch.only("batch_size") or launch.given.batch_size
    whole = launch.only("global_batch")
    if steps_per_s < 0.1:  # too few digits
        return
    low, high = (1 - _APART) * (whole or batch * launch.devices), (1 + _APART) * whole or rate / steps_per_s
    if not low <= rate / steps_per_s <= high:
        raise Refused(
            f"contradicts itself: {rate:g} samples/s and {steps_per_s:g} steps/s with a batch of "
            f"{whole or batch * launch.devices} in all"
        )


HF_TRAINER = Grammar(
    name="hf_trainer", unit="samples", value=_of_the_trainer,
    sizes=lambda launch: sizes(launch) if launch.texts("accumulation") else (),
    checks=(_samples_of_a_step, _was_not_stopped),
    lines=(
        form("Running training", r"\*{5} Running training \*{5}", begins=True),
        form("batch size per device", r"Instantaneous batch size per device = <batch_size>\s*$"),
        form("Total train batch size", r"Total train batch size \([^)]*\) = <global_batch>\s*$"),
        form("ccumulation steps", r"Gradient [Aa]ccumulation steps = <accumulation>\s*$"),
        form("Num Epochs", r"Num Epochs = <epochs>\s*$"),
        form("Continuing training", r"Continuing training from global step ([1-9][\d,]{0,30})\s*$",
             reason="was resumed from global step {}: its rates count the steps before it, too, over the "
             "seconds after it alone"),
        form("it", r"\| *(?P<done>\d{1,12})/(?P<length>\d{1,12}) \[.*(?:it/s|s/it)"),
        *(
            form(name, text.format(name=name, value=f"<{value}>"))
            for name, value in (
                ("train_samples_per_second", "total"),
                ("train_steps_per_second", "steps_total"),
                ("train_runtime", "_runtime"),
                ("epoch", "_epoch"),
            )
            for text in (
                # printed, in a file of JSON, as a block
                r"['\"]{name}['\"]: *['\"]?{value}['\"]?\s*[,}}]",
                r'^ {{2,}}"{name}": {value}\s*$',
                r"^(?:#|INFO)?\s*{name} +=\s+{value}\s*$",
            )
        ),
    ),
)  # fmt: skip


# ---------------------------------------------------------------- Lightning
# Its bar counts steps; `--batch-size` of a device turns them into samples. A bar's seconds include validation, so
# the first rate of a count is used, and none after a validation's bar. A terminal keeps the last state alone: a
# full bar with a result of the validation and no earlier state of its epoch.

# `50%|####    | `; SageMaker leaves the bar out
_DRAWN = r"(?:: *)+(?:\d+% +(?=\d)|(?:\d+%)?\|.*?\| *)?"
_BAR = re.compile(
    rf"(?:Epoch (\d{{1,9}})|Training[^:|]*){_DRAWN}"
    r"(\d{1,12})(?:/(?:\d{1,12}|\?)|it) \[[^,\]]*, *(\d+(?:\.\d+)?)(it/s|s/it)"
)
_TRAINS = re.compile(r"Epoch (\d{1,9})|Training")
_VALIDATES = re.compile(r"(?:^|\s)Validat(?:ing|ion)(?: DataLoader \d+)?: ")
# A checkpoint of a validation's metric follows its bar; in the first epoch, so does a metric of validation.
_CHECKED = re.compile(r"global step [\d,]+: '[^']*val[^']*' (?:reached|was not in top)|Epoch 0: .*[\[,] ?val\w*=")
_LAST_STATE = re.compile(r" (\d+)/\1 \[.*[ ,]val(?:id(?:ation)?)?[_/]\w+=")


@lru_cache(maxsize=1024)
def _places(shape: bytes) -> tuple[slice | None, Sequence[slice], bool]:
    """Where lines of a shape have their epoch, and their bar's epoch, count, rate and unit; if they validate."""
    if "Sanity Checking" in (text := shape.decode()):
        return None, (), False
    trains, bar = _TRAINS.search(text), _BAR.search(text)
    places = [slice(*bar.span(group)) for group in range(1, 5)] if bar else []
    return trains and slice(*trains.span(1)), places, _VALIDATES.search(text) is not None


def _of_lightning(line: LogLine, launch: Launch) -> Iterator[Mapping[str, Any]]:
    text, last = line.text, launch.last
    of_shape = _places if len(line.shape) <= LONGEST_SHAPE else _places.__wrapped__
    trains, bar, validates = of_shape(line.shape)
    if trains is not None:
        epoch = text[trains] or "0"
        if epoch != last.get("_epoch") or "val" in text:
            is_late = ("_epoch" not in last and "_validating" in last) or _LAST_STATE.search(text)
            is_new = "?it/s" not in text and epoch not in launch.texts("shown")
            is_checked = _CHECKED.search(text) is not None
            validated = epoch if (is_late and is_new) or is_checked else None
            yield {"validated": validated, "_epoch": epoch, "shown": epoch, "_done": "" if is_checked else None}
        if bar:
            yield _bar(text, bar, launch)
        elif "?it/s" not in text and "?s/it" not in text:
            raise ValueError
    elif validates:
        yield {"validated": last.get("_epoch"), "_validating": "yes", "_done": ""}


def _bar(text: str, bar: Sequence[slice], launch: Launch) -> Mapping[str, Any]:
    """A count that is drawn again has the seconds of a validation."""
    epoch, done, value, last = text[bar[0]] or "0", text[bar[1]], float(text[bar[2]]), launch.last
    drawn = f"{epoch} {done}"
    if not value or last.get("_done") == drawn or not int(done):
        return {}
    # an earlier epoch is of another training, whose epochs were not validated yet
    is_back = "_back" in last or int(epoch) < int(last.get("_last", "0"))
    if not is_back and epoch in launch.facts["validated"]:
        return {"_last": epoch}
    rate, back = value if text[bar[3]] == "it/s" else 1 / value, "yes" if is_back else None
    return {"_last": epoch, "_back": back, "epoch": epoch, "step": done, "bar_rate": rate, "_done": drawn}


LIGHTNING = Grammar(
    name="lightning",
    said=(
        ("it/s", "s/it"),
        rf"(?:Epoch \d+|Training[^:|]*){_DRAWN}\d+(?:/(?:\d+|\?)|it) \[[^\]]*(?:it/s|s/it)",
    ),
    pattern="it/s|s/it",
    # bars of other programs look the same
    also=r"v_num|Sanity Checking|LOCAL_RANK: \d|GPU available|Starting with \d+ proc|Trainer\.fit",
    value=of_bars, objects=_of_lightning,
    lacks="has no whole bar of an epoch with its rate before a validation, whose seconds are in later bars",
    lines=(
        form("Starting with", r"Starting with <world_size> processes", begins=True),
        form("Using ", r"Using (?P<precision>16bit|bfloat16) (?:native |Native |Automatic )"),
        form("MEMBER: ", r"MEMBER: \d+/<world_size>\s*$", begins=True),
    ),
)  # fmt: skip


# ---------------------------------------------------------------- torchtitan
# github.com/pytorch/torchtitan prints `tps` (`wps` in 2024), tokens/s of one device. Ranks may repeat a step, so
# they are not added.

_MESH = re.compile(r"[Bb]uilding \d+-D device mesh with [\[(]([^\])]*)[\])], \[([\d, ]*)\](?:\s|$)")
_DEGREES = re.compile(r"\b(pp|dp_replicate|dp_shard|cp|tp|ep)=(\d+)")


def _building(line: LogLine, _: Launch) -> Iterator[Mapping[str, Any]]:
    """Degrees of parallelism in older and newer formats. The product is unknown if one is -1 (all that remain)."""
    text = line.text
    if "device mesh" not in text:
        return
    if (said := _MESH.search(text)) is not None:
        sizes_of = mesh(said[1], said[2])
    elif found := _DEGREES.findall(text.partition("parallelism:")[2]):
        sizes_of = mesh(*map(",".join, zip(*found, strict=True)))
    else:
        return
    size = prod(degree for name, degree in sizes_of.items() if name != "ep")
    yield {**sizes_of, "world_size": None if "=-1" in text else size, "begins": True}


TORCHTITAN = Grammar(
    name="torchtitan", splits=True, unit="tokens", data="tps:", no_data="validate step",
    value=of_device("step", "tps of one device x devices; the first step that was logged is left out"),
    objects=_building, pattern="device mesh",
    lines=(
        form("ps:", r"step:(?<!validate step:) *<step> .*?loss: *<loss> .*?[tw]ps: *<device_rate> +\w"),
        form("local batch size", r"local batch size:? <batch_size>[,\s]"),
        form("Model ", r"Model (?P<model>\S+ \S+) size: \d"),
    ),
)  # fmt: skip


_FIRST = "the first line is left out"


def of_global(launch: Launch) -> list[int]:
    """Of a data-parallel rank, if the log or the flag says how the model is split. Raises Refused."""
    whole, devices, batch = launch.only("global_batch"), launch.devices, launch.given.batch_size
    if devices > 1 and not degrees(launch):
        if whole and batch and (whole % batch or devices % (whole // batch)):
            raise Refused(f"--batch-size {batch}: the log says a global batch of {whole} on {devices} devices")
        return []
    replicas = max(1, devices // split(launch))
    if whole % replicas:
        raise Refused(f"has a global batch of {whole}, no multiple of {replicas} data-parallel ranks")
    return [whole // replicas] if whole else []


# ---------------------------------------------------------------- Megatron-LM
# `training_log` of github.com/NVIDIA/Megatron-LM, also of Bridge, AMD's Primus and Megatron-DeepSpeed. Primus adds
# a mean after a slash. Timers stop during validation and checkpoints. The last rank prints. The sequence
# parallelism of Megatron-DeepSpeed splits a sequence as context parallelism does. GPT-NeoX prints samples/s of all
# devices in front.


def _degree(name: str, said: str) -> Line:
    said = said.replace("_", "[-_ ]") + "[-_ ]parallel[-_ ](?:with )?size"
    return form("parallel", rf"(?<![\w-]){said}(?: \.+|:|=|) *(?P<{name}>[1-9]\d*)(?:,|\s*$)")


def _quantised(launch: Launch) -> Iterable[str]:
    return launch.texts("quantised") or launch.texts("precision")


def _of_megatron(launch: Launch) -> Value:
    if launch.rates.get("rate"):
        return launch.steady("rate", "line"), ("the samples/sec of all devices", _FIRST)
    return per_step("line", "global batch size / elapsed time per iteration", _FIRST)(launch)


MEGATRON = Grammar(
    name="megatron", splits=True, unit="samples",
    lacks="has no whole line with a time and its global batch size", value=_of_megatron, batches=of_global,
    precisions=_quantised,
    lines=(
        form("elapsed time per iteration (", r"(?:\[rank-<rank>/<world_size>\].*)?iteration +<step>/ *\d+ \|.* "
             r"elapsed time per iteration \((?:ms\): *<ms>|s\): *<seconds>)(?:/[\d.]+)? \|.* global batch "
             r"size: *<global_batch> \|(?:.* lm loss: *<loss> \|)?"),
        form("samples/sec: ", r"samples/sec: <rate> \| iteration +<step>/ *\d+ \| elapsed time per iteration "
             r"\((?:.* lm_loss: <loss> \|)?"),
        form("global_num_gpus", r"(?:^|\s)global_num_gpus \.+ <world_size>\.{3,}", begins=True),
        form("train_batch_size", r"(?:^|\s)train_batch_size \.+ <global_batch>\.{3,}"),
        form("model_parallel_size", r"(?:^|\s)model_parallel_size \.+ <tp>\.{3,}"),
        form("pipe_parallel_size", r"(?:^|\s)pipe_parallel_size \.+ (?P<pp>[1-9]\d*)\.{3,}"),
        form("precision", r"(?:^|\s)precision \.+ (?P<precision>\w+)\.{5,}"),
        form("nan iterations", r"number of (?P<loss>nan) iterations: *[1-9]\d* \|"),
        form("using world size", r"using world size: *<world_size>,", begins=True),
        form("world_size", r"(?:^|\s)world_size \.{25,} <world_size>\s*$"),
        _degree("tp", "tensor_model"),
        _degree("pp", "pipeline_model"),
        _degree("cp", "context"),
        _degree("cp", "sequence"),
        _degree("ep", "expert_model"),
        form("params_dtype", r"(?:^|\s)params_dtype \.+ \w+\.<precision>\s*$"),
        form("for parameters", r"using \w+\.<precision> for parameters"),
        form(" fp", r"(?:^|\s)fp8 \.+ (?P<quantised>(?!None)\w+)\s*$"),
    ),
)  # fmt: skip


# ---------------------------------------------------------------- NeMo 2
# Its Lightning callback prints a line per step. The first lacks consumed_samples, which always follow later.

_GROUP = re.compile(
    r"Rank 0 has (tensor model|pipeline model|context|expert model) parallel group ?: \[([\d, ]+)\]"
)
_KINDS = {"tensor model": "tp", "pipeline model": "pp", "context": "cp", "expert model": "ep"}


def _groups(line: LogLine, _: Launch) -> Iterator[Mapping[str, Any]]:
    text = line.text
    if "parallel group" in text and (group := _GROUP.search(text)) is not None:
        yield {_KINDS[group[1]]: group[2].count(",") + 1}


NEMO = Grammar(
    name="nemo", splits=True, unit="samples", data="train_step_timing in s", no_data="iteration 0/",
    value=per_step("line", "global_batch_size / train_step_timing", "iteration 0 and the next line are left out"),
    batches=of_global, objects=_groups, pattern="parallel group",
    lines=(
        form("train_step_timing in s", r"^(?=.*consumed_samples: \d).*?(?:epoch <epoch>, )?iteration "
             r"<step>/\d+ \|.* global_batch_size: <global_batch> \|(?:.* reduced_train_loss: <loss> \|)?.* "
             r"train_step_timing in s: <seconds> \|"),
        form("MEMBER: ", r"GLOBAL_RANK: \d+, MEMBER: \d+/<world_size>\s*$"),
        form("Starting with ", r"Starting with <world_size> processes"),
    ),
)  # fmt: skip


# ---------------------------------------------------------------- MaxText
# MetricLogger of github.com/AI-Hypercomputer/maxtext: a device's tokens are max_target_length x
# per_device_batch_size x gradient_accumulation_steps.

_UNREAD = (
    r"dcn_(?:tensor|pipeline|context|expert)|(?:ici|dcn)_(?:tensor_(?:sequence|transpose)|sequence|autoregressive)"
)


def _of_maxtext(launch: Launch) -> list[int]:
    each = {float(text) for text in launch.texts("per_device")}
    is_known = launch.devices == 1 or degrees(launch)
    whole = {one * split(launch) * (launch.only("accumulation") or 1) for one in each if is_known}
    return [int(one) for one in whole if one == int(one)]


MAXTEXT = Grammar(
    name="maxtext", splits=True, unit="tokens", data="Tokens/s/device",
    lacks="has no line with Tokens/s/device: versions before 2024 and steps of a batch that grows lack it",
    value=of_device("step", "Tokens/s/device x devices; the first step, which compiles, is left out"),
    batches=_of_maxtext, precisions=_quantised,
    lines=(
        form("completed step", r"\bcompleted step: <step>, seconds: .*Tokens/s/device: <device_rate>, .*?loss: "
             r"<loss>(?:,|$)"),
        form("Config param", r"Config param \w+: ", begins=True),
        form("Num_devices", r"Num_devices: <world_size>, shape"),
        form("Config param", r"per_device_batch_size: (?P<per_device>\d+(?:\.\d+)?)\s*$"),
        form("Config param", r"gradient_accumulation_steps: <accumulation>\s*$"),
        form("Config param", r"model_name: <model>\s*$"),
        form("Config param", r"param dtype: <precision>\s*$"),
        form("Config param", r"param quantization: (?P<quantised>\w+)\s*$"),
        form("Config param", r"ici_tensor_parallelism: <tp>\s*$"),
        form("Config param", r"ici_pipeline_parallelism: <pp>\s*$"),
        form("Config param", r"ici_context_parallelism: <cp>\s*$"),
        form("Config param", r"ici_expert_parallelism: <ep>\s*$"),
        form("Config param", rf"({_UNREAD})_parallelism: ([2-9]|\d\d+)\s*$",
             reason="splits its model by {0}_parallelism={1}, which no efficiency here can tell from others"),
    ),
)  # fmt: skip


# ---------------------------------------------------------------- DeepSpeed
# ThroughputTimer of github.com/deepspeedai/DeepSpeed: the global batch over the time from forward to step. Its
# running average starts after the second step and leaves out what is between steps.


def _running(launch: Launch) -> Value:
    averages = [rates.rates[-1] for rates in launch.rates["rate"].values()]
    notes = "the last running average: without the first two steps, and without the wait for data"
    return float(np.median(averages)), (notes,)


DEEPSPEED = Grammar(
    name="deepspeed", unit="samples", value=_running, hint=" (no world_size)",
    batches=lambda launch: filter(None, [accumulated(launch)]),
    lines=(
        form("RunningAvgSamplesPerSec=", r"[ =]<epoch>/(?:micro_step=\d+/global_step=)?<step>, "
             r"RunningAvgSamplesPerSec=<rate>, Curr"),
        form(", SamplesPerSec=", r" <epoch>/<step>, SamplesPerSec=(?P<rate>\d+\.\d{3,})(?:,|\s*$)"),
        form("|Generate time=", r"\|Generate time=.*AvgSamplesPerSec=",
             reason="trains on samples that it generates: its rates leave out the generation"),
        form("configuration:", r"DeepSpeedEngine configuration:", begins=True),
        form("dist_world_size=", r"dist_world_size=<world_size>\s*$"),
        form("Config mesh_device", r"Config mesh_device \w+ world_size = <world_size>\s*$"),
        form("world_size .", r"\s\s+world_size \.+ <world_size>\s*$"),
        form("train_micro_batch", r"train_micro_batch_size_per_gpu \.* ?<batch_size>\s*$"),
        form("gradient_accum", r"gradient_accumulation_steps \.+ <accumulation>\s*$"),
        form("train_batch_size", r"train_batch_size \.+ <global_batch>\s*$"),
        form(" .", r"(?P<precision>bfloat16|float16|fp16)_(?:enabled|config) \.+ (?:enabled=)?True\b"),
    ),
)  # fmt: skip
