"""Rows and baselines from cells, also of a running sweep; peaks of devices, parts of the exchange's CPU time."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from scaling.analysis.measured import cpu, device_use
from scaling.analysis.measured.breakdown import intervals, split, told
from scaling.analysis.measured.cell import Cell
from scaling.analysis.measured.controls import Alone, Controls, Key, find_less_work
from scaling.analysis.measured.cpu import new_threads
from scaling.analysis.measured.device_use import Clocks, Traced, of_baseline
from scaling.analysis.measured.pools import Shared, lasting, of_pool, pool_of
from scaling.analysis.measured.rounds import Round, floor, logs, part, relative, rounds
from scaling.analysis.measured.traffic import with_algorithms
from scaling.analysis.statistics.contrasts import Table
from scaling.analysis.statistics.intervals import (
    Estimate,
    contrast,
    geometric,
    interval,
    is_distinguishable,
)
from scaling.analysis.table import footnotes
from scaling.analysis.table.catalogue import claims, marks_of
from scaling.analysis.table.comparisons import (
    Beside,
    Contest,
    Loss,
    beside,
    comparable,
    contests,
    equal_losses,
    keys_of_series,
    numbered,
    series,
)
from scaling.analysis.table.rows import Baseline, DataWait, Found, Lasting, Row
from scaling.records.point import Precision, Record
from scaling.records.run import PointRecord

# ---------------------------------------------------------------- peaks
#
# MFU (model FLOPs utilisation): operations that the model needs over the device's peak (Chowdhery 2022, appendix
# B). They are counted from the network's layers (Ready.operations_per_sample), without recomputed ones.


PEAKS_FILE = Path(__file__).with_name("peaks.toml")
# Suffixes of the same device: `-SXM4-80GB`, ` 80GB HBM3`, ` 144G HBM3e`, `-PCIE-16GB`.
_SAME = re.compile(r"(?:[ -](?:SXM\d?|PCIe|\d+GB?|HBM\d\w?))*", re.IGNORECASE)


class Peak(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Dense peaks of a device in TFLOP/s by precision, its names in drivers, and the source."""

    names: tuple[str, ...]
    peaks: dict[Precision, float]
    source: str


