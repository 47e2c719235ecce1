"""`Flag`, the annotation of each field in `SweepConfig`, and `Field`, which reads it.

The flag and its help, the key of a `--config` file, the messages and the bounds are derived from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, Struct
from msgspec.structs import fields as declared

from scaling.errors import UsageError, not_one_of

COMMAND_LINE = "command line"
# The types of a file, as users know them.
TYPES = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text", "array": "a list"}
# The kind of run that a field belongs to; "" for all. With --epochs, any value of a field of `rates` is refused,
# and the flag of a field of `measuring`.
Topic = Literal["", "training", "rates", "measuring", "emulated devices", "cpu workers", "scripts"]


class Flag(NamedTuple):
    """The help of a field and the values that it may have.

    `usual`: whether the short help shows it.
    `words`: describes a field that takes a number or a word.
    `example`: ends the message about an empty list; `ascending` names one item of a sorted list.
    `above`, `least`: exclusive and inclusive lower bound; `bound` is the message.
    `displaces`: fields whose values from a file or an older run this one resets.
    `repeats`: whether each use of the flag adds one item to a list.
    """

    help: str
    panel: str
    usual: bool = False
    metavar: str | None = None
    default: str = ""
    choices: tuple[str, ...] = ()
    words: str = ""
    example: str = ""
    ascending: str = ""
    above: float | None = None
    least: float | None = None
    bound: str = ""
    of: Topic = ""
    displaces: tuple[str, ...] = ()
    repeats: bool = False


class Field(NamedTuple):
    """A field of a configuration: its name in Python, its key in files, its types without None."""

    name: str
    key: str
    types: tuple[Any, ...]
    default: Any
    flag: Flag

    @property
    def metavar(self) -> str:
        """What its flag takes, as help texts show it."""
        return self.flag.metavar or (
            "SECONDS" if self.key.endswith("_s") else "N" if int in self.types else "NAME"
        )

    @property
    def is_list(self) -> bool:
        """Whether it has several values, separated by commas in its flag."""
        return any(get_origin(one) is tuple for one in self.types)

    @property
    def items(self) -> tuple[Any, ...]:
        """The types of its value, or of the items of its list."""
        return tuple(get_args(one)[0] if get_origin(one) is tuple else one for one in self.types)

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that it takes; empty if it takes any."""
        return self.flag.choices or tuple(
            word for one in self.items if get_origin(one) is Literal for word in get_args(one)
        )

    def read(self, value: Any) -> Any:
        """Convert a command-line value to its form in files. Raises UsageError for a wrong list of numbers."""
        if not isinstance(value, str) or int not in self.items:
            is_words = isinstance(value, str) and self.is_list
            return words(value) if is_words else list(value) if isinstance(value, tuple) else value
        if self.is_list:
            return self._numbers(value)
        with suppress(ValueError):  # a word is checked later
            return int(value)
        return value

    def _numbers(self, text: str) -> list[int]:
        try:
            return [int(word) for word in words(text)]
        except ValueError:
            raise UsageError(f"{flag(self.key)} {text}: not numbers; write for example 1,2,4") from None


def words(text: str) -> list[str]:
    """Split a comma-separated list."""
    return [word.strip() for word in text.split(",") if word.strip()]


def flag(field: str) -> str:
    """Return the command-line spelling of a field."""
    return "--" + field.replace("_", "-")


@cache
def fields_of(config: type[Struct]) -> Mapping[str, Field]:
    """Return the fields of a configuration by key, in order."""
    hints = get_type_hints(config, include_extras=True)
    return {one.encode_name: _field(one.name, one.encode_name, one.default, hints) for one in declared(config)}


def _field(name: str, key: str, default: Any, hints: Mapping[str, Any]) -> Field:
    assert default is not NODEFAULT, f"{name} has no default"
    kind, said = get_args(hints[name])
    several = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return Field(name, key, tuple(one for one in several if one is not type(None)), default, said)


def refusal(message: str, data: Mapping[str, Any], source: str, known: Mapping[str, Field]) -> str:
    """Turn msgspec's "Expected `int`, got `str` - at `$.rounds`" into a message with the flag or key first."""
    what, _, path = message.replace(" | null", "").partition(" - at ")
    key = path.strip("`").removeprefix("$.").removeprefix("$")
    name = key.split("[")[0]
    given, field = data.get(name), known.get(name)
    where = flag(name) if source == COMMAND_LINE and name else f"{source}: {key}" if key else source
    if field is None:
        return f"{where}: {what.lower() if key else what}"
    if field.flag.words:
        return f"{where}: {given!r} is not {field.flag.words}"
    if not what.startswith("Invalid enum value"):
        return f"{where}: {_expected(what)}"
    several = [given] if isinstance(given, str) else [word for word in given or () if isinstance(word, str)]
    wrong = next((word for word in several if word not in field.choices), several[0] if several else "")
    return f"{where}: {not_one_of(wrong, field.choices)}"


def _expected(what: str) -> str:
    """Name the types of files in msgspec's "Expected `int`, got `str`"."""
    return re.sub(r"`(\w+)`", lambda found: TYPES.get(found[1], found[1]), what.lower())
