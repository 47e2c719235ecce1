"""What wheels with CUDA hold, read without installing them: libraries, what these need, and code for which GPUs.

As a program it prints that of wheels on disk: `python -m tests.bench.wheels WHEEL...`. It needs readelf.
"""

from __future__ import annotations

import re
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from launch import _environments

LIBRARY = re.compile(r"[^/]+\.so(\.\d+)*")
# Of the system and of the driver: no wheel brings these.
ELSEWHERE = re.compile(
    r"(ld-linux.*|lib(c|m|z|dl|rt|pthread|util|stdc\+\+|gcc_s)\.so\.\d+|lib(cuda|nvidia-ml)\.so\.1"
    r"|lib(ibverbs|mlx5|rdmacm|fabric|pmix|mpi|oshmem|ucp|ucs|hwloc)\.so\.\d+)"
)
# A fat binary is a header and entries of a kind, code or PTX, each for one compute capability (as cuobjdump lists
# them; laid out as in zluda's `zluda_fat_binary`).
FATBIN, PTX, CODE = 0xBA55ED50, 1, 2
HEADER = struct.Struct("<IHHQ")  # magic, version, its own size, size of the entries
ENTRY = struct.Struct("<HHII16xI")  # kind, version, its own size, size of the payload, compute capability x 10


class Library(NamedTuple):
    """A shared library in a wheel: what it needs beside it, and the compute capabilities (90 for 9.0) that it has
    code for, and PTX for."""

    needed: tuple[str, ...]
    code: frozenset[int]
    ptx: frozenset[int]


def libraries(wheel: Path, only: str = "") -> dict[str, Library]:
    """Those of a wheel whose path has `only` in it, by path."""
    found = {}
    with zipfile.ZipFile(wheel) as packed, tempfile.TemporaryDirectory() as folder:
        for name in packed.namelist():
            if only in name and LIBRARY.fullmatch(name.rpartition("/")[2]):
                found[name] = library(Path(packed.extract(name, folder)))
    return found


def library(file: Path) -> Library:
    code, ptx = _capabilities(file)
    return Library(needed=_needed(file), code=frozenset(code), ptx=frozenset(ptx))


def _needed(file: Path) -> tuple[str, ...]:
    told = subprocess.run(["readelf", "-dW", file], capture_output=True, text=True, check=True).stdout
    return tuple(re.findall(r"\(NEEDED\).*\[(.*)\]", told))


def _capabilities(file: Path) -> tuple[set[int], set[int]]:
    """Of the section in which all fat binaries stand, one after the other and aligned to 8."""
    told = subprocess.run(["readelf", "-SW", file], capture_output=True, text=True, check=True).stdout
    code: set[int] = set()
    ptx: set[int] = set()
    for offset, size in re.findall(r"\.nv_fatbin\s+\w+\s+[0-9a-f]+\s+([0-9a-f]+)\s+([0-9a-f]+)", told):
        with file.open("rb") as stream:
            stream.seek(int(offset, 16))
            for kind, capability in _entries(stream.read(int(size, 16))):
                {CODE: code, PTX: ptx}.get(kind, set()).add(capability)
    return code, ptx


def _entries(section: bytes) -> Iterator[tuple[int, int]]:
    at = 0
    while at + HEADER.size <= len(section):
        magic, _, header, size = HEADER.unpack_from(section, at)
        if magic != FATBIN:
            at += 8
            continue
        inner, end = at + header, at + header + size
        while inner + ENTRY.size <= end:
            kind, _, own, payload, capability = ENTRY.unpack_from(section, inner)
            yield kind, capability
            inner += own + payload
        at = -(-end // 8) * 8


def overlaps(wheels: Iterable[Path]) -> dict[tuple[str, ...], list[str]]:
    """By their wheels, the CUDA libraries that several of them would put at one place."""
    return _environments.overlaps({one.name.partition("-")[0]: zipfile.ZipFile(one).namelist() for one in wheels})


def lacking(found: Mapping[str, Library]) -> dict[str, tuple[str, ...]]:
    """By library, what it needs and neither these libraries, nor the system, nor the driver have."""
    provided = {name.rpartition("/")[2] for name in found}
    absent = {
        name: tuple(one for one in has.needed if one not in provided and not ELSEWHERE.fullmatch(one))
        for name, has in found.items()
    }
    return {name: needed for name, needed in absent.items() if needed}


def main(paths: Sequence[str]) -> int:
    """Print it; 1 where something would be overwritten or is lacking."""
    wheels = [Path(path) for path in paths]
    found = {name: has for wheel in wheels for name, has in libraries(wheel).items()}
    for name, has in found.items():
        if has.code or has.ptx:
            sys.stdout.write(f"{name}: code {sorted(has.code)}, PTX {sorted(has.ptx)}\n")
    faults = {**{", ".join(owners): files for owners, files in overlaps(wheels).items()}, **lacking(found)}
    for what, names in faults.items():
        sys.stdout.write(f"{what}: {', '.join(names)}\n")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
