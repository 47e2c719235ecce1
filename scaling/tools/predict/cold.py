"""Builds a case without a run: from one device's rate and the data sheet of a cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import cast, get_args

from msgspec.structs import replace

from scaling import frameworks
from scaling.analysis.table.cell_rows import find_peak
from scaling.errors import UsageError, near
from scaling.tools.predict import evidence
from scaling.tools.predict.catalogue import (
    COVERED,
    MODELS,
    UNLINKED,
    USUAL_BYTES_PER_S,
    KnownModel,
    bytes_per_s,
    is_known_device,
    network,
)
from scaling.tools.predict.flags import Asked, Precision
from scaling.tools.predict.forecast import Case
from scaling.tools.predict.setting import At, Bus, Known, Setting

# outside these a step is a typing error
SHORTEST_S, LONGEST_S = 1e-5, 24 * 3600.0
# operations/s that no device trains at, and operations of a parameter and a token: forward and twice that backward
MOST_OPERATIONS, OPERATIONS = 5e15, 6
# share of its dense peak that a device reaches in training, and the standard deviation of its logarithm
UTILISATION, UTILISATION_SPREAD = 0.4, 0.35
# the type of gradients on the network: autocast ("amp") keeps float32 gradients
WIRES: Mapping[Precision, float] = {"fp32": 1.0, "tf32": 1.0, "amp": 1.0, "bf16": 0.5, "fp16": 0.5}
BUSES = ("pcie", "nvlink", "nvswitch")


def case(asked: Asked) -> Case:
    """Build the case of --cold. Raises UsageError with the missing or faulty flag."""
    length, rate = asked.sequence_length or 1, asked.rate or _guessed_rate(asked)
    needed = {
        "--rate R": rate, "--model NAME": asked.model or asked.parameters, "--batch-size B": asked.batch_size,
        "--devices-per-node D": asked.devices_per_node, "--network KIND:GBIT": asked.network,
    }  # fmt: skip
    if missing := [flag for flag, value in needed.items() if not value]:
        raise UsageError(f"--cold: needs {', '.join(missing)} as well")
    if asked.without:
        raise UsageError("--without: needs a run with that node; give RUN instead of --cold")
    batch, each, known = asked.batch_size or 1, asked.devices_per_node or 1, known_by_name(asked)
    checked_step(batch, rate / length, known)
    setting, assumed = data_sheet(asked, known, batch * length / rate)
    if not asked.rate:
        setting = replace(setting, step_spread=UTILISATION_SPREAD)
        assumed = (*assumed, f"{UTILISATION:.0%} of the peak of {asked.device}")
    unit = "tokens" if asked.sequence_length else "samples"
    work = f"{known.name}, batch {batch}{f' x {length} tokens' if length > 1 else ''} per device"
    return Case(
        title=f"{work}, {rate:g} {unit}/s on one, {each} a node, {asked.network}",
        setting=setting, known=Known(At(world_size=1, nodes=1)), rate=rate / length, batch_size=batch, unit=unit,
        units_per_sample=length, devices_per_node=each, model=known.name, cold=True,
        rates=((known.name, batch, rate / length),), device=asked.device,
        notes=(f"nothing was measured; assumed: {', '.join(assumed)}",), unclaimed=_uncovered(asked.device),
    )  # fmt: skip


def _guessed_rate(asked: Asked) -> float:
    if asked.flops_per_sample is None:
        return 0.0
    named = (find_peak(f"{maker}{asked.device}") for maker in ("", "NVIDIA ", "NVIDIA GeForce ", "Tesla "))
    peak = next((one for one in named if one), None)
    kinds = ("bf16", "fp16") if asked.precision in ("bf16", "fp16", "amp") else ("tf32", "fp32")
    found = next((peak.peaks[kind] for kind in kinds if peak and kind in peak.peaks), None)
    if found is None:
        raise UsageError(
            f"--flops-per-sample: the peak of --device {asked.device or 'NAME'} is unknown: give --rate"
        )
    return UTILISATION * found * 1e12 / asked.flops_per_sample


def _uncovered(device: str) -> str:
    if device and not COVERED.search(device.lower()):
        return f"no published node of {device} tests such a prediction: measure one node"
    return ""


def data_sheet(asked: Asked, known: KnownModel, step_s: float) -> tuple[Setting, tuple[str, ...]]:
    """Return the setting that flags describe, and what is assumed."""
    name = asked.strategy or frameworks.default("cuda")
    traits = frameworks.load(name).traits(name)
    if traits.servers:
        raise UsageError(
            f"--strategy {name}: the number of its parameter servers is unknown; measure a run on two nodes"
        )
    by_nccl = traits.nccl or frameworks.named(name).exchange(name.partition(":")[2]).by_nccl
    kind, rate = bus(asked.bus, asked.device)
    precision: Precision = asked.precision or "fp32"
    setting = Setting(
        gradient_bytes=4.0 * known.parameters * WIRES[precision] / asked.compress, tail=known.tail,
        tensors=known.tensors, step_s=step_s, bus=kind, bus_bytes_per_s=rate, carrier="nccl" if by_nccl else "cpu",
        **evidence.declared_way(name),
        **(network(asked.network, verbs=by_nccl)._asdict() if asked.network else {}),
    )  # fmt: skip
    shown = {"pcie": "PCIe", "nvlink": "NVLink", "nvswitch": "NVSwitch"}.get(kind, "")
    said = f"{shown} of {(rate or USUAL_BYTES_PER_S[kind]) / 1e9:g} GB/s"
    said = said if shown else "any bus between the devices of a node (--bus narrows the interval)"
    unknown = asked.device and not rate and not is_known_device(asked.device)
    like = (f"{asked.device}, which is not in the catalogue, has the usual bus",) if unknown else ()
    return setting, (f"the exchange of {name}", precision, said, *like)


def bus(words: str, device: str = "") -> tuple[Bus, float]:
    """Parse `nvswitch` or `nvswitch:450` into a bus and its bytes/s; 0 for the usual ones. Raises UsageError."""
    if not words:
        return "unknown", 0.0
    kind, _, rate = words.strip().lower().partition(":")
    if kind not in BUSES:
        raise UsageError(f"--bus {words}: unknown bus; {near(kind, BUSES)}")
    if kind != "pcie" and UNLINKED.search(device.lower()):
        raise UsageError(f"--bus {words}: {device} has no NVLink; take --bus pcie")
    assert kind in get_args(Bus)
    named = cast(Bus, kind)
    if ":" not in words:
        return named, bytes_per_s(named, device)
    if not re.fullmatch(r"\d{1,4}(\.\d{1,3})?", rate) or float(rate) == 0:
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


def known_by_name(asked: Asked) -> KnownModel:
    """Find a model of the table, or describe one by --parameters. Raises UsageError with the nearest name."""
    if asked.parameters:
        return KnownModel(asked.model or f"{asked.parameters:g} parameters", int(asked.parameters), 0.05, 200, "")
    names = {one.name: one for one in MODELS}
    if asked.model not in names:
        raise UsageError(
            f"--model {asked.model}: unknown gradient size; {near(asked.model, names)}; or give --parameters"
        )
    return names[asked.model]
