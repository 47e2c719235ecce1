"""Builds a case from a run's records: observed rows, controls, exchanges alone, the network.

Contention and straggling come from the controls, exchange times from `comm`, and noise from intervals over rounds.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import hypot, log, sqrt
from statistics import fmean, stdev
from typing import NamedTuple, cast

from scaling import frameworks
from scaling.analysis.measured.controls import Controls
from scaling.analysis.measured.rounds import rounds
from scaling.analysis.statistics.intervals import Estimate
from scaling.analysis.table.analyse import analyse, kept
from scaling.analysis.table.catalogue import unranked_marks
from scaling.analysis.table.comparisons import exchanges
from scaling.analysis.table.rows import Baseline, Row
from scaling.errors import UsageError
from scaling.frameworks.base import Exchange as Declared
from scaling.records.point import Point
from scaling.records.run import Header, PointRecord
from scaling.tools.predict.buses import bytes_per_s
from scaling.tools.predict.forecast import NORMAL_95, Case, Measured, Wires
from scaling.tools.predict.setting import (
    At,
    Bus,
    Exchange,
    Known,
    Messages,
    Method,
    Observed,
    Overlap,
    Setting,
    Share,
    Wire,
    tcp_link,
)

# ---------------------------------------------------------------- models
# `tail` is the share of the gradients that only the end of backward produces: small first layers, or the
# embeddings of a transformer. Parameters of convolutional networks are the catalogue's
# (scaling/workloads/models.py; a test compares). BERT's follow from its shape (Devlin et al., arXiv:1810.04805:
# 30,522 tokens, 768 x 12 or 1,024 x 24).


class KnownModel(NamedTuple):
    """`tokens` of a short sample of text: fewer are not used to train it."""

    name: str
    parameters: int
    tail: float
    tensors: int
    pattern: str
    tokens: int = 1


MODELS = (
    KnownModel("digits-cnn", 813_546, 0.0004, 16, "digits"),
    KnownModel("resnet50", 25_557_032, 0.0004, 161, r"resnet-?50"),
    KnownModel("resnet101", 44_549_160, 0.0002, 314, r"resnet-?101"),
    KnownModel("resnet152", 60_192_808, 0.0002, 467, r"resnet-?152"),
    KnownModel("alexnet", 61_100_840, 0.0004, 16, "alexnet"),
    KnownModel("vgg16", 138_357_544, 0.0001, 32, r"vgg-?16"),
    KnownModel("googlenet", 6_998_552, 0.0014, 116, "googlenet"),
    KnownModel("inception_v3", 23_834_568, 0.0001, 284, r"inception[- _]?(v3|bn)"),
    KnownModel("bert-base", 110_000_000, 0.217, 206, r"bert-?base", 64),
    KnownModel("bert-large", 336_200_000, 0.095, 398, r"bert-?large", 64),
    KnownModel("transformer-xl", 285_000_000, 0.3, 300, r"transformer-?xl", 128),
    KnownModel("transformer-big", 213_000_000, 0.16, 250, r"transformer-?big", 16),
    KnownModel("gnmt", 160_000_000, 0.2, 80, "gnmt", 16),
    KnownModel("llama-8b", 8_030_000_000, 0.065, 291, r"llama.*8b", 256),
    KnownModel("bart", 406_300_000, 0.127, 500, "bart", 64),
)


def known_model(words: str) -> KnownModel | None:
    return next((one for one in MODELS if re.search(one.pattern, words.lower())), None)


# NVLinks between each pair of GPUs that indicate a switch
SWITCHED_LINKS = 6
# options that compress gradients
COMPRESSIONS = ("compression", "compress")
FALSE = ("false", "0", "no", "off")
# values that the model supports, the default first
USUAL: Mapping[str, tuple[str, ...]] = {"hsdp": ("0",), "param_dtype": ("fp32",), "shard_optimizer": FALSE}


def setting_of(header: Header, records: Sequence[PointRecord], row: Row, rate: float) -> Setting:
    known = known_model(row.workload.model)
    _known_way(row)
    method, overlap, messages = way(row)
    return Setting(
        gradient_bytes=gradient_bytes(records, row),
        tail=known.tail if known else 0.05,
        step_s=row.workload.batch_size / rate / accumulation(row),
        wire=_wire(row),
        bus=(bus := _bus(header, row)),
        bus_bytes_per_s=bytes_per_s(bus, device(header)),
        **_wires(header, row)._asdict(),
        carrier="nccl" if _by_verbs(row) else "cpu",
        method=method,
        overlap=overlap,
        messages=messages,
        tensors=known.tensors if known else 200,
        emulated=bool(row.hardware.profile),
    )


def accumulation(row: Row) -> int:
    return int(row.options.get("accumulate", "1"))


def _wire(row: Row) -> Wire:
    """compression to 2 bits counts as half"""
    whole = all(row.options.get(name, "none") == "none" for name in COMPRESSIONS)
    return "full" if whole else "half"


def _known_way(row: Row) -> None:
    usual = {**USUAL, **({"accumulate": ("1",)} if _exchange(row).method == "sharded" else {})}
    for name, plain in usual.items():
        given = row.options.get(name, plain[0])
        if given.lower() not in plain:
            raise UsageError(
                f"RUN: {row.strategy} with --option {name}={given}: the model does not cover it; "
                "measure without it, or measure larger world sizes with it"
            )


def gradient_bytes(records: Iterable[PointRecord], row: Row) -> float:
    """Return the bytes of one step's gradients, with the emulation's shrinking undone."""
    found = [
        rank.ready.gradient_bytes
        for record in records
        if record.point.workload == row.workload and record.point.hardware == row.hardware
        for rank in record.ranks
        if rank.ready is not None and rank.ready.gradient_bytes
    ]
    if found:
        return max(found) * row.hardware.shrink
    known = known_model(row.workload.model)
    if known is None:
        raise UsageError(f"RUN: no worker reported the gradient size of {row.workload.model}: measure it again")
    return 4.0 * known.parameters


def way(row: Row | Point) -> tuple[Method, Overlap, Messages]:
    if row.servers:
        return ("servers_beside" if row.server_hosts == "shared" else "servers_apart"), "other", "tensors"
    method, overlap, messages = declared_way(_exchange(row))
    # Sharded: two gathers and a scatter. With kept parameters it moves the bytes of a ring.
    kept = method == "sharded" and row.options.get("reshard", "true").lower() in FALSE
    return ("ring" if kept else method), overlap, messages


def declared_way(exchange: Declared) -> tuple[Method, Overlap, Messages]:
    return cast(Method, exchange.method), cast(Overlap, exchange.overlap), cast(Messages, exchange.messages)


def _exchange(row: Row | Point) -> Declared:
    return frameworks.named(row.strategy).exchange(row.strategy.partition(":")[2])


def _supposed(row: Row) -> tuple[str, ...]:
    """Return the assumption about a strategy from outside the package, whose exchange no framework declares."""
    if row.servers or not frameworks.is_outside(row.strategy):
        return ()
    return (f"assumed: {row.strategy}, which is not part of scaling, all-reduces its gradients over a ring",)


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
    return row.hardware.device == "cuda" and (row.strategy.endswith("nccl") or _exchange(row).by_nccl)


def device(header: Header) -> str:
    gpus = {gpu.name for host in header.hosts for gpu in host.gpus} if header.device == "cuda" else set()
    return next(iter(sorted(gpus)), header.hosts[0].cpu_model if header.hosts else "")


def devices_per_node(header: Header) -> int:
    return max(Counter(header.host_of_rank).values(), default=1)


# ---------------------------------------------------------------- the curve of one exchange


# rows with these marks, or this much unexplained loss, are not used
MARKS = ("FAILED", *unranked_marks(), "ASYNC", "UNSETTLED", "THROTTLED")
MOST_UNEXPLAINED = 0.10


class Wanted(NamedTuple):
    """Selects a curve of a run; empty fields match any. `like` is a point of it. `model` and `batch_size` are
    preferred."""

    strategy: str = ""
    interconnect: str = ""
    up_to: int | None = None
    like: Point | None = None
    model: str = ""
    batch_size: int | None = None


ANY = Wanted()


def chosen(rows: Sequence[Row], wanted: Wanted) -> list[Row]:
    """Return the rows of the wanted curve, else of the fastest at the largest world size. Raises UsageError."""
    curves: dict[int, list[Row]] = {}
    for row in rows:
        if _is_wanted(row, wanted):
            curves.setdefault(row.curve, []).append(row)
    if not curves:
        raise _none_such(rows, wanted)
    same = [curve for curve in curves.values() if _has_asked_work(curve, wanted)]
    found = max(same or curves.values(), key=_curve_standing)
    if (work := found[0].workload).is_strong:
        raise UsageError(
            f"RUN: its batch rule is {work.batch_rule}, but only weak is predicted: "
            f"{point_command(found[0])} --batch-rule weak --batch-size B"
        )
    return found


def sound_rows(curve: Sequence[Row]) -> tuple[list[Row], tuple[str, ...]]:
    """Return the usable rows of several devices, and why the others are left out."""
    several = [(row, _unsound(row)) for row in curve if row.world_size > 1]
    left_out = (f"N={row.world_size} is left out: {why}" for row, why in several if why)
    return [row for row, why in several if not why], tuple(left_out)


def same_exchange(point: Point, row: Row) -> bool:
    same = (point.strategy, point.interconnect, point.workload, point.hardware, point.options)
    return same == (row.strategy, row.interconnect, row.workload, row.hardware, row.options)


def point_command(row: Row) -> str:
    device = f"emulated:{row.hardware.profile}" if row.hardware.profile else row.hardware.device
    words = shlex.join(["--strategy", row.strategy, "--model", row.workload.model, "--device", device])
    return f"python -m scaling.run {words}"


def _is_wanted(row: Row, wanted: Wanted) -> bool:
    if (like := wanted.like) is not None:
        places = (like.placement, like.server_hosts) == (row.placement, row.server_hosts)
        return places and same_exchange(like, row)
    asked = wanted.strategy or row.strategy, wanted.interconnect or row.interconnect
    return asked == (row.strategy, row.interconnect)


def _none_such(rows: Iterable[Row], wanted: Wanted) -> UsageError:
    words = wanted.like or wanted
    flags = (("--strategy", words.strategy), ("--interconnect", words.interconnect))
    asked = " ".join(f"{flag} {word}" for flag, word in flags if word)
    known = sorted({f"{row.strategy} over {row.interconnect}" for row in rows})
    return UsageError(f"{asked or 'RUN'}: the run has no such exchange; it has {', '.join(known) or 'none'}")


def _has_asked_work(curve: Sequence[Row], wanted: Wanted) -> bool:
    work = curve[0].workload
    alike = (wanted.model or work.model, wanted.batch_size or work.batch_size) == (work.model, work.batch_size)
    return alike and any(row.world_size > 1 and not _unsound(row) for row in curve)


def _curve_standing(curve: Sequence[Row]) -> tuple[bool, int, float]:
    last = curve[-1]
    rate = last.samples_per_s.mean if last.samples_per_s else 0.0
    return last.synchronous, last.world_size, rate


def _unsound(row: Row) -> str:
    marks = [mark for mark in MARKS if mark in row.flags]
    if marks or row.efficiency is None:
        return ", ".join(marks) or "no efficiency"
    if row.servers and row.servers != row.nodes:
        return f"{row.servers} parameter servers on {row.nodes} nodes: only one per node is predicted"
    lost = row.breakdown
    if lost is None or (lost.exposed is None and lost.waiting is None):
        return ""  # without `comm` the rest includes the exchange
    large = lost.unexplained > MOST_UNEXPLAINED
    return f"{100 * lost.unexplained:.0f} points of its loss are unexplained" if large else ""


# ---------------------------------------------------------------- case

# noise of a single round, and limits of the noise from any number of rounds: with the largest nothing is known
ONE_ROUND, LEAST_NOISE, MOST_NOISE = 0.02, 0.004, 1.0
COMM_NOISE, SHARE_NOISE = 0.05, 0.01


def case(header: Header, records: Sequence[PointRecord], wanted: Wanted = ANY) -> Case:
    """Build the case of the wanted curve, else of the fastest at the largest world size. Raises UsageError."""
    analysis = analyse(records)
    rows = chosen(analysis.rows, wanted)
    row = rows[0]
    known = [one for one in rows if wanted.up_to is None or one.world_size <= wanted.up_to]
    sound, left_out = sound_rows(known)
    baselines = _of_one_device(analysis.baselines, row)
    baseline = next((one for one in baselines if one.workload == row.workload.reference(1)), None)
    if baseline is None or baseline.samples_per_s is None or not sound:
        raise _too_little(row, wanted, left_out)
    alone = baseline.samples_per_s
    return _unmeasured(header, records, row, alone.mean)._replace(
        known=Known(
            At(world_size=1, nodes=1, accumulation=accumulation(row)),
            _observed(sound),
            _exchanges(records, row, wanted.up_to, _spread(alone)),
            tuple(chain.from_iterable(map(_told, sound))),
        ),
        measured=_measured(rows, alone.mean),
        largest=sound[-1].world_size,
        rates=_rates(baselines),
        notes=(*_supposed(row), *left_out),
    )


def _unmeasured(header: Header, records: Sequence[PointRecord], row: Row, rate: float) -> Case:
    work, together = row.workload, accumulation(row)
    return Case(
        title="",
        setting=setting_of(header, records, row, rate),
        known=Known(At(world_size=1, nodes=1, accumulation=together)),
        rate=rate,
        batch_size=work.batch_size,
        unit=work.unit,
        units_per_sample=work.units_per_sample,
        devices_per_node=devices_per_node(header),
        accumulation=together,
        model=work.model,
        strategy=row.strategy,
        interconnect=row.interconnect,
        options=row.options,
        emulated=bool(row.hardware.profile),
        device=row.hardware.profile or device(header),
        notes=_supposed(row),
        command=point_command(row),
    ).titled()


def _too_little(row: Row, wanted: Wanted, left_out: Sequence[str]) -> UsageError:
    again = f"mpirun -np 2 {point_command(row)} --batch-size {row.workload.batch_size} --world-sizes 1,2"
    why = f" ({'; '.join(left_out)})" if left_out else ""
    whose = "RUN" if wanted.up_to is None else f"--up-to {wanted.up_to}"
    return UsageError(f"{whose}: needs one device alone and one usable exchange of several{why}: {again}")


def _at(row: Row) -> At:
    return At(world_size=row.world_size, nodes=row.nodes, accumulation=accumulation(row))


def _noise(row: Row) -> float:
    one = row.efficiency
    if one is None or one.low is None or one.high is None:
        return ONE_ROUND
    if one.low <= 0:  # wider than the value: nothing is known
        return MOST_NOISE
    return min(max(LEAST_NOISE, log(one.high / one.low) / 2 / NORMAL_95), MOST_NOISE)


def _spread(one: Estimate) -> float:
    """Standard deviation of the logarithm, from the interval over rounds; 0 without an interval."""
    return 0.0 if one.half_width is None else min(one.half_width / one.mean / NORMAL_95, MOST_NOISE)


def _observed(sound: Iterable[Row]) -> tuple[Observed, ...]:
    return tuple(
        Observed(at=_at(one), value=one.efficiency.mean, noise=_noise(one)) for one in sound if one.efficiency
    )


def _measured(rows: Iterable[Row], rate: float) -> tuple[Measured, ...]:
    alone = Measured(at=At(world_size=1, nodes=1), samples_per_s=rate, efficiency=1.0)
    several = (
        Measured(
            at=_at(row),
            samples_per_s=row.samples_per_s.mean if row.samples_per_s else 0.0,
            efficiency=row.efficiency.mean,
            low=row.efficiency.low,
            high=row.efficiency.high,
        )
        for row in rows
        if row.efficiency and row.world_size > 1
    )
    return alone, *several


def _of_one_device(baselines: Iterable[Baseline], row: Row) -> list[Baseline]:
    """Return the baselines of the row's framework on its hardware."""
    same = (one for one in baselines if one.hardware == row.hardware)
    return [one for one in same if one.strategy.partition(":")[0] == row.framework]


