"""The exchange of one step's gradients without compute (`comm`), torch:gloo against torch:horovod at 2 ranks on
this machine's loopback, for a small model and a large one. There is no bar: both end in Gloo's all-reduce.

[ROUNDS=6] python -m tests.bench.gloo_horovod [MODEL...]
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from scaling.analysis.measured.step_time import step_time
from scaling.analysis.statistics import intervals
from scaling.records.run import PointRecord
from tests.bench.launching import measured

RANKS = 2
ROUNDS = int(os.environ.get("ROUNDS", "6"))
MODELS = ("digits-cnn", "resnet50")
# A sweep has `exchange` always: with small batches, it is over soon.
FLAGS = (
    "--strategy", "torch:gloo,torch:horovod", "--kinds", "exchange,comm", "--world-sizes", str(RANKS),
    "--rounds", str(ROUNDS), "--batch-size", "2",
)  # fmt: skip


def main(models: Sequence[str]) -> None:
    """Print ms per step, GB/s of gradients, and the ratio with its interval over the rounds."""
    for model in models or MODELS:
        with TemporaryDirectory() as folder:
            records = measured(RANKS, (*FLAGS, "--model", model), Path(folder))
        _tell(model, [one for one in records if one.point.kind == "comm"])


def _tell(model: str, records: Sequence[PointRecord]) -> None:
    out = sys.stdout.write
    ready = records[0].ranks[0].ready
    assert ready is not None
    out(f"{model}: {ready.gradient_bytes / 1e6:.1f} MB of gradients, {RANKS} ranks, {ROUNDS} rounds\n")
    steps_s = {name: _steps_s(records, name) for name in ("torch:gloo", "torch:horovod")}
    for name, by_round in steps_s.items():
        mean = intervals.interval(by_round).mean
        out(f"  {name:14} {1e3 * mean:8.2f} ms a step, {ready.gradient_bytes / mean / 1e9:.3f} GB/s\n")
    ratio = intervals.interval([b / a for a, b in zip(*steps_s.values(), strict=True)])
    span = "" if ratio.low is None else f" ({ratio.low:.2f} to {ratio.high:.2f})"
    out(f"  torch:gloo is {ratio.mean:.2f}{span} times as fast\n")


def _steps_s(records: Sequence[PointRecord], name: str) -> list[float]:
    """Seconds of a step in each round."""
    chosen = sorted((one for one in records if one.point.strategy == name), key=lambda one: one.point.round)
    times = [step_time(one) for one in chosen]
    return [time.step_s for time in times if time is not None]


if __name__ == "__main__":
    main(sys.argv[1:])
