"""Files are dropped from the page cache, and the kernel says so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scaling.hosts import page_cache


def test_files_that_are_dropped_are_not_cached_any_more(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("a", "b", "none")]
    for path in paths[:2]:
        with Path(path).open("wb") as file:
            file.write(bytes(200_000))
            file.flush()
            os.fsync(file.fileno())
    Path(paths[2]).touch()
    assert page_cache.cached_fraction(paths) == 1.0
    page_cache.drop(paths[:1])
    if page_cache.cached_fraction(paths[:1]) == 1.0:
        pytest.skip("files lie in memory here (tmpfs)")
    assert page_cache.cached_fraction(paths) == 0.5
    page_cache.drop(paths)
    assert page_cache.cached_fraction(paths) == 0.0


def test_files_that_are_not_there(tmp_path: Path) -> None:
    assert page_cache.cached_fraction([]) is None
    with pytest.raises(FileNotFoundError):
        page_cache.drop([str(tmp_path / "none")])
