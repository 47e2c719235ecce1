"""Switch ports above a GPU that redirect its peers' bytes, of configuration spaces as the kernel shows them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scaling.hosts import gpu_health
from tests.support.fake_nvml import FakeGpu, Install, installer

ROOT_PORT, UPSTREAM, DOWNSTREAM = 4, 5, 6
# lspci: "ACSCtl: SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-".
ON, SOURCES_ALONE = 0x1D, 0x01
GPU = "0000:04:00.0"


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    yield from installer(monkeypatch)


def config(kind: int, control: int | None, *, size: int = 4096) -> bytes:
    """A bridge: power management and PCI Express among its capabilities, error reporting and perhaps ACS among its
    extended ones."""
    space = bytearray(4096)
    space[0x06] = 0x10
    space[0x34] = 0x40
    space[0x40:0x42] = (0x01, 0x68)
    space[0x68:0x6C] = (0x10, 0x00, kind << 4 | 2, 0x00)
    space[0x100:0x104] = (0x0001 | 1 << 16 | 0x148 << 20).to_bytes(4, "little")
    last = 0x0019 if control is None else 0x000D
    space[0x148:0x14C] = (last | 1 << 16).to_bytes(4, "little")
    space[0x14E:0x150] = (control or 0).to_bytes(2, "little")
    return bytes(space[:size])


def machine(root: Path, *bridges: bytes) -> None:
    folder = root / "sys/devices/pci0000:00"
    devices = root / "sys/bus/pci/devices"
    devices.mkdir(parents=True)
    for bus, space in enumerate((*bridges, bytes(4096))):
        address = f"0000:{bus:02x}:00.0" if bus < len(bridges) else GPU
        folder /= address
        folder.mkdir(parents=True)
        (folder / "config").write_bytes(space)
        (devices / address).symlink_to(folder)


def test_a_switch_that_redirects_is_named(tmp_path: Path) -> None:
    machine(tmp_path, config(ROOT_PORT, ON), config(UPSTREAM, None), config(DOWNSTREAM, ON))
    assert gpu_health.redirecting(GPU, tmp_path) == ("0000:02:00.0",)


@pytest.mark.parametrize("control", [0, SOURCES_ALONE, None])
def test_a_switch_that_does_not(tmp_path: Path, control: int | None) -> None:
    machine(tmp_path, config(ROOT_PORT, ON), config(UPSTREAM, None), config(DOWNSTREAM, control))
    assert gpu_health.redirecting(GPU, tmp_path) == ()


def test_root_ports_are_no_switches(tmp_path: Path) -> None:
    """What GPUs below two of them tell each other takes the root complex anyhow."""
    machine(tmp_path, config(ROOT_PORT, ON))
    assert gpu_health.redirecting(GPU, tmp_path) == ()


def test_who_is_not_root_is_not_told(tmp_path: Path) -> None:
    machine(tmp_path, config(ROOT_PORT, ON), config(DOWNSTREAM, ON, size=64))
    assert gpu_health.redirecting(GPU, tmp_path) is None
    assert gpu_health.redirecting("0000:99:00.0", tmp_path) is None


@pytest.mark.parametrize("filled", [b"\x00", b"\xff", b"\x10", b"\x0d\x00\x01\x10"])
def test_bytes_that_make_no_sense_end(tmp_path: Path, filled: bytes) -> None:
    """A device that has fallen off the bus answers with ones."""
    machine(tmp_path, (filled * 4096)[:4096])
    assert gpu_health.redirecting(GPU, tmp_path) == ()


def test_it_is_part_of_a_gpus_health(install: Install, tmp_path: Path) -> None:
    machine(tmp_path, config(ROOT_PORT, ON), config(DOWNSTREAM, ON))
    install(FakeGpu(bus=4), FakeGpu(uuid="GPU-b", bus=5))
    first, second = gpu_health.gather(tmp_path).gpus
    assert first.acs_redirects == ("0000:01:00.0",)
    assert second.acs_redirects is None
