"""A cgroup that allows no more processes: points fail, and name the limit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import cgroups

# A sweep in this process, which may start no other.
PROGRAM = """
import os, sys
from pathlib import Path
from scaling.records.events import Failed
from tests.support.inline import Launch
cgroup = Path(sys.argv[1])
(cgroup / "cgroup.procs").write_text(str(os.getpid()))
(cgroup / "pids.max").write_text(sys.argv[3])
found = Launch(1, real=True).sweep(Path(sys.argv[2]), strategy=["fake:plain"], world_sizes=[1], rounds=1)
print(*(one.outcome.message for one in found.records if isinstance(one.outcome, Failed)), sep="\\n")
"""


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A cgroup that counts processes; skips where none can be made."""
    with cgroups.cgroup("pids") as folder:
        if not (folder / "pids.max").exists():
            pytest.skip("cgroups here do not count processes")
        yield folder


@pytest.mark.parametrize(
    ("most", "words"),
    [("1", "cannot start: [Errno 11] Resource temporarily unavailable"), ("3", "exited with code 1")],
)
def test_a_fork_or_a_thread_that_the_cgroup_forbids_names_its_limit(
    cgroup: Path, tmp_path: Path, most: str, words: str
) -> None:
    """The agent cannot fork; and its worker cannot start a thread."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(cgroup), str(tmp_path / "run"), most],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert words in done.stdout
    assert f"pids.max of the cgroup is {most}" in done.stdout
