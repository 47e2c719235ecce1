"""Four ranks trained to an accuracy under real mpirun: the linear rule for larger batches does what it is for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.mpis import MPIS, mpirun

# A fifth of the rate at which the digits' network learns best alone: there progress is by rate x updates, of which
# four ranks make a quarter.
TRAIN = (
    "-m", "scaling.run", "--strategy", "torch:gloo", "--epochs", "2", "--image-size", "16", "--batch-size", "16",
    "--lr", "0.0003", "--lr-scale", "linear,none", "--seeds", "0,1", "--world-sizes", "4",
)  # fmt: skip


def test_the_linear_rule_beats_the_same_rate_at_4_x_16(tmp_path: Path) -> None:
    done = mpirun(MPIS[0], 4, *TRAIN, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (tmp_path / "results").iterdir()
    command = [sys.executable, "-m", "scaling.report", str(run), "--format", "json"]
    report = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    same, linear = report["trainings"]
    assert [row["regime"]["lr_scale"] for row in (same, linear)] == ["none", "linear"]
    assert [row["update_samples"] for row in (same, linear)] == [64, 64]
    assert [row["held_out"] for row in (same, linear)] == [360, 360]
    assert linear["top1"][-1] > same["top1"][-1]
    assert "Training to an accuracy: torch:gloo" in done.stdout
    assert report["rows"] == []
