"""Which GPUs, or slices of them, workers may be given: CUDA_VISIBLE_DEVICES and MIG, by a stand-in for NVML."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scaling.hosts.gpus import gather_gpus
from tests.support.fake_nvml import Install, installer, sliced
from tests.support.topologies import two_pairs


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    yield from installer(monkeypatch)


def uuids() -> list[str]:
    return [gpu.uuid for gpu in gather_gpus()[0]]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("2", "c"),
        ("3,1", "db"),
        (" 0 , 2 ", "ac"),
        ("", ""),
        ("-1", ""),
        ("NoDevFiles", ""),
        ("1,9,0", "b"),
        ("1,-1,0", "b"),
        ("1,1", ""),
        ("GPU-d", "d"),
        ("GPU-c000-2,0", "ca"),
        ("2,GPU-c000-2", ""),
        ("GPU-", ""),
        ("GPU-x", ""),
    ],
)
def test_visible_devices(install: Install, monkeypatch: pytest.MonkeyPatch, visible: str, expected: str) -> None:
    install(*two_pairs())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert "".join(uuid[4] for uuid in uuids()) == expected


def test_links_count_visible_gpus_only(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(*two_pairs())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,2,0")
    gpus = gather_gpus().gpus
    assert [gpu.index for gpu in gpus] == [0, 1, 2]
    assert gpus[0].links == ("self", "NV4", "SYS")


def test_a_gpu_in_mig_mode_counts_as_its_slices(install: Install) -> None:
    """Told apart from the whole GPU beside them, with what the GPU itself knows of CPUs and code."""
    a, b = two_pairs()[:2]
    a.near, a.capability = (0,), (8, 0)
    install(sliced(a, "MIG-1", "MIG-2"), b)
    first, second, whole = gather_gpus().gpus
    assert [gpu.uuid for gpu in (first, second, whole)] == ["MIG-1", "MIG-2", "GPU-b000-1"]
    assert [gpu.parent for gpu in (first, second, whole)] == ["GPU-a000-0", "GPU-a000-0", ""]
    assert first.whole == second.whole == "GPU-a000-0"
    assert (first.name, first.compute_capability, first.cores) == ("NVIDIA H200 MIG 1g.18gb", (8, 0), ((0,),))
    assert first.links == ("self", "?", "?")
    assert gather_gpus().reachable == 2


def test_mig_mode_without_slices_leaves_nothing_to_compute_on(install: Install) -> None:
    install(sliced(two_pairs()[0]))
    assert uuids() == []


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("MIG-2", ["MIG-2"]),
        ("MIG-2,MIG-1,MIG-gone,1", ["MIG-2", "MIG-1"]),
        ("0", ["MIG-1", "MIG-2"]),
        ("1,GPU-a", ["GPU-b000-1", "MIG-1", "MIG-2"]),
        ("MIG-1,0", []),
    ],
)
def test_slices_by_name_or_all_of_a_gpu(
    install: Install, monkeypatch: pytest.MonkeyPatch, visible: str, expected: list[str]
) -> None:
    """What workers may be given, one each: a process sees no more than one of them itself."""
    a, b = two_pairs()[:2]
    install(sliced(a, "MIG-1", "MIG-2"), b)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert uuids() == expected


def test_a_slice_whose_gpu_nvml_does_not_tell(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is one all the same: its worker must be shown it alone."""
    a = sliced(two_pairs()[0], "MIG-1")
    assert a.slices is not None
    a.slices[0].whole = None
    install(a)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1")
    (gpu,) = gather_gpus().gpus
    assert (gpu.uuid, gpu.parent) == ("MIG-1", "MIG-1")
