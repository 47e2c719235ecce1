"""Trainers of language models that print tokens/s, from KempnerForge to fairseq."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaling.tools.importers.engine import (
    SHIFT,
    Grammar,
    Launch,
    Rates,
    Unfinished,
    Value,
    form,
    integers,
    mesh,
    narrowed,
    of_all,
    of_device,
    of_steps,
    unit_of_steps,
)
from scaling.tools.importers.language_models import accumulated, of_global
from scaling.tools.importers.lines import LogLine
from scaling.tools.importers.logs import Refused, number

# ---------------------------------------------------------------- KempnerForge
# MetricsTracker of github.com/KempnerInstitute/KempnerForge: tok/s of all devices. Its mesh lacks dimensions of 1.

_MESH = re.compile(r"DeviceMesh: dims=\[([^\]]*)\], sizes=\[([\d, ]*)\], world_size=(\d+)\s*$")


def _initialised(line: LogLine, _: Launch) -> Iterator[Mapping[str, Any]]:
    text = line.text
    if "DeviceMesh: " in text and (said := _MESH.search(text)) is not None:
        yield {**mesh(said[1], said[2]), "world_size": said[3], "begins": True}


KEMPNERFORGE = Grammar(
    name="kempnerforge",
    splits=True,
    marks=("tok/s=",),
    sure=r"\[step \d+\] loss=\S+ \| .*\btok/s=[\d,]+",
    unit="tokens",
    data="tok/s=",
    value=of_all("step", "the tok/s of all devices; the first step that was logged is left out"),
    batches=accumulated,
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


# A table of results as its benchmarks/mfu_scaling has it, a row per training. Cells are two spaces apart.

_RESULT = re.compile(r"^\d+  (\d+)  \d+  (\S+)  (\S+)  ([\d,]+)  [*\d.]+  [\d.]+ GB  [\d.]+s$")


def _result(line: LogLine, _: Launch) -> Iterator[Mapping[str, Any]]:
    if (said := _RESULT.search(line.text)) is not None:
        names, degrees = zip(*re.findall(r"\b(tp|pp|cp|ep)=(\d+)", said[3].lower()) or [("tp", "1")], strict=True)
        of_model = mesh(",".join(names), ",".join(degrees))
        yield {**of_model, "world_size": said[1], "model": said[2], "total": said[4], "begins": True}


KEMPNERFORGE_TABLE = Grammar(
    name="kempnerforge_table",
    marks=("tok/s",),
    sure=r"GPUs  Nodes  Model  Parallelism  tok/s",
    unit="tokens",
    data=" GB  ",
    value=lambda launch: (launch.middle("total"), ("the mean of the last steps, as its table says",)),
    objects=_result,
)


# ---------------------------------------------------------------- llm.c
# github.com/karpathy/llm.c: the CUDA program prints an exponential mean of all processes' tokens, the PyTorch
# and the fp32 programs those of the step.


def _sequences(launch: Launch) -> list[int]:
    tokens, each = launch.only("global_tokens"), launch.only("sequence_length") * launch.devices
    return [tokens // each] if tokens and each and tokens % each == 0 else []


def _parameters(launch: Launch) -> list[str]:
    return [f"{count} parameters" for count in launch.texts("parameters")]


LLM_C = Grammar(
    name="llm_c",
    marks=(" tok/s",),
    sure=r"step +\d+/\d+(?: \||:) (?:train )?loss \S+ .*[|,] \d+ tok/s",
    unit="tokens",
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


NANOGPT = Grammar(
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


# ---------------------------------------------------------------- nanochat
# github.com/karpathy/nanochat and build-nanogpt: tokens of all processes over the time of a step, which excludes
# evaluations.


def _of_ranks(launch: Launch) -> dict[int, LogLine | None]:
    """Tokens of a micro-batch over those of one process."""
    whole, each = launch.only("micro_tokens"), launch.only("rank_tokens")
    return {whole // each: None} if whole and each else {}


NANOCHAT = Grammar(
    name="nanochat",
    marks=("tok/sec: ",),
    sure=r"step +\d+(?:/\d+)? ?(?:\([\d.]+%\) )?\| loss: .*\| tok/sec: [\d,]+",
    unit="tokens",
    value=of_all("step", "the tok/sec of all processes; the first step that was logged is left out"),
    sizes=_of_ranks,
    batches=accumulated,
    lines=(
        form(
            "tok/sec: ",
            r"step +<step>(?:/\d+)? ?(?:\([\d.]+%\) )?\| loss: <loss> \|.* tok/sec: <rate>(?: \||\s*$)",
        ),
        form(
            "Tokens / micro-batch / rank",
            r"Tokens / micro-batch / rank: <batch_size> x \d+ = <rank_tokens>\s*$",
            begins=True,
        ),
        form("Tokens / micro-batch: ", r"Tokens / micro-batch: <micro_tokens>\s*$"),
        form("accumulation steps", r"gradient accumulation steps: <accumulation>\s*$"),
        form("COMPUTE_DTYPE", r"COMPUTE_DTYPE: \w+\.<precision> \(", begins=True),
    ),
)


# ---------------------------------------------------------------- nanotron
# github.com/huggingface/nanotron prints three digits and K, M or G.

_HUMAN = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9}
_ITERATION = re.compile(
    r"iteration: (\d+) / \d+ \|.* tokens_per_sec: ([\d.]+)([KMG]?) \| tokens_per_sec_per_gpu: ([\d.]+)([KMG]?) \| "
    r"global_batch_size: ([\d.]+)([KMG]?) \|(?:.* lm_loss: (\S+) \|)?"
)


def _iteration(line: LogLine, _: Launch) -> Iterator[Mapping[str, Any]]:
    if "tokens_per_sec_per_gpu" in line.text:
        if (said := _ITERATION.search(line.text)) is None:
            raise ValueError
        rate, device_rate, batch = (float(said[at]) * _HUMAN[said[at + 1]] for at in (2, 4, 6))
        yield {"step": said[1], "rate": rate, "device_rate": device_rate, "loss": said[8]}
        yield {"global_batch": int(batch) if batch < 1000 else None}


def _half(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Half of the third digit."""
    return np.asarray(0.5 * 10 ** (np.floor(np.log10(values)) - 2))


