"""A run on disk: what a full disk and a second writer do to it."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scaling.errors import StoreError, UsageError
from scaling.records import store
from tests.support.inline import Launch, Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Launch(1).sweep(tmp_path, rounds=1)


def file_of(run: Run) -> Path:
    return run.folder / store.FILE


def test_a_second_writer_is_refused(run: Run) -> None:
    with store.Store.resume(run.folder):
        code = (
            "import sys, pathlib; from scaling.records import store; store.Store.resume(pathlib.Path(sys.argv[1]))"
        )
        other = subprocess.run(
            [sys.executable, "-c", code, str(run.folder)], capture_output=True, text=True, check=False
        )
    assert "another run is writing into it" in other.stderr
    with store.Store.resume(run.folder):
        pass  # and free again afterwards


def test_a_full_disk_leaves_a_readable_file(run: Run) -> None:
    """The limit on file size stands for a full disk: the write comes back short, then fails."""
    size = file_of(run).stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with store.Store.resume(run.folder) as opened:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, hard))
            with pytest.raises(StoreError, match=r"File too large; the points before are kept.*--resume"):
                opened.append(run.records[0])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert file_of(run).stat().st_size == size
    assert store.load(run.folder)[1] == run.records


FULL = """
import sys
from pathlib import Path
from scaling.errors import StoreError
from scaling.records import store
from tests.support.inline import Launch
disk = Path(sys.argv[1])
try:
    Launch(4).sweep(disk, rounds=30)
except StoreError as error:
    print(error)
(folder,) = disk.iterdir()
print(len(store.load(folder)[1]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_really_full_disk_ends_the_sweep_with_the_points_before(tmp_path: Path) -> None:
    """In a mount namespace of its own: nobody else sees the disk."""
    mount = 'mount -t tmpfs -o size=64k tmpfs "$4" && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", mount, "sh", sys.executable, "-c", FULL, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3])
    said, points = done.stdout.splitlines()
    assert "No space left on device" in said
    assert int(points) > 0


def test_a_disk_that_cannot_take_the_header_leaves_nothing_behind(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
        with pytest.raises(UsageError, match=r"--results .*: cannot write .*: File too large"):
            Launch(1).sweep(tmp_path / "results", rounds=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert list((tmp_path / "results").iterdir()) == []
