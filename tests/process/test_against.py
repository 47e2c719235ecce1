"""`--against RUN` as a process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scaling.records import store
from tests.support.matrix import cases
from tests.support.scripted_records import record, written

# `python -m scaling.run --against`: measured again, compared with an older run, and an exit code that says so.

QUICK = (
    "--strategy", "fake:a", "--kinds", "solo,exchange", "--rounds", "3", "--windows", "3", "--window-s", "0.01",
    "--soak-s", "0", "--world-sizes", "1", "--option", "step_s=0.002", "--option", "overhead_s=0.2", "--no-page",
)  # fmt: skip


def start(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("SCALING_")}
    return subprocess.run(
        [sys.executable, "-m", "scaling.run", "--ranks", "1", *argv],
        cwd=cwd, env=environ, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measured")
    done = start(*QUICK, cwd=folder)
    assert done.returncode == 0, done.stderr
    (run,) = (folder / "results").iterdir()
    return run


def as_if(measured: Path, folder: Path, exchange_s: float) -> Path:
    """The same run as it would be if exchanges took so long a step, and the plain loop 10 ms."""
    header, records = store.load(measured)
    times = {"solo": 0.01, "exchange": exchange_s}
    written(folder, (header, [record(one.point, times[one.point.kind]) for one in records]))
    return folder


@pytest.mark.parametrize(
    ("exchange_s", "verdict", "code"),
    cases([(0.01, "1 slower", 1), (100.0, "1 faster", 0)], [(0.01, "1 slower", 1)]),
)
def test_against_measures_compares_and_says_so(
    measured: Path, tmp_path: Path, exchange_s: float, verdict: str, code: int
) -> None:
    """An efficiency of 1 % against one of 100 % and one of 0.01 %, which no load of the machine hides; the line
    for programs stays the last."""
    base = as_if(measured, tmp_path / "base", exchange_s)
    done = start("--against", str(base), "--no-page", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (code, "")
    (new,) = (tmp_path / "results").iterdir()
    assert store.load(new)[0].config == store.load(base)[0].config
    *above, ran, _, again, last = done.stdout.splitlines()
    (more,) = (line for line in above if line.startswith("  more "))
    assert f"  verdict   {verdict}" in above
    assert f" results/{new.name} " in more and above.index(more) < above.index("Comparison of runs")
    assert again == f"against: {base} (again: python -m scaling compare {base} results/{new.name})"
    assert ran.strip() and last.startswith("scaling: fake:a N=1 ")


def test_other_cells_than_those_of_the_run_are_no_green_light(measured: Path, tmp_path: Path) -> None:
    done = start("--against", str(measured), "--no-page", "--option", "step_s=0.004", cwd=tmp_path)
    assert done.returncode == 2
    assert "  verdict   1 missing, 1 new" in done.stdout.splitlines()
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"scaling: error: --against {measured}: not compared: no cell could be compared")
    assert done.stdout.splitlines()[-1].startswith("scaling: fake:a N=1 ")


def test_a_run_that_nothing_can_be_compared_with_is_refused_before_any_point(
    measured: Path, tmp_path: Path
) -> None:
    base = shutil.copytree(measured, tmp_path / "base")
    path = base / store.FILE
    path.write_text(path.read_text().splitlines()[0] + "\n")
    done = start("--against", "base", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == ("scaling: error: --against base: it has no measured exchange to compare with\n")
    assert not (tmp_path / "results").exists()
