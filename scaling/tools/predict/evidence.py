"""Builds a case from a run's records, from logs of other tools, or from the data sheet of a cluster.

Of a run, contention and straggling come from the controls, exchange times from `comm`, and noise from intervals
over rounds.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import hypot, log, sqrt
from statistics import fmean, stdev
from typing import Any, NamedTuple

from msgspec.structs import replace

from scaling import frameworks
from scaling.analysis.measured.controls import Controls
from scaling.analysis.measured.rounds import rounds
from scaling.analysis.statistics.intervals import Estimate
from scaling.analysis.table.analyse import analyse, kept
from scaling.analysis.table.catalogue import unclaimed, unranked_marks
from scaling.analysis.table.cell_rows import find_peak
from scaling.analysis.table.comparisons import exchanges
from scaling.analysis.table.imported import Imported, cells, curves
from scaling.analysis.table.rows import Row
from scaling.errors import UsageError, near
from scaling.frameworks.base import Exchange
from scaling.records.point import Point, Record
from scaling.records.run import Header, PointRecord
from scaling.tools.predict import setting as settings
from scaling.tools.predict.flags import Asked, Precision
from scaling.tools.predict.setting import At, Bus, Known, KnownModel, Observed, Setting, Wires

NORMAL_95 = 1.96
# NVLinks between each pair of GPUs that indicate a switch: through it every pair has all links of a GPU
SWITCHED_LINKS = 6
# options that compress gradients; 2 bits count as half
COMPRESSIONS, FALSE = ("compression", "compress"), ("false", "0", "no", "off")
# of 3 transfers of sharded parameters in bf16, two gathers send half and one float32 reduction
HALF_GATHERS = 2 / 3
# rows with these marks are not used
MARKS = ("FAILED", *unranked_marks(), "ASYNC", "UNSETTLED", "THROTTLED")
# noise of a single round, and limits of the noise from any number of rounds: with the largest nothing is known
ONE_ROUND, LEAST_NOISE, MOST_NOISE = 0.02, 0.004, 1.0
# controls differ from the model's parts by more than rounds show
COMM_NOISE, SHARE_NOISE = 0.05, 0.02
# outside these a step is a typing error
SHORTEST_S, LONGEST_S = 1e-5, 24 * 3600.0
# share of its dense peak that a device reaches in training, and the standard deviation of its logarithm
UTILISATION, UTILISATION_SPREAD = 0.4, 0.35
# the type of gradients on the network: autocast ("amp") keeps float32 gradients
WIRES: Mapping[Precision, float] = {"fp32": 1.0, "tf32": 1.0, "amp": 1.0, "bf16": 0.5, "fp16": 0.5}
SHOWN = {"pcie": "PCIe", "nvlink": "NVLink", "nvswitch": "NVSwitch"}


class Measured(Record, frozen=True, kw_only=True):
    """A world size with its efficiency; the ends are of the 95 % interval over rounds."""

    at: At
    samples_per_s: float
    efficiency: float
    low: float | None = None
    high: float | None = None


class Case(NamedTuple):
    """What is known before a prediction.

    * rate, rates: samples/s of one device alone; also by model and batch size
    * largest: largest measured world size
    * unclaimed: why no prediction of the case is claimed
    """

    setting: Setting
    known: Known
    rate: float
    batch_size: int
    unit: str
    devices_per_node: int
    title: str = ""
    measured: tuple[Measured, ...] = ()
    largest: int = 1
    rates: tuple[tuple[str, int, float], ...] = ()
    model: str = ""
    strategy: str = ""
    interconnect: str = ""
    cold: bool = False
    device: str = ""
    units_per_sample: int = 1
    notes: tuple[str, ...] = ()
    command: str = "python -m scaling.run"
    unclaimed: str = ""

    def layout(self, world_size: int) -> At:
        """Place devices, filling one node after the other."""
        nodes, each = -(-world_size // self.devices_per_node), min(world_size, self.devices_per_node)
        return At(world_size=world_size, nodes=nodes, each=each, accumulation=self.known.anchor.accumulation)


# ---------------------------------------------------------------- a run


def case(header: Header, records: Sequence[PointRecord], asked: Asked) -> Case:
    """Build the case of the wanted curve, else of the fastest at the largest world size. Raises UsageError."""
    analysis = analyse(records)
    rows = _chosen(analysis.rows, asked)
    row, work = rows[0], rows[0].workload
    several = [one for one in rows if 1 < one.world_size <= (asked.up_to or one.world_size)]
    sound = [one for one in several if not _unsound(one)]
    notes = [f"N={one.world_size} is left out: {why}" for one in several if (why := _unsound(one))]
    own = (row.hardware, row.framework)
    rates = [
        (one.workload, one.samples_per_s) for one in analysis.baselines
        if one.samples_per_s and (one.hardware, one.strategy.partition(":")[0]) == own
    ]  # fmt: skip
    alone = next((rate for one, rate in rates if one == work.reference(1)), None)
    if alone is None or not sound:
        again = f"mpirun -np 2 {_command(row)} --batch-size {work.batch_size} --world-sizes 1,2"
        why = f" ({'; '.join(notes)})" if notes else ""
        whose = "RUN" if asked.up_to is None else f"--up-to {asked.up_to}"
        raise UsageError(f"{whose}: needs one device alone and one usable exchange of several{why}: {again}")
    if not row.servers and frameworks.is_outside(row.strategy):
        ring = "which is not part of scaling, all-reduces its gradients over a ring"
        notes.insert(0, f"assumed: {row.strategy}, {ring}")
    gpus = sorted({gpu.name for host in header.hosts for gpu in host.gpus}) if header.device == "cuda" else []
    device = (gpus or [host.cpu_model for host in header.hosts] or [""])[0]
    observed = ((one, one.efficiency) for one in sound)
    done = ((one, one.efficiency, one.samples_per_s) for one in rows if one.world_size > 1)
    return Case(
        setting=_setting(header, records, row, alone.mean, device),
        known=Known(
            At(world_size=1, nodes=1, accumulation=_accumulation(row)),
            tuple(Observed(at=_at(one), value=how.mean, noise=noise(how)) for one, how in observed if how),
            (*_exchanges(records, row, asked.up_to, alone), *(one for sure in sound for one in _shares(sure))),
        ),
        rate=alone.mean, batch_size=work.batch_size, unit=work.unit, units_per_sample=work.units_per_sample,
        devices_per_node=max(Counter(header.host_of_rank).values(), default=1),
        measured=(
            Measured(at=At(world_size=1, nodes=1), samples_per_s=alone.mean, efficiency=1.0),
            *(Measured(at=_at(one), samples_per_s=rate.mean if rate else 0.0, efficiency=how.mean, low=how.low,
                       high=how.high) for one, how, rate in done if how),
        ),
        largest=sound[-1].world_size, rates=tuple((one.model, one.batch_size, rate.mean) for one, rate in rates),
        model=work.model, strategy=row.strategy, interconnect=row.interconnect, notes=tuple(notes),
        device=row.hardware.profile or device, command=_command(row),
    )  # fmt: skip


def _chosen(rows: Sequence[Row], asked: Asked) -> list[Row]:
    """Return the rows of the wanted curve, else of the fastest at the largest world size; the asked work is
    preferred. Raises UsageError."""
    curves: dict[int, list[Row]] = {}
    for row in rows:
        own = asked.strategy or row.strategy, asked.interconnect or row.interconnect
        if own == (row.strategy, row.interconnect):
            curves.setdefault(row.curve, []).append(row)
    if not curves:
        flags = (("--strategy", asked.strategy), ("--interconnect", asked.interconnect))
        words = " ".join(f"{flag} {word}" for flag, word in flags if word) or "RUN"
        has = ", ".join(sorted({f"{row.strategy} over {row.interconnect}" for row in rows})) or "none"
        raise UsageError(f"{words}: the run has no such exchange; it has {has}")

    def standing(curve: Sequence[Row]) -> tuple[bool, bool, int, float]:
        work, last = curve[0].workload, curve[-1]
        alike = asked.model in ("", work.model) and asked.batch_size in (None, work.batch_size)
        usable = alike and any(row.world_size > 1 and not _unsound(row) for row in curve)
        return usable, last.synchronous, last.world_size, last.samples_per_s.mean if last.samples_per_s else 0.0

    found = max(curves.values(), key=standing)
    if (work := found[0].workload).is_strong:
        again = f"{_command(found[0])} --batch-rule weak --batch-size B"
        raise UsageError(f"RUN: its batch rule is {work.batch_rule}, but only weak is predicted: {again}")
    return found


def _unsound(row: Row) -> str:
    if why := ", ".join(mark for mark in MARKS if mark in row.flags) or unclaimed(row):
        return why
    if row.servers not in (0, row.nodes):
        return f"{row.servers} parameter servers on {row.nodes} nodes: only one per node is predicted"
    return ""


def _command(row: Row) -> str:
    device = f"emulated:{row.hardware.profile}" if row.hardware.profile else row.hardware.device
    words = shlex.join(["--strategy", row.strategy, "--model", row.workload.model, "--device", device])
    return f"python -m scaling.run {words}"


def _accumulation(row: Row) -> int:
    return int(row.options.get("accumulate", "1"))


def _at(row: Row) -> At:
    return At(world_size=row.world_size, nodes=row.nodes, accumulation=_accumulation(row))


def _setting(header: Header, records: Sequence[PointRecord], row: Row, rate: float, device: str) -> Setting:
    known = settings.known_model(row.workload.model) or KnownModel(name=row.workload.model, parameters=0)
    option, way = row.options.get, exchange_way(row)
    sharded, hsdp = way["method"] == "sharded", option("hsdp", "0")
    if hsdp != "0" or (sharded and _accumulation(row) > 1):
        given = f"hsdp={hsdp}" if hsdp != "0" else f"accumulate={_accumulation(row)}"
        raise UsageError(
            f"RUN: {row.strategy} with --option {given}: the model does not cover it; measure without it, or "
            "measure larger world sizes with it"
        )
    if sharded and option("reshard", "true").lower() in FALSE:  # kept parameters move the bytes of a ring
        way["method"], sharded = "ring", False
    size = _gradient_bytes(records, row, known)
    half = any(option(name, "none") != "none" for name in COMPRESSIONS)
    thirds = HALF_GATHERS if sharded and option("param_dtype", "fp32") != "fp32" else 1.0
    by_nccl = row.strategy.endswith("nccl") or _declared(row.strategy).by_nccl
    bus, verbs = _bus(header, row), row.hardware.device == "cuda" and by_nccl
    return Setting(
        gradient_bytes=size * (0.5 if half else thirds),
        gathered_bytes=0.0 if option("shard_optimizer", "false").lower() in FALSE else size,
        tail=known.tail, tensors=known.tensors, step_s=row.workload.batch_size / rate / _accumulation(row),
        bus=bus, bus_bytes_per_s=settings.bytes_per_s(bus, device) or 0.0, carrier="nccl" if verbs else "cpu",
        emulated=bool(row.hardware.profile), **_wires(header, row, verbs=verbs)._asdict(), **way,
    )  # fmt: skip


def exchange_way(row: Row | Point) -> dict[str, Any]:
    """The method, overlap and messages of an exchange, as fields of a Setting."""
    if row.servers:
        method = "servers_beside" if row.server_hosts == "shared" else "servers_apart"
        return {"method": method, "overlap": "other", "messages": "tensors"}
    return _way(_declared(row.strategy))


def _way(declared: Exchange) -> dict[str, Any]:
    return {name: getattr(declared, name) for name in ("method", "overlap", "messages")}


def _declared(strategy: str) -> Exchange:
    return frameworks.named(strategy).exchange(strategy.partition(":")[2])


def _gradient_bytes(records: Sequence[PointRecord], row: Row, known: KnownModel) -> float:
    """Return the bytes of one step's gradients, with the emulation's shrinking undone."""
    alike = [one for one in records if (one.point.workload, one.point.hardware) == (row.workload, row.hardware)]
    size = max((rank.ready.gradient_bytes for one in alike for rank in one.ranks if rank.ready), default=0)
    if not size and not known.parameters:
        raise UsageError(f"RUN: no worker reported the gradient size of {known.name}: measure it again")
    return size * row.hardware.shrink or 4.0 * known.parameters


def _bus(header: Header, row: Row) -> Bus:
    links = {link for host in header.hosts for gpu in host.gpus for link in gpu.links} - {"self"}
    if row.hardware.device != "cuda":
        return "loopback"
    if not any(link.startswith("NV") for link in links):
        return "pcie"
    whole = all(link.startswith("NV") and int(link[2:] or 0) >= SWITCHED_LINKS for link in links)
    return "nvswitch" if whole else "nvlink"


def _wires(header: Header, row: Row, *, verbs: bool) -> Wires:
    """Emulated links have the rates of the emulated cluster. NCCL uses RDMA cards directly; all else sends TCP."""
    network = next((one for one in header.networks if one.word == row.interconnect), None)
    if network is None or network.rate_bits_per_s is None:
        return Wires("unknown" if row.nodes > 1 else "none", 0.0)
    line, places = network.rate_bits_per_s / 8, network.places.values()
    if row.hardware.profile:
        return Wires("tcp10", line)
    cards = max((len(place.hca.split(",")) for place in places if place.hca), default=0)
    if cards and verbs:
        card = (network.card_bits_per_s or network.rate_bits_per_s) / 8
        return Wires("rdma_several" if cards > 1 else "rdma", card * cards, cards)
    infiniband = any(place.interface.startswith("ib") for place in places)
    return Wires(settings.tcp_link(network.rate_bits_per_s / 1e9, infiniband=infiniband), line)


def noise(one: Estimate) -> float:
    """Standard deviation of the logarithm; an interval that reaches 0 tells nothing."""
    if one.low is None or one.high is None:
        return ONE_ROUND
    wide = log(one.high / one.low) / 2 / NORMAL_95 if one.low > 0 else MOST_NOISE
    return min(max(LEAST_NOISE, wide), MOST_NOISE)


def _exchanges(records: Sequence[PointRecord], row: Row, up_to: int | None, alone: Estimate) -> Iterator[Observed]:
    """`comm` of each world size over rounds, as uncertain as the step that it is compared with."""
    latest = kept(records)
    step_noise = min((alone.half_width or 0.0) / alone.mean / NORMAL_95, MOST_NOISE)
    controls, own = Controls(latest), (row.strategy, row.interconnect, row.workload, row.hardware, row.options)
    for cell in exchanges(latest):
        point = cell.point
        same = own == (point.strategy, point.interconnect, point.workload, point.hardware, point.options)
        told = [one.comm_s for one in rounds(cell, controls) if one.comm_s] if same else []
        if told and 1 < point.world_size <= (up_to or point.world_size):
            spread = stdev(map(log, told)) / sqrt(len(told)) if len(told) > 1 else 0.0
            unsure = hypot(max(COMM_NOISE, spread), step_noise)
            at = At(world_size=point.world_size, nodes=cell.nodes)
            yield Observed(at=at, value=fmean(told), noise=unsure, of="exchange")


def _shares(row: Row) -> Iterator[Observed]:
    if row.breakdown is None or row.efficiency is None:
        return
    for part in ("contention", "straggling"):
        value: float | None = getattr(row.breakdown, part)
        if value is not None:
            half = row.breakdown_intervals[part].half_width if part in row.breakdown_intervals else None
            unsure = max(SHARE_NOISE, (half or ONE_ROUND) / NORMAL_95) / row.efficiency.mean
            yield Observed(at=_at(row), value=value / row.efficiency.mean, noise=unsure, of=part)


# ---------------------------------------------------------------- a data sheet, and logs of other tools


def cold(asked: Asked) -> Case:
    """Build the case of --cold. Raises UsageError with the missing or faulty flag."""
    length, rate = asked.sequence_length or 1, asked.rate or _guessed_rate(asked)
    needed = {
        "--rate R": rate, "--model NAME": asked.model or asked.parameters, "--batch-size B": asked.batch_size,
        "--devices-per-node D": asked.devices_per_node, "--network KIND:GBIT": asked.network,
    }  # fmt: skip
    if missing := [flag for flag, value in needed.items() if not value]:
        raise UsageError(f"--cold: needs {', '.join(missing)} as well")
    batch = asked.batch_size or 1
    checked_step(batch, rate / length)
    case = _data_sheet(asked, known_by_name(asked), batch, rate / length)
    if not asked.rate:
        guess = f"{case.notes[0]}, {UTILISATION:.0%} of the peak of {asked.device}"
        case = case._replace(setting=replace(case.setting, step_spread=UTILISATION_SPREAD), notes=(guess,))
    unit = "tokens" if asked.sequence_length else "samples"
    work = f"{case.model}, batch {batch}{f' x {length} tokens' if length > 1 else ''} per device"
    title = f"{work}, {rate:g} {unit}/s on one, {case.devices_per_node} a node, {asked.network}"
    why = f"no published node of {asked.device} tests such a prediction: measure one node"
    unclaimed = why if asked.device and not settings.is_covered(asked.device) else ""
    return case._replace(title=title, unit=unit, cold=True, unclaimed=unclaimed)


def _guessed_rate(asked: Asked) -> float:
    if asked.flops_per_sample is None:
        return 0.0
    named = (find_peak(f"{maker}{asked.device}") for maker in ("", "NVIDIA ", "NVIDIA GeForce ", "Tesla "))
    peaks = next((one.peaks for one in named if one), {})
    kinds = ("bf16", "fp16") if asked.precision in ("bf16", "fp16", "amp") else ("tf32", "fp32")
    found = next((peaks[kind] for kind in kinds if kind in peaks), None)
    if found is None:
        device = asked.device or "NAME"
        raise UsageError(f"--flops-per-sample: the peak of --device {device} is unknown: give --rate")
    return UTILISATION * found * 1e12 / asked.flops_per_sample


def imported(asked: Asked, header: Header) -> Case:
    """Build the case of the longest imported curve of the asked model and batch. Raises UsageError."""
    if not asked.devices_per_node:
        raise UsageError("RUN: is IMPORTED, and a log does not say where devices are: give --devices-per-node D")
    found = []
    for curve in curves(cells(header.imported)):
        wanted = [one for one in curve if one.efficiency and one.world_size <= (asked.up_to or one.world_size)]
        alike = asked.batch_size in (None, curve[0].batch_size)
        if alike and len(wanted) > 1 and not {"FAILED", "AUDIT", "ASYNC"} & set(curve[0].flags):
            found.append(wanted)
    if not found:
        raise UsageError("RUN: its logs have no efficiency of several devices; import the log of the fewest, too")
    rows = max(found, key=len)
    base = next(one for one in rows if one.world_size == rows[0].base_world_size)
    known = known_by_name(asked if asked.model or asked.parameters else replace(asked, model=base.model))
    case = _data_sheet(asked, known, base.batch_size, _rate(base, asked) / base.world_size)
    seen = [(case.layout(one.world_size), one.efficiency or 1.0, one) for one in rows]
    observed = (
        Observed(at=at, value=value, noise=noise(one.rate) if one.rate and len(one.logs) > 1 else ONE_ROUND)
        for at, value, one in seen if one is not base
    )  # fmt: skip
    measured = (Measured(at=at, samples_per_s=_rate(one, asked), efficiency=value) for at, value, one in seen)
    return case._replace(
        known=Known(case.layout(base.world_size), tuple(observed)), measured=tuple(measured), unit=base.unit,
        largest=rows[-1].world_size, strategy=base.tool, interconnect=asked.network or "one node",
        notes=(case.notes[0].replace("nothing was measured", "IMPORTED, not measured by scaling"),),
    )  # fmt: skip


def _rate(one: Imported, asked: Asked) -> float:
    return one.rate.mean / (asked.sequence_length or 1) if one.rate else 0.0


def _data_sheet(asked: Asked, known: KnownModel, batch: int, rate: float) -> Case:
    """Build the case that flags describe, with a note of what is assumed."""
    name = asked.strategy or frameworks.default("cuda")
    traits, declared = frameworks.load(name).traits(name), _declared(name)
    if traits.servers:
        raise UsageError(
            f"--strategy {name}: the number of its parameter servers is unknown; measure a run on two nodes"
        )
    by_nccl = traits.nccl or declared.by_nccl
    bus, bus_rate = settings.named_bus(asked.bus, asked.device)
    precision: Precision = asked.precision or "fp32"
    wires = settings.network(asked.network, verbs=by_nccl) if asked.network else Wires("none", 0.0)
    setting = Setting(
        gradient_bytes=4.0 * known.parameters * WIRES[precision], tail=known.tail, tensors=known.tensors,
        step_s=batch / rate, bus=bus, bus_bytes_per_s=bus_rate or 0.0, carrier="nccl" if by_nccl else "cpu",
        **wires._asdict(), **_way(declared),
    )  # fmt: skip
    shown = f"{SHOWN.get(bus)} of {(bus_rate or settings.USUAL_BYTES_PER_S[bus]) / 1e9:g} GB/s"
    any_bus = "any bus between the devices of a node (--bus narrows the interval)"
    assumed = [f"the exchange of {name}", precision, shown if bus in SHOWN else any_bus]
    if asked.device and bus_rate is None:
        assumed.append(f"{asked.device}, which is not in the catalogue, has the usual bus")
    return Case(
        setting=setting, known=Known(At(world_size=1, nodes=1)), rate=rate, batch_size=batch, unit="samples",
        devices_per_node=asked.devices_per_node or 1, units_per_sample=asked.sequence_length or 1,
        rates=((known.name, batch, rate),), model=known.name, device=asked.device,
        notes=(f"nothing was measured; assumed: {', '.join(assumed)}",),
    )  # fmt: skip


def checked_step(batch: int, rate: float) -> float:
    """Return the seconds of a step. Raises UsageError if no device takes such a step."""
    if SHORTEST_S <= batch / rate <= LONGEST_S:
        return batch / rate
    raise UsageError(
        f"--rate {rate:g}: a step of {batch} samples would take {batch / rate:.3g} s; from {SHORTEST_S:g} to "
        f"{LONGEST_S:,.0f} s are predicted"
    )


def known_by_name(asked: Asked) -> KnownModel:
    """Find a model of the table, or describe one by --parameters. Raises UsageError with the nearest name."""
    if asked.parameters:
        return KnownModel(name=asked.model or f"{asked.parameters:g} parameters", parameters=int(asked.parameters))
    if asked.model not in (names := {one.name: one for one in settings.MODELS}):
        near_by = near(asked.model, names)
        raise UsageError(f"--model {asked.model}: unknown gradient size; {near_by}; or give --parameters")
    return names[asked.model]
