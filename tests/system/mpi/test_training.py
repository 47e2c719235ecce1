"""Four ranks trained to an accuracy under real mpirun: the linear rule for larger batches does what it is for, in
every framework."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from scaling import frameworks
from tests.support.mpis import MPIS, mpirun

EACH = ("torch:gloo", "tensorflow:ring", "mxnet:dist_sync", "jax:psum")
# A fifth of the rate at which the digits' network learns best alone: there progress is by rate x updates, of which
# four ranks make a quarter.
TRAIN = (
    "-m", "scaling.run", "--epochs", "1", "--image-size", "16", "--batch-size", "16", "--lr", "0.0003",
    "--lr-scale", "linear,none", "--seeds", "0", "--world-sizes", "4", "--no-page",
)  # fmt: skip


def test_the_linear_rule_beats_the_same_rate_at_4_x_16(tmp_path: Path) -> None:
    names = [name for name in EACH if not frameworks.load(name).missing(name)]
    assert "torch:gloo" in names
    done = mpirun(MPIS[0], 4, *TRAIN, "--strategy", ",".join(names), cwd=tmp_path, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (tmp_path / "results").iterdir()
    command = [sys.executable, "-m", "scaling", "report", str(run), "--format", "json"]
    report = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert report["rows"] == []
    found = {name: [row for row in report["trainings"] if row["contender"]["strategy"] == name] for name in names}
    for name, (same, linear) in found.items():
        assert [row["regime"]["lr_scale"] for row in (same, linear)] == ["none", "linear"]
        assert [row["update_samples"] for row in (same, linear)] == [64, 64]
        assert [row["held_out"] for row in (same, linear)] == [360, 360]
        # Seen in the first three: 55 % and 66 %, which is 38 pictures.
        assert linear["top1"][-1] > same["top1"][-1]
        assert f"Training to an accuracy: {name}" in done.stdout
