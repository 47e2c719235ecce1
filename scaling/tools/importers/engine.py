"""The engine of importers: a tool is a table of forms of lines; one pass over a log gathers facts and rates.

A form is a regular expression in which `<rate>` or `<world_size>` is a number with this name. It must include the
text that always follows a number, so that a cut number is not read. Names:

* `step`, `epoch`: the place of a rate; a place that is repeated at another rate is another training. `at` is the
  step of the lines that follow.
* RATES, `x_rate`, `x_total`: numbers that become the value. A total is of the whole launch.
* `loss`: a loss that is no number is a failure. `rank`: that of a line whose launcher prints no tag.
* `world_size`, `batch_size` (of a device), `global_batch`, `accumulation`, `model`, `precision`, `framework`,
  `variables`, `device_kind`, `asynchronous`, DEGREES: facts, kept with their first line.
* `_name`: a number, of which the last value is kept. Other names are facts for the functions of a tool.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from math import ceil, floor, prod
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from scaling.analysis.table.imported import DEGREES, UNKNOWN
from scaling.records.point import Record
from scaling.records.run import ImportedRow, ImportedUnit
from scaling.tools.importers.lines import CUT, LogLine, marked
from scaling.tools.importers.logs import (
    APART,
    MOST_RATE,
    NUMBER,
    Found,
    Given,
    Refused,
    Rows,
    Skipped,
    Trace,
    agreed,
    number,
    row,
)
from scaling.tools.importers.logs import world_size as agreed_size

# ---------------------------------------------------------------- forms of lines

RATES = frozenset({"rate", "total", "seconds", "ms"})
_TEXTS = frozenset({"model", "precision", "framework", "variables"})
_NO_FACTS = frozenset({"step", "epoch", "rank", "at", "begins", "length"})
_INTEGER = rf"(?<![\d.,])(?:\d{{1,3}}(?:,\d{{3}})+|\d{{1,18}})(?![\d{CUT}])"
_NO_NUMBER = frozenset({"nan", "inf", "-nan", "-inf"})


class Line(NamedTuple):
    """A form of a line, tried if `mark` is in the line. A line that `begins` opens a launch once one has rates."""

    mark: str
    pattern: re.Pattern[str]
    begins: bool = False
    # a log with such a line is refused
    reason: str = ""


def form(mark: str, text: str, *, begins: bool = False, reason: str = "") -> Line:
    return Line(mark, re.compile(re.sub(r"(?<!\?P)<(\w+)>", _field, text)), begins, reason)


@cache
def _kind(name: str) -> str:
    if name in RATES or name.endswith(("_rate", "_total")):
        return "rate"
    if name in ("loss", "done"):
        return name
    return "" if name in _NO_FACTS else "last" if name[0] == "_" else "fact"


def _field(name: re.Match[str]) -> str:
    value = _INTEGER
    if _kind(name[1]) in ("rate", "last"):
        value = NUMBER
    elif name[1] in _TEXTS:
        value = rf"[^\s{CUT}]+"
    elif name[1] == "loss":
        value = r"[^\s,;|]+"
    return f"(?P<{name[1]}>{value})"


# ---------------------------------------------------------------- facts and rates of a launch

# an epoch and a step in one integer of 63 bits
SHIFT, _MOST = 1 << 40, 1 << 22
# largest relative difference between ranks in one step
_ALIKE = 0.05
_MOST_VALUES = 4096
# of a trace
_MOST_PLACES = 4096


class Rates:
    """Rates of one speaker by increasing place, in 16 bytes each."""

    def __init__(self) -> None:
        self.places = array("q")
        self.rates = array("d")

    def add(self, place: int | None, rate: float) -> bool:
        """Return False for a place before the last that is new, or that has another rate."""
        places = self.places
        if place is None:
            place = len(places)
        if not places or place > places[-1]:
            places.append(place)
            self.rates.append(rate)
            return True
        at = bisect_left(places, place)
        # the first step includes the start, which differs between ranks; they are at most a step apart
        is_of_start = not at and len(places) <= 2
        return places[at] == place and (is_of_start or abs(self.rates[at] - rate) <= _ALIKE * rate)

    def head(self) -> Trace:
        return Trace(self.places[:_MOST_PLACES], self.rates[:_MOST_PLACES])

    def all(self) -> NDArray[np.float64]:
        return np.frombuffer(self.rates)

    def later(self, by_epoch: bool = False) -> NDArray[np.float64]:
        """A copy without the first, or without that of each epoch, unless epochs have one window after a step."""
        kept = np.delete(self.all(), [start for _, start, _ in self.epochs()] if by_epoch else [0])
        return kept if kept.size or not self.places[0] % SHIFT else np.delete(self.all(), [0])

    def epochs(self) -> Iterator[tuple[int, int, int]]:
        """Each epoch and the range of its rates."""
        places, end = np.frombuffer(self.places, np.int64), 0
        while (start := end) < len(places):
            epoch = int(places[start]) // SHIFT
            end = int(np.searchsorted(places, (epoch + 1) * SHIFT))
            yield epoch, start, end


# the rank in a launcher's tag, and `<rank>` of a line
Speaker = tuple[int | None, str | None]
_NOBODY = (None, None)


class Launch:
    """Facts and rates of a launch."""

    def __init__(self, given: Given, first: int = 1) -> None:
        self.given = given
        self.first = first
        # known once all lines are read
        self.devices = 0
        self.facts: dict[str, dict[str, LogLine]] = defaultdict(dict)
        self.rates: dict[str, dict[Speaker, Rates]] = defaultdict(dict)
        self.last: dict[str, str] = {}
        # the largest step of progress bars, by their length
        self.bars: dict[str, int] = {}
        self.diverged = False
        self.mixed = ""
        # the place that a line said for the lines after it, by speaker
        self.at: dict[Speaker, int | None] = {}
        # what speakers said that begins a launch
        self.opened: set[tuple[Speaker, str]] = set()

    def add(self, line: LogLine, values: Mapping[str, Any]) -> bool:
        """Add what a line says. Return True if it says a rate."""
        spoke = False
        if "at" in values:
            self.at[line.rank, values.get("rank")] = _place(values.get("epoch"), values["at"])
        for name, value in values.items():
            if value is None:
                continue
            kind = _kind(name)
            if kind == "rate":
                spoke |= self._rate(line, name, values, value)
            elif kind == "fact":
                said, text = self.facts[name], str(value)
                if text not in said and len(said) < _MOST_VALUES:
                    said[text] = line
            elif kind == "last":
                self.last[name] = value
            elif kind == "loss":
                self.diverged |= value.lower().strip(".,") in _NO_NUMBER
            elif kind == "done":
                self._bar(values["length"], int(value))
        return spoke

    def _bar(self, length: str, done: int) -> None:
        if length in self.bars or len(self.bars) < _MOST_VALUES:
            self.bars[length] = max(done, self.bars.get(length, 0))

    def _rate(self, line: LogLine, name: str, values: Mapping[str, Any], value: Any) -> bool:
        rate = number(value) if isinstance(value, str) else float(value)
        if not 0 < rate < MOST_RATE:
            return False
        speaker, of_name = (line.rank, values.get("rank")), self.rates[name]
        if (rates := of_name.get(speaker)) is None:
            rates = of_name[speaker] = Rates()
        place = _place(values.get("epoch"), values.get("step"), self.at.get(speaker))
        if not rates.add(place, rate) and place is not None and not self.mixed:
            where = f"step {place % SHIFT}" + (f" of epoch {place // SHIFT}" if place >= SHIFT else "")
            self.mixed = (
                f"says several rates of {where} (line {line.number}), and no line says who speaks: "
                "several trainings or ranks; split it by launch"
            )
        return True

    def spoke(self, speaker: Speaker) -> bool:
        """True if this speaker, or one without a rank, has said a rate."""
        speakers = self.speakers
        return speaker in speakers or _NOBODY in speakers or (speaker == _NOBODY and bool(speakers))

    @property
    def speakers(self) -> set[Speaker]:
        return {speaker for speakers in self.rates.values() for speaker in speakers}

    def distinct(self, metric: str) -> list[Rates]:
        """Rates of speakers; those that say the same all along are one."""
        return list({one.rates.tobytes(): one for one in self.rates.get(metric, {}).values()}.values())

    @property
    def content(self) -> tuple[object, ...]:
        """Equal for two launches that say the same."""
        facts = tuple((name, *said) for name, said in self.facts.items())
        rates = tuple(one.rates.tobytes() for of in self.rates.values() for one in of.values())
        return facts, rates, self.diverged, self.mixed, *self.last.values(), *self.bars.items()

    def trace(self) -> list[Trace]:
        """The first rates of one speaker, of the metric that is said most often."""
        speakers = max(self.rates.values(), key=lambda of: sum(len(one.rates) for one in of.values()))
        return [next(iter(speakers.values())).head()]

    def texts(self, name: str) -> list[str]:
        return list(self.facts[name]) if name in self.facts else []

    def integers(self, name: str) -> dict[int, LogLine]:
        said = self.facts[name].items() if name in self.facts else ()
        return {int(text.replace(",", "")): line for text, line in said if text.replace(",", "").isdigit()}

    def only(self, name: str) -> int:
        """The only value of an integer, 0 if unknown. Raises Refused for several."""
        what = "batch sizes" if name == "batch_size" else f"values of {name.replace('_', ' ')}"
        return agreed(self.integers(name), 0, "", what) or 0

    def pooled(self, metric: str) -> NDArray[np.float64]:
        return np.concatenate([[], *(rates.all() for rates in self.rates[metric].values())])

    def middle(self, metric: str, apart: float = APART) -> float:
        """Median of totals, which must agree. Raises Refused."""
        totals = self.pooled(metric)
        if not totals.size:
            raise Unfinished("has no whole line with a rate")
        if totals.max() > (1 + apart) * totals.min():
            raise Refused(f"has totals from {totals.min():g} to {totals.max():g}, of several launches: split it")
        return float(np.median(totals))

    def steady(self, metric: str, what: str, by_epoch: bool = False) -> float:
        """Median without the first place, or that of each epoch, of speakers that agree. Raises Refused."""
        if not self.rates[metric]:
            raise Unfinished(f"has no whole line of a {what} with its rate")
        of_each = [
            float(np.median(later, overwrite_input=True))
            for one in self.rates[metric].values()
            if (later := one.later(by_epoch)).size
        ]
        if not of_each:
            of = " of an epoch" if by_epoch else ""
            raise Unfinished(f"has only its first {what}{of}, which may include the start")
        if max(of_each) > (1 + APART) * min(of_each):
            raise Refused(f"has ranks that disagree: rates from {min(of_each):g} to {max(of_each):g}")
        return float(np.median(of_each))


def _place(epoch: Any, step: Any, default: int | None = None) -> int | None:
    if epoch is None:
        return default if step is None else _whole(step) % SHIFT
    return min(_whole(epoch), _MOST) * SHIFT + _whole(step) % SHIFT


def _whole(value: Any) -> int:
    try:
        return int(value or 0)
    except ValueError:
        return int(value.replace(",", ""))


class Unfinished(Refused):
    """A launch without its rate. It is named in a note if the log has others."""


# ---------------------------------------------------------------- how rates become a value

# rate over all devices in the grammar's unit per second, notes
Value = tuple[float, tuple[str, ...]]
Values = Callable[[Launch], Value]


def of_all(what: str, *notes: str, by_epoch: bool = False) -> Values:
    """`<rate>` of all devices, the median after the first `what`, or after that of each epoch."""
    return lambda launch: (launch.steady("rate", what, by_epoch), notes)


def of_device(what: str, *notes: str, by_epoch: bool = False) -> Values:
    """`<device_rate>` times devices, the median after the first `what`, or after that of each epoch."""
    return lambda launch: (launch.devices * launch.steady("device_rate", what, by_epoch), notes)


def of_asked(what: str, *notes: str) -> Values:
    """`<rate>` of all devices, or with `--speed-of worker` of one worker: the median after the first `what`."""

    def value(launch: Launch) -> Value:
        rate, spoke = launch.steady("rate", what), len(launch.rates["rate"])
        if launch.given.speed_of == "worker":
            workers = spoke if spoke > 1 else launch.devices
            return workers * rate, (f"one worker's own speed x {workers}", *notes)
        if spoke > 1 and not launch.given.speed_of:
            raise Refused(
                f"has {what}s of {spoke} processes, and no line says whether a speed is of one of them or of all; "
                "say --speed-of worker or --speed-of all"
            )
        return rate, notes

    return value


def per_step(what: str, *notes: str) -> Values:
    """The global batch over `<seconds>` or `<ms>` of a step, the median after the first `what`."""

    def value(launch: Launch) -> Value:
        if not (whole := global_batch(launch)):
            raise Refused("says neither its batch nor its global batch: add --batch-size N")
        in_ms = bool(launch.rates.get("ms"))
        return whole / launch.steady("ms" if in_ms else "seconds", what) * (1000 if in_ms else 1), notes

    return value


def global_batch(launch: Launch) -> int:
    """Of all devices, said by the log or the flag; 0 if unknown."""
    batch = launch.only("batch_size") or launch.given.batch_size
    return launch.only("global_batch") or launch.devices * batch


def of_steps(launch: Launch, steps_per_s: float, *notes: str) -> Value:
    """Steps/s, or samples/s if the batch is known."""
    if not (whole := global_batch(launch)):
        return steps_per_s, (*notes, "steps/s: --batch-size N makes samples of them")
    return steps_per_s * whole, notes


def of_bars(launch: Launch) -> Value:
    """Of `<bar_rate>`, the last of each epoch, the median after the first epoch."""
    speakers = launch.rates["bar_rate"].values()
    bars = {epoch: of.rates[end - 1] for of in speakers for epoch, _, end in of.epochs()}
    later = [bars[epoch] for epoch in sorted(bars)[1:]] or list(bars.values())
    left_out = "the first epoch left out" if len(bars) > 1 else "its start included"
    return of_steps(
        launch, float(np.median(later)), f"the last rate of each epoch's bar before a validation, {left_out}"
    )


def unit_of_steps(launch: Launch) -> ImportedUnit:
    return "samples" if global_batch(launch) else "steps"


# ---------------------------------------------------------------- number of devices, batch, parallelism


def sizes(launch: Launch) -> dict[int, LogLine | None]:
    """Numbers of devices that a log says, also as global batch over batch of a device. Raises Refused."""
    said: dict[int, LogLine | None] = {**launch.integers("world_size")}
    whole, batch = launch.only("global_batch"), launch.only("batch_size") * (launch.only("accumulation") or 1)
    if whole and batch:
        if whole % batch:
            raise Refused(f"contradicts itself: a global batch of {whole} with {batch} per device")
        said.setdefault(whole // batch * split(launch), next(iter(launch.facts["global_batch"].values())))
    return said


def integers(low: float, high: float) -> set[int]:
    """The integers that printed digits leave."""
    return set(range(ceil(low), floor(high) + 1))


def ratios(one: float, other: float, half: float, times: float = 1) -> set[int]:
    """The integers that `times` the ratio of two printed numbers may be; `half` is half of their last digit."""
    if other <= half:
        return set()
    return integers(times * (one - half) / (other + half), times * (one + half) / (other - half))


def narrowed(launch: Launch, found: set[int]) -> dict[int, LogLine | None]:
    """The number of devices, if digits leave one. Raises Refused if the flag's is none of several."""
    given = launch.given.world_size
    if len(found) > 1 and given and given not in found:
        raise Refused(f"--world-size {given}: the log says {min(found)} to {max(found)}, by its rates")
    return dict.fromkeys(found) if len(found) == 1 else {}


