"""Which allocator LD_PRELOAD brings."""

from __future__ import annotations

import pytest

from scaling.hosts import allocator


@pytest.mark.parametrize(
    ("preload", "name"),
    [
        (None, ""),
        ("", ""),
        ("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2", "jemalloc"),
        ("libtcmalloc_minimal.so.4", "tcmalloc"),
        ("/opt/mimalloc/libmimalloc-secure.so", "mimalloc"),
        ("/lib/libfoo.so:/lib/libjemalloc.so", "jemalloc"),
        ("/lib/libfoo.so /lib/libsnmalloc.so", "snmalloc"),
        ("/opt/jemalloc/lib/libfoo.so", ""),  # a folder's name says nothing
        ("/usr/lib/libSegFault.so", ""),
    ],
)
def test_an_allocator_is_known_by_its_library(preload: str | None, name: str) -> None:
    environ = {} if preload is None else {"LD_PRELOAD": preload}
    assert allocator.preloaded(environ) == name
