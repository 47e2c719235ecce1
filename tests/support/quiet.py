"""Quiet for a test that needs it, in a run of several tests at a time: the others wait until it is over."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def held(folder: Path, *, alone: bool) -> Iterator[None]:
    """Among all who hold this folder, in whatever process, one that is alone has no other beside it.

    Who waits to be alone holds the door, behind which all that come later wait: nobody waits for ever.
    """
    with (folder / "door").open("w") as door, (folder / "room").open("w") as room:
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(room, fcntl.LOCK_UN)  # a child that was forked meanwhile would hold it on
