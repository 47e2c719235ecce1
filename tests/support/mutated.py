"""Lines of a run, each with one value that no sweep writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

# By the value that stands there: what is put in its place.
NUMBERS: Sequence[Any] = (-1, 0, 10**18, -(10**18), 1e308, -1e308, 1e-308)
EVERYWHERE: Sequence[Any] = (None, "", [], {}, 7)
Path = tuple[Any, ...]


def mutants(line: Any) -> Iterator[tuple[str, Any]]:
    """Each place of a line's JSON with each hostile value; of the elements of a list the last one alone."""
    for path, value in _places(line, ()):
        for hostile in _hostile(value):
            if hostile != value or type(hostile) is not type(value):
                changed = deepcopy(line)
                _put(changed, path, hostile)
                yield f"{'.'.join(map(str, path))}={hostile!r:.40}", changed


def _places(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if path:
        yield path, value
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _places(one, (*path, key))
    elif isinstance(value, list) and value:
        yield from _places(value[-1], (*path, -1))


def _hostile(value: Any) -> Iterator[Any]:
    yield from EVERYWHERE
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield from NUMBERS
    if isinstance(value, list) and value:
        yield value[:-1]
        yield [*value, value[-1]]
    if isinstance(value, str):
        yield "x" * 300


def _put(line: Any, path: Path, value: Any) -> None:
    for step in path[:-1]:
        line = line[step]
    line[path[-1]] = value
