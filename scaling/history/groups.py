"""Which runs are comparable: they get one letter. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_uppercase

from msgspec.structs import replace

from scaling.history.lines import RunLine


def lettered(lines: Sequence[RunLine]) -> list[RunLine]:
    """The same lines, each with the letter of its group; one that measured no exchange is like no other."""
    measured = dict.fromkeys(line.conditions for line in lines if line.world_sizes)
    letters = {conditions: letter(place) for place, conditions in enumerate(measured)}
    return [replace(line, like=letters[line.conditions] if line.world_sizes else "") for line in lines]


def letter(place: int) -> str:
    """A to Z, then AA, AB, ..."""
    more, last = divmod(place, len(ascii_uppercase))
    return (letter(more - 1) if more else "") + ascii_uppercase[last]
