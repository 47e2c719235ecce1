"""What a field of a run says of itself: `Flag`, its annotation in `SweepConfig`.

The rest comes from it: the flag and its help (`run/flags.py`), the key of a `--config` file and the near match of
a mistake (`config.py`), the bounds of values (`validation.py`), and the runs that have no use for the field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, Struct
from msgspec.structs import fields as declared

from scaling.errors import UsageError, near

COMMAND_LINE = "command line"
# The kind of run that a field is of; "" for every run. `rates` and `measuring` are of runs without --epochs: of
# `rates` any value is refused with --epochs; of `measuring` the flag is, since a training settles the value.
Topic = Literal["", "training", "rates", "measuring", "emulated devices", "cpu workers"]


class Flag(NamedTuple):
    """The help of a field, the panel of --help, the words for its default, and which values it may have.

    `choices` are the words that it takes, if not those of its type. `words` describe a number or a word. `example`
    ends the refusal of an empty list; `ascending` is the name of one item of a list in order. A number is greater
    than `above`, at least `least`; `bound` says so. A value takes back what an older run or a file says of the
    fields that it `displaces`. A flag that `repeats` has one item of a list each time.
    """

    help: str
    panel: str
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
    """A field of a configuration: its name in Python and its key in files, its types without None."""

    name: str
    key: str
    types: tuple[Any, ...]
    default: Any
    flag: Flag

    @property
    def is_list(self) -> bool:
        """Whether it has several values, which a flag takes with commas."""
        return any(get_origin(one) is tuple for one in self.types)

    @property
    def items(self) -> tuple[Any, ...]:
        """The types of a value, or of each value of a list."""
        return tuple(get_args(one)[0] if get_origin(one) is tuple else one for one in self.types)

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that it takes; empty if any."""
        return self.flag.choices or tuple(
            word for one in self.items if get_origin(one) is Literal for word in get_args(one)
        )

    def read(self, value: Any) -> Any:
        """A value of the command line as a file has it. Raises UsageError for a list of numbers that is none."""
        if not isinstance(value, str) or int not in self.items:
            is_words = isinstance(value, str) and self.is_list
            return words(value) if is_words else list(value) if isinstance(value, tuple) else value
        if self.is_list:
            return self._numbers(value)
        with suppress(ValueError):  # a word, which the configuration judges
            return int(value)
        return value

    def _numbers(self, text: str) -> list[int]:
        try:
            return [int(word) for word in words(text)]
        except ValueError:
            raise UsageError(f"{flag(self.key)} {text}: not numbers; write for example 1,2,4") from None


def words(text: str) -> list[str]:
    """The words of a list with commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def flag(field: str) -> str:
    """The command-line spelling of a field."""
    return "--" + field.replace("_", "-")


@cache
def fields_of(config: type[Struct]) -> Mapping[str, Field]:
    """The fields of a configuration by their keys, in order."""
    hints = get_type_hints(config, include_extras=True)
    return {one.encode_name: _field(one.name, one.encode_name, one.default, hints) for one in declared(config)}


def _field(name: str, key: str, default: Any, hints: Mapping[str, Any]) -> Field:
    assert default is not NODEFAULT, f"{name} has no default"
    kind, said = get_args(hints[name])
    several = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return Field(name, key, tuple(one for one in several if one is not type(None)), default, said)


def refusal(message: str, data: Mapping[str, Any], source: str, known: Mapping[str, Field]) -> str:
    """Turn msgspec's "Expected `int`, got `str` - at `$.rounds`" into the flag, or the file's key, first, with the
    near match."""
    what, _, path = message.replace(" | null", "").partition(" - at ")
    key = path.strip("`").removeprefix("$.").removeprefix("$")
    name = key.split("[")[0]
    given, field = data.get(name), known.get(name)
    where = flag(name) if source == COMMAND_LINE and name else f"{source}: {key}" if key else source
    if field is None or not what.startswith("Invalid enum value"):
        return f"{where}: {what.lower() if key else what}"
    if field.flag.words:
        return f"{where}: {given!r} is not {field.flag.words}"
    several = [given] if isinstance(given, str) else [word for word in given or () if isinstance(word, str)]
    wrong = next((word for word in several if word not in field.choices), several[0] if several else "")
    return f"{where}: {wrong!r} is not one of {', '.join(field.choices)}{_near(wrong, field.choices)}"


def _near(word: str, choices: Sequence[str]) -> str:
    """The near match, beside which all are listed already."""
    text = near(word, choices)
    return f"; {text}" if text.startswith("did") else ""
