"""The table that ./launch/install prints last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

from launch import _horovod
from launch._horovod import FRAMEWORKS, Framework

MISSING = "-"
# by framework: version, CUDA, features of its Horovod binding, its separate environment if any
Rows = dict[str, list[str]]


def row(framework: Framework, binding: str | None, earlier: Sequence[str] | None) -> list[str]:
    """Return a framework's row; the binding is the `earlier` one if it was not examined now."""
    bound = binding or (earlier[2] if earlier else MISSING)
    return [framework.version, "yes" if framework.cuda else "no", bound]


def render(found: Mapping[str, Sequence[str]], extras: Sequence[str], horovod: str | None) -> str:
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
