"""A run in a cgroup with a CPU quota: its row claims nothing, and the quota is named as what held it up."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaling.records import store
from tests.support import burner, cgroups

# A fifth of a core, of which two burners of the same cgroup use most.
QUOTA_US, PERIOD_US = 20_000, 100_000


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A cgroup with a quota; skips where none can be made."""
    with cgroups.cgroup("cpu") as folder:
        if (folder / "cpu.cfs_quota_us").exists():
            (folder / "cpu.cfs_quota_us").write_text(str(QUOTA_US))
        elif (folder / "cpu.max").exists():
            (folder / "cpu.max").write_text(f"{QUOTA_US} {PERIOD_US}")
        else:
            pytest.skip("cgroups here have no CPU quota")
        yield folder


# The quota holds up the agent as well, which may see the begin of a window some periods late.
ARGV = ("--strategy", "fake:a", "--device", "cpu", "--rounds", "1", "--windows", "3", "--window-s", "1")


def test_a_quota_is_named_as_what_held_the_ranks_up(cgroup: Path, tmp_path: Path) -> None:
    inside = ["bash", "-c", 'echo $$ > "$0/cgroup.procs"; exec "$@"', str(cgroup), sys.executable, "-m"]
    burning = [
        subprocess.Popen([*inside, burner.MODULE, "1", "0", "0"], cwd=Path(__file__).parents[2]) for _ in range(2)
    ]
    try:
        done = subprocess.run(
            [*inside, "scaling.run", *ARGV],
            cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip
    finally:
        for one in burning:
            one.kill()
            one.wait()
    assert done.returncode == 0, done.stderr
    assert "OVERSUBSCRIBED: a CPU quota grants" in done.stdout
    assert "throttled by the CPU quota of its cgroup" in done.stdout
    (run,) = (tmp_path / "results").iterdir()
    header, records = store.load(run)
    assert list(header.hosts[0].cpu_quotas.values()) == [QUOTA_US / PERIOD_US]
    assert all(record.oversubscribed for record in records)
