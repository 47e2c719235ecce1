"""Cgroups with limits on processes, CPU and memory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec import json

from scaling.records import store
from tests.support import burner

MOUNT = Path("/sys/fs/cgroup")


@contextmanager
def made_cgroup(controller: str) -> Iterator[Path]:
    """An empty cgroup of a controller, or of version 2. Skips if none can be made."""
    top = MOUNT / controller if (MOUNT / controller).is_dir() else MOUNT
    folder = top / f"scaling-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        yield folder
    finally:
        folder.rmdir()


# A cgroup that allows no more processes: points fail, and name the limit.

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
    with made_cgroup("pids") as folder:
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


# A run in a cgroup with a CPU quota: its row claims nothing, and the quota is named as what held it up.

# A fifth of a core, of which two burners of the same cgroup use most.
QUOTA_US, PERIOD_US = 20_000, 100_000


@pytest.fixture
def quota_cgroup() -> Iterator[Path]:
    """A cgroup with a quota; skips where none can be made."""
    with made_cgroup("cpu") as folder:
        if (folder / "cpu.cfs_quota_us").exists():
            (folder / "cpu.cfs_quota_us").write_text(str(QUOTA_US))
        elif (folder / "cpu.max").exists():
            (folder / "cpu.max").write_text(f"{QUOTA_US} {PERIOD_US}")
        else:
            pytest.skip("cgroups here have no CPU quota")
        yield folder


# The quota holds up the agent as well, which may see the begin of a window some periods late.
ARGV = (
    "--strategy", "fake:a", "--device", "cpu", "--kinds", "exchange", "--rounds", "1", "--windows", "3",
    "--window-s", "1", "--verbose",
)  # fmt: skip


def test_a_quota_is_named_as_what_held_the_ranks_up(quota_cgroup: Path, tmp_path: Path) -> None:
    inside = ["bash", "-c", 'echo $$ > "$0/cgroup.procs"; exec "$@"', str(quota_cgroup), sys.executable, "-m"]
    burning = [
        subprocess.Popen([*inside, burner.MODULE, "1", "0", "0"], cwd=Path(__file__).parents[2]) for _ in range(2)
    ]
    try:
        done = subprocess.run(
            [*inside, "scaling.run", "--ranks", "1", *ARGV],
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


# The kernel's out-of-memory killer, in a cgroup of little memory: a cell of the table, and the sweep goes on.

KILLED = "killed (SIGKILL), probably by the kernel's out-of-memory killer"
MOUNT = Path("/sys/fs/cgroup")
LIMIT_BYTES = 400 << 20
# A sweep over three batches whose largest two take more memory than there is, with ranks in this process.
OOM_PROGRAM = """
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
def oom_cgroup() -> Iterator[Path]:
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
    oom_cgroup: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", OOM_PROGRAM, str(oom_cgroup), str(tmp_path)]
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
