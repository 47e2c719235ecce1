"""Importers for MXNet's Speedometer and for the table of its benchmark script.

Rates of several speakers are added. A single speaker may print its own rate or the job's: rate times seconds of an
epoch is the process's share of the data set, or the whole. Otherwise the log is refused.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from statistics import median

from scaling.records.run import ImportedRow
from scaling.text import one_line
from scaling.tools.importers.lines import CUT, LogLine
from scaling.tools.importers.logs import (
    NUMBER,
    Found,
    Given,
    Refused,
    Rows,
    Skipped,
    Tool,
    agreed,
    compiled,
    number,
    row,
    world_size,
)

# ---------------------------------------------------------------- table of the benchmark script


_SURE_BENCHMARK = re.compile(r"^\s*num_gpus\s*,\s*img_per_sec\s*$")

_TABLE_ROW = compiled(r"^ *(\d+) *, *", NUMBER, " *$")


def _read_benchmark(lines: Iterable[LogLine], given: Given) -> Found:
    """The table has neither model nor batch size."""
    skipped, in_table = Skipped(), False
    said: dict[str, Counter[str]] = defaultdict(Counter)
    for line in lines:
        if in_table and (found := _TABLE_ROW.search(line.text)) is not None:
            said[found[1]][found[2]] += 1
        elif _SURE_BENCHMARK.search(line.text):
            in_table = True
        elif in_table and CUT in line.text:
            skipped.add(line)
        elif in_table and line.text.strip():
            raise Refused(f"line {line.number} is not of its table: {one_line(line.text)[:60]}")
    rows = tuple(_table_row(int(devices), _middle(rates), given) for devices, rates in said.items())
    return Found(rows=rows, notes=skipped.notes())


def _middle(rates: Counter[str]) -> float:
    left = (rates.total() + 1) // 2
    for text in sorted(rates, key=number):
        left -= rates[text]
        if left <= 0:
            break
    return number(text)


def _table_row(devices: int, rate: float, given: Given) -> ImportedRow:
    return row(given, tool="mxnet_benchmark", unit="images", rate=rate, devices=world_size([devices], given))


BENCHMARK = Tool(("num_gpus",), _SURE_BENCHMARK, _read_benchmark)


# ---------------------------------------------------------------- Speedometer

_SURE = re.compile(r"(?:Epoch|Iter)\[\d+\] Batch ?\[[\d-]+\]\s+Speed: ?\S+ samples/sec")
_SPEED = compiled(r"(?:Epoch|Iter)\[(\d+)\] Batch ?\[(?:\d+-)?(\d+)\]\s+Speed: *", NUMBER, " samples/sec")
_FEED = re.compile(r"Batch ?\[[\d-]+\]\s+Speed: *\S+ samples/sec")
_COST = compiled(r"Epoch\[(\d+)\] Time cost=", NUMBER)
_SAYS = re.compile(r"(\w+)=('[^']*'|\"[^\"]*\"|\[[^\]]*\]|[^,()]+)")
# printed by FeedForward.fit, also without arguments
_CONTEXTS = re.compile(r"Start training with \[((?:[cg]pu\(\d{1,4}\)(?:, )?){1,512})\]")
_LAYERED = ("resnet", "resnext", "vgg")
# largest relative difference between rate x seconds and the samples of an epoch
_AUDIT = 0.004
_NODE = re.compile(r"Node\[(\d+)\]")
# An epoch and a batch share one integer.
_EPOCH = 1 << 40
Key = tuple[int, int]


class _Launch:
    """Speakers are by rank, -1 if lines have no rank."""

    def __init__(self) -> None:
        self.arguments: list[tuple[int | None, dict[str, str]]] = []
        self.speeds: dict[int, dict[int, float]] = defaultdict(dict)
        self.several: Key | None = None
        self.costs: dict[int, dict[int, float]] = defaultdict(dict)
        self.contexts: set[int] = set()

    def add(self, who: int, at: Key, speed: float) -> None:
        """Lines for several metrics repeat a speed; a different one means several speakers without ranks."""
        if speed > 0 and self.speeds[who].setdefault(at[0] * _EPOCH + at[1], speed) != speed:
            self.several = self.several or at

    def values(self, name: str) -> list[str]:
        return [said[name] for _, said in self.arguments if name in said]

    @property
    def processes(self) -> int:
        ranks = {rank for rank, _ in self.arguments}
        return len(self.arguments) if ranks <= {None} else len(ranks - {None})


def _read(lines: Iterable[LogLine], given: Given) -> Found:
    launch, rows, skipped, feeds = _Launch(), Rows(), Skipped(), 0
    for line in lines:
        text = line.text
        if "Namespace(" in text or "start with arguments" in text:
            if launch.speeds:
                rows.add(_row(launch, given))
                launch = _Launch()
            _arguments(line, launch)
        if "samples/sec" in text:
            if (speed := _SPEED.search(text)) is not None:
                launch.add(_who(line), (int(speed[1]), int(speed[2])), number(speed[3]))
            elif _FEED.search(text) and "Epoch" not in text:
                feeds += 1
            else:
                skipped.add(line)
        elif "Start training with" in text and (contexts := _CONTEXTS.search(text)) is not None:
            launch.contexts.add(contexts[1].count("pu("))
        elif "Time cost=" in text and (cost := _COST.search(text)) is not None:
            launch.costs[_who(line)][int(cost[1])] = number(cost[2])
    if launch.speeds:
        rows.add(_row(launch, given))
    found = tuple(rows)
    if not found:
        only = "has the speed of its feed alone (--test-io)" if feeds else "has no whole line with a speed"
        raise Refused(f"{only}: nothing was trained")
    return Found(rows=found, notes=skipped.notes())


def _who(line: LogLine) -> int:
    if (node := _NODE.search(line.text)) is not None:
        return int(node[1])
    return -1 if line.rank is None else line.rank


def _arguments(line: LogLine, launch: _Launch) -> None:
    inside = line.text.partition("Namespace(")[2]
    whole = inside.rstrip().endswith(")") and inside.count("'") % 2 == 0
    said = {name: value.strip().strip("'\"") for name, value in _SAYS.findall(inside) if whole}
    # With Horovod every process calls itself Node[0]. A line with broken arguments still counts as a process.
    named = _NODE.search(line.text) if said.get("kv_store", "horovod") != "horovod" else None
    launch.arguments.append((int(named[1]) if named else line.rank, said))


def _row(launch: _Launch, given: Given) -> ImportedRow:
    kinds = set(launch.values("kv_store"))
    horovod = kinds == {"horovod"}
    counted = [int(value) for value in launch.values("num_gpus") if value.isdigit()]  # Gluon's examples
    each = 1 if horovod else agreed(counted or map(_gpus, launch.values("gpus")), 0, "", "numbers of GPUs")
    workers, devices = _workers(launch, given, each, kinds)
    rate, notes = _rate(launch, workers, given)
    batches = [int(value) for value in launch.values("batch_size") if value.isdigit()]
    per_device = batches if counted else [size // each for size in batches if each and size % each == 0]
    return row(
        given,
        tool="mxnet",
        unit="samples",
        rate=rate,
        devices=devices,
        models=map(_model, (said for _, said in launch.arguments)),
        batches=set(per_device),
        precisions=launch.values("dtype"),
        synchronous=not any("async" in kind for kind in kinds),
        notes=notes,
    )


def _gpus(value: str) -> int:
    """`0,1` is two GPUs, `2` is one GPU with number 2, "" is a CPU."""
    return 1 if value in ("", "None") else len([one for one in value.split(",") if one.strip()])


def _model(said: dict[str, str]) -> str:
    network, layers = said.get("network") or said.get("model", ""), said.get("num_layers", "")
    return f"{network}-{layers}" if network in _LAYERED and layers.isdigit() else network


def _workers(launch: _Launch, given: Given, each: int | None, kinds: set[str]) -> tuple[int, int]:
    spoke = len(launch.speeds)
    if not launch.arguments or each is None:
        devices = world_size([], given, " (no Namespace line)")
        each = agreed(launch.contexts, 0, "", "numbers of GPUs") or 1
        if devices % each:
            raise Refused(f"--world-size {devices}: a worker has {each} GPUs")
        return spoke if spoke > 1 else devices // each, devices
    started = max(launch.processes, spoke)
    if started == 1 and any(kind.startswith(("dist", "horovod")) for kind in kinds):
        devices = world_size([], given, ", and one worker of several speaks in it")
        if devices % each:
            raise Refused(f"--world-size {devices}: a worker has {each} GPUs")
        return devices // each, devices
    return started, world_size([started * each], given)


# ---------------------------------------------------------------- rate of a worker or of the job


def _rate(launch: _Launch, workers: int, given: Given) -> tuple[float, list[str]]:
    steady: dict[int, float] = {}
    notes = ["the first window of each epoch is left out"]
    if launch.several:
        epoch, batch = launch.several
        raise Refused(
            f"says several speeds of epoch {epoch}, batch {batch}, and no line says who speaks: workers without "
            "ranks (Node[r]), or several launches: split it"
        )
    for who, speeds in launch.speeds.items():
        later = _later(speeds)
        if not later:
            raise Refused("has only the first window of an epoch of a worker, which includes the start")
        steady[who] = median(later)
    spoke = len(steady)
    if spoke > 1:
        if spoke != workers:
            raise Refused(f"{spoke} of {workers} workers speak: give the log of all")
        return sum(steady.values()), [*notes, f"the sum of {spoke} workers' own rates"]
    (alone,) = steady.values()
    if workers == 1:
        return alone, notes
    whose = given.speed_of or _audited(launch, workers)
    if whose == "all":
        return alone, [*notes, "one worker tells the rate of all"]
    return alone * workers, [*notes, f"one worker's own rate x {workers}"]


def _later(speeds: dict[int, float]) -> array[float]:
    first: dict[int, int] = {}
    for key in speeds:
        first[key // _EPOCH] = min(first.get(key // _EPOCH, key), key)
    return array("d", (speed for key, speed in speeds.items() if key != first[key // _EPOCH]))


def _audited(launch: _Launch, workers: int) -> str:
    """`all` or `worker`, from rate x seconds of an epoch. Raises Refused."""
    examples = agreed(
        (int(value) for value in launch.values("num_examples") if value.isdigit()), 0, "", "sizes of an epoch"
    )
    for samples in _epochs(launch):
        if examples and abs(samples - examples) <= _AUDIT * examples:
            return "all"
        if examples and abs(samples * workers - examples) <= _AUDIT * examples:
            return "worker"
    raise Refused(
        "does not tell whether a speed is of one worker or of all: rate x an epoch's seconds is neither the data "
        "set nor a worker's share; say --speed-of worker or --speed-of all"
    )


def _epochs(launch: _Launch) -> Iterator[float]:
    for who, costs in launch.costs.items():
        sums: dict[int, tuple[float, int]] = {}
        for key, speed in launch.speeds.get(who, {}).items():
            total, count = sums.get(key // _EPOCH, (0.0, 0))
            sums[key // _EPOCH] = total + speed, count + 1
        for epoch, seconds in costs.items():
            if epoch in sums:
                yield sums[epoch][0] / sums[epoch][1] * seconds


TOOL = Tool(("samples/sec",), _SURE, _read)
