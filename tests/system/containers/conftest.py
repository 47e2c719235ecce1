"""One storage for the tests of containers/, and what several of them start from: a base, and the image on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import containers
from tests.support.containers import REVISION, Store
from tests.support.fresh_machine import REPOSITORY

BASE = "localhost/base:bookworm"
IMAGE = "localhost/scaling:cpu"


@pytest.fixture(scope="package")
def kept() -> Iterator[Store]:
    if reason := containers.missing():
        pytest.skip(reason)
    with containers.store() as made:
        yield made


@pytest.fixture(scope="package")
def base(kept: Store) -> str:
    containers.debian_base(kept, BASE)
    return BASE


@pytest.fixture(scope="package")
def extras() -> str:
    """PyTorch where pip has one without CUDA, which is 4 GB smaller."""
    return "torch mpi" if containers.torch_without_cuda() else "mpi"


@pytest.fixture(scope="package")
def image(kept: Store, base: str, extras: str) -> str:
    file = REPOSITORY / "containers" / "Containerfile"
    kept.build(IMAGE, file, BASE=base, CUDA="", EXTRAS=extras, REVISION=REVISION)
    return IMAGE


@pytest.fixture(scope="package")
def strategy(extras: str) -> str:
    return "torch:gloo" if "torch" in extras else "fake:a"
