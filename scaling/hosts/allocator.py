"""Which allocator this process's children have instead of the C library's own. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

KNOWN = ("jemalloc", "tcmalloc", "mimalloc", "hoard", "snmalloc")


def preloaded(environ: Mapping[str, str]) -> str:
    """`jemalloc` where LD_PRELOAD brings it; "" where the C library's own allocator is in use."""
    words = re.split(r"[\s:]+", environ.get("LD_PRELOAD", ""))
    names = (word.rpartition("/")[2] for word in words)
    return next((known for name in names for known in KNOWN if known in name), "")
