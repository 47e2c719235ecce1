"""A DDP script measured by scaling.run against the same script under torchrun, in turns: at least 0.99, by an
interval of 1 % to either side or less.

python -m tests.bench.script        (ROUNDS=8 by default; two cores)

The bare script times itself, by a hook at the end of each step, on one core a rank, as ours. In each round both
run once, in random order, so that slow phases of the machine hit both alike.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from math import exp, log
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory

from scaling.analysis.statistics import intervals
from scaling.records import store
from tests.bench.turns import say
from tests.support.scripts import LOOP

# Keeps the seconds of each step of a rank, from outside of the loop's own code.
TIMED = """
import time
from torch.optim.optimizer import register_optimizer_step_post_hook
edges = []
register_optimizer_step_post_hook(lambda *_: edges.append(time.monotonic()))
import atexit, os, pathlib
os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[int(os.environ["LOCAL_RANK"])]})
told = pathlib.Path(f"steps-{os.environ['RANK']}")
atexit.register(lambda: told.write_text(" ".join(str(b - a) for a, b in zip(edges, edges[1:]))))
"""
STEPS = 1500
WARM = 200
WINDOW_S = 0.3


def bare(folder: Path) -> float:
    """The seconds of a step under torchrun: the median of windows like ours."""
    (folder / "bare.py").write_text(TIMED + LOOP)
    subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "bare.py",
            "--steps", str(STEPS),
        ],
        cwd=folder, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    steps_s = [float(word) for word in (folder / "steps-0").read_text().split()[WARM:]]
    length = max(1, round(WINDOW_S / median(steps_s)))
    return median(fmean(steps_s[start : start + length]) for start in range(0, len(steps_s) - length, length))


def ours(folder: Path) -> float:
    """The median seconds of a step of windows by scaling.run, of the exchange alone."""
    (folder / "train.py").write_text(LOOP)
    results = folder / f"results-{random.random()}"
    subprocess.run(
        [
            "mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable, "-m", "scaling.run",
            "--world-sizes", "2", "--kinds", "exchange", "--rounds", "1", "--windows", "12",
            "--window-s", str(WINDOW_S), "--no-page", "--view", "none", "--results", str(results), "--",
            "train.py",
        ],
        cwd=folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    (run,) = results.iterdir()
    (record,) = store.load(run)[1]
    return median(window.seconds / window.steps for window in record.ranks[0].windows)


def main() -> None:
    logs = []
    with TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(int(os.environ.get("ROUNDS", "8"))):
            sides = [("ours", ours), ("bare", bare)]
            random.Random(number).shuffle(sides)
            found = {side: measure(folder) for side, measure in sides}
            logs.append(log(found["bare"] / found["ours"]))
            say(f"round {number + 1}: ours {1e3 * found['ours']:.3f} ms, bare {1e3 * found['bare']:.3f} ms a step")
    ratio = intervals.interval(logs)
    ends = "" if ratio.low is None or ratio.high is None else f" ({exp(ratio.low):.3f} to {exp(ratio.high):.3f})"
    say(f"ratio {exp(ratio.mean):.3f}{ends}, {len(logs)} rounds")


if __name__ == "__main__":
    main()