def _of_digits(launch: Launch) -> dict[int, LogLine | None]:
    """Devices that the digits of both rates leave in all lines."""
    if said := prod(launch.only(name) for name in ("dp", "pp", "tp")):
        return {said: None}
    whole, one = launch.pooled("rate"), launch.pooled("device_rate")
    if not whole.size or whole.size != one.size:
        return {}
    low, high = (whole - _half(whole)) / (one + _half(one)), (whole + _half(whole)) / (one - _half(one))
    return narrowed(launch, integers(low.max(), high.min()))


NANOTRON = Grammar(
    name="nanotron",
    splits=True,
    marks=("tokens_per_sec_per_gpu: ",),
    sure=r"iteration: \d+ / \d+ \|.* tokens_per_sec_per_gpu: [\d.]+[KMG]? \|",
    unit="tokens",
    value=of_all("iteration", "the tokens_per_sec of all devices, three digits; the first iteration is left out"),
    sizes=_of_digits,
    batches=of_global,
    objects=_iteration,
    lines=(
        form("ParallelismArgs(", r"ParallelismArgs\(dp=<dp>,", begins=True),
        form(" pp=", r"^ +pp=<pp>,$"),
        form(" tp=", r"^ +tp=<tp>,$"),
    ),
)


# ---------------------------------------------------------------- torchtune
# github.com/meta-pytorch/torchtune: tokens with a label over the time of a step, of one device.

TORCHTUNE = Grammar(
    name="torchtune",
    marks=("tokens_per_second_per_gpu:",),
    sure=r"Step \d+ \| loss:\S+ .*tokens_per_second_per_gpu:[\d.]+",
    unit="tokens",
    value=of_device("step", "tokens with a label, of one device x devices; the first step is left out"),
    batches=accumulated,
    lines=(
        form(
            "tokens_per_second_per_gpu:",
            r"Step <step> \| loss:<loss> .*tokens_per_second_per_gpu:<device_rate>(?:\s|$)",
        ),
        form("with resolved config", r"with resolved config", begins=True),
        form("batch_size: ", r"^batch_size: <batch_size>\s*$"),
        form("accumulation_steps: ", r"^gradient_accumulation_steps: <accumulation>\s*$"),
        form("tensor_parallel_dim", r"^tensor_parallel_dim: <tp>\s*$"),
        form("dtype: ", r"^dtype: <precision>\s*$"),
        form("torchtune.models", r"_component_: torchtune\.models\.\w+\.(?P<model>(?!\w*tokenizer)\w+)\s*$"),
    ),
)


# ---------------------------------------------------------------- OLMo
# github.com/allenai/OLMo and OLMo-core print tokens/s and batches/s of a device, whose ratio is its tokens of a
# batch.

_BATCHES = re.compile(r"throughput/device/(?:batches_per_second|BPS)=([\d.]+)\s*$")


def _digits(text: str) -> tuple[float, float]:
    """The least and the largest number that is printed so."""
    half = 0.5 * 10.0 ** -len(text.partition(".")[2])
    return number(text) - half, number(text) + half


def _of_batch(line: LogLine, launch: Launch) -> Iterator[Mapping[str, Any]]:
    """The last of a step's rates tells the devices, if its digits leave one number."""
    step = (launch.at.get((line.rank, None)) or 0) % SHIFT
    if "throughput/device/" in line.text and (said := _BATCHES.search(line.text)) is not None and step:
        tokens = number(launch.last.get("_tokens", "0")) / step
        (few, many), (low, high) = _digits(said[1]), _digits(launch.last.get("_each", "0"))
        found = integers(tokens * few / high, tokens * many / low) if few > 0 < low else set()
        yield {"world_size": found.pop() if len(found) == 1 else None}


