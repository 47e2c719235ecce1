"""Builds a case from a run's records: observed rows, controls, exchanges alone, the network.

Contention and straggling come from the controls, exchange times from `comm`, and noise from intervals over rounds.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from math import hypot, log, sqrt
from statistics import fmean, stdev
from typing import Any, NamedTuple

from scaling import frameworks
from scaling.analysis.measured.controls import Controls
from scaling.analysis.measured.rounds import rounds
from scaling.analysis.statistics.intervals import Estimate
from scaling.analysis.table.analyse import analyse, kept
from scaling.analysis.table.catalogue import unranked_marks
from scaling.analysis.table.comparisons import exchanges
from scaling.analysis.table.rows import Row
from scaling.errors import UsageError
from scaling.records.point import Point
from scaling.records.run import Header, PointRecord
from scaling.tools.predict.catalogue import Wires, bytes_per_s, known_model, tcp_link
from scaling.tools.predict.forecast import NORMAL_95, Case, Measured
from scaling.tools.predict.setting import (
    At,
    Bus,
    Exchange,
    Known,
    Observed,
    Setting,
    Share,
)

# NVLinks between each pair of GPUs that indicate a switch
SWITCHED_LINKS = 6
# options that compress gradients; 2 bits count as half
COMPRESSIONS = ("compression", "compress")
FALSE = ("false", "0", "no", "off")
# of 3 transfers of sharded parameters in bf16, two gathers send half and one float32 reduction
HALF_GATHERS = 2 / 3


def setting_of(header: Header, records: Sequence[PointRecord], row: Row, rate: float) -> Setting:
    known, size = known_model(row.workload.model), gradient_bytes(records, row)
    way, option = exchange_way(row), row.options.get
    half = any(option(name, "none") != "none" for name in COMPRESSIONS)
    sharded = way["method"] == "sharded"
    if option("hsdp", "0") != "0" or (sharded and accumulation(row) > 1):
        given = f"hsdp={option('hsdp')}" if option("hsdp", "0") != "0" else f"accumulate={accumulation(row)}"
        raise UsageError(
            f"RUN: {row.strategy} with --option {given}: the model does not cover it; measure without it, or "
            "measure larger world sizes with it"
        )
    if sharded and option("reshard", "true").lower() in FALSE:  # kept parameters move the bytes of a ring
        way["method"], sharded = "ring", False
    thirds = HALF_GATHERS if sharded and option("param_dtype", "fp32") != "fp32" else 1.0
    bus = _bus(header, row)
    return Setting(
        gradient_bytes=size * (0.5 if half else thirds),
        gathered_bytes=0.0 if option("shard_optimizer", "false").lower() in FALSE else size,
        tail=known.tail if known else 0.05,
        tensors=known.tensors if known else 200,
        step_s=row.workload.batch_size / rate / accumulation(row),
        bus=bus,
        bus_bytes_per_s=bytes_per_s(bus, device(header)),
        **_wires(header, row)._asdict(),
        carrier="nccl" if _by_verbs(row) else "cpu",
        **way,
        emulated=bool(row.hardware.profile),
    )


def accumulation(row: Row) -> int:
    return int(row.options.get("accumulate", "1"))


def gradient_bytes(records: Iterable[PointRecord], row: Row) -> float:
    """Return the bytes of one step's gradients, with the emulation's shrinking undone."""
    found = [
        rank.ready.gradient_bytes
        for record in records
        if (record.point.workload, record.point.hardware) == (row.workload, row.hardware)
        for rank in record.ranks
        if rank.ready is not None and rank.ready.gradient_bytes
    ]
    known = known_model(row.workload.model)
    if not found and known is None:
        raise UsageError(f"RUN: no worker reported the gradient size of {row.workload.model}: measure it again")
    return max(found) * row.hardware.shrink if found else 4.0 * known.parameters if known else 0.0


def exchange_way(row: Row | Point) -> dict[str, Any]:
    """The method, overlap and messages of an exchange, as fields of a Setting."""
    if row.servers:
        beside = row.server_hosts == "shared"
        return {
            "method": "servers_beside" if beside else "servers_apart",
            "overlap": "other",
            "messages": "tensors",
        }
    return declared_way(row.strategy)


def declared_way(strategy: str) -> dict[str, Any]:
    declared = frameworks.named(strategy).exchange(strategy.partition(":")[2])
    return {"method": declared.method, "overlap": declared.overlap, "messages": declared.messages}


def _bus(header: Header, row: Row) -> Bus:
    links = {link for host in header.hosts for gpu in host.gpus for link in gpu.links} - {"self"}
    if row.hardware.device != "cuda":
        return "loopback"
    if not any(link.startswith("NV") for link in links):
        return "pcie"
    # Through a switch every pair has all links of a GPU; the smallest number is 6 (DGX-2).
    whole = all(link.startswith("NV") and int(link[2:] or 0) >= SWITCHED_LINKS for link in links)
    return "nvswitch" if whole else "nvlink"


def _wires(header: Header, row: Row) -> Wires:
    """Emulated links have the rates of the emulated cluster."""
    network = next((one for one in header.networks if one.word == row.interconnect), None)
    if network is None or network.rate_bits_per_s is None:
        return Wires("unknown" if row.nodes > 1 else "none", 0.0)
    line = network.rate_bits_per_s / 8
    if row.hardware.profile:
        return Wires("tcp10", line)
    infiniband = any(place.interface.startswith("ib") for place in network.places.values())
    cards = max((len(place.hca.split(",")) for place in network.places.values() if place.hca), default=0)
    if cards and _by_verbs(row):
        card = (network.card_bits_per_s or network.rate_bits_per_s) / 8
        return Wires("rdma_several" if cards > 1 else "rdma", card * cards, cards)
    return Wires(tcp_link(network.rate_bits_per_s / 1e9, infiniband=infiniband), line)


def _by_verbs(row: Row) -> bool:
    """Whether NCCL carries the exchange. It uses RDMA cards directly; everything else sends TCP."""
    declared = frameworks.named(row.strategy).exchange(row.strategy.partition(":")[2])
    return row.hardware.device == "cuda" and (row.strategy.endswith("nccl") or declared.by_nccl)


def device(header: Header) -> str:
    gpus = {gpu.name for host in header.hosts for gpu in host.gpus} if header.device == "cuda" else set()
    return next(iter(sorted(gpus)), header.hosts[0].cpu_model if header.hosts else "")


def devices_per_node(header: Header) -> int:
    return max(Counter(header.host_of_rank).values(), default=1)


# ---------------------------------------------------------------- the curve of one exchange


# rows with these marks are not used
MARKS = ("FAILED", *unranked_marks(), "ASYNC", "UNSETTLED", "THROTTLED")


class Wanted(NamedTuple):
    """Selects a curve of a run; empty fields match any. `model` and `batch_size` are preferred."""

    strategy: str = ""
    interconnect: str = ""
    up_to: int | None = None
    model: str = ""
    batch_size: int | None = None


ANY = Wanted()


def chosen(rows: Sequence[Row], wanted: Wanted) -> list[Row]:
    """Return the rows of the wanted curve, else of the fastest at the largest world size. Raises UsageError."""
    curves: dict[int, list[Row]] = {}
    for row in rows:
        asked = wanted.strategy or row.strategy, wanted.interconnect or row.interconnect
        if asked == (row.strategy, row.interconnect):
            curves.setdefault(row.curve, []).append(row)
    if not curves:
        flags = (("--strategy", wanted.strategy), ("--interconnect", wanted.interconnect))
        words = " ".join(f"{flag} {word}" for flag, word in flags if word) or "RUN"
        has = ", ".join(sorted({f"{row.strategy} over {row.interconnect}" for row in rows})) or "none"
        raise UsageError(f"{words}: the run has no such exchange; it has {has}")
    same = [curve for curve in curves.values() if _has_asked_work(curve, wanted)]
    found = max(same or curves.values(), key=_curve_standing)
    if (work := found[0].workload).is_strong:
        raise UsageError(
            f"RUN: its batch rule is {work.batch_rule}, but only weak is predicted: "
            f"{point_command(found[0])} --batch-rule weak --batch-size B"
        )
    return found


def point_command(row: Row) -> str:
    device = f"emulated:{row.hardware.profile}" if row.hardware.profile else row.hardware.device
    words = shlex.join(["--strategy", row.strategy, "--model", row.workload.model, "--device", device])
    return f"python -m scaling.run {words}"


def _has_asked_work(curve: Sequence[Row], wanted: Wanted) -> bool:
    work = curve[0].workload
    alike = (wanted.model or work.model, wanted.batch_size or work.batch_size) == (work.model, work.batch_size)
    return alike and any(row.world_size > 1 and not _unsound(row) for row in curve)


def _curve_standing(curve: Sequence[Row]) -> tuple[bool, int, float]:
    last = curve[-1]
    return last.synchronous, last.world_size, last.samples_per_s.mean if last.samples_per_s else 0.0


def _unsound(row: Row) -> str:
    marks = [mark for mark in MARKS if mark in row.flags]
    if marks or row.efficiency is None:
        return ", ".join(marks) or "no efficiency"
    if row.servers not in (0, row.nodes):
        return f"{row.servers} parameter servers on {row.nodes} nodes: only one per node is predicted"
    return ""


# ---------------------------------------------------------------- case

# noise of a single round, and limits of the noise from any number of rounds: with the largest nothing is known
ONE_ROUND, LEAST_NOISE, MOST_NOISE = 0.02, 0.004, 1.0
# controls differ from the model's parts by more than rounds show
COMM_NOISE, SHARE_NOISE = 0.05, 0.02


def case(header: Header, records: Sequence[PointRecord], wanted: Wanted = ANY) -> Case:
    """Build the case of the wanted curve, else of the fastest at the largest world size. Raises UsageError."""
    analysis = analyse(records)
    rows = chosen(analysis.rows, wanted)
    row, work = rows[0], rows[0].workload
    several = [one for one in rows if 1 < one.world_size <= (wanted.up_to or one.world_size)]
    sound = [one for one in several if not _unsound(one)]
    left_out = tuple(f"N={one.world_size} is left out: {why}" for one in several if (why := _unsound(one)))
    baselines = [
        one
        for one in analysis.baselines
        if one.samples_per_s and (one.hardware, one.strategy.partition(":")[0]) == (row.hardware, row.framework)
    ]
    assumed: tuple[str, ...] = ()
    if not row.servers and frameworks.is_outside(row.strategy):
        assumed = (
            f"assumed: {row.strategy}, which is not part of scaling, all-reduces its gradients over a ring",
        )
    alone = next((one.samples_per_s for one in baselines if one.workload == work.reference(1)), None)
    if alone is None or not sound:
        again = f"mpirun -np 2 {point_command(row)} --batch-size {work.batch_size} --world-sizes 1,2"
        why = f" ({'; '.join(left_out)})" if left_out else ""
        whose = "RUN" if wanted.up_to is None else f"--up-to {wanted.up_to}"
        raise UsageError(f"{whose}: needs one device alone and one usable exchange of several{why}: {again}")
    return Case(
        setting=setting_of(header, records, row, alone.mean),
        known=Known(
            At(world_size=1, nodes=1, accumulation=accumulation(row)),
            tuple(Observed(at=_at(one), value=one.efficiency.mean, noise=noise(one.efficiency))
                  for one in sound if one.efficiency),
            tuple(_exchanges(records, row, wanted.up_to, alone)),
            tuple(chain.from_iterable(map(_shares, sound))),
        ),
        rate=alone.mean, batch_size=work.batch_size, unit=work.unit, units_per_sample=work.units_per_sample,
        devices_per_node=max(Counter(header.host_of_rank).values(), default=1),
        measured=tuple(_measured(rows, alone.mean)), largest=sound[-1].world_size,
        rates=tuple((one.workload.model, one.workload.batch_size, one.samples_per_s.mean)
                    for one in baselines if one.samples_per_s),
        model=work.model, strategy=row.strategy, interconnect=row.interconnect, options=row.options,
        device=row.hardware.profile or device(header), notes=(*assumed, *left_out), command=point_command(row),
    ).titled()  # fmt: skip


def _at(row: Row) -> At:
    return At(world_size=row.world_size, nodes=row.nodes, accumulation=accumulation(row))


def noise(one: Estimate) -> float:
    """Standard deviation of the logarithm; an interval that reaches 0 tells nothing."""
    if one.low is None or one.high is None:
        return ONE_ROUND
    return (
        min(max(LEAST_NOISE, log(one.high / one.low) / 2 / NORMAL_95), MOST_NOISE) if one.low > 0 else MOST_NOISE
    )


def _measured(rows: Iterable[Row], rate: float) -> Iterator[Measured]:
    yield Measured(at=At(world_size=1, nodes=1), samples_per_s=rate, efficiency=1.0)
    for row in rows:
        if (one := row.efficiency) and row.world_size > 1:
            done = row.samples_per_s.mean if row.samples_per_s else 0.0
            yield Measured(at=_at(row), samples_per_s=done, efficiency=one.mean, low=one.low, high=one.high)


def _exchanges(records: Sequence[PointRecord], row: Row, up_to: int | None, alone: Estimate) -> Iterator[Exchange]:
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
            at = At(world_size=point.world_size, nodes=cell.nodes)
            yield Exchange(at, fmean(told), hypot(max(COMM_NOISE, spread), step_noise))


def _shares(row: Row) -> Iterator[Share]:
    if row.breakdown is None or row.efficiency is None:
        return
    for part in ("contention", "straggling"):
        value: float | None = getattr(row.breakdown, part)
        if value is not None:
            half = row.breakdown_intervals[part].half_width if part in row.breakdown_intervals else None
            noise = max(SHARE_NOISE, (half or ONE_ROUND) / NORMAL_95) / row.efficiency.mean
            yield Share(_at(row), part, value / row.efficiency.mean, noise)
