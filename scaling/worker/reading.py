"""Where a point's data is read from: the kernel's page cache, or the disk because it was dropped from there."""

from __future__ import annotations

from typing import Literal

from scaling import frameworks
from scaling.hosts import page_cache
from scaling.records.task import Task
from scaling.workloads import data, feeds, models


def prepared(task: Task) -> tuple[Literal["", "page cache", "disk"], float | None]:
    """Drop this rank's share of its host's files from the page cache, where the point asks for that.

    Returns where data in files comes from, and which part of the share is still cached; of other data nothing.

    Other ranks may have begun to read: a batch or two each. Raises UsageError, or OSError.
    """
    work = task.point.workload
    drives = frameworks.load(task.point.strategy).traits(task.point.strategy).drives
    # Where helpers compute, files are read once, before the first window.
    held = data.spec(work.data).format not in data.DECODED or drives == "point"
    if held or task.point.kind == "comm" or task.point.hardware.device == "emulated":
        return "", None
    if not work.drop_caches:
        return "page cache", None
    # All of a few large files: finding their records has just read some of each.
    paths = feeds.encoded_pictures(task, models.of(work)).encoded.paths
    several = drives == "device" and len(paths) > task.local_world_size
    share = paths[task.local_rank :: task.local_world_size] if several else paths
    page_cache.drop(share)
    return "disk", page_cache.cached_fraction(share)
