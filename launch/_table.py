"""The table that ./launch/install ends in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

from launch import _horovod
from launch._horovod import FRAMEWORKS, Framework

MISSING = "-"
# By framework: its version, whether it has CUDA, what its binding of Horovod is built with, and its environment
# where it has one of its own.
Rows = dict[str, list[str]]


def row(framework: Framework, binding: str | None, earlier: Sequence[str] | None) -> list[str]:
    """What is to be told of a framework; its binding as it was `earlier` where nobody asked now."""
    bound = binding or (earlier[2] if earlier else MISSING)
    return [framework.version, "yes" if framework.cuda else "no", bound]


def render(found: Mapping[str, Sequence[str]], extras: Sequence[str], horovod: str | None) -> str:
    """A line for each framework, found or not; `horovod` is the version of the one in this environment."""
    is_bound = any(cells[2] != MISSING for cells in found.values())
    if horovod is None and is_bound:
        horovod = _horovod.VERSION
    rows = [["", "version", "CUDA", f"Horovod {horovod or ''}".strip(), "environment"]]
    rows += [[name, *found.get(name, [MISSING] * 3)] for name in FRAMEWORKS]
    width = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    is_apart = any(len(cells) > 4 for cells in rows[1:])
    kept = [0, 1, 2, *([3] if is_bound or "horovod" in extras else []), *([4] if is_apart else [])]
    lines = ("  ".join(cells[at].ljust(width[at]) for at in kept if at < len(cells)) for cells in rows)
    return "".join(line.rstrip() + "\n" for line in lines)
