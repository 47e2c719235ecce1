"""Rows and baselines from cells, also of a running sweep; peaks of devices, parts of the exchange's CPU time."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from scaling.analysis.measured import cpu, device_use
from scaling.analysis.measured.cell import Cell, feed, first_and_last_loss, ready_of, staleness, waited_s
from scaling.analysis.measured.controls import Alone, Controls, Key, Shared, lasting, less_work, of_pool
from scaling.analysis.measured.cpu import new_threads
from scaling.analysis.measured.device_use import beside_baseline
from scaling.analysis.measured.rounds import Round, logs, part, relative, rounds, split, told
from scaling.analysis.measured.traffic import with_algorithms
from scaling.analysis.statistics.contrasts import Table
from scaling.analysis.statistics.intervals import Estimate, geometric, interval, is_distinguishable, known_mean
from scaling.analysis.table import footnotes
from scaling.analysis.table.catalogue import claims, marks_of
from scaling.analysis.table.comparisons import (
    Contest,
    comparable,
    contests,
    equal_losses,
    framework,
    groups,
    keys_of_series,
    numbered,
    rankings,
    series,
    standings,
)
from scaling.analysis.table.rows import Baseline, Breakdown, DataWait, Found, Row, shared
from scaling.records.point import Precision, Record
from scaling.records.run import PointRecord

T = TypeVar("T")

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


@lru_cache(maxsize=1)
def read_peaks() -> tuple[Peak, ...]:
    return msgspec.toml.decode(PEAKS_FILE.read_bytes(), type=dict[str, tuple[Peak, ...]])["device"]


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
    both = [one.uses for one in known if one.uses is not None]
    new = [new_threads(cpu.mean, plain) for cpu, plain in both if plain.threads]
    names = sorted({name for of in new for name in of})
    found = {name: fmean(of.get(name, 0.0) for of in new) / step_s for name in names}
    if cell.point.world_size > 1:
        alone = [told(one)["exchange_cpu"] * one.exchange_s for one in single if "exchange_cpu" in told(one)]
        found["wrapper at N=1"] = _beyond_noise(alone) / step_s
    without = [
        cell.unsynced[one.number] - one.together_s
        for one in known
        if one.number in cell.unsynced and one.together_s is not None
    ]
    found["wrapper without exchange"] = _beyond_noise(without) / step_s
    return {name: part for name, part in found.items() if abs(part) >= LEAST_PART}


def _beyond_noise(by_round: Sequence[float]) -> float:
    found = interval(by_round) if by_round else None
    return found.mean if found and is_distinguishable(found) else 0.0


# ---------------------------------------------------------------- cell rows


class Measured(NamedTuple):
    """A row, and the efficiency of each round if one is claimed."""

    row: Row
    efficiencies: Mapping[int, float]


def measured(cell: Cell, own: Row, controls: Controls, single: Cell | None, pool: Shared) -> Measured:
    """Complete a cell's `own` row by its control runs. `single` is the cell of its strategy with one rank. `pool`
    has facts of all cells of the same work."""
    by_round, alone, comm = rounds(cell, controls), controls.baseline(cell.point), controls.comm(cell.point)
    clocks = beside_baseline(cell.clocks, alone.whole.clocks if alone else None)
    claimed = by_round if claims(cell) else ()
    efficiency, later, rest, lost = None, None, 0.0, dict[str, Estimate]()
    if claimed:
        # Windows imply the least variance of the mean.
        noise = fmean(one.noise for one in claimed) / len(claimed)
        efficiency = interval(logs(claimed), floor=noise).exp()
        rest, lost = split(claimed, efficiency.mean)
        later = lasting(cell.records, alone.whole.records) if alone and cell.soaked else None
        later = later and replace(later, among=pool.soaked)
    facts = Found(cell, efficiency, own.samples_per_s, pool.drifts if claimed else (), clocks, later)
    flags = marks_of(facts)
    causes: Any = {name: lost[name].mean if name in lost else None for name in Breakdown.__struct_fields__}
    split_ = device_use.split(cell.gpu_times, controls.gpu_times(cell.point)) if own.traced else None
    row = replace(
        own,
        speedup=efficiency.times(cell.point.world_size) if efficiency else None,
        efficiency=efficiency,
        strategy_efficiency=_strategy_efficiency(cell, single) if claims(cell) else None,
        breakdown=Breakdown(**{**causes, "unexplained": rest}) if efficiency else None,
        breakdown_intervals=lost,
        exchange_cpu_parts=exchange_cpu_parts(
            cell, claimed, rounds(single, controls) if claimed and single else ()
        ),
        flags=flags,
        traced=own.traced and replace(own.traced, gpu=split_),
        clocks=clocks,
        is_plain=controls.is_plain(cell.point),
        data_wait=_data(claimed, cell, controls),
        nccl=with_algorithms(cell.nccl, comm.nccl if comm else None),
        lasting=later,
        footnotes=tuple(footnotes.of_row(facts, controls, by_round, flags)),
    )
    return Measured(row, {one.number: one.efficiency for one in claimed})


def _data(claimed: Sequence[Round], cell: Cell, controls: Controls) -> DataWait | None:
    told = [(one, one.data, one.alone.mean_s) for one in claimed if one.data and one.alone]
    if not told:
        return None
    feeds = controls.together(cell.point, "feed")
    rates = [cell.point.global_batch_size / time.harmonic_s for time in feeds.times.values()] if feeds else []
    return DataWait(
        of_step=part([(data.beside_s, data.most_s, one.exchange_s) for one, data, _ in told]),
        of_alone=part([(data.alone_s, data.most_alone_s, alone_s) for _, data, alone_s in told]),
        feed_samples_per_s=geometric(rates).mean if rates else None,
    )


def own_row(cell: Cell) -> Row:
    """Make the row of a cell's own records."""
    records = cell.records
    first_loss, last_loss = first_and_last_loss(records)
    servers, (fed_by, read_from) = cpu.server_use(records), feed(records)
    return Row(
        **shared(Row, cell.point), **_operations(cell), nodes=cell.nodes, rounds=len(cell.times),
        rounds_tried=len(records), samples_per_s=geometric(cell.rates) if cell.times else None,
        synchronous=cell.synchronous, first_loss=first_loss, last_loss=last_loss, staleness=staleness(records),
        waited_s=waited_s(records), fed_by=fed_by, read_from=read_from, server_use=servers,
        server_cpu_percent=known_mean(server.cpu_percent for server in servers),
        machine_cpu_percent=cpu.of_machine(records), device_use=device_use.of(records),
        machine_energy=device_use.machine_use(records, cell.times), emulation=cell.emulation, receipt=cell.receipt,
        paths=cell.paths, traced=device_use.traced(records), failed=cell.failure,
    )  # fmt: skip


