"""The reader of any log, by `--rate`, and the lines of an unknown log that look most like rates."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from scaling.records.run import ImportedUnit
from scaling.text import one_line
from scaling.tools.importers.engine import Grammar, Value, of_steps, unit_of_steps
from scaling.tools.importers.launch import Launch
from scaling.tools.importers.lines import CUT, LogLine
from scaling.tools.importers.logs import Found, Given, Refused, number

NAME = "generic"
UNITS: Mapping[str, ImportedUnit] = {
    **{unit: unit for unit in ("images", "samples", "sequences", "tokens", "steps")},
    "s/step": "steps", "ms/step": "steps",
}  # fmt: skip
_SUFFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_WHOLE = re.compile(r"(\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?) ?([kmg]?)", re.IGNORECASE)


def per_second(text: str, unit: str) -> float:
    """A printed rate or duration as a rate. Raises ValueError for a damaged one."""
    if (whole := _WHOLE.fullmatch(text.strip())) is None:
        raise ValueError
    value = number(whole[1]) * _SUFFIXES[whole[2].lower()]
    if not value > 0:
        raise ValueError
    return {"s/step": 1 / value, "ms/step": 1000 / value}.get(unit, value)


def whole(found: re.Match[str]) -> str:
    """The first group of a match, unless its number goes on after it or is cut. Raises ValueError."""
    before, after = found.string[: found.start(1)], found.string[found.end(1) :]
    if re.search(r"\d[.,]?$", before) or re.match(rf"[\d{CUT}]|[.,][\d{CUT}]", after):
        raise ValueError
    return found[1] or ""


def read(lines: Iterable[LogLine], given: Given) -> Found:
    """Read a log by the form of the command line. Raises Refused."""
    form = given.form
    if not form.rate:
        raise Refused("needs --rate 'WORDS ([\\d.,]+)' and --unit NAME")
    rate, step = re.compile(form.rate), re.compile(form.step) if form.step else None
    rest = "the first is left out" if step is None else "the first step of each start is left out"

    def said(line: LogLine, launch: Launch) -> Iterator[Mapping[str, Any]]:
        if (found := rate.search(line.text)) is None:
            return
        value, place, key = per_second(whole(found), form.unit), None, f"_step{line.rank}"
        if step is not None:
            if (at := step.search(line.text)) is None:
                raise ValueError
            place = int(whole(at).replace(",", ""))
            yield {"begins": place < int(launch.last.get(key, "-1")), key: str(place)}
        yield {"rate": value, "step": place}

    def value(launch: Launch) -> Value:
        rate = launch.steady("rate", "line")
        if UNITS[form.unit] == "steps":
            return of_steps(launch, rate, f"the rates of --rate; {rest}")
        if form.per_device:
            return launch.devices * rate, (f"the rates of --rate x devices; {rest}",)
        return rate, (f"the rates of --rate, of all devices; {rest}",)

    return Grammar(
        name=NAME,
        unit=unit_of_steps if UNITS[form.unit] == "steps" else UNITS[form.unit],
        value=value,
        objects=said,
        lacks=f"has no line that --rate '{form.rate}' matches",
    ).read(lines, given)


# ---------------------------------------------------------------- lines that look like rates

_UNIT = r"(?:images?|imgs?|samples?|seq(?:uence)?s?|tok(?:en)?s?|examples?|items?|it(?:er(?:ation)?)?s?|steps?)"
_RATES = (
    re.compile(
        rf"(?<![\w.])(\d[\d,]*(?:\.\d+)?[kKMG]?) ?({_UNIT} ?/ ?s(?:ec(?:ond)?)?\b|m?s ?/ ?(?:it|step)\b)"
        r"(?!['\"]?\]?\s*[:=]\s*['\"]?\d)"
    ),
    re.compile(
        rf"(\b[\w/.]*(?:throughput|speed|tps|wps|ips|{_UNIT}[_/]?(?:per)?[_/]?s(?:ec(?:ond)?)?)"
        r"['\"]?\]?\s*[:=]\s*['\"]?)"
        r"(\d[\d,]*(?:\.\d+)?[kKMG]?)(?![\w.])", re.IGNORECASE,
    ),
    re.compile(r"(\b(?:\w+_)?(?:time|dt)(?: per \w+)?['\"]?\s*[:=]?\s+['\"]?)(\d+\.\d+)(?= ?m?s?\b)"),
)  # fmt: skip
_MOST_SHAPES = 4096


class Likely(NamedTuple):
    """A line that looks like a rate, and the form that would read it."""

    line: LogLine
    rate: str
    unit: str


class Likeliest:
    """Collects the lines of a log that look most like rates, one of each shape."""

    def __init__(self) -> None:
        self._count: Counter[tuple[int, str]] = Counter()
        self._first: dict[tuple[int, str], Likely] = {}

    def add(self, line: LogLine) -> None:
        for kind, pattern in enumerate(_RATES):
            if (found := pattern.search(line.text)) is not None:
                key = (-kind, re.sub(r"[\d.,]+", "#", found[0]))
                if key in self._first or len(self._first) < _MOST_SHAPES:
                    self._count[key] += 1
                    self._first.setdefault(key, _likely(line, found, kind))
                return

    def hints(self, path: str) -> tuple[str, ...]:
        """Three lines and the command that reads the first of them; empty if no line has a rate."""
        best = sorted(self._count, key=lambda key: (min(self._count[key], 3), key[0], self._count[key]))[:-4:-1]
        if not best:
            return ()
        likely = [self._first[key] for key in best]
        shown = [f"  line {one.line.number}: {one_line(one.line.text.strip())[:160]}" for one in likely]
        first = likely[0]
        command = (
            f"python -m scaling import {path} --rate '{first.rate}' --unit {first.unit} --world-size N -o RUN"
        )
        return ("These lines look most like rates:", *shown, "This reads the first of them:", f"  {command}")


def _likely(line: LogLine, found: re.Match[str], kind: int) -> Likely:
    number, words = (found[1], found[2]) if kind == 0 else (found[2], found[1])
    group = r"([\d.,]+)" if number[-1].isdigit() else r"([\d.,]+[kKMG])"
    spaces = re.sub(r"[ \t]+", " +", re.sub(r"[^\w \t/=:,_%-]", ".", words))
    said = words.lower()
    unit = next((unit for word, unit in _WORDS.items() if re.search(word, said)), "samples")
    return Likely(line, f"{group} ?{spaces}" if kind == 0 else f"{spaces}{group}", unit)


_WORDS = {
    r"^ms ?/": "ms/step", r"^s ?/": "s/step", "tok|tps|wps": "tokens", "im": "images", "seq": "sequences",
    "sam|exam|item|ips|through|speed": "samples", "it|step": "steps", "time|dt": "s/step",
}  # fmt: skip
