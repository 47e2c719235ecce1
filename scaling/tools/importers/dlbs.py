"""HPE's Deep Learning Benchmarking Suite: `__key__=json`, where the last value of a key wins.

The throughput is the effective batch over the mean time of local rank 0, cut to an integer; `results.time` is in
milliseconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from scaling.tools.importers.found import Found, Given, Refused, Skipped, row, world_size
from scaling.tools.importers.lines import CUT, LogLine

MARKS = ("__results.throughput__", "__results.time__", "__exp.")
SURE = re.compile(r"^[ \t]*__(?:results|exp)\.\w+__[ \t]*=")
_PAIR = re.compile(r"^[ \t]*__(results|exp)\.(\w+)__[ \t]*=[ \t]*(.*)$")
_KEPT = frozenset(
    f"exp.{name}"
    for name in ("phase", "status", "model", "dtype", "gpus", "num_nodes", "replica_batch", "effective_batch")
) | {"results.throughput", "results.time"}
_APART = 0.02


def read(lines: Iterable[LogLine], given: Given) -> Found:
    """A row of the whole log. Raises Refused."""
    skipped, said = Skipped(), dict[str, Any]()
    for line in lines:
        if "__" not in line.text or (pair := _PAIR.match(line.text)) is None:
            if "__results." in line.text:
                skipped.add(line)
            continue
        if f"{pair[1]}.{pair[2]}" not in _KEPT:
            continue
        try:
            if CUT in pair[3] and not pair[3].endswith(f'"{CUT}'):
                raise ValueError
            said[f"{pair[1]}.{pair[2]}"] = json.loads(pair[3].removesuffix(CUT))
        except (ValueError, RecursionError):
            skipped.add(line)
    if str(said.get("exp.phase", "training")) != "training":
        raise Refused(f"is of phase {said['exp.phase']}: nothing was trained")
    rate = _positive(said.get("results.throughput"))
    if not rate:
        raise Refused(f"has no results.throughput (status {said.get('exp.status', 'unknown')})")
    devices = world_size(_devices(said), given)
    _audit(rate, said)
    replica = int(_positive(said.get("exp.replica_batch")))
    return Found(
        rows=(
            row(
                given,
                tool="dlbs",
                unit="images",
                rate=rate,
                devices=devices,
                models=[str(said.get("exp.model", ""))],
                batches=[replica] if replica else [],
                precisions=[str(said.get("exp.dtype", ""))],
                notes=("cut to an integer by the tool",) if rate == int(rate) else (),
            ),
        ),
        notes=skipped.notes(),
    )


def _positive(value: Any) -> float:
    """0 for what is no number."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        return 0.0
    return found if 0 < found < float("inf") else 0.0


def _devices(said: dict[str, Any]) -> list[int]:
    """The batch of all over that of a replica; else the GPUs of a node, where there is one."""
    effective, replica = _positive(said.get("exp.effective_batch")), _positive(said.get("exp.replica_batch"))
    if effective and replica:
        if effective % replica:
            raise Refused(f"contradicts itself: a batch of {effective:g} in all with {replica:g} per replica")
        return [int(effective / replica)]
    gpus = str(said.get("exp.gpus", ""))
    if not gpus or _positive(said.get("exp.num_nodes", 1)) > 1:
        return []
    return [len([one for one in gpus.split(",") if one.strip()])]


def _audit(rate: float, said: dict[str, Any]) -> None:
    time_ms, effective = _positive(said.get("results.time")), _positive(said.get("exp.effective_batch"))
    if time_ms and effective and abs(1000 * effective / time_ms - rate) > max(1.0, _APART * rate):
        raise Refused(f"contradicts itself: a throughput of {rate:g}, but {effective:g} samples in {time_ms:g} ms")
