"""The reader of any log, by `--rate`, and the lines of an unknown log that look most like rates."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from shlex import quote
from typing import Any

from scaling.records.run import ImportedUnit
from scaling.text import one_line
from scaling.tools.importers.engine import Grammar, Plain, Value, of_steps, unit_of_steps
from scaling.tools.importers.launch import SHIFT, Launch
from scaling.tools.importers.lines import CUT, DAMAGED, LogLine, names_digit
from scaling.tools.importers.logs import Form, Given, Refused, number

NAME = "generic"
UNITS: Mapping[str, ImportedUnit] = {
    **{unit: unit for unit in ("images", "samples", "sequences", "tokens", "steps")},
    "s/step": "steps", "ms/step": "steps",
}  # fmt: skip
_SUFFIXES = {"k": 1e3, "m": 1e6, "g": 1e9}
# what a bar prints beside its number, and its unit
_OF_BARS = {"it/s": "steps", "s/it": "s/step"}
# of a second, of units that are durations
_DURATIONS = {"s/step": 1.0, "ms/step": 1000.0}
_BEFORE = re.compile(r".?\d$|\d[.,'_\xa0\u202f]$")
_AFTER = re.compile(rf"[\d{CUT}]|[.,][\d{CUT}]| ?[kKMG](?![a-zA-Z])|[eE][+-]?\d")
# thousands that no comma separates
_SPLIT = re.compile(r"\d{1,3}[ '_\xa0\u202f]\d{3}(?!\d)")
_WHOLE = re.compile(r"(?i)\s*(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?(?:e[+-]?\d+)?) ?([kmg]?|it/s|s/it)\s*")
# before a rate in lower case: it is of an evaluation. A metric of one has a value or a longer name
_EVALUATES = re.compile(
    r"(?:^\W*test|(?<![a-z])(?:eval(?:uat\w+)?|val(?:idat\w+)?))"
    r"(?![\w/]|\W{1,3}(?:loss|acc|ppl|none|n/a|nan|inf|-|\d+(?![\d%]|it|/)))"
)
_LOST = re.compile(r"loss(?<!val.loss)(?<!valid.loss)(?<!validation.loss)(?<!test.loss)\W{1,4}(-?(?:nan|inf)\b)")


def _parsed(text: str, unit: str) -> tuple[re.Match[str], float, float]:
    """A printed rate or duration: its number, the factor of its suffix, `per` of a duration. Raises ValueError."""
    if (found := _WHOLE.fullmatch(text)) is None:
        raise ValueError
    suffix = found[2].lower()
    return found, _SUFFIXES.get(suffix, 1.0), _DURATIONS.get(_OF_BARS.get(suffix, unit), 0.0)


def per_second(text: str, unit: str) -> float:
    """A printed rate or duration as a rate. Raises ValueError for a damaged one."""
    found, factor, per = _parsed(text, unit)
    if not (value := number(found[1]) * factor) > 0:
        raise ValueError
    return per / value if per else value


def whole(found: re.Match[str]) -> str:
    """The first group of a match, unless its number goes on after it or is cut. Raises ValueError."""
    start, end = found.span(1)
    if _BEFORE.match(found.string, max(start - 2, 0), start) or _AFTER.match(found.string, end):
        raise ValueError
    return found[1] or ""


def of_form(form: Form) -> Grammar:
    """Make the grammar of a log of the form of the command line. Raises Refused."""
    if not form.rate or not form.unit:
        raise Refused(f"needs --rate 'WORDS ([\\d.,]+)' and --unit NAME ({', '.join(UNITS)})")
    rate, step = re.compile(form.rate), re.compile(form.step) if form.step else None
    for flag, pattern in (("--rate", rate), ("--step", step)):
        if pattern and not pattern.groups:
            raise Refused(f"{flag} '{pattern.pattern}' has no group: put its number in parentheses, ([\\d.,]+)")
    rest = "the first is left out" if step is None else "the first step of each start is left out"

    def says(line: LogLine, launch: Launch) -> Iterator[Mapping[str, Any]]:
        if (found := rate.search(line.text)) is None:
            return
        value, lowered = per_second(whole(found), form.unit), line.text.lower()
        if _SPLIT.match(line.text, found.start(1)):
            raise ValueError
        if ("val" in lowered or "test" in lowered) and _EVALUATES.search(lowered, 0, found.start()):
            yield {"_evaluated": "1"}
            return
        said: dict[str, Any] = {"rate": value, "loss": (lost := _LOST.search(lowered)) and lost[1]}
        if step is not None:
            if (at := step.search(line.text)) is None:
                raise ValueError
            place, one = int(whole(at).replace(",", "")), launch.rates.get("rate", {}).get((line.rank, None))
            said |= {"step": place, "begins": one is not None and place % SHIFT < one.last}
        yield said

    def plain(line: LogLine) -> Plain | None:
        found, at = rate.search(line.text), step and step.search(line.text)
        try:
            said = [*says(line, Launch(Given()))]
        except DAMAGED:
            return None
        if found is None or names_digit(form.rate + form.step) or said[0].get("loss", "") is not None:
            return None
        digits, factor, per = _parsed(found[1], form.unit)
        start, end = (found.start(1) + place for place in digits.span(1))
        places = {"rate": slice(start, end), **({"step": slice(*at.span(1))} if at else {})}
        return places, ("rate", factor, per)

    def value(launch: Launch) -> Value:
        rate = launch.steady("rate", "line")
        left_out = f"{rest}{', and lines of an evaluation' * ('_evaluated' in launch.last)}"
        if UNITS[form.unit] == "steps":
            return of_steps(launch, rate, f"the rates of --rate; {left_out}")
        if form.per_device:
            return launch.devices * rate, (f"the rates of --rate x devices; {left_out}",)
        return rate, (f"the rates of --rate, of all devices; {left_out}",)

    return Grammar(
        name=NAME, unit=unit_of_steps if UNITS[form.unit] == "steps" else UNITS[form.unit], value=value,
        objects=says, pattern=form.rate, plain=plain, said=(("",), ""),
        lacks=f"has no line of a training in which --rate '{form.rate}' finds a whole number",
    )  # fmt: skip


# ---------------------------------------------------------------- lines that look like rates

_NUMBER = r"(?P<number>\d[\d,]*(?:\.\d+)?(?<!,)(?P<suffix>(?-i:[kKMG])|e[+-]?\d+|))"
_UNIT = (
    r"(?P<unit>im(?:ages?|gs?)|samples?|examples?|items?|seq(?:uence)?s?|tok(?:en)?s?|it(?:er(?:ation)?)?s?|steps?)"
    r"(?P<every>(?: ?/ ?|[_ ]per[_ ])(?:gpu|device|chip|rank))?(?: ?/ ?|[_ ]per[_ ])s(?:ec(?:ond)?s?)?(?![a-z])"
)
_EACH = r"(?P<each>(?: ?/ ?|[_ ]per[_ ])(?:gpu|device|chip|rank)s?)?"
_STEP = r"(?:step|iter(?:ation)?|it|batch)"
_END = r"(?!\w|[.,:/-]\d| ?(?:%|[kmgt]?i?(?:b|bits?|bytes?)/|[tgp]?flop))"
_GIVEN = r"['\"]?\]?(?: ?\((?P<given>[^()]{1,20})\))?(?P<sign>['\"]?\s*[:=]\s*['\"]?|\s+)"
# a rate before its unit, a rate after its name, the time of a step, a rate of anything
_RATES = (
    rf"(?<![\w.,+-])(?<!\d ){_NUMBER} ?(?P<words>(?:{_UNIT}{_EACH}|(?P<time>m?s|sec) ?/ ?{_STEP}\b))"
    r"(?![\w/]|['\"]?\]?(?: ?\([^()]*\))?\s*(?:[:=]|['\"]?\d))",
    rf"(?<![\w/])(?P<words>(?:[\w/]*[_/])?(?:{_UNIT}{_EACH}|throughput|speed|(?P<short>tps|wps|tgs|ips)){_GIVEN})"
    rf"{_NUMBER}{_END}(?! ?m?s\b)",
    rf"(?<![\w/])(?P<words>(?:{_STEP}[_ ]?time|step_avg|(?:time[_ ]?per|sec(?:ond)?s[_ ]?(?:per|/))[_ ]?{_STEP}|"
    r"(?<![a-z] )(?:time|dt|seconds)(?=['\"]?\s*[:=]| [\d.]+ ?ms\b)|"
    rf"(?P<time>m?s|sec) ?/ ?{_STEP})(?P<own>_m?s)?{_GIVEN}){_NUMBER}"
    rf"(?P<after> ?(?:ms|s|secs?|seconds?)\b|{_END})",
    rf"(?<![\w.,+-])(?<!\d ){_NUMBER} ?(?P<words>/s)(?![\w/])",
)
_PATTERNS = [re.compile(text, re.IGNORECASE) for text in _RATES]
# what every line of these forms has
_MAY_BE_RATE = re.compile(r"[/ _]s|per|throughput|speed|[twi]ps|tgs|time|dt|s ?/|c ?/", re.IGNORECASE)
_NAMES: Mapping[str, str] = {
    "im": "images", "sa": "samples", "ex": "samples", "se": "sequences", "to": "tokens", "st": "steps",
    "tps": "tokens", "wps": "tokens", "tgs": "tokens", "item": "samples", "items": "samples", "it": "steps",
}  # fmt: skip
_TIMES = re.compile(r" ?_?(?:(m)s|s|secs?|seconds?)", re.IGNORECASE)
_EVALUATION = r"(?<![a-z])(?:eval|val|test|infer)[a-z]*[\s_/]+"
# a bar of tqdm before its rate, with its length, and what a bar of a training begins with
_BAR = re.compile(r"(?:/(\d+) |\d ?[a-z]+ |)\[[\d:<?]+, *$", re.IGNORECASE)
_TRAINS = re.compile(r"(?i)[^a-z]*(?:$|epoch|(?:pre)?train(?!_)|fine-?tun|progress|batch|steps?\b|iter|loss|rank)")


def hints(lines: Iterable[LogLine], path: str) -> tuple[str, ...]:
    """Three lines that look most like rates, one of each shape, and the command that reads the first of them."""
    count, first = Counter[tuple[int, str]](), dict[tuple[int, str], tuple[LogLine, str]]()
    for line in lines:
        for kind, pattern in enumerate(_PATTERNS if _MAY_BE_RATE.search(line.text) else ()):
            if (found := pattern.search(line.text)) is not None and not _is_doubtful(found):
                bar = _bar(found)
                key = (-kind, bar[0].partition("[")[0] if bar else found["words"])
                if key not in first:
                    first[key] = line, _flags(found, kind)
                count[key] += 1
                break
    best = sorted(count, key=lambda key: (min(count[key], 3), key[0], count[key]))[:-4:-1]
    likely = [first[key] for key in best]
    if not likely:
        return ()
    shown = [f"  line {line.number}: {one_line(line.text.strip())[:160]}" for line, _ in likely]
    command = f"python -m scaling import {quote(path)} {likely[0][1]} --world-size N -o RUN"
    which = f" NAME is one of {', '.join(UNITS)}:" if "--unit NAME" in command else ""
    return ("These lines look most like rates:", *shown, f"This reads the first of them:{which}", f"  {command}")


def _bar(found: re.Match[str]) -> re.Match[str] | None:
    """Return the progress bar before a rate in it/s or s/it; None for other rates."""
    return _BAR.search(found.string, 0, found.start()) if found["words"] in _OF_BARS else None


def _is_doubtful(found: re.Match[str]) -> bool:
    """Whether a rate is of an evaluation or of preparing data, a part of a number, or between two numbers."""
    said, text, start, place = found.groupdict(), found.string, found.start("words"), found.start("number")
    if re.search(f"{_EVALUATION}$", text[:start], re.I) or re.search(_EVALUATION, found["words"], re.I):
        return True
    if _EVALUATES.search(text.lower(), 0, place) or _SPLIT.match(text, place) or _BEFORE.search(text[:place]):
        return True
    if _BAR.search(text, 0, place) and (found["words"].startswith("ex") or not _TRAINS.match(text[:place])):
        return True
    has_unit = said.get("unit") or said.get("time")
    return bool(has_unit and (said.get("sign") or "x").isspace() and re.search(r"\d ?$", text[:start]))


def _flags(found: re.Match[str], kind: int) -> str:
    said = {name: text or "" for name, text in found.groupdict().items()}
    form, suffix = r"[\d.,]+" if kind in (0, 3) else r"[\d,]*\.?\d+", said["suffix"][:1].lower()
    if (bar := _bar(found)) is not None:
        return rf"--rate '{f'/{bar[1]} .*?' * bool(bar[1])}([\d.]+ ?(?:it/s|s/it))' --unit steps"
    group = f"({form}{'e[+-]?[0-9]+' if suffix == 'e' else '[kKMG]?'})"
    words = re.sub(r"\s+", " +", re.sub(r"[^\w\s/=:,%-]", ".", said["words"]))
    alone = r"(?<![a-z] )" * bool(re.fullmatch(r"(?i)(?:time|dt|seconds)[^a-z]*", words))
    rate = rf"(?<![\d.,]){group} ?{words}" if kind in (0, 3) else rf"{alone}\b{words}{group}"
    after = re.match(f" ?{_UNIT}", found.string[found.end() :], re.IGNORECASE)
    of_given = re.search(_UNIT, said.get("given", ""), re.IGNORECASE) or after
    word = (of_given["unit"] if of_given else said.get("unit") or said.get("short", "")).lower()
    unit = _NAMES.get(word) or _NAMES.get(word[:2], "NAME")
    is_of_one = re.search(r"(?i)(?<![a-z])(?:gpu|device|chip|rank)s?[_/]", words)
    is_each = bool(said.get("each") or said.get("every") or word == "tgs" or is_of_one)
    timed = said.get("time") or said.get("after") or said.get("own") or said.get("given", "")
    if seconds := _TIMES.fullmatch(timed):
        unit = "ms/step" if seconds[1] else "s/step"
    return f"--rate '{rate}' --unit {unit}{' --per-device' * is_each}"
