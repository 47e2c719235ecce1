"""Cgroups of tests, made and removed by root."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MOUNT = Path("/sys/fs/cgroup")


@contextmanager
def cgroup(controller: str) -> Iterator[Path]:
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
