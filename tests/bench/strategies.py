"""images/s of an `exchange` point at 2 ranks on CPU against the plainest script of each framework's own
documentation doing the same work (`tests/bench/plain`): at least 0.99 of it. The two take turns, round by
round, each first in every other one.

[ROUNDS=6] python -m tests.bench.strategies [NAME...]      (all that run here)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from scaling import frameworks
from scaling.analysis import stats
from scaling.analysis.step_time import step_time
from scaling.plan.config import SweepConfig
from tests.bench.launching import measured
from tests.bench.plain import launch
from tests.bench.plain.ways import WAYS

RANKS, BATCH = 2, 32
ROUNDS = int(os.environ.get("ROUNDS", "6"))
WINDOWS, WINDOW_S = 10, SweepConfig().window_s
FLAGS = (
    "--kinds", "exchange", "--world-sizes", str(RANKS), "--rounds", "1", "--batch-size", str(BATCH),
    "--windows", str(WINDOWS), "--window-s", str(WINDOW_S),
)  # fmt: skip


def main(names: Sequence[str]) -> None:
    """Compare each strategy with its plain script."""
    out = sys.stdout.write
    ratios = {name: compare(name) for name in names or available()}
    out(f"{RANKS} ranks, digits-cnn, batch {BATCH}, 1 thread each, {ROUNDS} rounds (must reach 0.99)\n")
    for name, ratio in ratios.items():
        out(f"  {name:24} {_range(ratio)}\n")


def available() -> list[str]:
    """The strategies that run on this machine's CPU."""
    loaded = {name: frameworks.load(name) for name in frameworks.NAMES}
    return [name for name, one in loaded.items() if "cpu" in one.devices(name) and one.missing(name) is None]


def compare(name: str, rounds: int = ROUNDS) -> stats.Estimate:
    """Print both rates of each round and their means; returns the ratio over the rounds."""
    ours: list[float] = []
    plain: list[float] = []
    steps = WINDOWS * 2
    for number in range(rounds):
        for which in ("ours", "plain") if number % 2 else ("plain", "ours"):
            if which == "ours":
                rate, steps = _ours(name)
                ours.append(rate)
            else:
                run = launch.run(name, ranks=RANKS, batch_size=BATCH, steps=steps)
                plain.append(run.samples_per_s)
        _say(f"  round {number + 1}: {ours[-1]:.1f} against {plain[-1]:.1f}, {ours[-1] / plain[-1]:.3f}")
    ratio = stats.interval([a / b for a, b in zip(ours, plain, strict=True)])
    _say(f"{name}: scaling {sum(ours) / rounds:.1f}, {WAYS[name].script}.py {sum(plain) / rounds:.1f} images/s")
    _say(f"  ratio {_range(ratio)}  (must reach 0.99)")
    return ratio


def _ours(name: str) -> tuple[float, int]:
    """images/s of one exchange point, as the tool's own table has it, and the steps that it timed."""
    with TemporaryDirectory() as folder:
        (record,) = measured(RANKS, ("--strategy", name, *FLAGS), Path(folder))
    time = step_time(record)
    assert time is not None
    return RANKS * BATCH / time.step_s, sum(window.steps for window in record.ranks[0].windows)


def _range(ratio: stats.Estimate) -> str:
    if ratio.low is None or ratio.high is None:
        return f"{ratio.mean:.3f}"
    return f"{ratio.mean:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
