"""Which allocator a process finds that a real loader started."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# glibc's own under the name by which an allocator is found.
SOURCE = """
extern void *__libc_memalign(unsigned long, unsigned long);
int posix_memalign(void **made, unsigned long alignment, unsigned long bytes) {
    return (*made = __libc_memalign(alignment, bytes)) ? 0 : 12;
}
"""
TOLD = "import os; from scaling.hosts import allocator as a; print(a.in_use(), a.brought_by(os.environ), sep=',')"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: apt-get install gcc")
    made = tmp_path_factory.mktemp("allocator") / "libjemalloc.so.2"
    command = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(made)]
    subprocess.run(command, input=SOURCE, text=True, check=True, timeout=60)
    return made


def told(preload: str, code: str = TOLD) -> str:
    environ = {**os.environ, "LD_PRELOAD": preload, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    return done.stdout.strip()


def test_one_that_is_preloaded_is_found_also_by_its_other_name(library: Path) -> None:
    link = library.with_name("libjemalloc.so")
    link.symlink_to(library.name)
    assert told(str(library)) == told(str(link)) == "jemalloc,LD_PRELOAD"


def test_one_that_is_not_there_is_not_found() -> None:
    assert told("/nowhere/libjemalloc.so.2") == ","


def test_one_that_ld_preload_does_not_name_any_more_is_found(library: Path) -> None:
    """As from /etc/ld.so.preload, or linked to Python."""
    assert told(str(library), f"import os; os.environ['LD_PRELOAD'] = ''; {TOLD}") == "jemalloc,"


def test_one_that_an_extension_loads_for_itself_is_none(library: Path) -> None:
    assert told("", f"import ctypes; ctypes.CDLL({str(library)!r}, ctypes.RTLD_GLOBAL); {TOLD}") == ","
