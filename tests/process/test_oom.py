"""The kernel's out-of-memory killer, in a cgroup of little memory: a cell of the table, and the sweep goes on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import json

KILLED = "killed (SIGKILL), probably by the kernel's out-of-memory killer"
MOUNT = Path("/sys/fs/cgroup")
LIMIT_BYTES = 400 << 20
# A sweep over three batches whose largest two take more memory than there is, with ranks in this process.
PROGRAM = """
import os, sys
from pathlib import Path
from msgspec import json
Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
from scaling.records.events import Failed
from scaling.report.formats import terminal
from tests.support.inline import Launch
option = [f"fake:plain.{each}" for each in ("step_s=0.002", "fail=eat", "fail_batch=16")]
found = Launch(1, real=True).sweep(
    Path(sys.argv[2]), strategy=["fake:plain"], option=option, batch_sizes=[8, 16, 32], world_sizes=[1],
    rounds=2, windows=3, window_s=0.01,
)
outcomes = [(one.point.workload.batch_size, one.outcome) for one in found.records]
print(json.encode([sorted((size, *((one.cause, one.message) if isinstance(one, Failed) else ("", "")))
                          for size, one in outcomes),
                   terminal.render(found.header, found.records, color=False)]).decode())
"""


def memory_folder() -> Path:
    """Where cgroups with a limit of memory are made: v1's own tree, or v2's."""
    return MOUNT / "memory" if (MOUNT / "memory").is_dir() else MOUNT


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A cgroup of little memory; skips where none can be made."""
    folder = memory_folder() / f"scaling-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        v1 = folder / "memory.limit_in_bytes"
        limit = v1 if v1.exists() else folder / "memory.max"
        if not limit.exists():
            pytest.skip("cgroups here have no limit of memory")
        limit.write_text(str(LIMIT_BYTES))
        yield folder
    finally:
        folder.rmdir()


def test_whom_the_kernel_ends_for_memory_is_oom_and_other_batches_are_measured(
    cgroup: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", PROGRAM, str(cgroup), str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    outcomes, table = json.decode(done.stdout)
    assert [[size, cause] for size, cause, _ in outcomes] == [[8, ""]] * 2 + [[16, "oom"]] * 2 + [[32, "oom"]] * 2
    for _, _, message in outcomes[2:]:
        assert re.fullmatch(rf"{re.escape(KILLED)}: oom_kill in memory\.(events|oom_control) rose by \d", message)
    lines = [line.split() for line in table.splitlines() if line.split()[:1] in (["8"], ["16"], ["32"])]
    assert [line[0] for line in lines] == ["8", "16", "32"]
    assert [line[1] for line in lines[1:]] == ["OOM", "OOM"]
    assert f"all 2 rounds failed: oom: {KILLED}" in " ".join(table.split())
