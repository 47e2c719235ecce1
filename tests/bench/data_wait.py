"""A feed that sleeps before each batch, by a real clock: how much of it `data wait` finds.

The fake strategy sleeps in place of computing; its feeds slow each other, so that part of the wait is in what one
device alone does and part is a loss of its own. Two ranks, started by the mpirun on PATH.

python -m tests.bench.data_wait [SLEPT_S...]      (0.005 0.01 0.02)
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from scaling.analysis.table import analyse
from scaling.records import store

STEP_S, SLOWED, RANKS = 0.04, 1.0, 2
KINDS = "exchange,solo,together,comm,feed,held"


def found(slept_s: float) -> str:
    """The share of a step that is waited for data, and what efficiency that costs, each over what was planted."""
    with tempfile.TemporaryDirectory() as folder:
        options = [f"step_s={STEP_S}", f"feed_s={slept_s}", f"feed_contention={SLOWED}"]
        words = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(RANKS), sys.executable, "-m"]
        words += ["scaling.run", "--strategy", "fake:a", "--device", "cpu", "--world-sizes", str(RANKS)]
        words += ["--kinds", KINDS, "--results", folder, "--no-page", "--view", "plain"]
        words += [word for option in options for word in ("--option", option)]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        (run,) = Path(folder).iterdir()
        (row,) = [one for one in analyse.rows(store.load(run)[1]) if one.world_size == RANKS]
    beside_s = (1 + SLOWED) * slept_s
    step_s = STEP_S + beside_s
    wait, lost = row.data_wait, row.breakdown.data_wait if row.breakdown else None
    if wait is None or wait.of_step is None or lost is None:
        return f"{1e3 * slept_s:g} ms planted: not told"
    planted, growth = beside_s / step_s, SLOWED * slept_s / step_s
    share = f"{100 * wait.of_step:.1f} % of the step (ratio {wait.of_step / planted:.3f})"
    return (
        f"{1e3 * slept_s:g} ms planted, {1e3 * beside_s:g} ms on {RANKS} ranks: {share}, "
        f"lost {100 * lost:.1f} points (ratio {lost / growth:.3f}); 0.9 to 1.1"
    )


def main(asked: list[str]) -> None:
    """Print a line for each sleep."""
    for slept_s in map(float, asked or ["0.005", "0.01", "0.02"]):
        print(found(slept_s), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
