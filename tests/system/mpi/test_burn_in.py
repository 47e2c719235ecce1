"""Burn-ins (`--for`) under a real mpirun: to the end of their time, and to a signal."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from scaling.analysis.table.burn_in import over_time
from scaling.records import store
from tests.support.mpis import Mpi, mpirun, on_mpi, running
from tests.support.started import run_of
from tests.support.waiting import eventually

FAKE = (
    "-m", "scaling.run", "--strategy", "fake:a", "--kinds", "exchange", "--world-sizes", "2", "--windows", "3",
    "--window-s", "0.02",
)  # fmt: skip


@on_mpi("openmpi5")
def test_a_burn_in_measures_until_its_time_is_over(tmp_path: Path, mpi: Mpi) -> None:
    done = mpirun(mpi, 2, *FAKE, "--for", "10s", "--verbose", "--page", cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    run = run_of(tmp_path)
    found = store.read(run)
    cells = {record.point.cell for record in found.records}
    rounds = 1 + max(one.first_round for one in found.summaries)
    assert rounds >= 2
    assert len(found.summaries) == rounds * len(cells)
    assert max(one.end_s for one in found.summaries) > 0
    exchange, *_ = over_time(found.records, found.summaries)
    assert exchange.whole.rounds == rounds
    assert "rounds until 10 s are over" in done.stdout
    assert "Over time: fake:a N=2" in done.stdout
    assert "Over time: fake:a N=2" in (run / "page.html").read_text()
    logs = {path.name.partition("-r")[2].partition(".")[0] for path in (run / "logs").glob("*.log")}
    assert logs == {"0"}


@on_mpi("mpich")
def test_a_signal_ends_a_burn_in_with_its_table_and_resume_goes_on(tmp_path: Path, mpi: Mpi) -> None:
    with running(mpi, 2, *FAKE, "--for", "15m", cwd=tmp_path) as launch:
        eventually(lambda: summaries(tmp_path) > 1, within_s=300)
        launch.process.send_signal(signal.SIGINT)
        launch.process.wait(120)
    said = launch.said()
    assert re.search(r"^interrupted after .+ of 15 min 0 s, \d+ rounds; these are kept$", said, re.MULTILINE), said
    run = run_of(tmp_path)
    assert f"python -m scaling.run --resume {run.relative_to(tmp_path)}" in said
    dry = mpirun(mpi, 2, "-m", "scaling.run", "--resume", str(run), "--dry-run", cwd=tmp_path)
    assert "rounds until 15 min 0 s are over" in dry.stdout


def summaries(folder: Path) -> int:
    paths = list(folder.glob("results/*/run.jsonl"))
    return max((path.read_bytes().count(b'"type":"summary"') for path in paths), default=0)
