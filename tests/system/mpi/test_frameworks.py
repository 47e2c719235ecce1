"""Frameworks in one run under a real mpirun: each has its row, and the fastest is compared with the others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scaling import frameworks
from tests.support.matrix import cases
from tests.support.mpis import MPIS, mpirun

TWO, ALL = "torch:gloo mxnet:dist_sync", "torch:gloo jax:psum tensorflow:ring mxnet:dist_sync"
SWEEP = (
    "-m", "scaling.run", "--world-sizes", "2", "--kinds", "solo,exchange", "--rounds", "1", "--windows", "3",
    "--window-s", "0.1", "--soak-s", "0", "--no-page",
)  # fmt: skip


@pytest.mark.parametrize("each", cases([TWO, ALL], [TWO]))
def test_frameworks_end_in_one_table_and_a_comparison(tmp_path: Path, each: str) -> None:
    """In the end it is skipped if one of them was missing."""
    missing = {name: why for name in each.split() if (why := frameworks.load(name).missing(name))}
    names = {*each.split()} - missing.keys()
    if len(names) < 2:
        pytest.skip("; ".join(missing.values()))
    done = mpirun(MPIS[1], 2, *SWEEP, "--strategy", ",".join(sorted(names)), cwd=tmp_path, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(name in done.stdout for name in names)
    (run,) = (tmp_path / "results").iterdir()
    command = [sys.executable, "-m", "scaling", "report", str(run), "--format", "json"]
    report = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert sorted(row["strategy"] for row in report["rows"]) == sorted(names)
    assert all(row["samples_per_s"] and row["efficiency"] for row in report["rows"])
    compared = [one for one in report["comparisons"] if not one["framework"]]
    assert len({one["best"]["strategy"] for one in compared}) == 1
    assert {one[side]["strategy"] for one in compared for side in ("best", "other")} == names
    if missing:
        pytest.skip("; ".join(missing.values()))