def _operations(cell: Cell) -> dict[str, Any]:
    per_sample = max((ready.operations_per_sample for ready in ready_of(cell.records)), default=0)
    if not cell.times or not per_sample:
        return {}
    devices = cell.gpus or cell.point.world_size
    tflops = geometric(cell.rates).mean * per_sample / devices / 1e12
    found = {peak_tflops(name, cell.point.workload.precision) for name in cell.devices}
    peak = found.pop() if len(found) == 1 else None
    return {"tflops": tflops, "mfu": peak and tflops / peak}


def _strategy_efficiency(cell: Cell, single: Cell | None) -> Estimate | None:
    if cell.point.world_size == 1 and cell.times:
        return Estimate(mean=1.0, low=None, high=None, n=len(cell.times))
    share = cell.point.workload.share(cell.point.world_size)
    both = [
        log(relative(time, own.blocks, own.epoch, own.step_s) / share / time.step_s)
        for number, time in sorted(cell.times.items())
        if (own := single.times.get(number) if single else None) is not None
    ]
    return interval(both).exp() if both else None


def across_nodes(curve: Sequence[Measured]) -> Iterator[Row]:
    """Yield the rows of one curve, by world size. The efficiency of rows on several nodes is split by that of the
    largest world size on one node, if it has as many ranks as each node has here, over the rounds that both have:
    a missing round must not change a factor."""
    size, inside = next(((row.world_size, of) for row, of in reversed(curve) if row.nodes == 1 and of), (0, {}))
    for row, across in curve:
        common = sorted(across.keys() & inside.keys())
        if row.nodes > 1 and size * row.nodes == row.world_size and len(common) > 1:
            intra, whole = (exp(fmean(log(of[number]) for number in common)) for of in (inside, across))
            yield replace(row, intra_node=intra, inter_node=whole / intra)
        else:
            yield row


def baseline(alone: Alone) -> Baseline:
    """Make the baseline of a plain loop: the mean over all seats that were measured alone."""
    cell = alone.whole
    size = cell.point.workload.batch_size
    rates = [size / time.harmonic_s for _, time in sorted(alone.of_all_seats.items())]
    return Baseline(
        **shared(Baseline, cell.point),
        samples_per_s=geometric(rates) if rates else None,
        footnotes=tuple(footnotes.of_baseline(cell)),
        failed=None if rates else cell.failure,
    )


# ---------------------------------------------------------------- rows of a growing set of records


