"""MXNet's Speedometer.

Rates of several speakers are added. A single speaker of several may print its own rate or the job's: `--speed-of`
says which.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from scaling.tools.importers.engine import Grammar, Value
from scaling.tools.importers.launch import Launch, Rates, Unfinished, form
from scaling.tools.importers.lines import LogLine
from scaling.tools.importers.logs import Refused, agreed, world_size

_LACKS = "has no whole line with a speed of training (the speed of its feed, --test-io, is none)"
_SAYS = re.compile(r"(\w+)=('[^']*'|\"[^\"]*\"|\[[^\]]*\]|[^,()]+)")
_NODE = re.compile(r"Node\[(\d+)\]")
_LAYERED = ("resnet", "resnext", "vgg")


def _said(line: LogLine, launch: Launch) -> Iterator[Mapping[str, Any]]:
    text = line.text
    if "Namespace(" in text or "start with arguments" in text:
        yield _arguments(line, launch)


def _arguments(line: LogLine, launch: Launch) -> Mapping[str, Any]:
    """A line with broken arguments still counts as a process. With Horovod every process calls itself Node[0]."""
    inside, node = line.text.partition("Namespace(")[2], _NODE.search(line.text)
    whole = inside.rstrip().endswith(")") and inside.count("'") % 2 == 0
    said = {name: value.strip().strip("'\"") for name, value in _SAYS.findall(inside) if whole}
    is_named = node is not None and said.get("kv_store", "horovod") != "horovod"
    # a header that comes again is a new start, unless processes share the job
    store = said.get("kv_store", said.get("kvstore", "horovod" if said.get("horovod") == "True" else ""))
    is_alone = ("num_gpus" in said or "gpus" in said) and not store.startswith(("dist", "horovod"))
    process = {}
    for name, mark in (("process", "Namespace("), ("started", "start with arguments")):  # one of them may be cut
        start = "alone" if is_alone else f"line {len(launch.facts[name])}"
        unnamed = start if line.rank is None else f"rank {line.rank}"
        process[name] = (node[1] if node and is_named else unnamed) if mark in line.text else None
    gpus = said.get("num_gpus", said.get("gpus", "0" if said.get("no_cuda") == "False" else None))
    return {
        "begins": True,
        "rank": node[1] if node else None,
        "whole": "yes" if said else None,
        "model": _model(said),
        "precision": said.get("dtype"),
        "device_kind": None if gpus is None else "cpu" if gpus in _NO_GPUS[: 2 + ("num_gpus" in said)] else "gpu",
        "worker_batch": said.get("batch_size"),
        **process,
        **{name: said.get(name) for name in ("kv_store", "gpus", "num_gpus", "num_examples")},
    }


_NO_GPUS = ("", "None", "0")


def _model(said: Mapping[str, str]) -> str | None:
    network, layers = said.get("network") or said.get("model"), said.get("num_layers", "")
    return f"{network}-{layers}" if network in _LAYERED and layers.isdigit() else network


def _kinds(launch: Launch) -> set[str]:
    return set(launch.texts("kv_store"))


def _each(launch: Launch) -> int:
    """GPUs of a worker, 0 if unknown. `0,1` is two GPUs, `2` is one GPU with number 2, "" is a CPU."""
    if _kinds(launch) == {"horovod"}:
        return 1
    if "num_gpus" in launch.facts:  # Gluon's examples
        return launch.only("num_gpus") or 1
    listed = [max(len([one for one in text.split(",") if one.strip()]), 1) for text in launch.texts("gpus")]
    listed = listed or [text.count("pu(") for text in launch.texts("contexts")]
    return agreed(listed, 0, "", "numbers of GPUs") or int(_processes(launch) > 1 and "whole" in launch.facts)


def _processes(launch: Launch) -> int:
    return max(len(launch.facts["process"]), len(launch.facts["started"]))


def _metric(launch: Launch) -> str:
    return "rate" if launch.rates.get("rate") else "epoch_rate"


def _spoke(launch: Launch) -> int:
    return len(launch.distinct(_metric(launch)))


def _sizes(launch: Launch) -> Iterable[int]:
    started, each = max(_processes(launch), _spoke(launch)), _each(launch)
    hint = "" if _processes(launch) else " (no Namespace line)"
    if started == 1 and any(kind.startswith(("dist", "horovod")) for kind in _kinds(launch)):
        hint = ", and one worker of several speaks in it"
    if each and not hint:
        return [started * each]
    devices = world_size([], launch.given, hint)
    if each and devices % each:
        raise Refused(f"--world-size {devices}: a worker has {each} GPUs")
    return [devices]


def _batches(launch: Launch) -> Iterable[int]:
    each, batches = _each(launch), launch.integers("worker_batch")
    if "num_gpus" in launch.facts:
        return batches
    return {batch // each for batch in batches if each and batch % each == 0}


# ---------------------------------------------------------------- rate of a worker or of the job


def _rate(launch: Launch) -> Value:
    spoke, notes = _spoke(launch), ("the first window of each epoch is left out",)
    if not spoke:
        raise Unfinished(_LACKS)
    workers = launch.devices // (_each(launch) or 1)
    if spoke > 1:
        if spoke != workers and _processes(launch):
            raise Refused(f"{spoke} of {workers} workers speak: give the log of all")
        total = sum(map(_steady, launch.distinct(_metric(launch))))
        return total, (*notes, f"the sum of {spoke} workers' own rates")
    alone = _steady(launch.distinct(_metric(launch))[0])
    launch.median(launch.distinct(_metric(launch))[0].later(by_epoch=True))
    if workers == 1:
        return alone, notes
    if launch.facts["gluon_rank"] or launch.given.speed_of == "all":
        return alone, (*notes, "one worker tells the rate of all")
    if not launch.given.speed_of:
        raise Refused(
            "does not tell whether a speed is of one worker or of all: say --speed-of worker or --speed-of all"
        )
    return alone * workers, (*notes, f"one worker's own rate x {workers}")


def _steady(rates: Rates) -> float:
    """The median without the first window of each epoch. If epochs have one window, without the first epoch."""
    later = rates.later(by_epoch=True)
    if not later.size and len(list(rates.epochs())) > 1:
        later = rates.later()
    if not later.size:
        raise Unfinished("has only the first window of an epoch of a worker, which includes the start")
    return float(np.median(later))


# `Epoch[0] Batch [20]\tSpeed: `; of GluonCV also `Epoch[000] Batch [0049]/[1879]\tSpeed: `, with Horovod
# `Epoch[0]\tSpeed: ` of a whole epoch. GluonCV's detectors print the speed of single batches, which is not read.
_SPEED = (
    r"\[<epoch>\](?: ?\[?Batch ?[\[ ](?:\d+-)?<step>\](?:/\[\d+\])?,?\s+(?:LR: \S+ )?Speed: *<rate>"
    r"|\s+Speed: *<epoch_rate>) samples/sec"
)

TOOL = Grammar(
    name="mxnet",
    unit="samples",
    data="samples/sec",
    no_data="] speed: ",
    value=_rate,
    sizes=_sizes,
    batches=_batches,
    objects=_said,
    lacks=_LACKS,
    lines=(
        form("samples/sec", rf"(?:Node\[<rank>\].*?(?:Epoch|Iter)|Epoch|Iter){_SPEED}"),
        form("Rank[", r"Epoch\[\d+\] Rank\[<gluon_rank>\] Batch\["),
        form("Start training with", r"Start training with \[(?P<contexts>(?:[cg]pu\(\d{1,4}\)(?:, )?){1,512})\]"),
        form("async", r"kv_store='[^']*(?P<asynchronous>async)"),
    ),
)
