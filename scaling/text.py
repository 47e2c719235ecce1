"""Format numbers and words for people, the same in every output."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

T = TypeVar("T")

MINUTE_S = 60
HOUR_S = 3600
UNITS_S = {"s": 1, "m": MINUTE_S, "h": HOUR_S, "d": 24 * HOUR_S}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhd])")
_TIME = re.compile(rf"(?:{_PART.pattern})+")


def printable(text: str) -> str:
    """Replace each unprintable character by a space.
    Terminals obey control characters; characters that reverse or hide text make one name look like another."""
    return text if text.isprintable() else "".join(sign if sign.isprintable() else " " for sign in text)


def one_line(text: str) -> str:
    """Return `text` as one printable line."""
    return " ".join(printable(text).split())


def legible(value: T) -> T:
    """Return a Struct or plain data with all its texts printable."""
    found: Any = value
    if isinstance(value, str):
        found = printable(value)
    elif isinstance(value, dict):
        found = {legible(key): legible(one) for key, one in value.items()}
    elif isinstance(value, list | tuple):
        found = type(value)(map(legible, value))
    elif isinstance(value, Struct):
        found = replace(value, **{name: legible(getattr(value, name)) for name in value.__struct_fields__})
    return cast(T, found)


def as_json(value: Any) -> str:
    """Return `value` as indented JSON. Unprintable characters are escaped; JSON reads them back."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    lines = (line if line.isprintable() else "".join(map(_escaped, line)) for line in text.split("\n"))
    return "\n".join(lines) + "\n"


def _escaped(sign: str) -> str:
    return sign if sign.isprintable() else json.dumps(sign)[1:-1]


def readable(text: str) -> str:
    """Escape what UTF-8 cannot encode: bytes of another encoding become `\\udcff`."""
    return text.encode("utf-8", "backslashreplace").decode()


def duration(seconds: float) -> str:
    """Format seconds: `4.9 s`, `42 s`, `1 min 10 s`, `2 h 5 min`."""
    if seconds < 9.95:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    if whole < MINUTE_S:
        return f"{whole} s"
    if whole < HOUR_S:
        return f"{whole // MINUTE_S} min {whole % MINUTE_S} s"
    return f"{whole // HOUR_S} h {whole % HOUR_S // MINUTE_S} min"


def seconds_of(text: str) -> float | None:
    """Read a time such as `90s`, `30m`, `2h`, `7d` or `1h30m`; None if it is not one."""
    if not _TIME.fullmatch(text.strip()):
        return None
    return sum(float(number) * UNITS_S[unit] for number, unit in _PART.findall(text))


def decimals(value: float) -> int:
    """Return how many decimals show about four digits of `value`."""
    return 0 if value >= 1000 else 1 if value >= 10 else 2 if value >= 0.1 else 4


def date(unix_s: float) -> str:
    """Format a time to the minute in UTC, so that a table does not depend on the reader's time zone."""
    return datetime.fromtimestamp(unix_s, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def day(unix_s: float) -> str:
    """Format a day in UTC: `26 Nov 2026`."""
    found = datetime.fromtimestamp(unix_s, timezone.utc)
    return f"{found.day} {found:%b %Y}"


def several(names: Sequence[str], shown: int = 6) -> str:
    """Join names: `a b c`, or `a b c d e ... z` if there are more than `shown`."""
    if len(names) <= shown:
        return " ".join(names)
    return " ".join((*names[: shown - 1], "...", names[-1]))


def ranges(numbers: Iterable[int]) -> str:
    """Format a set of CPUs as the kernel and `nvidia-smi topo -m` do: `0-55,112-167`."""
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in found)


def fixed(value: float, digits: int, *, grouped: bool = False) -> str:
    """Format with fixed digits, without a minus before zero."""
    shown = f"{value:{',' if grouped else ''}.{digits}f}"
    return shown.removeprefix("-") if float(shown.replace(",", "")) == 0 else shown


# An interval whose ends differ more than this in their distance from the mean is printed by its ends.
MOST_SKEWED = 1.2


def is_skewed(value: float, low: float, high: float) -> bool:
    nearer, farther = sorted((value - low, high - value))
    return farther > MOST_SKEWED * nearer


def plus_minus(value: float, low: float | None, high: float | None, digits: int, *, grouped: bool = False) -> str:
    """Format an interval beside its mean: `± 0.8`, `(30.6 to 361.0)` if it is skewed, "" without one."""
    if low is None or high is None:
        return ""
    if is_skewed(value, low, high) and round(value - low, digits) != round(high - value, digits):
        return f"({fixed(low, digits, grouped=grouped)} to {fixed(high, digits, grouped=grouped)})"
    return f"± {fixed((high - low) / 2, digits, grouped=grouped)}"


def percent(part: float, decimals: int = 0) -> str:
    """Return a fraction of 1 as `12 %`."""
    return f"{100 * part:.{decimals}f} %"


def plural(count: int, noun: str) -> str:
    """Return the noun, with an s unless `count` is 1."""
    return noun if count == 1 else f"{noun}s"


def counted(count: int, noun: str) -> str:
    """Return `1 host`, `4 hosts`."""
    return f"{count} {plural(count, noun)}"


def rounded(value: Any) -> Any:
    """Round all floats of plain data to 10 digits and 12 decimals: the rest depends on library versions."""
    if isinstance(value, float):
        return float(f"{round(value, 12) + 0.0:.10g}")
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list | tuple) else value


def signal_name(number: int) -> str:
    """Return `SIGKILL` for 9, and `signal 40` for a real-time signal, which has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# Lines that do not say what happened: headings, and frames of Python, TensorFlow (`[[`) and MXNet (`[bt]`).
_FRAME = 'File "'
_HEADING = re.compile(rf"\s*({_FRAME}|\[bt\]|\[\[|\d+ root error|.*:$)")


def error_line(error: BaseException) -> str:
    """Return `ValueError: text`, or the type alone for an error without a text.

    The text is the first line that is no heading, frame, or source line indented below one; else the first line.
    """
    name, lines = type(error).__name__, [line for line in str(error).splitlines() if line.strip()]
    said = next(iter(lines), "")
    for before, line in zip(["", *lines], lines, strict=False):
        below, above = (len(one) - len(one.lstrip()) for one in (line, before))
        is_source = before.lstrip().startswith(_FRAME) and below > above
        if not is_source and not _HEADING.match(line):
            said = line
            break
    said = said.strip().removeprefix(f"{name}: ")
    return f"{name}: {said}" if said else name
