"""Forms of lines, and the facts and rates that they gather of a launch.

A form is a regular expression in which `<rate>` or `<world_size>` is a number with this name. It must include the
text that always follows a number, so that a cut number is not read. Names:

* `step`, `epoch`: the place of a rate; a place that is repeated at another rate is another training.
* RATES, `x_rate`, `x_total`: numbers that become the value. A total is of the whole launch.
* `loss`: a loss that is no number is a failure. `rank`: that of a line whose launcher prints no tag.
* `world_size`, `batch_size` (of a device), `global_batch`, `accumulation`, `model`, `precision`,
  `variables`, `device_kind`, `asynchronous`, DEGREES: facts, kept with their first line.
* `_name`: a number, of which the last value is kept. Other names are facts for the functions of a tool.

A line belongs to a tool if a form with a rate matches it loosely. `COMMON` are the lines that mean the same in all
logs.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaling.tools.importers.lines import CUT, LogLine
from scaling.tools.importers.logs import APART, MOST_RATE, NUMBER, Given, Refused, Trace, agreed, number

# ---------------------------------------------------------------- forms of lines

RATES = frozenset({"rate", "total", "seconds", "ms"})
_TEXTS = frozenset({"model", "precision", "variables"})
_NO_FACTS = frozenset({"step", "epoch", "rank", "begins", "length"})
_NAME = re.compile(r"(?<!\?P)<(\w+)>")
_INTEGER = rf"(?<![\d.,])(?:\d{{1,3}}(?:,\d{{3}})+|\d{{1,18}})(?![\d{CUT}])"
_NO_NUMBER = frozenset({"nan", "inf", "-nan", "-inf"})


class Line(NamedTuple):
    """A form of a line, tried if `mark` is in the line. A line that `begins` opens a launch once one has rates."""

    mark: str
    pattern: re.Pattern[str]
    begins: bool = False
    # a log with such a line is refused
    reason: str = ""
    text: str = ""

    @property
    def has_rate(self) -> bool:
        return any(kind_of(name) == "rate" for name in self.pattern.groupindex)

    def loose(self) -> str:
        """The form without names, with any digits for a number and any word for a text."""
        text = _NAME.sub(lambda name: r"\S+" if name[1] in {*_TEXTS, "loss"} else r"[\d.,]+", self.text)
        return re.sub(r"\(\?P<\w+>", "(?:", text)


def form(mark: str, text: str, *, begins: bool = False, reason: str = "") -> Line:
    return Line(mark, re.compile(_NAME.sub(_field, text)), begins, reason, text)


@cache
def kind_of(name: str) -> str:
    if name in RATES or name.endswith(("_rate", "_total")):
        return "rate"
    if name in ("loss", "done"):
        return name
    return "" if name in _NO_FACTS else "last" if name[0] == "_" else "fact"


def _field(name: re.Match[str]) -> str:
    value = _INTEGER
    if kind_of(name[1]) in ("rate", "last"):
        value = NUMBER
    elif name[1] in _TEXTS:
        value = rf"[^\s{CUT}]+"
    elif name[1] == "loss":
        value = r"[^\s,;|]+"
    return f"(?P<{name[1]}>{value})"


# ---------------------------------------------------------------- lines of all logs

_RESUMES = (
    r"(?P<resumes>(?:Resum(?:ed|ing)|Continuing) (?:\w+ )?(?:from|at) |[Rr]estor(?:ed|ing) (?:from )?checkpoint"
    r"|[Ll]oad(?:ed|ing) checkpoint .*(?:at|from) (?:iteration|step|epoch))"
)
COMMON = (
    *(form(mark, _RESUMES, begins=True) for mark in ("Resum", "Continuing ", "heckpoint ")),
    *(
        form(mark, r"(?:\bppo/|\btime/ppo|objective/(?:kl|rlhf))", reason="trains on samples that it generates")
        for mark in ("ppo", "objective/")
    ),
)


# ---------------------------------------------------------------- facts and rates of a launch

# an epoch and a step in one integer of 63 bits
SHIFT, _MOST = 1 << 40, 1 << 22
# largest relative difference between ranks in one step
_ALIKE = 0.05
# of a fact, and of the places of a trace
_MOST_VALUES = 4096


def is_lost(loss: str) -> bool:
    return loss.lower().strip(".,") in _NO_NUMBER


class Rates:
    """Rates of one speaker by increasing place, in 16 bytes each."""

    def __init__(self) -> None:
        self.places = array("q")
        self.last = -1
        self.rates = array("d")

    def add(self, place: int | None, rate: float) -> bool:
        """Return False for a place before the last that is new, or that has another rate."""
        places = self.places
        if place is None:
            place = len(places)
        if place > self.last:
            self.last = place
            places.append(place)
            self.rates.append(rate)
            return True
        at = bisect_left(places, place)
        # the first step includes the start, which differs between ranks; they are at most a step apart
        is_of_start = not at and len(places) <= 2
        return places[at] == place and (is_of_start or abs(self.rates[at] - rate) <= _ALIKE * rate)

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


# the name of a rate, and what makes it of a number: its factor, and `per` that a duration divides
Kind = tuple[str, float, float]
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
        self.failed = ""
        self.mixed = ""
        # the rates behind the value
        self.used: NDArray[np.float64] = np.array([])
        # what speakers said that begins a launch
        self.opened: set[tuple[Speaker, str]] = set()

    def add(self, line: LogLine, values: Mapping[str, Any]) -> bool:
        """Add what a line says. Return True if it says a rate."""
        spoke = False
        for name, value in values.items():
            if value is None:
                continue
            kind = kind_of(name)
            if kind == "rate":
                spoke |= self.rate(line, name, values)
            elif kind == "fact":
                said, text = self.facts[name], str(value)
                if text not in said and len(said) < _MOST_VALUES:
                    said[text] = line
            elif kind == "last":
                self.last[name] = value
            elif kind == "loss" and is_lost(value):
                self.failed = "the loss is no number"
            elif kind == "done" and ((length := values["length"]) in self.bars or len(self.bars) < _MOST_VALUES):
                self.bars[length] = max(int(value), self.bars.get(length, 0))
        return spoke

    def rate(self, line: LogLine, name: str, values: Mapping[str, Any]) -> bool:
        """Add the rate of this name. Return False for an impossible one."""
        value = values[name]
        rate = number(value) if isinstance(value, str) else float(value)
        if not 0 < rate < MOST_RATE:
            return False
        speaker, of_name = (line.rank, values.get("rank")), self.rates[name]
        rates = of_name.get(speaker) or of_name.setdefault(speaker, Rates())
        place, epoch, step = None, values.get("epoch"), values.get("step")
        if epoch is not None or step is not None:
            place = min(_whole(epoch or 0), _MOST) * SHIFT + _whole(step or 0) % SHIFT
        if not rates.add(place, rate) and place is not None and not self.mixed:
            where = f"step {place % SHIFT}" + (f" of epoch {place // SHIFT}" if place >= SHIFT else "")
            self.mixed = (
                f"says several rates of {where} (line {line.number}), and no line says who speaks: "
                "several trainings or ranks; split it by launch"
            )
        return True

    @np.errstate(over="ignore")
    def add_run(self, rank: int | None, kind: Kind, texts: Mapping[str, Sequence[str]]) -> bool:
        """Add rates of a speaker. False, and nothing added, unless all are possible and their steps rise."""
        name, factor, per = kind
        one = self.rates.get(name, {}).get((rank, None)) or Rates()
        try:
            rates = np.array([*map(number, texts[name])]) * factor
            steps = [*map(int, texts["step"])] if "step" in texts else np.arange(rates.size) + len(one.places)
            places = np.array(steps, np.int64)
        except (ValueError, OverflowError):
            return False
        is_risen = (np.diff(places, prepend=one.last) > 0).all() and places[-1] < SHIFT and (rates > 0).all()
        rates = per / rates if per and is_risen else rates
        if not is_risen or (rates >= MOST_RATE).any():
            return False
        one.places.frombytes(places.tobytes())
        one.rates.frombytes(rates.tobytes())
        one.last = int(places[-1])
        self.rates[name][rank, None] = one
        return True

    def spoke(self, speaker: Speaker) -> bool:
        """True if this speaker, or one without a rank, has said a rate."""
        speakers = self.speakers
        return bool(speakers & {speaker, _NOBODY} or (speaker == _NOBODY and speakers))

    @property
    def speakers(self) -> set[Speaker]:
        return {speaker for speakers in self.rates.values() for speaker in speakers}

    @property
    def content(self) -> tuple[object, ...]:
        """Equal for two launches that say the same."""
        facts = [(name, *said) for name, said in self.facts.items()]
        each = [one for of_name in self.rates.values() for one in of_name.values()]
        rates = [(one.rates.tobytes(), one.places.tobytes()) for one in each]
        return *facts, *rates, self.failed, self.mixed, *self.last.values(), *self.bars.items()

    def trace(self) -> list[Trace]:
        """The first rates of one speaker, of the metric that is said most often."""
        speakers = max(self.rates.values(), key=lambda of: sum(len(one.rates) for one in of.values()))
        one = next(iter(speakers.values()))
        return [Trace(one.places[:_MOST_VALUES], one.rates[:_MOST_VALUES])]

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

    def median(self, rates: Iterable[float]) -> float:
        """Median of the rates behind the value; the row has their number and spread."""
        self.used = np.fromiter(rates, np.float64)
        return float(np.median(self.used)) if self.used.size else 0.0

    def spread(self) -> float | None:
        """The middle 90 % of the rates behind the value over their median; None for one rate."""
        if self.used.size < 2:
            return None
        low, high = np.quantile(self.used, (0.05, 0.95), method="inverted_cdf")
        return float((high - low) / np.median(self.used))

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
        later = [rates for one in self.rates[metric].values() if (rates := one.later(by_epoch)).size]
        if not later:
            of = " of an epoch" if by_epoch else ""
            raise Unfinished(f"has only its first {what}{of}, which may include the start")
        of_each = [float(np.median(rates)) for rates in later]
        self.used = np.concatenate(later)
        if max(of_each) > (1 + APART) * min(of_each):
            raise Refused(f"has ranks that disagree: rates from {min(of_each):g} to {max(of_each):g}")
        return float(np.median(of_each))


def _whole(value: int | str) -> int:
    return int(value.replace(",", "") if isinstance(value, str) and "," in value else value)


class Unfinished(Refused):
    """A launch without its rate. It is named in a note if the log has others."""
