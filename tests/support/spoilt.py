"""Runs whose every text could command a terminal, draw a picture or be a formula: by the types of the records, so
that a new field is among them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from msgspec import Struct
from msgspec.structs import fields, replace

from scaling.records.run import Header, PointRecord

# Writes the clipboard (OSC 52), colours by a C1 control, turns and hides text, ends a line, asks a server.
HOSTILE = "\x1b]52;c;cHduZWQ=\x07\x9b31m\u202e\u2066\u200b\u2028\r\n![p](http://a.test/p)|<b>`"
_UNIONS = (Union, UnionType)


def spoilt(header: Header, records: Sequence[PointRecord]) -> tuple[Header, list[PointRecord]]:
    """The same run with HOSTILE behind each text, and texts where it has none, but for those of other kinds of
    runs."""
    made = mixed(header, records)
    header = replace(made[0], imported=header.imported, bandwidths=header.bandwidths)
    points = [
        replace(new.point, hosts=(), regime=old.point.regime) for new, old in zip(made[1], records, strict=True)
    ]
    return header, [replace(one, point=at) for one, at in zip(made[1], points, strict=True)]


def mixed(header: Header, records: Sequence[PointRecord]) -> tuple[Header, list[PointRecord]]:
    """The same with texts of all kinds of runs: imports, trainings, points on some hosts alone."""
    return spoil(Header, header), [spoil(PointRecord, one) for one in records]


def shown(text: str) -> bool:
    """Whether nothing of a text of several lines is hidden or obeyed."""
    return text.replace("\n", "").isprintable()


def spoil(kind: Any, value: Any) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is str:
        return value + HOSTILE
    if kind is Any and isinstance(value, dict):
        return {key: one + HOSTILE if isinstance(one, str) else one for key, one in value.items()}
    if isinstance(value, Struct):
        return replace(value, **{one.name: spoil(one.type, getattr(value, one.name)) for one in fields(value)})
    if origin is tuple and arguments[-1] is Ellipsis:
        return tuple(spoil(arguments[0], one) for one in value or _sample(kind))
    if origin is dict and value:
        return {spoil(arguments[0], key): spoil(arguments[1], one) for key, one in value.items()}
    if origin in _UNIONS and str in arguments and isinstance(value, str):
        return value + HOSTILE
    return _sample(kind) if value is None or value == {} else value


def _sample(kind: Any) -> Any:
    """Any value of a type; numbers grow, so that windows end after their start."""
    origin, arguments = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and issubclass(kind, Struct):
        return kind(**{one.name: _sample(one.type) for one in fields(kind)})
    if origin is Literal:
        return arguments[0]
    if origin is tuple:
        return tuple(_sample(one) for one in arguments if one is not Ellipsis)
    if origin is dict:
        return {_sample(arguments[0]): _sample(arguments[1])}
    if origin in _UNIONS:
        return _sample(arguments[0])
    if hasattr(kind, "__metadata__"):
        return arguments[0](next(_NUMBERS))
    return {str: HOSTILE, bool: False, int: 1, float: 1.0}[kind]


_NUMBERS = count(1)
