"""images/s of an `exchange` point at 2 ranks against a bare DDP script of the same model, data, batch and
threads under torchrun: at least 0.99. The two take turns, round by round, each first in every other one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from scaling import stats
from tests.bench.launching import measured

RANKS, BATCH = 2, 32
ROUNDS = int(os.environ.get("ROUNDS", "10"))
WINDOWS, WINDOW_S = 20, 0.2
FLAGS = (
    "--strategy", "torch:gloo", "--kinds", "exchange", "--world-sizes", str(RANKS), "--rounds", "1",
    "--batch-size", str(BATCH), "--windows", str(WINDOWS), "--window-s", str(WINDOW_S),
)  # fmt: skip


def main() -> None:
    """Print both rates and their ratio with its interval over the rounds."""
    ours: list[float] = []
    bare: list[float] = []
    steps = 40
    for number in range(ROUNDS):
        for which in ("ours", "bare") if number % 2 else ("bare", "ours"):
            if which == "ours":
                rate, steps = _ours()
                ours.append(rate)
            else:
                bare.append(_bare(steps))
        sys.stdout.write(
            f"  round {number + 1}: {ours[-1]:.1f} against {bare[-1]:.1f}, {ours[-1] / bare[-1]:.3f}\n"
        )
        sys.stdout.flush()
    ratio = stats.interval([a / b for a, b in zip(ours, bare, strict=True)])
    out = sys.stdout.write
    out(f"overhead: torch:gloo, {RANKS} ranks, digits-cnn, batch {BATCH}, 1 thread each, {ROUNDS} rounds\n")
    out(f"  scaling {sum(ours) / ROUNDS:.1f}, bare DDP {sum(bare) / ROUNDS:.1f} images/s\n")
    out(f"  ratio {ratio.mean:.3f} ({ratio.low:.3f} to {ratio.high:.3f})  (must reach 0.99)\n")


def _ours() -> tuple[float, int]:
    """images/s of one exchange point, and the steps that it timed."""
    with TemporaryDirectory() as folder:
        (record,) = measured(RANKS, FLAGS, Path(folder))
    steps = sum(window.steps for window in record.ranks[0].windows)
    return RANKS * BATCH * steps / max(rank.measured_s for rank in record.ranks), steps


def _bare(steps: int) -> float:
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}",
        "-m", "tests.bench.bare_ddp", str(steps), "10", str(BATCH),
    ]  # fmt: skip
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return float(done.stdout)


if __name__ == "__main__":
    main()
