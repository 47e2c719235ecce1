"""The engine of importers: a tool is a Grammar, a table of forms of lines and how their rates become one.

One pass over a log gathers the facts and rates of its launches (launch.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from scaling.analysis.table.imported import DEGREES, UNKNOWN
from scaling.records.point import Record
from scaling.records.run import ImportedRow, ImportedUnit
from scaling.tools.importers.launch import COMMON, Kind, Launch, Line, Unfinished, is_lost, kind_of
from scaling.tools.importers.lines import DAMAGED, LONGEST_SHAPE, MOST_SHAPES, LogLine, names_digit
from scaling.tools.importers.logs import Found, Given, Refused, Rows, Skipped, Trace, agreed, at, name, row
from scaling.tools.importers.logs import world_size as agreed_size

# ---------------------------------------------------------------- how rates become a value

# rate over all devices in the grammar's unit per second, notes
Value = tuple[float, tuple[str, ...]]
Values = Callable[[Launch], Value]
# where a line says a rate, maybe its step, and nothing else
Plain = tuple[Mapping[str, slice], Kind]


def of_device(what: str, *notes: str) -> Values:
    """`<device_rate>` times devices, the median after the first `what`."""
    return lambda launch: (launch.devices * launch.steady("device_rate", what), notes)


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


def accumulated(launch: Launch) -> int:
    """Of a device over the micro-batches of a step, said by the log; 0 if unknown."""
    return launch.only("batch_size") * (launch.only("accumulation") or 1)


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
        launch, launch.median(later), f"the last rate of each epoch's bar before a validation, {left_out}"
    )


def unit_of_steps(launch: Launch) -> ImportedUnit:
    return "samples" if global_batch(launch) else "steps"


# ---------------------------------------------------------------- number of devices, batch, parallelism


def sizes(launch: Launch) -> dict[int, LogLine | None]:
    """Numbers of devices that a log says, also as global batch over batch of a device. Raises Refused."""
    said: dict[int, LogLine | None] = {**launch.integers("world_size")}
    whole, batch = launch.only("global_batch"), accumulated(launch)
    if whole and batch:
        if whole % batch:
            raise Refused(f"contradicts itself: a global batch of {whole} with {batch} per device")
        said.setdefault(whole // batch * split(launch), next(iter(launch.facts["global_batch"].values())))
    return said


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


# ---------------------------------------------------------------- flags against the log

_COUNT = re.compile(
    r"(?<![\w.])(?:(?P<all_devices>num_processes|world_size)|(?P<node_devices>num_gpus|n_?gpus?|nproc_per_node)"
    r"|(?P<any_batch>(?!eval|val|test|infer)(?:\w+_)?batch_size(?:_per_\w+)?|[GM]BS))"
    r"['\"]?(?: *[=:] *| +\.* *)['\"]?(\d{1,9})(?![\w.]|\):)",
    re.IGNORECASE,
)


def counts(text: str) -> Mapping[str, str]:
    """Numbers of devices and batches that a line says in words of many tools."""
    found = [one for one in _COUNT.finditer(text) if one[4][0] != "0"]
    return {name: one[4] for one in found for name, said in one.groupdict().items() if said}


def agrees_with_flags(launch: Launch) -> None:
    """Raise Refused for a flag that no reading of the log's own words agrees with."""
    devices, batch, split_over = launch.given.world_size, launch.given.batch_size, split(launch)
    whole, each, batches = map(launch.integers, _COUNT.groupindex)
    if devices and whole and not {devices, devices // split_over} & whole.keys():
        raise Refused(f"--world-size {devices}: the log says {min(whole)}{at(whole[min(whole)])}")
    if devices and each and all(devices % one for one in each):
        raise Refused(f"--world-size {devices}: the log says {min(each)} of a node{at(each[min(each)])}")
    of_all = batch * launch.devices
    if batch and batches and all(batch % one and one % batch and one % of_all for one in batches):
        raise Refused(f"--batch-size {batch}: the log says {min(batches)}{at(batches[min(batches)])}")


# ---------------------------------------------------------------- grammars


class Grammar(Record, frozen=True, kw_only=True):
    """How a tool's log is read.

    `data`: a line with this text and without a rate is counted as skipped, unless `no_data` is in it. Without
    `objects`, which find such lines, it is the mark of the first form with a rate.
    `value`: the rate over all devices, with notes. `lacks`: why a log without any rate is refused.
    `hint`: why the number of devices is unknown. `checks`: raise Refused for a rate that contradicts the launch.
    `objects`: what a line of `pattern` says that no form can read, by names as in forms, `begins` if it opens a
    launch. It raises ValueError, KeyError, TypeError or AttributeError for a damaged line. `plain`: where in lines
    of a shape it finds a rate, maybe its step, and nothing else. `said`: the mark and the pattern of a line of a
    tool that `objects` read. `also`: is somewhere in a log, too.
    `worker`: fact with the worker that wrote the log, for tools whose workers all say the total.
    `splits`: the tool splits models, so a log that does not say how is of an unknown parallelism.
    """

    name: str
    unit: ImportedUnit | Callable[[Launch], ImportedUnit] = unit_of_steps
    value: Values
    lines: tuple[Line, ...] = ()
    objects: Callable[[LogLine, Launch], Iterable[Mapping[str, Any]]] | None = None
    said: tuple[tuple[str, ...], str] = ((), "")
    pattern: str = "\0"
    plain: Callable[[LogLine], Plain | None] | None = None
    also: str = ""
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

    @property
    def marks(self) -> tuple[str, ...]:
        """A line of the tool has one of these."""
        return tuple(dict.fromkeys([*self.said[0], *(line.mark for line in self.lines if line.has_rate)]))

    @property
    def sure(self) -> str:
        """A line of the tool matches this."""
        return "|".join([*filter(None, [self.said[1]]), *(line.loose() for line in self.lines if line.has_rate)])

    def read(self, lines: Iterable[LogLine], given: Given) -> Found:
        """Read a log into rows. Raises Refused."""
        return _Reading(self, given).read(lines)


_LEAST_RUN, _MOST_RUN = 16, 4096  # lines that are read at once


class _Match(NamedTuple):
    """Where a form matches the lines of a shape: its names, and all of it; None if it is searched in each line."""

    form: Line
    places: Mapping[str, slice] = {}
    where: slice | None = None

    @property
    def plain(self) -> Plain | None:
        rates = [name for name in self.places if kind_of(name) == "rate"]
        is_plain = len(rates) == 1 and self.places.keys() <= {*rates, "step"} and not self.form.begins
        return (self.places, (rates[0], 1.0, 0.0)) if is_plain else None


def _matches(lines: Iterable[Line], text: str) -> Iterator[_Match]:
    """The forms that match lines with the shape of this text."""
    for form in lines:
        if form.mark not in text:
            continue
        if form.reason or names_digit(form.pattern.pattern):
            yield _Match(form)
        elif (match := form.pattern.search(text)) is not None:
            said = [name for name, value in match.groupdict().items() if value is not None]
            places = {name: slice(*match.span(name)) for name in said if name != "loss" or is_lost(match[name])}
            yield _Match(form, places, slice(*match.span()))


class _Shape(NamedTuple):
    """What the lines of a shape may say."""

    forms: Sequence[_Match] = ()
    common: Sequence[_Match] = ()
    is_counted: bool = False
    is_object: bool = False
    is_data: bool = False
    # of plain lines: those of one kind, and with as many places, are read together
    places: Mapping[str, slice] = {}
    kind: tuple[Kind, int] | None = None


_SILENT = _Shape()


class _Reading:
    def __init__(self, grammar: Grammar, given: Given) -> None:
        self.grammar, self.given = grammar, given
        self.launch = Launch(given)
        self.shapes: dict[bytes, _Shape] = {}
        self.rows = Rows()
        self.skipped = Skipped()
        self.unfinished: list[tuple[int, Unfinished]] = []
        self.workers: set[str] = set()
        self.seen: set[int] = set()
        self.traces: list[Trace] = []

    def read(self, lines: Iterable[LogLine]) -> Found:
        run = list[tuple[LogLine, _Shape]]()
        for one in lines:
            shape = self.shapes.get(one.shape) or self._learn(one)
            if shape is _SILENT:
                continue
            if run and (shape.kind != run[0][1].kind or one.rank != run[0][0].rank or len(run) == _MOST_RUN):
                self._read_run(run)
                run.clear()
            if shape.kind:
                run.append((one, shape))
            else:
                self._read(one, shape)
        self._read_run(run)
        self._close()
        rows = tuple(self.rows)
        if not rows:
            raise self.unfinished[0][1]
        worker = int(self.workers.pop()) if len(self.workers) == 1 else None
        broken_off = (f"not counted: the launch from line {first} on {why}" for first, why in self.unfinished)
        notes = (*self.skipped.notes(), *broken_off)
        return Found(rows=rows, worker=worker, traces=tuple(self.traces), notes=notes)

    def _learn(self, one: LogLine) -> _Shape:
        """What lines with the shape of this one may say."""
        grammar, text = self.grammar, one.text
        data = grammar.data or ("\0" if grammar.objects else grammar.marks[0])
        shape = _Shape(
            forms=tuple(_matches(grammar.lines, text)), common=tuple(_matches(COMMON, text)),
            is_counted=bool(self.given.world_size or self.given.batch_size) and _COUNT.search(text) is not None,
            is_object=names_digit(grammar.pattern) or re.search(grammar.pattern, text) is not None,
            is_data=data in text,
        )  # fmt: skip
        plain = grammar.plain(one) if grammar.plain else None
        if len(shape.forms) == 1 and not shape.is_object:
            plain = shape.forms[0].plain
        if plain and not shape.common:
            shape = shape._replace(places=plain[0], kind=(plain[1], len(plain[0])))
        shape = shape if any(shape) else _SILENT
        if len(self.shapes) >= MOST_SHAPES:
            self.shapes.clear()
        if len(one.shape) <= LONGEST_SHAPE:
            self.shapes[one.shape] = shape
        return shape

    def _read_run(self, run: Sequence[tuple[LogLine, _Shape]]) -> None:
        """Read plain lines of one rank and kind, at once if there are many and their steps rise."""
        if len(run) >= _LEAST_RUN and (kind := run[0][1].kind):
            texts = {name: [one.text[shape.places[name]] for one, shape in run] for name in run[0][1].places}
            if self.launch.add_run(run[0][0].rank, kind[0], texts):
                return
        for one, shape in run:
            self._read(one, shape)

    def _read(self, one: LogLine, shape: _Shape) -> None:
        spoke = bool(shape.forms) and self._match(one, shape.forms)
        if shape.is_object and self.grammar.objects:
            try:
                for said in self.grammar.objects(one, self.launch):
                    spoke |= self._add(one, said) if said.get("begins") else self.launch.add(one, said)
            except DAMAGED:
                self.skipped.add(one)
        if spoke:
            return
        if shape.common:
            self._match(one, shape.common)
        if shape.is_counted:
            self.launch.add(one, counts(one.text))
        if shape.is_data and self.grammar.no_data not in one.text:
            self.skipped.add(one)

    def _match(self, one: LogLine, found: Iterable[_Match]) -> bool:
        """Add what the forms find in a line. Return True if it says a rate."""
        text, spoke = one.text, False
        for form, places, where in found:
            if where is not None:
                whole, values = text[where], {name: text[place] for name, place in places.items()}
            elif (match := form.pattern.search(text)) is not None:
                if form.reason:
                    raise Refused(f"{form.reason.format(*match.groups())} (line {one.number})")
                whole, values = match[0], match.groupdict()
            else:
                continue
            spoke |= self._add(one, values, whole) if form.begins else self.launch.add(one, values)
        return spoke

    def _add(self, one: LogLine, values: Mapping[str, Any], text: str = "") -> bool:
        """Add a line that opens a launch if its speaker has said a rate, or the same before another's rates."""
        speaker = (one.rank, values.get("rank"))
        if self.launch.rates and (self.launch.spoke(speaker) or (speaker, text) in self.launch.opened):
            self._close()
            facts = self.launch.facts if "resumes" in values else {}
            self.launch = Launch(self.given, one.number)
            self.launch.facts.update(facts)
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
    agrees_with_flags(launch)
    for check in grammar.checks:
        check(launch, rate)
    return rate, notes


def _row(grammar: Grammar, launch: Launch) -> ImportedRow:
    rate, notes = _value(grammar, launch)
    return row(
        launch.given, tool=grammar.name, rate=None if launch.failed else rate, world_size=launch.devices,
        unit=grammar.unit(launch) if callable(grammar.unit) else grammar.unit,
        parallelism=_parallelism(grammar, launch),
        models=grammar.models(launch), batches=grammar.batches(launch), precisions=grammar.precisions(launch),
        device_kind=name({kind.lower(): "" for kind in launch.texts("device_kind")}, "", "", "kinds of devices"),
        variables=name(launch.texts("variables"), "", "", "ways to place variables"),
        synchronous=not launch.texts("asynchronous"),
        failed=launch.failed,
        notes=notes, steps=launch.used.size, spread=launch.spread(),
    )  # fmt: skip
