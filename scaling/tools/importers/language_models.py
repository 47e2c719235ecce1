"""Trainers of language models: Megatron-LM, NeMo, MaxText, DeepSpeed, KempnerForge, llm.c, nanoGPT.

The batch of a device is that of a data-parallel rank: devices that share a split model count as one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from scaling.records.run import ImportedRow
from scaling.tools.importers.engine import (
    Grammar,
    Launch,
    Line,
    Unfinished,
    Value,
    degrees,
    form,
    mesh,
    of_all,
    of_device,
    per_step,
    ratios,
    sizes,
    split,
    tool,
)
from scaling.tools.importers.lines import LogLine
from scaling.tools.importers.logs import Found, Given, Refused, Rows, Skipped, Tool, number, row, world_size

_FIRST = "the first line is left out"


def _of_global(launch: Launch) -> list[int]:
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


def _accumulated(launch: Launch) -> list[int]:
    micro = launch.only("batch_size")
    return [micro * (launch.only("accumulation") or 1)] if micro else []


# ---------------------------------------------------------------- Megatron-LM
# `training_log` of github.com/NVIDIA/Megatron-LM, also of Bridge, AMD's Primus and Megatron-DeepSpeed. Primus adds
# a mean after a slash. Timers stop during validation and checkpoints. The last rank prints. Megatron-DeepSpeed
# prints samples/s of all devices and tokens/s of one (tgs), whose ratio is the number of devices.


def _degree(name: str, said: str) -> Line:
    said = said.replace("_", "[-_]")
    return form("parallel", rf"(?<![\w-]){said}[-_]parallel[-_ ]size(?: \.+|:|=) *<{name}>(?:,|\s*$)")


_HALF = 0.0005


def _devices(launch: Launch) -> dict[int, LogLine | None]:
    said, lengths = sizes(launch), list(launch.integers("sequence_length"))
    tgs, samples = (number(launch.last.get(name, "0")) for name in ("_tgs", "_samples"))
    found = ratios(samples, tgs, _HALF, *lengths) if len(lengths) == 1 else set()
    if len(found) == 1:
        said |= dict.fromkeys(found - said.keys())
    return said


def _quantised(launch: Launch) -> Iterable[str]:
    return launch.texts("quantised") or launch.texts("precision")


MEGATRON = tool(
    Grammar(
        name="megatron",
        splits=True,
        marks=("elapsed time per iteration (",),
        sure=r"iteration +\d+/ *\d+ \|.* elapsed time per iteration \(m?s\): *[\d.]+",
        unit="samples",
        data="elapsed time per iteration (",
        lacks="has no whole line with a time and its global batch size, which Megatron-LM lacked before 2021",
        value=per_step("line", "global batch size / elapsed time per iteration", _FIRST),
        sizes=_devices,
        batches=_of_global,
        precisions=_quantised,
        lines=(
            form(
                "elapsed time per iteration (",
                r"(?:\[rank-<rank>/<world_size>\].*)?iteration +<step>/ *\d+ \|.* elapsed time per iteration "
                r"\((?:ms\): *<ms>|s\): *<seconds>)(?:/[\d.]+)? \|.* global batch size: *<global_batch> \|"
                r"(?:.* lm loss: *<loss> \|)?",
            ),
            form("(tgs)", r"samples per second: <_samples> \| tokens per gpu per second \(tgs\): <_tgs> \|"),
            form("actual seqlen", r" actual seqlen: *<sequence_length> \|"),
            form("seq_length", r"(?:^|\s)seq_length \.{5,} <sequence_length>\s*$"),
            form("nan iterations", r"number of (?P<loss>nan) iterations: *[1-9]\d* \|"),
            form("using world size", r"using world size: *<world_size>,", begins=True),
            form("world_size", r"(?:^|\s)world_size \.{25,} <world_size>\s*$"),
            _degree("tp", "tensor_model"),
            _degree("pp", "pipeline_model"),
            _degree("cp", "context"),
            _degree("ep", "expert_model"),
            form("params_dtype", r"(?:^|\s)params_dtype \.+ \w+\.<precision>\s*$"),
            form("for parameters", r"using \w+\.<precision> for parameters"),
            form(" fp8 ", r"(?:^|\s)fp8 \.+ (?P<quantised>(?!None)\w+)\s*$"),
        ),
    )
)


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


NEMO = tool(
    Grammar(
        name="nemo",
        splits=True,
        marks=("train_step_timing in s",),
        sure=r"iteration \d+/\d+ \|.* train_step_timing in s: [\d.]+",
        unit="samples",
        data="train_step_timing in s",
        no_data="iteration 0/",
        value=per_step(
            "line", "global_batch_size / train_step_timing", "iteration 0 and the next line are left out"
        ),
        batches=_of_global,
        objects=_groups,
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
    )
)


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


MAXTEXT = tool(
    Grammar(
        name="maxtext",
        splits=True,
        marks=("completed step: ",),
        sure=r"\bcompleted step: \d+, seconds: [\d.]+",
        unit="tokens",
        data="Tokens/s/device",
        lacks="has no line with Tokens/s/device: versions before 2024 and steps of a batch that grows lack it",
        value=of_device("step", "Tokens/s/device x devices; the first step, which compiles, is left out"),
        batches=_of_maxtext,
        precisions=_quantised,
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
    )
)


# ---------------------------------------------------------------- DeepSpeed
# ThroughputTimer of github.com/deepspeedai/DeepSpeed: the global batch over the time from forward to step. Its
# running average starts after the second step and leaves out what is between steps.


def _running(launch: Launch) -> Value:
    averages = [rates.rates[-1] for rates in launch.rates.get("rate", {}).values()]
    if not averages:
        raise Unfinished("has no whole line with RunningAvgSamplesPerSec")
    notes = "the last running average: without the first two steps, and without the wait for data"
    return float(np.median(averages)), (notes,)


DEEPSPEED = tool(
    Grammar(
        name="deepspeed",
        marks=("SamplesPerSec=",),
        sure=r"\d, (?:RunningAvg)?SamplesPerSec=[\d.]+",
        unit="samples",
        data="SamplesPerSec=",
        value=_running,
        batches=_accumulated,
        hint=" (no world_size)",
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
    )
)


# ---------------------------------------------------------------- KempnerForge
# MetricsTracker of github.com/KempnerInstitute/KempnerForge: tok/s of all devices. Its mesh lacks dimensions of 1.

_MESH = re.compile(r"DeviceMesh: dims=\[([^\]]*)\], sizes=\[([\d, ]*)\], world_size=(\d+)\s*$")


def _initialised(line: LogLine, _: Launch) -> Iterator[Mapping[str, Any]]:
    text = line.text
    if "DeviceMesh: " in text and (said := _MESH.search(text)) is not None:
        yield {**mesh(said[1], said[2]), "world_size": said[3], "begins": True}


KEMPNERFORGE = tool(
    Grammar(
        name="kempnerforge",
        splits=True,
        marks=("tok/s=",),
        sure=r"\[step \d+\] loss=\S+ \| .*\btok/s=[\d,]+",
        unit="tokens",
        data="tok/s=",
        value=of_all("step", "the tok/s of all devices; the first step that was logged is left out"),
        batches=_accumulated,
        objects=_initialised,
        lines=(
            form("tok/s=", r"\[step <step>\] loss=<loss> \| .*\btok/s=<rate> \| mfu=[\d.]+% \| mem="),
            form(
                "Starting training",
                r"batch_size=<batch_size>, grad_accum=<accumulation>, world_size=<world_size>\s*$",
            ),
            form("Training config", r"mixed_precision='(?P<precision>\w+)'", begins=True),
            form("Model: ", r"Model: (?P<model>[\d,]+ parameters)\s*$"),
        ),
    )
)


# A table of results as its benchmarks/mfu_scaling has it, a row per training. Cells are two spaces apart.

_HEADER = r"GPUs  Nodes  Model  Parallelism  tok/s"
_RESULT = re.compile(
    r"^\d+  (?P<gpus>\d+)  \d+  (?P<model>\S+)  (?P<split>\S+)  (?P<rate>[\d,]+)  [*\d.]+  [\d.]+ GB  [\d.]+s$"
)


def _read_table(lines: Iterable[LogLine], given: Given) -> Found:
    rows, skipped = Rows(), Skipped()
    for line in lines:
        if (one := _RESULT.search(line.text)) is not None:
            rows.add(_result(one, given))
        elif " GB  " in line.text:
            skipped.add(line)
    return Found(rows=tuple(rows), notes=skipped.notes())


def _result(one: re.Match[str], given: Given) -> ImportedRow:
    degrees = re.findall(r"\b(tp|pp|cp|ep)=(\d+)", one["split"].lower())
    return row(
        given,
        tool="kempnerforge_table",
        unit="tokens",
        rate=number(one["rate"]),
        devices=world_size([int(one["gpus"])], given),
        models=[one["model"]],
        parallelism=",".join(f"{name}={degree}" for name, degree in degrees) or "tp=1",
        notes=("the mean of the last steps, as its table says",),
    )


KEMPNERFORGE_TABLE = Tool(("tok/s",), re.compile(_HEADER), _read_table)


# ---------------------------------------------------------------- llm.c
# github.com/karpathy/llm.c: the CUDA program prints an exponential mean of all processes' tokens, the PyTorch
# and the fp32 programs those of the step.


def _sequences(launch: Launch) -> list[int]:
    tokens, each = launch.only("global_tokens"), launch.only("sequence_length") * launch.devices
    return [tokens // each] if tokens and each and tokens % each == 0 else []


def _parameters(launch: Launch) -> list[str]:
    return [f"{count} parameters" for count in launch.texts("parameters")]


LLM_C = tool(
    Grammar(
        name="llm_c",
        marks=(" tok/s",),
        sure=r"step +\d+/\d+(?: \||:) (?:train )?loss \S+ .*[|,] \d+ tok/s",
        unit="tokens",
        data=" tok/s",
        value=of_all("step", "the tok/s of all processes; the first step that was logged is left out"),
        batches=_sequences,
        models=_parameters,
        lines=(
            form(" tok/s", r"step +<step>/\d+(?: \||:) (?:train )?loss <loss> .*[|,] <rate> tok/s"),
            form("Parameter  ", r"^Parameter  Value$", begins=True),
            form("sequence length T", r"^sequence length T  <sequence_length>$"),
            form("total batch size", r"^total batch size  <global_tokens>$"),
            form("num_processes", r"^num_processes  <world_size>$"),
            form("precision", r"^precision  <precision>$"),
            form("num_parameters", r"^num_parameters  <parameters>$"),
        ),
    )
)


# ---------------------------------------------------------------- nanoGPT
# github.com/karpathy/nanoGPT: the time of an iteration, which includes an evaluation before it.


def _iterations(launch: Launch) -> Value:
    tokens = launch.only("global_tokens")
    if not tokens:
        raise Refused("does not say its tokens per iteration")
    skipped = launch.integers("evaluated")
    each = [
        ms
        for rates in launch.rates["ms"].values()
        for place, ms in zip(rates.places[1:], rates.rates[1:], strict=True)
        if place not in skipped
    ]
    if not each:
        raise Unfinished("has only its first iteration, or iterations that include an evaluation")
    notes = "tokens per iteration / time; iterations that include the start or an evaluation are left out"
    return 1000 * tokens / float(np.median(each)), (notes,)


NANOGPT = tool(
    Grammar(
        name="nanogpt",
        marks=(": loss ",),
        sure=r"\biter \d+: loss \S+, time [\d.]+ms",
        unit="tokens",
        data="ms, mfu",
        value=_iterations,
        batches=_sequences,
        models=_parameters,
        lines=(
            form(": loss ", r"\biter <step>: loss <loss>, time (?P<ms>\d+\.\d\d)ms\b"),
            form(": train loss ", r"\bstep (?P<evaluated>\d+): train loss \S+, val loss"),
            form("Overriding", r"^Overriding", begins=True),
            form("tokens per iteration", r"tokens per iteration will be: <global_tokens>\s*$", begins=True),
            form("number of parameters", r"number of parameters: (?P<parameters>[\d.]+M)\s*$"),
            form("block_size = ", r"^(?:Overriding: )?block_size = <sequence_length>\b"),
            form("dtype = ", r"^(?:Overriding: )?dtype = '?(?P<precision>\w+)"),
        ),
    )
)
