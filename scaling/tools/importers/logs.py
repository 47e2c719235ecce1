"""How facts of a log become rows."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.records.point import Record
from scaling.records.run import ImportedBandwidth, ImportedRow
from scaling.text import counted, one_line
from scaling.tools.importers.lines import CUT, LogLine

# ---------------------------------------------------------------- launches of one log


# largest relative difference in one log: between launches of a cell, ranks of a launch, and totals
APART = 0.2


class Rows:
    """One row per cell. Of several launches of a cell in one log it has the lower median, with a note."""

    def __init__(self) -> None:
        self._rows: dict[ImportedRow, tuple[ImportedRow, array[float]]] = {}

    def add(self, one: ImportedRow) -> None:
        key = replace(one, model=one.model.casefold(), rate=None, notes=(), steps=0, spread=None)
        self._rows.setdefault(key, (one, array("d")))[1].append(one.rate or 0.0)

    def __iter__(self) -> Iterator[ImportedRow]:
        for one, rates in self._rows.values():
            low, high = min(rates), max(rates)
            if high > (1 + APART) * low:
                raise Refused(f"has launches from {low:g} to {high:g} {one.unit}/s of one cell: split it")
            if low == high:
                yield one
            else:
                note = f"the lower median of {len(rates)} launches in this log, {low:g} to {high:g} {one.unit}/s"
                yield replace(one, rate=sorted(rates)[(len(rates) - 1) // 2], notes=(*one.notes, note))


# ---------------------------------------------------------------- rows

_Said = TypeVar("_Said", str, int)
# A whole number, neither cut nor the beginning of a longer one; maybe with thousands commas or an exponent.
NUMBER = (
    r"(?<![\d.])(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)"
    rf"(?=$|[\s,;:)\]}}%|'\"/])(?![.,;:][\d{CUT}])"
)
MOST_SHOWN = 80
# far above any real rate
MOST_RATE = 1e13
# devices, and samples of a device; far above any real number
MOST_COUNT = 10**9


class Refused(UsageError):
    """A log that cannot become a row. The caller adds the log's name."""


class Form(Record, frozen=True, kw_only=True):
    """The form of the rates of a log that no tool is known for: `--rate` and the flags with it."""

    rate: str = ""
    unit: str = ""
    per_device: bool = False
    step: str = ""


class Given(Record, frozen=True, kw_only=True):
    """Values from the command line for logs that lack them; 0 and "" if not given."""

    world_size: int = 0
    batch_size: int = 0
    model: str = ""
    precision: str = ""
    # `tp=4,pp=2`; `tp=1` for a model that is not split
    parallelism: str = ""
    form: Form = Form()


class Trace(NamedTuple):
    """Rates of one speaker of a launch by their place; of a long launch the first ones."""

    places: array[int]
    rates: array[float]


class Found(Record, frozen=True, kw_only=True):
    """The result for one log. `worker` wrote it, for tools whose workers all print the total.
    `traces`: one of each launch, by which logs of one launch are known."""

    rows: tuple[ImportedRow, ...] = ()
    bandwidths: tuple[ImportedBandwidth, ...] = ()
    worker: int | None = None
    traces: tuple[Trace, ...] = ()
    notes: tuple[str, ...] = ()


class Tool(NamedTuple):
    """An importer. A line belongs to the tool if it contains one of `marks` and matches `sure`."""

    name: str
    marks: tuple[str, ...]
    sure: re.Pattern[str]
    read: Callable[[Iterable[LogLine], Given], Found]


class Skipped:
    """Counts lines with the right word in the wrong form, and keeps the first."""

    def __init__(self) -> None:
        self.count = 0
        self._first: LogLine | None = None

    def add(self, line: LogLine) -> None:
        self.count += 1
        self._first = self._first or line

    def notes(self) -> tuple[str, ...]:
        if self._first is None:
            return ()
        which = (
            f"{'' if self.count == 1 else 'the first is '}line {self._first.number}: {_short(self._first.text)}"
        )
        return (f"{counted(self.count, 'line')} skipped that looked like data: {which}",)


def number(text: str) -> float:
    """Parse `7,282` as 7282.0; NaN for infinity and impossible rates."""
    value = float(text.replace(",", "") if "," in text else text)
    return value if 0 <= value < MOST_RATE else float("nan")


def agreed(said: Iterable[_Said], given: _Said, flag: str, what: str) -> _Said | None:
    """Return the log's value, else the flag's, else None. Raises Refused for several values or a contradiction.

    `said` may map values to their lines, which the reason then shows.
    """
    where = said if isinstance(said, Mapping) else {}
    values = sorted(set(said))
    if len(values) > 1:
        shown = ", ".join(f"{value}{at(where.get(value), text=False)}" for value in values[:4])
        raise Refused(f"says several {what}: {shown}; split the log by launch")
    if values and given and values[0] != given:
        raise Refused(f"{flag} {given}: the log says {values[0]}{at(where.get(values[0]))}")
    return values[0] if values else given or None


def at(line: LogLine | None, text: bool = True) -> str:
    """Name a line for a reason."""
    if line is None:
        return ""
    return f" (line {line.number}: {_short(line.text.strip())})" if text else f" (line {line.number})"


def _short(text: str) -> str:
    shown = one_line(text)
    return shown if len(shown) <= MOST_SHOWN else f"{shown[: MOST_SHOWN - 3]}..."


def world_size(said: Iterable[int], given: Given, hint: str = "") -> int:
    """Return the number of devices of a log. Raises Refused if neither log nor flag has it."""
    found = agreed(said, given.world_size, "--world-size", "numbers of devices")
    if found is None:
        raise Refused(f"does not say on how many devices it ran{hint}: add --world-size N")
    if not 1 <= found <= MOST_COUNT:
        raise Refused(f"ran on {found} devices, which is impossible")
    return found


def name(said: Iterable[str], given: str, flag: str, what: str) -> str:
    """Return a model or a precision, ignoring case; "" if unknown."""
    shown = (one_line(one)[:MOST_SHOWN] for one in said)
    by_fold = {one.casefold(): one for one in shown if one}
    folded = agreed(list(by_fold), given.casefold(), flag, what)
    return by_fold.get(folded, given) if folded else ""


def row(
    given: Given,
    *,
    rate: float | None,
    models: Iterable[str] = (),
    batches: Iterable[int] = (),
    precisions: Iterable[str] = (),
    parallelism: str = "",
    **facts: Any,
) -> ImportedRow:
    """Build the row of a cell from a log and the command line; `facts` are other fields. Raises Refused."""
    if rate is not None and not 0 < rate < MOST_RATE:
        raise Refused(f"has a rate of {rate:g}, which is impossible")
    batch = agreed(batches, given.batch_size, "--batch-size", "batch sizes") or 0
    if batch > MOST_COUNT:
        raise Refused(f"has {batch} samples per device, which is impossible")
    return ImportedRow(
        log="",
        rate=rate,
        model=name(models, given.model, "--model", "models"),
        batch_size=batch,
        precision=name(map(_precision, precisions), _precision(given.precision), "--precision", "precisions"),
        parallelism=agreed(filter(None, [parallelism]), given.parallelism, "--parallelism", "parallelisms") or "",
        **facts,
    )


def _precision(text: str) -> str:
    """One name per precision: `float16` of tools and `fp16` of people are the same cell."""
    return re.sub(r"^(b?)float(?=\d)", lambda found: "bf" if found[1] else "fp", text, flags=re.IGNORECASE)