class Analyser:
    """The rows of a growing set of records; a later record of a key replaces the earlier.

    It runs on rank 0 between points, on cores that are about to be measured. So a result is kept until one of its
    inputs is another object: a cell with a new record, or a control run behind it.
    """

    def __init__(self, records: Iterable[PointRecord] = ()) -> None:
        self.controls = Controls()
        # Set by `rows`: cells that may be compared, numbered; all contests, and their table.
        self.groups: dict[Key, int] = {}
        self.contests: list[Contest] = []
        self.table = Table([])
        self._records: dict[str, dict[int, PointRecord]] = defaultdict(dict)
        self._cells: dict[str, Cell] = {}
        self._places: dict[str, tuple[Key, Key]] = {}
        self._known: dict[Key, tuple[Any, Any]] = {}
        for record in records:
            self.add(record)

    def add(self, record: PointRecord) -> None:
        """Add a record; computing waits for `rows`."""
        point = record.point
        if point.hosts or point.kind == "train":
            return
        if point.kind != "exchange":
            self.controls.put(record)
            return
        by_round = self._records[point.cell]
        by_round[point.round] = record
        self._cells[point.cell] = Cell([by_round[number] for number in sorted(by_round)])
        self._places.setdefault(point.cell, (series(point), comparable(point)))

    @property
    def cells(self) -> list[Cell]:
        """All exchanges by curve and world size, as the rows."""
        return [self._cells[name] for name in self._curves()]

    def rows(self) -> tuple[Row, ...]:
        """Return one row per exchange, sorted by curve and world size."""
        keys = self._curves()
        cells = [self._cells[name] for name in keys]
        inputs = {cell.name: self._inputs(cell) for cell in cells}
        for cell in cells:
            cell.less_work = self._once(("less", cell.name), inputs[cell.name], less_work, cell, self.controls)
        said = self._compared(cells)
        pools = self._pools(cells, inputs)
        single = {keys[cell.name]: cell for cell in cells if cell.point.world_size == 1}
        curves, self.groups = numbered(keys.values()), numbered(self._places[name][1] for name in keys)
        placed: dict[Key, list[Measured]] = defaultdict(list)
        for cell in cells:
            key, pool = keys[cell.name], pools[cell.name]
            one = single.get(key)
            of = inputs[cell.name], cell.less_work, pool, inputs[one.name] if one else ()
            own = self._once(("own", cell.name), cell, own_row, cell)
            found = self._once(("row", cell.name), of, measured, cell, own, self.controls, one, pool)
            place = {"curve": curves[key], "group": self.groups[self._places[cell.name][1]]}
            row = replace(found.row, **place, **said[cell.name])
            placed[key].append(found._replace(row=row))
        return tuple(row for curve in placed.values() for row in across_nodes(curve))

    def _curves(self) -> dict[str, Key]:
        """The key of each cell's curve, in table order."""
        keys = keys_of_series({name: (self._places[name][0], cell.point) for name, cell in self._cells.items()})
        return {
            name: keys[name]
            for name in sorted(keys, key=lambda name: (keys[name], self._cells[name].point.world_size))
        }

    def _inputs(self, cell: Cell) -> Key:
        plain = self.controls.plain(cell.point.strategy)
        behind = self._once(("behind", cell.name), plain, self.controls.keys_behind, cell.point)
        return (cell, plain, *(self.controls.of_key(key) for keys in behind.values() for key in keys))

    def _once(self, name: Key, inputs: Any, make: Callable[..., T], *of: Any) -> T:
        """Return what `make(*of)` returns; call it only if the inputs changed."""
        before = self._known.get(name)
        if before is None or before[0] != inputs:
            before = self._known[name] = (inputs, make(*of))
        found: T = before[1]
        return found

    def _pools(self, cells: Sequence[Cell], inputs: Mapping[str, Key]) -> dict[str, Shared]:
        """The facts of each cell's pool, from the cells that claim an efficiency."""
        pools: dict[Key, list[Cell]] = defaultdict(list)
        for cell in cells:
            pools[inputs[cell.name][1], self._places[cell.name][1][:2]].append(cell)
        found: dict[str, Shared] = {}
        for key, pool in pools.items():
            of = [(inputs[cell.name], cell.less_work) for cell in pool]
            shared = self._once(("pool", key), of, of_pool, filter(claims, pool), self.controls)
            found |= dict.fromkeys((cell.name for cell in pool), shared)
        return found

    def _compared(self, cells: Iterable[Cell]) -> Mapping[str, Mapping[str, Any]]:
        """Compare the cells with a result, equal work at equal world size; return fields of rows."""
        names = {cell.name: framework(cell, self.controls) for cell in cells}
        found: dict[str, dict[str, Any]] = {cell: {"framework": name} for cell, name in names.items()}
        self.contests = []
        for group in groups(cells):
            of = [(cell, cell.less_work, names[cell.name]) for cell in group]
            self.contests += self._once(("contests", group[0].name), of, contests, group, self.controls)
            for name, losses in self._once(("losses", group[0].name), of, equal_losses, group).items():
                found[name] |= losses
        self.table = Table([contest.layout for contest in self.contests])
        for contest in self.contests:
            for name, ranking in rankings(contest):
                for cell, standing in standings(self.table, contest, ranking).items():
                    found[cell]["standing" if name else "framework_standing"] = standing
        return found
