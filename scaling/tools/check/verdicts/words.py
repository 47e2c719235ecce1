"""Phrases of the verdicts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

NAMED = 4


def some(words: Iterable[str]) -> str:
    """`node1, node2, node3, node4 and 12 more`."""
    every = list(words)
    more = f" and {len(every) - NAMED} more" if len(every) > NAMED else ""
    return ", ".join(every[:NAMED]) + more


def grouped(values: Mapping[str, str]) -> str:
    """`2.13.0 on node1, node2; 2.12.0 on node3`: who has which value."""
    owners: dict[str, list[str]] = {}
    for node, value in values.items():
        owners.setdefault(value, []).append(node)
    return "; ".join(f"{value} on {some(nodes)}" for value, nodes in owners.items())


def size(count: int | None) -> str:
    """`64.0 MiB`, `9.5 GiB`; None is unlimited."""
    if count is None:
        return "unlimited"
    if count >= 1 << 30:
        return f"{count / 2**30:.1f} GiB"
    return f"{count / 2**20:.1f} MiB" if count >= 1 << 20 else f"{count // 1024} KiB"
