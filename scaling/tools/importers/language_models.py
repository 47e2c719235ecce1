"""Trainers of language models: Megatron-LM, GPT-NeoX, NeMo, MaxText, DeepSpeed.

The batch of a device is that of a data-parallel rank: devices that share a split model count as one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from scaling.tools.importers.engine import Grammar, Value, accumulated, degrees, of_device, per_step, split
from scaling.tools.importers.launch import Launch, Line, form
from scaling.tools.importers.lines import LogLine
from scaling.tools.importers.logs import Refused

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
        form(
            "elapsed time per iteration (",
            r"(?:\[rank-<rank>/<world_size>\].*)?iteration +<step>/ *\d+ \|.* elapsed time per iteration "
            r"\((?:ms\): *<ms>|s\): *<seconds>)(?:/[\d.]+)? \|.* global batch size: *<global_batch> \|"
            r"(?:.* lm loss: *<loss> \|)?",
        ),
        form(
            "samples/sec: ",
            r"samples/sec: <rate> \| iteration +<step>/ *\d+ \| elapsed time per iteration \("
            r"(?:.* lm_loss: <loss> \|)?",
        ),
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
        form(" fp8 ", r"(?:^|\s)fp8 \.+ (?P<quantised>(?!None)\w+)\s*$"),
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
    batches=of_global, objects=_groups, words=("parallel group",),
    lines=(
        form(
            "train_step_timing in s",
            r"^(?=.*consumed_samples: \d).*?"
            r"(?:epoch <epoch>, )?iteration <step>/\d+ \|.* global_batch_size: <global_batch> \|"
            r"(?:.* reduced_train_loss: <loss> \|)?.* train_step_timing in s: <seconds> \|",
        ),
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
        form(
            "completed step",
            r"\bcompleted step: <step>, seconds: .*Tokens/s/device: <device_rate>, .*?loss: <loss>(?:,|$)",
        ),
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
        form(
            "Config param",
            rf"({_UNREAD})_parallelism: ([2-9]|\d\d+)\s*$",
            reason="splits its model by {0}_parallelism={1}, which no efficiency here can tell from others",
        ),
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
        form(
            "RunningAvgSamplesPerSec=",
            r"[ =]<epoch>/(?:micro_step=\d+/global_step=)?<step>, RunningAvgSamplesPerSec=<rate>, Curr",
        ),
        form(", SamplesPerSec=", r" <epoch>/<step>, SamplesPerSec=(?P<rate>\d+\.\d{3,})(?:,|\s*$)"),
        form(
            "|E2E latency=",
            r"\|Generate time=.*AvgSamplesPerSec=",
            reason="trains on samples that it generates: its rates leave out the generation",
        ),
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