def _rates(baselines: Iterable[Baseline]) -> tuple[tuple[str, int, float], ...]:
    return tuple(
        (one.workload.model, one.workload.batch_size, one.samples_per_s.mean)
        for one in baselines
        if one.samples_per_s
    )


def _exchanges(
    records: Sequence[PointRecord], row: Row, up_to: int | None, step_spread: float
) -> tuple[Exchange, ...]:
    """`comm` of each world size over rounds. `step_spread` is the noise of the step that it is compared with."""
    latest = kept(records)
    controls, found = Controls(latest), []
    for cell in exchanges(latest):
        point = cell.point
        if same_exchange(point, row) and 1 < point.world_size <= (up_to or point.world_size):
            told = [one.comm_s for one in rounds(cell, controls) if one.comm_s]
            if told:
                at = At(world_size=point.world_size, nodes=cell.nodes)
                found.append(Exchange(at, fmean(told), hypot(_comm_noise(told), step_spread)))
    return tuple(found)


def _comm_noise(seconds: Sequence[float]) -> float:
    own = stdev([log(one) for one in seconds]) / sqrt(len(seconds)) if len(seconds) > 1 else COMM_NOISE
    return max(COMM_NOISE, own)


def _told(row: Row) -> Iterator[Share]:
    if row.breakdown is None or row.efficiency is None:
        return
    for part in ("contention", "straggling"):
        value: float | None = getattr(row.breakdown, part)
        if value is not None:
            half = row.breakdown_intervals[part].half_width if part in row.breakdown_intervals else None
            noise = max(SHARE_NOISE, (half or ONE_ROUND) / NORMAL_95) / row.efficiency.mean
            yield Share(_at(row), part, value / row.efficiency.mean, noise)
