"""`python -m scaling.run` of one rank on a host whose GPUs are those of a libnvidia-ml.so.1 of ours."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scaling.records import store
from scaling.text import ranges
from tests.support import nvml_library
from tests.support.started import RUN, ran, run_of

BRIEF = (
    "--strategy", "fake:a", "--rounds", "1", "--windows",
    "3", "--window-s", "0.01", "--soak-s", "0", "--view", "none", "--verbose",
)  # fmt: skip


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvml_library.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(autouse=True)
def all_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def start(library: Path, machine: str, *argv: str, cwd: Path, expected: int = 0) -> str:
    done = ran(*argv, cwd=cwd, **nvml_library.environ(library, machine, log=cwd / "nvml.log"))
    assert done.returncode == expected, done.stderr
    return done.stdout + done.stderr


def test_a_sweep_on_gpus_at_their_power_limit(library: Path, tmp_path: Path) -> None:
    """From enrolment to the table, with real readings beside the worker and its process pinned near its GPU."""
    printed = start(library, "a100", *BRIEF, "--name", "one", cwd=tmp_path)
    assert "devices   cuda: 8 x NVIDIA A100-SXM4-80GB" in printed
    assert "SM clock 1200 MHz, 85 % of the highest, at the power limit in 100 %" in printed
    assert "THROTTLED" not in printed
    header, records = store.load(run_of(tmp_path))
    near = header.hosts[0].gpus[0].cores
    assert {rank.cpus for record in records for rank in record.ranks} == {
        tuple(cpu for core in near for cpu in core)
    }
    assert {rank.telemetry.affinity_cpus for record in records for rank in record.ranks} == {len(near)}
    assert (tmp_path / "nvml.log").read_text().splitlines() == ["init"]


def test_hot_gpus_are_throttled(library: Path, tmp_path: Path) -> None:
    assert "was throttled: hw slowdown, hw thermal" in start(library, "hot", *BRIEF, cwd=tmp_path)


def test_a_worker_is_shown_its_own_slice(library: Path, tmp_path: Path) -> None:
    printed = start(library, "mig", "--strategy", "fake:a", "--dry-run", cwd=tmp_path)
    near = ranges(cpu for cpu in os.sched_getaffinity(0) if cpu % 2 == 0)
    assert f"GPU MIG-0-0, CPUs {near}" in printed
    assert "1 rank on slices of GPUs (MIG), each sees only its own" in printed


@pytest.mark.parametrize(
    ("visible", "argv", "said"),
    [
        ("0,3", (), "scaling: starts 2 ranks, one on each GPU (--ranks N takes another number)\n"),
        ("0,1", ("--device", "cpu"), ", one on each core (--ranks N takes another number)\n"),
    ],
)
def test_each_visible_gpu_has_a_rank(
    library: Path, tmp_path: Path, visible: str, argv: tuple[str, ...], said: str
) -> None:
    env = nvml_library.environ(library, "a100", visible=visible)
    done = ran("--strategy", "fake:a", "--dry-run", *argv, cwd=tmp_path, program=RUN, **env)
    assert done.returncode == 0 and said in done.stderr
    assert ("device cuda" in done.stdout) != bool(argv)


@pytest.mark.parametrize(
    ("argv", "expected", "said"),
    [
        (("--device", "cuda"), 2, "--device cuda: "),
        (("--dry-run",), 0, "(NVML is unusable: RM has detected an NVML/RM version mismatch.)"),
    ],
)
def test_a_driver_that_does_not_work(
    library: Path, tmp_path: Path, argv: tuple[str, ...], expected: int, said: str
) -> None:
    printed = start(library, "mismatch", "--strategy", "fake:a", *argv, cwd=tmp_path, expected=expected)
    assert said in printed and "version mismatch" in printed