class _File(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    device: tuple[Peak, ...]


@lru_cache(maxsize=1)
def read_peaks() -> tuple[Peak, ...]:
    return msgspec.toml.decode(PEAKS_FILE.read_bytes(), type=_File).device


def find_peak(device_name: str) -> Peak | None:
    """Return the entry of a device by its driver's name, `NVIDIA A100-SXM4-80GB`; None if unknown."""
    return next((one for one in read_peaks() if any(_is(device_name, name) for name in one.names)), None)


def peak_tflops(device_name: str, precision: Precision | Literal["own"]) -> float | None:
    found = find_peak(device_name)
    return found.peaks.get(precision) if found and precision != "own" else None


def _is(device_name: str, name: str) -> bool:
    """Compare names up to memory and form factor. `NVIDIA L40S`, a `Ti`, a laptop's GPU or a MIG slice is another
    device than the card of the shorter name."""
    return device_name.startswith(name) and _SAME.fullmatch(device_name.removeprefix(name)) is not None


# ---------------------------------------------------------------- parts of the exchange's CPU time


# Smaller parts of a step are not reported.
LEAST_PART = 0.002


def exchange_cpu_parts(cell: Cell, measured: Sequence[Round], single: Sequence[Round]) -> dict[str, float]:
    """Return parts of the exchange's CPU time, as fractions of the row's step.

    * threads by name that plain loops do not have;
    * the wrapper with a single rank, whose rounds are `single`;
    * the wrapper without any exchange, on all ranks.

    The wrapper is reported if it is significantly different from zero.
    """
    known = [one for one in measured if one.cpu is not None]
    if not known:
        return {}
    step_s = fmean(one.exchange_s for one in known)
    found = {name: seconds / step_s for name, seconds in _threads(known).items()}
    if cell.point.world_size > 1:
        alone = [told(one)["exchange_cpu"] * one.exchange_s for one in single if "exchange_cpu" in told(one)]
        found["wrapper at N=1"] = _beyond_noise(alone) / step_s
    found["wrapper without exchange"] = _beyond_noise(_unsynced(cell, known)) / step_s
    return {name: part for name, part in found.items() if abs(part) >= LEAST_PART}


def _beyond_noise(by_round: Sequence[float]) -> float:
    if not by_round:
        return 0.0
    found = interval(by_round)
    return found.mean if is_distinguishable(found) else 0.0


def _threads(measured: Sequence[Round]) -> dict[str, float]:
    both = [one.uses for one in measured if one.uses is not None]
    told = [new_threads(cpu.mean, plain) for cpu, plain in both if plain.threads]
    names = sorted({name for new in told for name in new})
    return {name: fmean(new.get(name, 0.0) for new in told) for name in names}


def _unsynced(cell: Cell, measured: Sequence[Round]) -> list[float]:
    return [
        cell.unsynced[one.number] - one.together_s
        for one in measured
        if one.number in cell.unsynced and one.together_s is not None
    ]


# ---------------------------------------------------------------- cell rows


class Measured(NamedTuple):
    """A row, and the efficiency of each round if one is claimed."""

    row: Row
    efficiencies: Mapping[int, float]


def measured(cell: Cell, controls: Controls, single: Cell | None, pool: Shared) -> Measured:
    """Make the row of a cell. `single` is the cell of its strategy with one rank. `pool` has facts of all
    cells of the same work."""
    by_round = rounds(cell, controls)
    claimed = by_round if claims(cell) else ()
    efficiency = contrast(logs(claimed), floor(claimed)).exp() if claimed else None
    clocks = _clocks(cell, controls)
    later = _lasting(cell, controls, pool) if claimed else None
    own = _own_row(cell)
    flags = marks_of(Found(cell, efficiency, own.samples_per_s, pool.drifts if claimed else (), clocks, later))
    row = replace(
        own,
        speedup=efficiency.times(cell.point.world_size) if efficiency else None,
        efficiency=efficiency,
        strategy_efficiency=_strategy_efficiency(cell, single) if claims(cell) else None,
        **_lost(claimed, efficiency),
        exchange_cpu_parts=exchange_cpu_parts(
            cell, claimed, rounds(single, controls) if claimed and single else ()
        ),
        flags=flags,
        traced=_traced(cell, controls),
        clocks=clocks,
        is_plain=controls.is_plain(cell.point),
        data_wait=_data(claimed, cell, controls),
        nccl=with_algorithms(cell.nccl, controls.nccl(cell.point)),
        lasting=later,
        footnotes=tuple(footnotes.of_row(cell, controls, by_round, flags, efficiency, pool.drifts, clocks, later)),
    )
    return Measured(row, {one.number: one.efficiency for one in claimed})


def _lasting(cell: Cell, controls: Controls, pool: Shared) -> Lasting | None:
    alone = controls.baseline(cell.point) if cell.soaked else None
    found = lasting(cell.records, alone.whole.records) if alone else None
    return found and replace(found, among=pool.soaked)


def _data(claimed: Sequence[Round], cell: Cell, controls: Controls) -> DataWait | None:
    told = [(one, one.data, one.alone.mean_s) for one in claimed if one.data and one.alone]
    if not told:
        return None
    feed = controls.feed(cell.point, cell.point.world_size)
    rates = [cell.point.global_batch_size / time.harmonic_s for time in feed.times.values()] if feed else []
    return DataWait(
        of_step=part([(data.beside_s, data.most_s, one.exchange_s) for one, data, _ in told]),
        of_alone=part([(data.alone_s, data.most_alone_s, alone_s) for _, data, alone_s in told]),
        feed_samples_per_s=geometric(rates).mean if rates else None,
    )


def _lost(claimed: Sequence[Round], efficiency: Estimate | None) -> dict[str, Any]:
    if efficiency is None:
        return {}
    return {
        "breakdown": split(claimed, efficiency.mean),
        "breakdown_intervals": intervals(claimed, efficiency.mean),
    }


def among(one: Measured, *, curve: int, group: int, beside: Beside) -> Measured:
    """Return the row with its ranks among others and the numbers of its curve and group."""
    return one._replace(row=replace(one.row, curve=curve, group=group, **beside._asdict()))


def _own_row(cell: Cell) -> Row:
    point = cell.point
    first_loss, last_loss = cell.first_and_last_loss
    return Row(
        workload=point.workload,
        hardware=point.hardware,
        strategy=point.strategy,
        interconnect=point.interconnect,
        options=point.options,
        placement=point.placement,
        global_batch_size=point.global_batch_size,
        world_size=point.world_size,
        nodes=cell.nodes,
        rounds=len(cell.times),
        rounds_tried=len(cell.records),
        samples_per_s=geometric(cell.rates) if cell.times else None,
        **_operations(cell),
        synchronous=cell.synchronous,
        first_loss=first_loss,
        last_loss=last_loss,
        staleness=cell.staleness,
        waited_s=cell.fed.waited_s,
        fed_by=cell.fed.fed_by,
        read_from=cell.fed.read_from,
        **_servers(cell),
        machine_cpu_percent=cell.machine_cpu_percent,
        device_use=cell.device_use,
        machine_energy=cell.machine_energy,
        emulation=cell.emulation,
        receipt=cell.receipt,
        paths=cell.paths,
        failed=cell.failure,
    )


def _operations(cell: Cell) -> dict[str, Any]:
    if not cell.times or not cell.operations_per_sample:
        return {}
    devices = cell.gpus or cell.point.world_size
    tflops = geometric(cell.rates).mean * cell.operations_per_sample / devices / 1e12
    found = {peak_tflops(name, cell.point.workload.precision) for name in cell.device_names}
    peak = found.pop() if len(found) == 1 else None
    return {"tflops": tflops, "mfu": peak and tflops / peak}


def _servers(cell: Cell) -> dict[str, Any]:
    return {
        "servers": cell.point.servers,
        "server_hosts": cell.point.server_hosts,
        "server_use": cell.server_use,
        "server_cpu_percent": cpu.of_servers(cell.server_use),
    }


def _traced(cell: Cell, controls: Controls) -> Traced | None:
    found = cell.traced
    return found and replace(found, gpu=device_use.split(cell.gpu_times, controls.gpu_times(cell.point)))


def _clocks(cell: Cell, controls: Controls) -> Clocks | None:
    alone = controls.baseline(cell.point)
    ratio = of_baseline(cell.clocks, alone.whole.clocks if alone else None)
    return cell.clocks and replace(cell.clocks, of_baseline=ratio)


def _strategy_efficiency(cell: Cell, single: Cell | None) -> Estimate | None:
    if cell.point.world_size == 1 and cell.times:
        return Estimate(mean=1.0, low=None, high=None, n=len(cell.times))
    share = cell.point.workload.share(cell.point.world_size)
    times = single.times if single else {}
    both = []
    for number, time in sorted(cell.times.items()):
        if (own := times.get(number)) is not None:
            own_s = relative(time, own.blocks, own.epoch, own.step_s)
            both.append(log(own_s / share / time.step_s))
    return interval(both).exp() if both else None


def across_nodes(curve: Sequence[Measured]) -> Iterator[Row]:
    """Return the rows of one curve, by world size. The efficiency of rows on several nodes is split by that of the
    largest world size on one node."""
    inside = None
    for each in curve:
        if each.row.nodes == 1 and each.efficiencies:
            inside = each
    return (_by_nodes(each, inside) for each in curve)


def _by_nodes(across: Measured, inside: Measured | None) -> Row:
    """Split the efficiency over the rounds that both have: a missing round must not change a factor."""
    row = across.row
    if row.nodes < 2 or inside is None or inside.row.world_size * row.nodes != row.world_size:
        return row  # the split needs a row on one node with as many ranks as each node has here
    shared = across.efficiencies.keys() & inside.efficiencies.keys()
    if len(shared) < 2:
        return row
    intra, whole = (
        exp(fmean(log(of.efficiencies[number]) for number in sorted(shared))) for of in (inside, across)
    )
    return replace(row, intra_node=intra, inter_node=whole / intra)


def baseline(alone: Alone) -> Baseline:
    """Make the baseline of a plain loop: the mean over all seats that were measured alone."""
    cell = alone.whole
    point = cell.point
    times = alone.times(alone.seats(0), 0)
    rates = [point.workload.batch_size / time.harmonic_s for _, time in sorted(times.items())]
    return Baseline(
        workload=point.workload,
        hardware=point.hardware,
        strategy=point.strategy,
        samples_per_s=geometric(rates) if rates else None,
        footnotes=tuple(footnotes.of_baseline(cell)),
        failed=None if rates else cell.failure,
    )


# ---------------------------------------------------------------- rows of a running sweep
#
# Rows of a running sweep: after each point, only the affected rows are computed again.
#
# It runs on rank 0 between points, on cores that are about to be measured. A record changes:
#
#     exchange  its own row; its curve's rows, if it is a single rank or alone on its node; its rivals' comparisons
#     control   the rows that depend on it
#     either    drift of its pool
#
# `rows()` equals the rows of `analyse(records)`, to the last bit.


class _Place(NamedTuple):
    curve: Key
    curve_number: int
    group_number: int
    rivals: Key


class Analyser:
    """The analysis of a growing set of records; a later record of a key replaces the earlier."""

    def __init__(self, records: Iterable[PointRecord] = ()) -> None:
        self._controls = Controls()
        self._records: dict[str, dict[int, PointRecord]] = defaultdict(dict)
        self._resting: dict[Key, set[str]] = defaultdict(set)  # control -> cells that depend on it
        # By cell, in table order after `_place`.
        self._cells: dict[str, Cell] = {}
        self._series: dict[str, Key] = {}
        self._comparable: dict[str, Key] = {}
        self._places: dict[str, _Place] = {}
        self._measured: dict[str, Measured] = {}
        self._rows: dict[str, Row] = {}
        self._of_curve: dict[Key, list[str]] = {}
        self._rivals: dict[Key, list[str]] = {}
        self._contests: dict[Key, list[Contest]] = {}
        self._losses: dict[Key, Mapping[str, Loss]] = {}
        self._beside: Mapping[str, Beside] = {}
        # Since the last `rows`: cells with a new record, cells that depend on a change, whether a cell is new.
        self._renewed: set[str] = set()
        self._shaken: set[str] = set()
        self._shared: dict[Key, Shared] = {}
        self._has_new = False
        for record in records:
            self.add(record)

    def add(self, record: PointRecord) -> None:
        """Add a record and mark the affected cells; computing waits for `rows`."""
        if record.point.hosts:
            return
        if record.point.kind == "exchange":
            self._add_exchange(record)
        elif record.point.kind != "train":
            self._add_control(record)

    def rows(self) -> tuple[Row, ...]:
        """Return the table so far, equal to `analyse.rows`."""
        moved = self._place() if self._has_new else set()
        self._renewed |= {
            name for name in self._renewed | self._shaken if find_less_work(self._cells[name], self._controls)
        }
        for name in self._renewed:
            if self._cells[name].point.world_size == 1:
                self._shaken.update(self._of_curve[self._places[name].curve])
        self._pool()
        for name in self._renewed | self._shaken:
            self._measured[name] = self._measure(name)
        changed = self._renewed | self._shaken | moved | self._compare()
        for curve in {self._places[name].curve for name in changed}:
            names = self._of_curve[curve]
            self._rows.update(zip(names, across_nodes([self._among(name) for name in names]), strict=True))
        self._renewed, self._shaken = set(), set()
        return tuple(self._rows[name] for name in self._cells)

    def _add_exchange(self, record: PointRecord) -> None:
        name = record.point.cell
        by_round = self._records[name]
        by_round[record.point.round] = record
        cell = self._cells[name] = Cell([by_round[number] for number in sorted(by_round)])
        self._renewed.add(name)
        if name not in self._series:
            self._series[name], self._comparable[name] = series(cell.point), comparable(cell.point)
            self._note_controls(cell)
            self._has_new = True

    def _note_controls(self, cell: Cell) -> None:
        for keys in self._controls.keys_behind(cell.point).values():
            for key in keys:
                self._resting[key].add(cell.name)

    def _add_control(self, record: PointRecord) -> None:
        plains = len(self._controls.plains)
        key = self._controls.put(record)
        if len(self._controls.plains) != plains:  # baselines of strategies may change
            for cell in self._cells.values():
                self._note_controls(cell)
            self._shaken.update(self._cells)
        self._shaken.update(self._resting.get(key, ()))

    def _place(self) -> set[str]:
        """Sort all cells; return those with a changed place."""
        keys = keys_of_series({name: (self._series[name], cell.point) for name, cell in self._cells.items()})
        names = sorted(self._cells, key=lambda name: (keys[name], self._cells[name].point.world_size))
        self._cells = {name: self._cells[name] for name in names}
        curves, groups = numbered(keys[name] for name in names), numbered(self._comparable[name] for name in names)
        before, self._places = self._places, {}
        self._of_curve, self._rivals = defaultdict(list), defaultdict(list)
        for name, cell in self._cells.items():
            curve, group = keys[name], self._comparable[name]
            place = _Place(curve, curves[curve], groups[group], (group, cell.point.world_size))
            self._places[name] = place
            self._of_curve[place.curve].append(name)
            self._rivals[place.rivals].append(name)
        return self._moved(before)

    def _moved(self, before: Mapping[str, _Place]) -> set[str]:
        """Also marks all cells of a curve that got a new cell."""
        moved = {name for name, place in self._places.items() if before.get(name) != place}
        for name in moved:
            curve = self._places[name].curve
            if name not in before or before[name].curve != curve:
                self._shaken.update(self._of_curve[curve])
        self._has_new = False
        return moved

    def _pool(self) -> None:
        """Compute the changed pools again, and mark their rows."""
        changed = {pool_of(self._cells[name].point, self._controls) for name in self._renewed | self._shaken}
        for key in changed:
            found = of_pool(
                (cell for cell in self._cells.values() if self._is_in(cell, key) and claims(cell)), self._controls
            )
            if key not in self._shared or found != self._shared[key]:
                self._shared[key] = found
                self._shaken.update(cell.name for cell in self._cells.values() if self._is_in(cell, key))

    def _is_in(self, cell: Cell, key: Key) -> bool:
        return pool_of(cell.point, self._controls) == key

    def _measure(self, name: str) -> Measured:
        curve = self._of_curve[self._places[name].curve]
        singles = [cell for cell in map(self._cells.__getitem__, curve) if cell.point.world_size == 1]
        cell = self._cells[name]
        pool = self._shared[pool_of(cell.point, self._controls)]
        return measured(cell, self._controls, singles[-1] if singles else None, pool)

    def _compare(self) -> set[str]:
        """Compare again; return the cells with a changed comparison."""
        for group in {self._places[name].rivals for name in self._renewed}:
            cells = [cell for name in self._rivals[group] if (cell := self._cells[name]).times]
            self._contests[group], self._losses[group] = (
                list(contests(cells, self._controls.plain)),
                equal_losses(cells),
            )
        order = sorted(self._contests)
        found = [contest for group in order for contest in self._contests[group]]
        losses = {name: loss for of_group in self._losses.values() for name, loss in of_group.items()}
        table = Table([contest.layout for contest in found])
        before = self._beside
        self._beside = beside(self._cells.values(), table, found, losses, self._controls.plain)
        return {name for name, said in self._beside.items() if before.get(name) != said}

    def _among(self, name: str) -> Measured:
        place = self._places[name]
        return among(
            self._measured[name],
            curve=place.curve_number,
            group=place.group_number,
            beside=self._beside[name],
        )
