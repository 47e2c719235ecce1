"""Builds a case without a run: from one device's rate and the data sheet of a cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import inf
from typing import cast, get_args

import numpy as np
from msgspec.structs import replace

from scaling import frameworks
from scaling.errors import UsageError, near
from scaling.tools.predict import evidence, model
from scaling.tools.predict.buses import bytes_per_s
from scaling.tools.predict.evidence import MODELS, KnownModel
from scaling.tools.predict.flags import Asked, Precision
from scaling.tools.predict.forecast import Case, network
from scaling.tools.predict.priors import Priors
from scaling.tools.predict.setting import At, Bus, Known, Setting, Wire

# outside these a step is a typing error
SHORTEST_S, LONGEST_S = 1e-5, 24 * 3600.0
# operations/s that no device trains at, and operations of a parameter and a token: forward and twice that backward
MOST_OPERATIONS, OPERATIONS = 5e15, 6
# the type of gradients on the network: autocast ("amp") keeps float32 gradients
WIRES: Mapping[Precision, Wire] = {"fp32": "full", "tf32": "full", "amp": "full", "bf16": "half", "fp16": "half"}
BUSES = ("pcie", "nvlink", "nvswitch")


def case(asked: Asked) -> Case:
    """Build the case of --cold. Raises UsageError with the missing or faulty flag."""
    _complete(asked)
    rate, batch, each = asked.rate or 0.0, asked.batch_size or 1, asked.devices_per_node or 1
    known = known_by_name(asked.model)
    length = asked.sequence_length or 1
    checked_step(batch, rate / length, known)
    setting, assumed = _exchange(asked, _on_devices(asked, known, batch * length / rate))
    unit = "tokens" if asked.sequence_length else "samples"
    work = f"{known.name}, batch {batch}{f' x {length} tokens' if length > 1 else ''} per device"
    return Case(
        title=f"{work}, {rate:g} {unit}/s on one, {each} a node, {asked.network}",
        setting=setting, known=Known(At(world_size=1, nodes=1)), rate=rate / length, batch_size=batch, unit=unit,
        units_per_sample=length, devices_per_node=each, model=known.name, cold=True,
        rates=((known.name, batch, rate / length),), device=asked.device,
        notes=(f"nothing was measured; assumed: {', '.join(assumed)}",),
    )  # fmt: skip


def _complete(asked: Asked) -> None:
    needed = {
        "--rate R": asked.rate, "--model NAME": asked.model, "--batch-size B": asked.batch_size,
        "--devices-per-node D": asked.devices_per_node, "--network KIND:GBIT": asked.network,
    }  # fmt: skip
    if missing := [flag for flag, value in needed.items() if not value]:
        raise UsageError(f"--cold: needs {', '.join(missing)} as well")
    if asked.without:
        raise UsageError("--without: needs a run with that node; give RUN instead of --cold")


def _on_devices(asked: Asked, known: KnownModel, step_s: float) -> Setting:
    kind, rate = bus(asked.bus, asked.device)
    return Setting(
        gradient_bytes=4.0 * known.parameters, tail=known.tail, tensors=known.tensors, step_s=step_s, bus=kind,
        bus_bytes_per_s=rate, wire=WIRES[asked.precision or "fp32"], compress=asked.compress,
    )  # fmt: skip


def _exchange(asked: Asked, setting: Setting) -> tuple[Setting, tuple[str, ...]]:
    """Add the exchange and the network, and say what is assumed."""
    name = asked.strategy or frameworks.default("cuda")
    traits = frameworks.load(name).traits(name)
    if traits.servers:
        raise UsageError(
            f"--strategy {name}: the number of its parameter servers is unknown; measure a run on two nodes"
        )
    declared = frameworks.named(name).exchange(name.partition(":")[2])
    method, overlap, messages = evidence.declared_way(declared)
    by_nccl = traits.nccl or declared.by_nccl
    wires = network(asked.network, verbs=by_nccl)
    found = replace(
        setting, method=method, overlap=overlap, messages=messages, carrier="nccl" if by_nccl else "cpu",
        **wires._asdict(),
    )  # fmt: skip
    return found, (f"the exchange of {name}", asked.precision or "fp32", _bus_words(found))


def _bus_words(setting: Setting) -> str:
    if setting.bus == "unknown":
        return "any bus between the devices of a node (--bus narrows the interval)"
    name = {"pcie": "PCIe", "nvlink": "NVLink", "nvswitch": "NVSwitch"}[setting.bus]
    return f"{name} of {model.bus_bytes_per_s(setting) / 1e9:g} GB/s"


def bus(words: str, device: str = "") -> tuple[Bus, float]:
    """Parse `nvswitch` or `nvswitch:450` into a bus and its bytes/s; 0 for the usual ones. Raises UsageError."""
    if not words:
        return "unknown", 0.0
    kind, _, rate = words.strip().lower().partition(":")
    if kind not in BUSES:
        raise UsageError(f"--bus {words}: unknown bus; {near(kind, BUSES)}")
    assert kind in get_args(Bus)
    named = cast(Bus, kind)
    if ":" not in words:
        return named, bytes_per_s(named, device)
    if not re.fullmatch(r"\d{1,5}(\.\d{1,3})?", rate) or not 0 < float(rate) < inf:
        raise UsageError(f"--bus {words}: write {kind} or {kind}:GB/s of an all-reduce alone, such as {kind}:100")
    return named, 1e9 * float(rate)


def checked_step(batch: int, rate: float, known: KnownModel | None) -> None:
    """Raises UsageError if no device takes such a step."""
    if known and known.tokens > 1:
        operations = OPERATIONS * known.parameters * known.tokens * rate
        if operations > MOST_OPERATIONS:
            raise UsageError(
                f"--rate {rate:g}: so many samples/s of {known.name}, of {known.tokens} tokens or more each, need "
                f"{operations:.1g} operations/s, more than any device does; give --sequence-length for a rate in "
                "tokens/s, or divide it by the tokens of a sample"
            )
    if not SHORTEST_S <= batch / rate <= LONGEST_S:
        raise UsageError(
            f"--rate {rate:g}: a step of {batch} samples would take {batch / rate:.3g} s; from {SHORTEST_S:g} to "
            f"{LONGEST_S:,.0f} s are predicted"
        )


def known_by_name(name: str) -> KnownModel:
    """Find a model of the table. Raises UsageError with the nearest name."""
    names = {one.name: one for one in MODELS}
    if name not in names:
        raise UsageError(f"--model {name}: its gradient size is unknown; {near(name, names)}")
    return names[name]


def line_note(setting: Setting, priors: Priors) -> tuple[str, ...]:
    """Say so if hosts send less over TCP than the line carries."""
    names = model.keys(setting)
    values = model.values(names, priors.constants, np.zeros((1, len(names))))
    line = model.TCP_EFFICIENCY * setting.line_bytes_per_s
    if not model.has_cap(setting) or (cap := float(model.cap_bytes_per_s(setting, values)[0, 0])) >= line:
        return ()
    said = f"a node sends about {cap / 1e9:.2g} GB/s over TCP, and its line carries {line / 1e9:.2g}"
    return (f"the line no longer limits: {said}",)