OLMO = Grammar(
    name="olmo",
    marks=("throughput/device/",),
    sure=r"^ *throughput/device/(?:tokens_per_second|TPS)=[\d,.]+\s*$",
    unit="tokens",
    data="throughput/device/t",
    value=of_device("step", "tokens/s of one device x devices; the first step with a rate is left out"),
    objects=_of_batch,
    lines=(
        form("[step=", r"\[step=<at>[/,]"),
        form("throughput/total", r"throughput/total[_ ]tokens=<_tokens>\s*$"),
        form("throughput/device/t", r"throughput/device/tokens_per_second=<device_rate>\s*$"),
        form("throughput/device/T", r"throughput/device/TPS=<device_rate>\s*$"),
        form("throughput/device/", r"throughput/device/(?:tokens_per_second|TPS)=<_each>\s*$"),
        form("train/C", r"train/(?:CrossEntropyLoss|CE loss)=<loss>\s*$"),
    ),
)


# ---------------------------------------------------------------- fairseq
# github.com/facebookresearch/fairseq: wps counts target tokens of all workers.

FAIRSEQ = Grammar(
    name="fairseq",
    marks=("wps",),
    sure=r"epoch \d+:?.*\bwps=\d|\"wps\": \"\d",
    unit="tokens",
    data="wps=",
    no_data="wps=0,",
    value=of_all("line", "wps: target tokens of all workers; the first line is left out"),
    lines=(
        form("wps=", r"epoch <epoch>:? +<step> / \d+ .*\bwps=<rate>,"),
        form('"wps": ', r'"wps": "<rate>",.*"num_updates": "<step>"'),
        form("training on ", r"training on <world_size> (?:devices|GPUs)", begins=True),
        form("distributed_world_size", r"distributed_world_size['\"]?[=:] ?<world_size>[,)]"),
        form("arch=", r"\barch=['\"](?P<model>\w+)"),
        form("=True", r"[( ](?P<precision>fp16|bf16)=True\b"),
    ),
)


# ---------------------------------------------------------------- LitGPT
# github.com/Lightning-AI/litgpt: the time of a micro-batch, which in some iterations includes the update.


def _micro_batches(launch: Launch) -> Value:
    nothing = Rates()
    updates = launch.rates["update_rate"]
    each = (_of_updates(ms, updates.get(speaker, nothing), launch) for speaker, ms in launch.rates["ms"].items())
    times = np.concatenate([[], *each])
    if not times.size:
        raise Unfinished("has no whole update after its first one")
    note = "the mean time of a micro-batch between the first update and the last"
    return of_steps(launch, 1000 / float(times.mean()), note)


def _of_updates(ms: Rates, updates: Rates, launch: Launch) -> NDArray[np.float64]:
    """Times from the first update to the last. Raises Refused if iterations between them are not printed."""
    ends = np.flatnonzero(np.isin(ms.places, updates.places))
    each_updates = launch.last.get("_updates") == str(ms.places[-1])
    if np.any(np.diff(ms.places) > 1) and not each_updates:
        raise Refused("prints some of its iterations, and only some of them include an update: print each one")
    return ms.all()[ends[0] + 1 : ends[-1] + 1] if ends.size else ms.all()[:0]


LITGPT = Grammar(
    name="litgpt",
    marks=("iter time: ",),
    sure=r"iter +\d+ (?:\| )?step \d+(?:: loss| \| loss train:) .*iter time: [\d.]+ ?ms",
    unit=unit_of_steps,
    value=_micro_batches,
    lines=(
        form("iter time: ", r"iter +<step> (?:\| )?step <_updates>(?::| \|) .*iter time: (?P<ms>\d+\.\d\d) ?ms"),
        form("step)", r"iter +<step> .*iter time: (?P<update_rate>\d+\.\d\d) ?ms \((?:optimizer\.)?step\)"),
        form("loss", r"loss(?: train:)? <loss>"),
        form("micro_batch_size", r"micro_batch_size'?[=:] ?<batch_size>[,)]", begins=True),
    ),
)


# ---------------------------------------------------------------- prime-rl
# github.com/PrimeIntellect-ai/prime-rl: tokens of all processes over the last steps, of supervised training.

PRIME_RL = Grammar(
    name="prime_rl",
    marks=("| Throughput: ",),
    sure=r"Step \d+ \| Time: [\d.]+s \| Loss: .*\| Throughput: [\d.]+ tokens/s",
    unit="tokens",
    no_data="Throughput: 0 ",
    value=of_all("step", "the throughput of all processes; the first step with one is left out"),
    lines=(
        form(
            "| Throughput: ",
            r"Step <step> \| Time: [\d.]+s \| Loss: <loss> \|.*\| Throughput: <rate> tokens/s",
        ),
        form(
            "Throughput: ",
            r"Step \d+ \| Time: .*\| (?:Entropy|Mismatch KL):",
            reason="trains on samples that it generates: its rates leave out the generation",
        ),
    ),
)
