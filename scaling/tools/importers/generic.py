"""The reader of any log, by `--rate`, and the lines of an unknown log that look most like rates."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from shlex import quote
from typing import Any, NamedTuple

from scaling.records.run import ImportedUnit
from scaling.text import one_line
from scaling.tools.importers.engine import Grammar, Value, of_steps, unit_of_steps
from scaling.tools.importers.launch import Launch
from scaling.tools.importers.lines import CUT, LogLine
from scaling.tools.importers.logs import Form, Refused, number

NAME = "generic"
UNITS: Mapping[str, ImportedUnit] = {
    **{unit: unit for unit in ("images", "samples", "sequences", "tokens", "steps")},
    "s/step": "steps", "ms/step": "steps",
}  # fmt: skip
_SUFFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_BEFORE, _AFTER = re.compile(r".?\d$|\d[.,]$"), re.compile(rf"[\d{CUT}]|[.,][\d{CUT}]")
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
    if _BEFORE.match(found.string, max(found.start(1) - 2, 0), found.start(1)) or _AFTER.match(
        found.string, found.end(1)
    ):
        raise ValueError
    return found[1] or ""


def of_form(form: Form) -> Grammar:
    """Make the grammar of a log of the form of the command line. Raises Refused."""
    if not form.rate:
        raise Refused("needs --rate 'WORDS ([\\d.,]+)' and --unit NAME")
    rate, step = re.compile(form.rate), re.compile(form.step) if form.step else None
    rest = "the first is left out" if step is None else "the first step of each start is left out"

    def said(line: LogLine, launch: Launch) -> Iterator[Mapping[str, Any]]:
        if (found := rate.search(line.text)) is None:
            return
        value, key = per_second(whole(found), form.unit), f"_step{line.rank}"
        if step is None:
            yield {"rate": value}
            return
        if (at := step.search(line.text)) is None:
            raise ValueError
        place = int(whole(at).replace(",", ""))
        yield {"rate": value, "step": place, "begins": place < int(launch.last.get(key, "-1")), key: place}

    def value(launch: Launch) -> Value:
        rate = launch.steady("rate", "line")
        if UNITS[form.unit] == "steps":
            return of_steps(launch, rate, f"the rates of --rate; {rest}")
        if form.per_device:
            return launch.devices * rate, (f"the rates of --rate x devices; {rest}",)
        return rate, (f"the rates of --rate, of all devices; {rest}",)

    return Grammar(
        name=NAME, unit=unit_of_steps if UNITS[form.unit] == "steps" else UNITS[form.unit], value=value,
        objects=said, pattern=form.rate, lacks=f"has no line that --rate '{form.rate}' matches", said=(("",), ""),
    )  # fmt: skip


# ---------------------------------------------------------------- lines that look like rates

_NUMBER = r"\d[\d,]*(?:\.\d+)?(?<!,)(?P<suffix>(?-i:[kKMG])|e[+-]?\d+|)"
_UNIT = (
    r"(?P<unit>im(?:ages?|gs?)|samples?|examples?|items?|seq(?:uence)?s?|tok(?:en)?s?|it(?:er(?:ation)?)?s?|steps?)"
    r"(?P<every>(?: ?/ ?|[_ ]per[_ ])(?:gpu|device|chip|rank))?(?: ?/ ?|[_ ]per[_ ])s(?:ec(?:ond)?s?)?(?![a-z])"
)
_EACH = r"(?P<each>(?: ?/ ?|[_ ]per[_ ])(?:gpu|device|chip|rank)s?)?"
_STEP = r"(?:step|iter(?:ation)?|it|batch)"
_END = r"(?!\w|[.,:/-]\d| ?(?:%|[kmgt]?i?(?:b|bits?|bytes?)/|[tgp]?flop))"
_GIVEN = r"['\"]?\]?(?: ?\((?P<given>[^()]{1,20})\))?(?P<sign>['\"]?\s*[:=]\s*['\"]?|\s+)"
# a rate before its unit, a rate after its name, the time of a step
_RATES = (
    rf"(?<![\w.,+-])(?<!\d ){_NUMBER} ?(?P<words>(?:{_UNIT}{_EACH}|(?P<time>m?s|sec) ?/ ?{_STEP}\b))"
    r"(?![\w/]|['\"]?\]?(?: ?\([^()]*\))?\s*[:=]?\s*['\"]?\d)",
    rf"(?<![\w/])(?P<words>(?:\w+[_/])?(?:{_UNIT}{_EACH}|throughput|speed|(?P<short>tps|wps|tgs|ips)){_GIVEN})"
    rf"{_NUMBER}{_END}(?! ?m?s\b)",
    rf"(?<![\w/])(?P<words>(?:{_STEP}[_ ]?time|(?:time|sec(?:ond)?s)[_ ]?(?:per|/)[_ ]?{_STEP}|"
    rf"(?<![a-z] )(?:time|dt)(?=\s*[:=])|(?P<time>m?s|sec) ?/ ?{_STEP})(?P<own>_m?s)?{_GIVEN}){_NUMBER}"
    rf"(?P<after> ?(?:ms|s|secs?|seconds?)\b|{_END})",
)
_PATTERNS = [re.compile(text, re.IGNORECASE) for text in _RATES]
# what every line of these forms has
_MAY_BE_RATE = re.compile(r"[/ _]s|per|throughput|speed|[twi]ps|tgs|time|dt|s ?/|c ?/", re.IGNORECASE)
_NAMES: Mapping[str, str] = {
    "im": "images", "sa": "samples", "ex": "samples", "se": "sequences", "to": "tokens", "st": "steps",
    "tps": "tokens", "wps": "tokens", "tgs": "tokens", "item": "samples", "items": "samples", "it": "steps",
}  # fmt: skip
_TIMES = re.compile(r" ?_?(?:(m)s|s|secs?|seconds?)", re.IGNORECASE)
_EVALUATES = r"(?:eval|val|test|infer)[a-z]*[\s_/]+"
_EVALUATED, _EVALUATION = (re.compile(t, re.IGNORECASE) for t in (rf"(?<![a-z]){_EVALUATES}$", _EVALUATES))
_MOST_SHAPES = 4096


class Likely(NamedTuple):
    """A line that looks like a rate, and the flags that would read it."""

    line: LogLine
    flags: str


class Likeliest:
    """Collects the lines of a log that look most like rates, one of each shape."""

    def __init__(self) -> None:
        self._count: Counter[tuple[int, str]] = Counter()
        self._first: dict[tuple[int, str], Likely] = {}

    def add(self, line: LogLine) -> None:
        if _MAY_BE_RATE.search(line.text) is None:
            return
        for kind, pattern in enumerate(_PATTERNS):
            if (found := pattern.search(line.text)) is not None and not _is_doubtful(found):
                key = (-kind, found["words"])
                if key not in self._first and len(self._first) < _MOST_SHAPES:
                    self._first[key] = Likely(line, _flags(found, kind))
                if key in self._first:
                    self._count[key] += 1
                return

    def hints(self, path: str) -> tuple[str, ...]:
        """Three lines and the command that reads the first of them; empty if no line has a rate."""
        best = sorted(self._count, key=lambda key: (min(self._count[key], 3), key[0], self._count[key]))[:-4:-1]
        if not best:
            return ()
        likely = [self._first[key] for key in best]
        shown = [f"  line {one.line.number}: {one_line(one.line.text.strip())[:160]}" for one in likely]
        command = f"python -m scaling import {quote(path)} {likely[0].flags} --world-size N -o RUN"
        which = f" NAME is one of {', '.join(UNITS)}:" if "--unit NAME" in command else ""
        return (
            "These lines look most like rates:",
            *shown,
            f"This reads the first of them:{which}",
            f"  {command}",
        )


def _is_doubtful(found: re.Match[str]) -> bool:
    """Whether a rate is of an evaluation, or its unit without a sign stands between two numbers."""
    said, before = found.groupdict(), found.string[: found.start("words")]
    if _EVALUATED.search(before) or _EVALUATION.match(found["words"]):
        return True
    has_unit = said.get("unit") or said.get("time")
    return bool(has_unit and (said.get("sign") or "x").isspace() and re.search(r"\d ?$", before))


def _flags(found: re.Match[str], kind: int) -> str:
    said = {name: text or "" for name, text in found.groupdict().items()}
    form, suffix = r"[\d,]*\.?\d+", said["suffix"][:1].lower()
    group = f"({form}{'' if not suffix else 'e[+-]?[0-9]+' if suffix == 'e' else '[kKMG]?'})"
    words = re.sub(r"\s+", " +", re.sub(r"[^\w\s/=:,%-]", ".", said["words"]))
    rate = f"{group} ?{words}" if kind == 0 else f"{words}{group}"
    of_given = re.search(_UNIT, said.get("given", ""), re.IGNORECASE)
    word = (of_given["unit"] if of_given else said.get("unit") or said.get("short", "")).lower()
    unit = _NAMES.get(word) or _NAMES.get(word[:2], "NAME")
    is_each = bool(said.get("each") or said.get("every") or word == "tgs")
    if seconds := _TIMES.fullmatch(
        said.get("time") or said.get("after") or said.get("own") or said.get("given", "")
    ):
        unit = "ms/step" if seconds[1] else "s/step"
    return f"--rate '{rate}' --unit {unit}{' --per-device' * is_each}"
