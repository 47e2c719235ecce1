"""Builds a case from a run's records, from logs of other tools, or from the data sheet of a cluster."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from scaling import frameworks
from scaling.analysis.table.analyse import analyse
from scaling.analysis.table.catalogue import unclaimed, unranked_marks
from scaling.analysis.table.cell_rows import find_peak
from scaling.analysis.table.imported import cells, curves
from scaling.analysis.table.rows import Row
from scaling.errors import UsageError, near
from scaling.frameworks.base import Exchange
from scaling.records.run import Header, PointRecord
from scaling.tools.predict import setting as settings
from scaling.tools.predict.flags import Asked, Precision
from scaling.tools.predict.setting import At, Bus, KnownModel, Measured, Setting, Wires

# NVLinks between each pair of GPUs that indicate a switch: through it every pair has all links of a GPU
SWITCHED_LINKS = 6
# options that compress gradients; 2 bits count as half
COMPRESSIONS, FALSE = ("compression", "compress"), ("false", "0", "no", "off")
# of 3 transfers of sharded parameters in bf16, two gathers send half and one float32 reduction
HALF_GATHERS = 2 / 3
# rows with these marks are not used
MARKS = ("FAILED", *unranked_marks(), "ASYNC", "UNSETTLED", "THROTTLED")
# outside these a step is a typing error
SHORTEST_S, LONGEST_S = 1e-5, 24 * 3600.0
# share of its dense peak that a device reaches in training, and the standard deviation of its logarithm
UTILISATION, UTILISATION_SPREAD = 0.4, 0.35
# the type of gradients on the network: autocast ("amp") keeps float32 gradients
WIRES: Mapping[Precision, float] = {"fp32": 1.0, "tf32": 1.0, "amp": 1.0, "bf16": 0.5, "fp16": 0.5}


class Case(NamedTuple):
    """What is known before a prediction.

    * asked: another setting than the measured one
    * rate, rates: samples/s of one device alone, in the asked setting; also by model and batch size
    * unclaimed: why no prediction of the case is claimed
    """

    setting: Setting
    rate: float
    batch_size: int
    unit: str
    devices_per_node: int
    observed: tuple[Measured, ...] = ()
    title: str = ""
    asked: Setting | None = None
    measured: tuple[Measured, ...] = ()
    rates: tuple[tuple[str, int, float], ...] = ()
    model: str = ""
    strategy: str = ""
    units_per_sample: int = 1
    notes: tuple[str, ...] = ()
    command: str = ""
    unclaimed: str = ""

    def layout(self, world_size: int) -> At:
        """Place devices, filling one node after the other."""
        nodes, each = -(-world_size // self.devices_per_node), min(world_size, self.devices_per_node)
        return At(world_size=world_size, nodes=nodes, each=each, accumulation=self.setting.anchor.accumulation)


def _title(asked: Asked, strategy: str, network: str, model: str, batch: int) -> str:
    work = f"{asked.model or model}, batch {asked.batch_size or batch} per device"
    return f"{strategy} over {asked.network or network}, {work}"


# ---------------------------------------------------------------- a run


def case(header: Header, records: Sequence[PointRecord], asked: Asked) -> Case:
    """Build the case of the wanted curve, else of the fastest at the largest world size. Raises UsageError."""
    analysis = analyse(records)
    rows = _chosen(analysis.rows, asked)
    row, work = rows[0], rows[0].workload
    alike = [one for one in analysis.baselines
             if (one.hardware, one.strategy.partition(":")[0]) == (row.hardware, row.framework)]  # fmt: skip
    rates = [(one.workload, one.samples_per_s.mean) for one in alike if one.samples_per_s]
    alone = next((rate for one, rate in rates if one == work.reference(1)), 0.0)
    anchor = At(world_size=1, nodes=1, accumulation=int(row.options.get("accumulate", "1")))
    measured, used, notes = [Measured(at=anchor, samples_per_s=alone, efficiency=1.0)], [], []
    for one in rows if row.world_size > 1 else rows[1:]:
        at, how, why = replace(anchor, world_size=one.world_size, nodes=one.nodes), one.efficiency, _unsound(one)
        if how:
            rate = one.samples_per_s.mean if one.samples_per_s else 0.0
            measured.append(Measured(at=at, samples_per_s=rate, efficiency=how.mean, low=how.low, high=how.high))
        if one.world_size <= (asked.up_to or one.world_size):
            notes += [f"N={one.world_size} is left out: {why}"] if why else []
            used += measured[-1:] if how and not why else []
    if not alone or not used:
        again = f"mpirun -np 2 {_command(row)} --world-sizes 1,2"
        why = f" ({'; '.join(notes)})" if notes else ""
        whose = "RUN" if asked.up_to is None else f"--up-to {asked.up_to}"
        raise UsageError(f"{whose}: needs one device alone and one usable exchange of several{why}: {again}")
    if not row.servers and frameworks.is_outside(row.strategy):
        ring = "which is not part of scaling, all-reduces its gradients over a ring"
        notes.insert(0, f"assumed: {row.strategy}, {ring}")
    title = _title(asked, row.strategy, row.interconnect, work.model, work.batch_size)
    return Case(
        title=title + (f", EMULATED {row.hardware.profile}" if row.hardware.profile else ""),
        setting=_setting(header, records, row, work.batch_size / alone / anchor.accumulation, anchor),
        observed=tuple(used), measured=tuple(measured), rate=alone,
        rates=tuple((one.model, one.batch_size, rate) for one, rate in rates),
        devices_per_node=asked.devices_per_node or max(Counter(header.host_of_rank).values(), default=1),
        batch_size=work.batch_size, unit=work.unit, units_per_sample=work.units_per_sample, model=work.model,
        strategy=row.strategy, notes=tuple(notes), command=_command(row),
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
        flags = {"--strategy": asked.strategy, "--interconnect": asked.interconnect}
        words = " ".join(f"{flag} {word}" for flag, word in flags.items() if word) or "RUN"
        has = ", ".join(sorted({f"{row.strategy} over {row.interconnect}" for row in rows})) or "none"
        raise UsageError(f"{words}: the run has no such exchange; it has {has}")

    def standing(curve: Sequence[Row]) -> tuple[bool, bool, int, float]:
        work, last = curve[0].workload, curve[-1]
        alike = asked.model in ("", work.model) and asked.batch_size in (None, work.batch_size)
        usable = alike and any(row.world_size > 1 and not _unsound(row) for row in curve)
        return usable, last.synchronous, last.world_size, last.samples_per_s.mean if last.samples_per_s else 0.0

    found = max(curves.values(), key=standing)
    if (work := found[0].workload).is_strong:
        again = "give the script a batch per device" if work.script else f"{_command(found[0])} --batch-rule weak"
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
    work = row.workload
    own = ("--strategy", row.strategy, "--model", work.model, "--device", device, "--batch-size", work.batch_size)
    return f"python -m scaling.run {shlex.join(map(str, ('--script', work.script) if work.script else own))}"


def _setting(header: Header, records: Sequence[PointRecord], row: Row, step_s: float, anchor: At) -> Setting:
    known = settings.known_model(row.workload.model) or KnownModel(name=row.workload.model, parameters=0)
    option, exchange = row.options.get, frameworks.named(row.strategy).exchange(row.strategy.partition(":")[2])
    if row.servers:
        exchange = Exchange(method="servers_beside" if row.server_hosts == "shared" else "servers_apart")
    sharded, hsdp = exchange.method == "sharded", option("hsdp", "0")
    if hsdp != "0" or (sharded and anchor.accumulation > 1):
        given = f"hsdp={hsdp}" if hsdp != "0" else f"accumulate={anchor.accumulation}"
        fix = "measure without it, or measure larger world sizes with it"
        raise UsageError(f"RUN: {row.strategy} with --option {given}: the model does not cover it; {fix}")
    if sharded and option("reshard", "true").lower() in FALSE:  # kept parameters move the bytes of a ring
        exchange, sharded = replace(exchange, method="ring"), False
    size = _gradient_bytes(records, row, known)
    half = any(option(name, "none") != "none" for name in COMPRESSIONS)
    thirds = HALF_GATHERS if sharded and option("param_dtype", "fp32") != "fp32" else 1.0
    gpus = sorted({gpu.name for host in header.hosts for gpu in host.gpus})
    bus, cuda = _bus(header, row), row.hardware.device == "cuda"
    verbs = cuda and (row.strategy.endswith("nccl") or exchange.by_nccl)
    return Setting(
        gradient_bytes=size * (0.5 if half else thirds),
        gathered_bytes=0.0 if option("shard_optimizer", "false").lower() in FALSE else size,
        tail=known.tail, tensors=known.tensors, step_s=step_s, anchor=anchor, bus=bus,
        bus_bytes_per_s=(settings.bytes_per_s(bus, gpus[0]) or 0.0) if cuda and gpus else 0.0,
        carrier="nccl" if verbs else "cpu", emulated=bool(row.hardware.profile), method=exchange.method,
        overlap=exchange.overlap, messages=exchange.messages, **_wires(header, row, verbs=verbs)._asdict(),
    )  # fmt: skip


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
        return Wires("unknown", 0.0)
    line, places = network.rate_bits_per_s / 8, network.places.values()
    cards = max((len(place.hca.split(",")) for place in places if place.hca), default=0)
    if cards and verbs and not row.hardware.profile:
        return Wires("rdma", cards * (network.card_bits_per_s or network.rate_bits_per_s) / 8, cards)
    return Wires("ipoib" if any(place.interface.startswith("ib") for place in places) else "tcp", line)


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
    work = f"{case.model}, batch {batch}{f' x {length} tokens' if length > 1 else ''} per device"
    title = f"{work}, {rate:g} {case.unit}/s on one, {case.devices_per_node} a node, {asked.network}"
    if asked.device and not settings.is_covered(asked.device):
        why = f"no published node of {asked.device} tests such a prediction: measure one node"
        case = case._replace(unclaimed=why)
    return case._replace(title=title)


def _guessed_rate(asked: Asked) -> float:
    if asked.flops_per_sample is None:
        return 0.0
    named = (find_peak(f"{maker}{asked.device}") for maker in ("", "NVIDIA ", "NVIDIA GeForce ", "Tesla "))
    peaks = next((one.peaks for one in named if one), {})
    kinds = ("bf16", "fp16") if asked.precision in ("bf16", "fp16", "amp") else ("tf32", "fp32")
    found = next((peaks[kind] for kind in kinds if kind in peaks), None)
    if found is None:
        raise UsageError(f"--flops-per-sample: no peak of --device {asked.device or 'NAME'} is known: give --rate")
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
    model = known_by_name(asked if asked.model or asked.parameters else replace(asked, model=base.model))
    length, base_rate = asked.sequence_length or 1, base.rate.mean if base.rate else 0.0
    case = _data_sheet(asked, model, base.batch_size, base_rate / length / base.world_size)
    measured = []
    for one in rows:
        if how := one.rate:
            at, value = case.layout(one.world_size), one.efficiency or 1.0
            low, high = (end and end * value / how.mean for end in (how.low, how.high))
            measured.append(Measured(at=at, samples_per_s=how.mean / length, efficiency=value, low=low, high=high))
    anchor = case.layout(base.world_size)
    return case._replace(
        setting=replace(case.setting, anchor=anchor), measured=tuple(measured), unit=base.unit,
        observed=tuple(one for one in measured if one.at != anchor),
        title=_title(asked, base.tool, "one node", case.model, base.batch_size), strategy=base.tool,
        notes=(case.notes[0].replace("nothing was measured", "IMPORTED, not measured by scaling"),),
    )  # fmt: skip


def _data_sheet(asked: Asked, model: KnownModel, batch: int, rate: float) -> Case:
    """Build the case that flags describe, with a note of what is assumed."""
    name = asked.strategy or frameworks.default("cuda")
    traits, exchange = frameworks.load(name).traits(name), frameworks.named(name).exchange(name.partition(":")[2])
    if traits.servers:
        why = "the number of its parameter servers is unknown; measure a run on two nodes"
        raise UsageError(f"--strategy {name}: {why}")
    by_nccl = traits.nccl or exchange.by_nccl
    bus, bus_rate = settings.named_bus(asked.bus, asked.device)
    precision: Precision = asked.precision or "fp32"
    wires = settings.network(asked.network, verbs=by_nccl) if asked.network else Wires("unknown", 0.0)
    gigabytes_per_s = (bus_rate or settings.USUAL_BYTES_PER_S[bus]) / 1e9
    shown = f"{bus} of {gigabytes_per_s:g} GB/s" if asked.bus else "any bus (--bus narrows the interval)"
    assumed = [f"the exchange of {name}", precision, shown]
    if asked.device and bus_rate is None:
        assumed.append(f"{asked.device}, which is not in the catalogue, has the usual bus")
    return Case(
        setting=Setting(
            gradient_bytes=4.0 * model.parameters * WIRES[precision], tail=model.tail, tensors=model.tensors,
            step_s=batch / rate, bus=bus, bus_bytes_per_s=bus_rate or 0.0, carrier="nccl" if by_nccl else "cpu",
            method=exchange.method, overlap=exchange.overlap, messages=exchange.messages, **wires._asdict(),
        ),
        rate=rate, batch_size=batch, model=model.name,
        unit="tokens" if asked.sequence_length else "samples", units_per_sample=asked.sequence_length or 1,
        devices_per_node=asked.devices_per_node or 1,
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
