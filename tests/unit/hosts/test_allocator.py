"""Which library allocates memory, whether LD_PRELOAD brought it, and what the user has set of glibc's heap."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaling.agent.environment import KEPT_HEAP
from scaling.hosts import allocator

MAPS = """\
5583c8a00000-5583c8a01000 r--p 00000000 fe:00 260811                     /usr/bin/python3.11
5583ca000000-5583ca021000 rw-p 00000000 00:00 0                          [heap]
7f14f2600000-7f14f2610000 r--p 00000000 fe:00 77                         /opt/my tools/libjemalloc.so.2
7f14f2610000-7f14f2680000 r-xp 00010000 fe:00 77                         /opt/my tools/libjemalloc.so.2
7f14f2700000-7f14f2702000 rw-p 00000000 00:00 0
"""


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2", "jemalloc"),
        ("libtcmalloc_minimal.so.4", "tcmalloc"),
        ("/opt/mimalloc/libmimalloc-secure.so", "mimalloc"),
        ("/usr/lib/libtbbmalloc_proxy.so.2", "tbbmalloc"),
        ("/opt/lib/libmesh.so.1", "mesh"),
        ("/opt/jemalloc/lib/libmesh.so", "mesh"),  # a folder's name says nothing
        ("/usr/lib/libc_malloc_debug.so.0", "c_malloc_debug"),
        ("/usr/lib/x86_64-linux-gnu/libc.so.6", ""),
        ("/lib/x86_64-linux-gnu/libc-2.31.so", ""),
        ("/lib/ld-musl-x86_64.so.1", ""),
        ("/usr/bin/python3.11", ""),
        ("", ""),
    ],
)
def test_an_allocator_is_known_by_its_library(path: str, name: str) -> None:
    assert allocator.named(path) == name


@pytest.mark.parametrize(
    ("address", "path"),
    [
        (0x7F14F2610000, "/opt/my tools/libjemalloc.so.2"),
        (0x7F14F267FFFF, "/opt/my tools/libjemalloc.so.2"),
        (0x7F14F2680000, ""),
        (0x5583CA000010, ""),
        (0x7F14F2700010, ""),
    ],
)
def test_the_file_that_is_mapped_at_an_address(address: int, path: str) -> None:
    assert allocator.holder(MAPS, address) == path


def test_a_host_that_shows_no_map_has_the_c_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "MAPS", tmp_path / "none")
    assert allocator.in_use.__wrapped__() == ""


@pytest.mark.parametrize(
    ("preload", "by"),
    [
        ("libjemalloc.so.2", "LD_PRELOAD"),
        ("/usr/$LIB/libjemalloc.so", "LD_PRELOAD"),
        ("libfoo.so:libjemalloc.so", "LD_PRELOAD"),
        ("libfoo.so libjemalloc.so", "LD_PRELOAD"),
        ("/nowhere/libjemalloc.so.2", ""),
        ("libtcmalloc.so.4", ""),
        ("", ""),
    ],
)
def test_whether_ld_preload_brought_it(preload: str, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "in_use", lambda: "jemalloc")
    assert allocator.brought_by({"LD_PRELOAD": preload}) == by


def test_nothing_brought_the_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "in_use", lambda: "")
    assert allocator.brought_by({"LD_PRELOAD": "libjemalloc.so.2"}) == ""
    assert allocator.brought_by({}) == ""


# ---------------------------------------------------------------- glibc's settings


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, ()),
        ({"MALLOC_TRIM_THRESHOLD_": "0"}, ("MALLOC_TRIM_THRESHOLD_=0",)),
        ({"MALLOC_TOP_PAD_": ""}, ("MALLOC_TOP_PAD_=",)),  # glibc takes it for 0
        ({"MALLOC_CONF": "narenas:1", "MALLOC_TRACE": "/x"}, ()),  # jemalloc's, mtrace(3)'s
        ({"GLIBC_TUNABLES": "glibc.malloc.top_pad=1:glibc.rtld.nns=2"}, ("glibc.malloc.top_pad=1",)),
        (
            {"GLIBC_TUNABLES": "glibc.malloc.arena_max=1", "MALLOC_ARENA_MAX": "2"},
            ("MALLOC_ARENA_MAX=2", "glibc.malloc.arena_max=1"),
        ),
    ],
)
def test_what_the_user_has_set(environ: dict[str, str], found: tuple[str, ...]) -> None:
    assert allocator.settings(environ) == found


def test_all_that_workers_are_given_the_user_may_have_set() -> None:
    assert KEPT_HEAP.keys() <= set(allocator.SETTINGS)
