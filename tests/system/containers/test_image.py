"""containers/Containerfile, built for CPUs and started as its user, without root and without a network."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.containers import REVISION, Store

pytestmark = pytest.mark.timeout(900)
FEW = (
    "--verbose", "--rounds", "1", "--windows", "3", "--window-s", "0.05", "--soak-s", "0", "--world-sizes", "1,2",
)  # fmt: skip
MOST_BYTES = 1.2e9
# What each line says is asked of the image itself.
INSIDE = """
id -u; id -g; id -un; echo "$HOME"; pwd
find / -xdev -path /proc -prune -o '(' -name 'ssh_host_*' -o -name .git -o -name .venv ')' -print 2>/dev/null
ls -d /scaling/tests 2>/dev/null
touch /results/writable && ls /scaling/results/
"""
STALE = """
import importlib.util, pathlib, sys
for path in map(pathlib.Path, sys.argv[1:]):
    cached = pathlib.Path(importlib.util.cache_from_source(path)).read_bytes()
    by_hash, seconds = cached[4] & 1, int.from_bytes(cached[8:12], "little")
    assert by_hash or seconds == int(path.stat().st_mtime), path
print("fresh")
"""


def test_its_user_gets_a_table_without_root_and_without_a_network(kept: Store, image: str, strategy: str) -> None:
    words = ("-np", "2", "python", "-m", "scaling.run", "--strategy", strategy, *FEW)
    table = kept.run(image, "./launch/mpirun", *words, within_s=200)
    for size in (1, 2):
        assert re.search(rf"^ +{size}  ", table, re.MULTILINE), table
    assert re.search(r"\(1 host, 2 ranks", table), table
    assert f"(git {REVISION[:10]})" in " ".join(table.split()), table


def test_it_holds_what_it_must_and_no_more(kept: Store, image: str) -> None:
    said = kept.run(image, "sh", "-c", INSIDE).split()
    assert said == ["1000", "1000", "mpiuser", "/home/mpiuser", "/scaling", "writable"]


def test_libraries_that_wheels_lack_are_there(kept: Store, image: str) -> None:
    """MXNet is linked with the first two; NCCL opens the others by name."""
    wanted = ["libgomp.so.1", "libquadmath.so.0", "libibverbs.so.1", "librdmacm.so.1"]
    kept.run(image, "python", "-c", f"import ctypes; [ctypes.CDLL(name) for name in {wanted}]")


def test_its_packages_are_listed_for_a_bill_of_materials(kept: Store, image: str) -> None:
    found = kept.run(image, "python", "-m", "pip", "freeze", "--all").splitlines()
    assert {"mpi4py", "pip"} <= {line.partition("==")[0] for line in found}
    assert "debian" in kept.run(image, "sh", "-c", "dpkg-query --show base-files; . /etc/os-release; echo $ID")


def test_its_bytecode_is_taken_as_it_is(kept: Store, image: str) -> None:
    """Each rank would compile what it imports, as its user cannot write there."""
    own, theirs = (
        "/scaling/scaling/run/*.py /scaling/launch/*.py",
        "/opt/scaling/venv/lib/python3*/site-packages/msgspec/*.py",
    )
    said = kept.run(image, "sh", "-c", f"python -c '{STALE}' {own} {theirs}")
    assert said == "fresh\n"


def test_it_is_no_larger_than_promised(kept: Store, image: str, extras: str) -> None:
    if "torch" not in extras:
        pytest.skip("pip finds no torch without CUDA here")
    (told,) = json.loads(kept.podman("image", "inspect", image))
    assert told["Size"] < MOST_BYTES
    assert told["Labels"]["org.opencontainers.image.revision"] == REVISION