def mesh(names: str, sizes: str) -> dict[str, int]:
    """Degrees of a device mesh, such as `dp_shard, tp` and `2, 4`: lines leave out degrees of 1."""
    found = zip(re.findall(r"\w+", names), map(int, re.findall(r"\d+", sizes)), strict=True)
    return {**dict.fromkeys(DEGREES, 1), **dict(found)}


def batches(launch: Launch) -> Iterable[int]:
    """Samples per device and step, if the log says them or their sum."""
    if said := launch.integers("batch_size"):
        return said
    return [whole // launch.devices for whole in launch.integers("global_batch") if whole % launch.devices == 0]


_DEGREE = re.compile(rf"({'|'.join(DEGREES)})=([1-9]\d{{0,5}})")


def as_text(degrees: Mapping[str, int]) -> str:
    """`tp=2,pp=4`; `tp=1` for degrees of 1, "" for none."""
    split = ",".join(f"{name}={degrees[name]}" for name in DEGREES if degrees.get(name, 1) > 1)
    return split or ("tp=1" if degrees else "")


def as_degrees(text: str) -> dict[str, int]:
    """The degrees in `tp=2,pp=4`; none if another word is in it."""
    found = [_DEGREE.fullmatch(part.strip()) for part in text.split(",")]
    return {one[1]: int(one[2]) for one in found if one is not None} if all(found) else {}


def degrees(launch: Launch) -> dict[str, int]:
    """Degrees of parallelism that the log says, else those of the flag. Raises Refused if they disagree."""
    said = {name: launch.only(name) for name in DEGREES if name in launch.facts}
    text = agreed(filter(None, [as_text(said)]), launch.given.parallelism, "--parallelism", "parallelisms")
    return as_degrees(text or "")


def split(launch: Launch) -> int:
    """Devices that share a model, 1 if unknown."""
    return prod(degrees(launch).get(name, 1) for name in DEGREES[:3])


def _parallelism(grammar: Grammar, launch: Launch) -> str:
    if launch.devices % split(launch):
        raise Refused(f"splits its model over {split(launch)} devices: {launch.devices} are no multiple of them")
    return as_text(degrees(launch)) or (UNKNOWN if grammar.splits and launch.devices > 1 else "")


# ---------------------------------------------------------------- grammars


class Grammar(Record, frozen=True, kw_only=True):
    """How a tool's log is read.

    `marks`, `sure`: a line of the tool has one of `marks` and matches `sure`.
    `data`: a line with this text and without a rate is counted as skipped, unless `no_data` is in it. Without
    `objects`, which find such lines, it is the first of `marks`.
    `value`: the rate over all devices, with notes. `lacks`: why a log without any rate is refused.
    `hint`: why the number of devices is unknown. `checks`: raise Refused for a rate that contradicts the launch.
    `objects`: what a line says that no form can read, by names as in forms, `begins` if it opens a launch. It
    raises ValueError, KeyError, TypeError or AttributeError for a damaged line.
    `worker`: fact with the worker that wrote the log, for tools whose workers all say the total.
    `splits`: the tool splits models, so a log that does not say how is of an unknown parallelism.
    """

    name: str
    marks: tuple[str, ...]
    sure: str
    unit: ImportedUnit | Callable[[Launch], ImportedUnit]
    value: Values
    lines: tuple[Line, ...] = ()
    objects: Callable[[LogLine, Launch], Iterable[Mapping[str, Any]]] | None = None
    data: str = ""
    no_data: str = "\0"
    lacks: str = "has no whole line with a rate"
    hint: str = ""
    sizes: Callable[[Launch], Iterable[int]] = sizes
    batches: Callable[[Launch], Iterable[int]] = batches
    models: Callable[[Launch], Iterable[str]] = lambda launch: launch.texts("model")
    precisions: Callable[[Launch], Iterable[str]] = lambda launch: launch.texts("precision")
    checks: tuple[Callable[[Launch, float], None], ...] = ()
    worker: str = ""
    splits: bool = False

    def read(self, lines: Iterable[LogLine], given: Given) -> Found:
        """Read a log into rows. Raises Refused."""
        return _Reading(self, given).read(lines)


_DAMAGED = (ValueError, KeyError, TypeError, AttributeError, RecursionError, msgspec.DecodeError)


class _Reading:
    def __init__(self, grammar: Grammar, given: Given) -> None:
        self.grammar = grammar
        self.given = given
        self.launch = Launch(given)
        self.rows = Rows()
        self.skipped = Skipped()
        self.unfinished: list[tuple[int, Unfinished]] = []
        self.workers: set[str] = set()
        self.seen: set[int] = set()
        self.traces: list[Trace] = []

    def read(self, lines: Iterable[LogLine]) -> Found:
        data, no_data = self.grammar.data, self.grammar.no_data
        data = data or ("\0" if self.grammar.objects else self.grammar.marks[0])
        for one in marked(lines):
            if not self._read(one) and data in one.text and no_data not in one.text:
                self.skipped.add(one)
        self._close()
        rows = tuple(self.rows)
        if not rows:
            raise self.unfinished[0][1]
        worker = int(self.workers.pop()) if len(self.workers) == 1 else None
        traces = tuple(self.traces)
        return Found(rows=rows, worker=worker, traces=traces, notes=(*self.skipped.notes(), *self._broken_off()))

    def _read(self, one: LogLine) -> bool:
        text, spoke = one.text, False
        for mark, pattern, begins, reason in self.grammar.lines:
            if mark in text and (match := pattern.search(text)) is not None:
                if reason:
                    raise Refused(f"{reason.format(*match.groups())} (line {one.number})")
                values = match.groupdict()
                spoke |= self._add(one, values, match[0]) if begins else self.launch.add(one, values)
        if self.grammar.objects is not None:
            try:
                for said in self.grammar.objects(one, self.launch):
                    spoke |= self._add(one, said) if said.get("begins") else self.launch.add(one, said)
            except _DAMAGED:
                self.skipped.add(one)
        return spoke

    def _add(self, one: LogLine, values: Mapping[str, Any], text: str = "") -> bool:
        """Add a line that opens a launch if its speaker has said a rate, or the same before another's rates."""
        speaker = (one.rank, values.get("rank"))
        if self.launch.rates and (self.launch.spoke(speaker) or (speaker, text) in self.launch.opened):
            self._close()
            self.launch = Launch(self.given, one.number)
        self.launch.opened.add((speaker, text))
        return self.launch.add(one, values)

    def _close(self) -> None:
        """Make the launch's row; text that is repeated counts once."""
        if (content := hash(self.launch.content)) in self.seen:
            return
        self.seen.add(content)
        self.workers.update(self.launch.texts(self.grammar.worker))
        try:
            self.rows.add(_row(self.grammar, self.launch))
            self.traces += self.launch.trace()
        except Unfinished as why:
            self.unfinished.append((self.launch.first, why))

    def _broken_off(self) -> tuple[str, ...]:
        return tuple(f"not counted: the launch from line {first} on {why}" for first, why in self.unfinished)


def _value(grammar: Grammar, launch: Launch) -> Value:
    """The rate of a launch and notes, after all checks. Raises Refused."""
    if launch.mixed and "total" not in launch.rates:
        raise Refused(launch.mixed)
    if not launch.rates:
        raise Unfinished(grammar.lacks)
    launch.devices = agreed_size(grammar.sizes(launch), launch.given, grammar.hint)
    if (last := max(tag or 0 for tag, _ in launch.speakers)) >= launch.devices:
        raise Refused(
            f"has rates of rank {last} on {launch.devices} devices: --world-size N must count devices of all ranks"
        )
    rate, notes = grammar.value(launch)
    for check in grammar.checks:
        check(launch, rate)
    return rate, notes


def _row(grammar: Grammar, launch: Launch) -> ImportedRow:
    rate, notes = _value(grammar, launch)
    return row(
        launch.given,
        tool=grammar.name,
        unit=grammar.unit(launch) if callable(grammar.unit) else grammar.unit,
        rate=None if launch.diverged else rate,
        devices=launch.devices,
        models=grammar.models(launch),
        batches=grammar.batches(launch),
        precisions=grammar.precisions(launch),
        device_kinds=[kind.lower() for kind in launch.texts("device_kind")],
        frameworks=launch.texts("framework"),
        variables=launch.texts("variables"),
        parallelism=_parallelism(grammar, launch),
        synchronous=not launch.texts("asynchronous"),
        failed="the loss is no number" if launch.diverged else "",
        notes=notes,
    )
