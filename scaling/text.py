"""Numbers and words for people: the same in every format and on the screen."""

from __future__ import annotations

import json
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


def printable(text: str) -> str:
    """`text` with a space for each sign that is not printable: terminals obey control characters, and signs that
    turn or hide text make one name look like another."""
    return text if text.isprintable() else "".join(sign if sign.isprintable() else " " for sign in text)


def one_line(text: str) -> str:
    """`text` on one line and printable: messages come from whatever failed."""
    return " ".join(printable(text).split())


def legible(value: T) -> T:
    """A Struct, or plain data, with all of its texts printable."""
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
    """`value` as indented JSON. Signs that are not printable are escaped, which JSON reads back."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    lines = (line if line.isprintable() else "".join(map(_escaped, line)) for line in text.split("\n"))
    return "\n".join(lines) + "\n"


def _escaped(sign: str) -> str:
    return sign if sign.isprintable() else json.dumps(sign)[1:-1]


def readable(text: str) -> str:
    """Names of files, and what tells them, as UTF-8 and JSON can: bytes of another encoding as `\\udcff`."""
    return text.encode("utf-8", "backslashreplace").decode()


def duration(seconds: float) -> str:
    """`4.9 s`, `42 s`, `1 min 10 s`, `2 h 5 min`."""
    if seconds < 9.95:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    if whole < MINUTE_S:
        return f"{whole} s"
    if whole < HOUR_S:
        return f"{whole // MINUTE_S} min {whole % MINUTE_S} s"
    return f"{whole // HOUR_S} h {whole % HOUR_S // MINUTE_S} min"


def decimals(value: float) -> int:
    """How many decimals show about four digits of `value`."""
    return 0 if value >= 1000 else 1 if value >= 10 else 2 if value >= 0.1 else 4


def date(unix_s: float) -> str:
    """The minute, in UTC: a table must not depend on where it is read."""
    return datetime.fromtimestamp(unix_s, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def several(names: Sequence[str], shown: int = 6) -> str:
    """`a b c`, or `a b c d e ... z` when there are many."""
    if len(names) <= shown:
        return " ".join(names)
    return " ".join((*names[: shown - 1], "...", names[-1]))


def ranges(numbers: Iterable[int]) -> str:
    """`0-55,112-167`, as the kernel and `nvidia-smi topo -m` write sets of CPUs."""
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in found)


def plural(count: int, noun: str) -> str:
    """`host` of one, `hosts` of any other number."""
    return noun if count == 1 else f"{noun}s"


def counted(count: int, noun: str) -> str:
    """`1 host`, `4 hosts`."""
    return f"{count} {plural(count, noun)}"


def rounded(value: Any) -> Any:
    """Plain data with its floats to 10 digits and 12 decimals: what comes after is the libraries' versions,
    and two readers of a run shall get the same bytes."""
    if isinstance(value, float):
        return float(f"{round(value, 12) + 0.0:.10g}")
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list | tuple) else value


def signal_name(number: int) -> str:
    """`SIGKILL` of 9; real-time signals have no names of their own: `signal 40`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
