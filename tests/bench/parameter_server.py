"""torch:ps-sync against mxnet:dist_sync on the `comm` kind: pushes and pulls of the same model's gradients, two
workers, one server, SGD with momentum on the server. At least 1.0.

One sweep measures both, round by round in shuffled order. MODEL, ROUNDS and WINDOW_S come from the environment.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from scaling.analysis.statistics import intervals
from scaling.records.run import PointRecord
from tests.bench.launching import measured

RANKS, GB = 2, 1e9
OURS, THEIRS = "torch:ps-sync", "mxnet:dist_sync"
MODEL = os.environ.get("MODEL", "digits-cnn")
ROUNDS = int(os.environ.get("ROUNDS", "10"))
FLAGS = (
    "--strategy", f"{OURS},{THEIRS}", "--kinds", "exchange,comm", "--world-sizes", str(RANKS), "--servers", "1",
    "--model", MODEL, "--rounds", str(ROUNDS), "--windows", "10", "--window-s", os.environ.get("WINDOW_S", "0.2"),
)  # fmt: skip


def main() -> None:
    """Print both rates, of `comm` and of training, and their ratios with intervals over the rounds."""
    with TemporaryDirectory() as folder:
        records = measured(RANKS, FLAGS, Path(folder))
    out = sys.stdout.write
    out(f"parameter server: {MODEL}, {RANKS} workers, 1 server, 1 thread each, {ROUNDS} rounds\n")
    for kind, bar in (("comm", "  (must reach 1.0)"), ("exchange", "")):
        ours, theirs = (_rates(records, name, kind) for name in (OURS, THEIRS))
        ratio = intervals.interval([mine / other for mine, other in zip(ours, theirs, strict=True)])
        for name, rates in ((OURS, ours), (THEIRS, theirs)):
            out(f"  {kind:8} {name:15} {sum(rates) / len(rates):8.2f} steps/s")
            out(f", {_moved(records, name) * sum(rates) / len(rates) / GB:.2f} GB/s pushed and pulled\n")
        out(f"  {kind:8} ratio {ratio.mean:.2f} ({ratio.low:.2f} to {ratio.high:.2f}){bar}\n")


def _of(records: tuple[PointRecord, ...], name: str, kind: str) -> list[PointRecord]:
    found = [each for each in records if each.point.strategy == name and each.point.kind == kind]
    return sorted(found, key=lambda record: record.point.round)


def _rates(records: tuple[PointRecord, ...], name: str, kind: str) -> list[float]:
    """Steps per second in each round."""
    steps = [sum(window.steps for window in each.ranks[0].windows) for each in _of(records, name, kind)]
    times = [max(rank.measured_s for rank in each.ranks) for each in _of(records, name, kind)]
    return [count / time_s for count, time_s in zip(steps, times, strict=True)]


def _moved(records: tuple[PointRecord, ...], name: str) -> float:
    """Bytes that all workers push and pull in one step."""
    return sum(2.0 * rank.ready.gradient_bytes for rank in _of(records, name, "comm")[0].ranks if rank.ready)


if __name__ == "__main__":
    main()
