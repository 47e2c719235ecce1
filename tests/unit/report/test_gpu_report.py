"""What a report says of GPUs, their libraries and NCCL; nothing where nobody has told."""

from __future__ import annotations

import csv as csv_module
import io
import json as json_module

import pytest
from msgspec.structs import replace

from scaling.analysis.measured.device_use import DeviceUse
from scaling.records.network import NcclChoice
from scaling.report import devices, words
from scaling.report.document import document
from scaling.report.formats import csv, json
from tests.support import scripted_records
from tests.support.gpu_records import ACROSS, GIB, gpus_run
from tests.support.report_scenes import default_run

USE = DeviceUse(
    sm_clock_mhz=1395.2, slowest_sm_clock_mhz=1390.0, max_sm_clock_mhz=1410.0, power_w=412.4,
    utilisation_percent=97.6, peak_memory_bytes=31 * GIB + GIB // 5, samples_per_j=2.314,
)  # fmt: skip


def said(use: DeviceUse) -> str:
    return words.text(devices.device(use, scripted_records.point().workload))


def test_a_device_line() -> None:
    assert said(USE) == "SM 1,395 MHz (1,410 at most), 412 W, 98 % busy, 31.2 GiB, 0.432 J/image, 2.31 images/s/W"


def test_energy_of_power_readings_is_marked() -> None:
    assert said(replace(USE, energy_is_integral=True)).endswith(", ~0.432 J/image, 2.31 images/s/W")


def test_a_slow_device_is_told() -> None:
    assert said(replace(USE, slowest_sm_clock_mhz=1200.0)).startswith(
        "SM 1,395 MHz (1,410 at most, the slowest 1,200), "
    )


def test_what_no_gpu_tells_is_left_out() -> None:
    assert said(DeviceUse(power_w=70.0)) == "70 W"
    assert said(DeviceUse()) == ""


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        (NcclChoice(version="2.29.7", network="IB", cards=("mlx5_0",)), ""),  # a single rank connects nobody
        (NcclChoice(network="IB", transports={"P2P/CUMEM": 4}), "P2P/CUMEM"),
        (NcclChoice(network="IB", transports={"P2P/CUMEM": 4}, nvls=True), "P2P/CUMEM, NVLS set up"),
        (NcclChoice(transports={"SHM/direct": 4}), "SHM/direct"),
        (
            NcclChoice(
                network="IB", cards=("mlx5_0", "mlx5_1"), transports={"P2P/IPC": 2, "NET/IB": 4}, gpu_direct=4
            ),
            "NET/IB on mlx5_0,mlx5_1 with GPUDirect, P2P/IPC",
        ),
        (NcclChoice(cards=("mlx5_0",), transports={"NET/IB": 4}), "NET/IB on mlx5_0 without GPUDirect"),
        (
            NcclChoice(cards=("mlx5_0",), transports={"NET/IB": 4}, gpu_direct=1),
            "NET/IB on mlx5_0 with GPUDirect on 1 of 4 connections",
        ),
        (NcclChoice(cards=("eth0",), transports={"NET/Socket": 4}), "NET/Socket on eth0"),
        (
            NcclChoice(provider="efa", transports={"NET/AWS Libfabric": 4}, gpu_direct=4),
            "NET/AWS Libfabric (efa) with GPUDirect",
        ),
        (
            NcclChoice(transports={"P2P/CUMEM": 4}, nvls=True, algorithms={"nvls simple": 99, "ring LL": 1}),
            "P2P/CUMEM, nvls simple",
        ),
        (
            NcclChoice(transports={"P2P/CUMEM": 4}, algorithms={"tree LL": 40, "ring simple": 60}),
            "P2P/CUMEM, ring simple, tree LL",
        ),
    ],
)
def test_what_nccl_chose_in_words(choice: NcclChoice, text: str) -> None:
    assert devices.nccl(choice) == text


@pytest.mark.parametrize(
    ("number", "version"), [("92000", "9.20.0"), ("90100", "9.1.0"), ("8902", "8.9.2"), ("9", "9")]
)
def test_cudnn_s_number_is_a_version(number: str, version: str) -> None:
    assert devices.cudnn(number) == version


def details() -> dict[str, str]:
    (section,) = document(*gpus_run()).sections
    return {one.label: "; ".join(words.value(at) for at in one.values) for one in section.details}


def test_each_row_says_what_nccl_chose_and_how_its_gpus_ran() -> None:
    found = details()
    assert found["NCCL"] == (
        "N=2 P2P/CUMEM, NVLS set up; N=4 NET/IB on mlx5_0 with GPUDirect, P2P/CUMEM, tree simple"
    )
    usual, _, slow = found["device"].split("; ")
    # 31 steps of 256 samples, or the 30 that windows tell here, for 1,000 J of each GPU.
    assert usual == "N=1 SM 1,402 MHz (1,410 at most), 412 W, 98 % busy, 31.0 GiB, 0.130 J/image, 7.68 images/s/W"
    assert slow == (
        "N=4 SM 1,352 MHz (1,410 at most, the slowest 1,200), 412 W, 98 % busy, 31.0 GiB, 0.130 J/image, "
        "7.68 images/s/W"
    )


def test_the_libraries_of_gpus_are_named() -> None:
    facts = {one.label: words.text(one.phrase) for one in document(*gpus_run()).facts}
    assert facts["GPU libraries"] == "torch 2.13.0+cu130: CUDA 13.0, cuDNN 9.20.0, NCCL 2.29.7"
    assert "driver 580.65.06" in facts["software"]


def test_the_nccl_that_was_loaded_is_the_one_in_its_log() -> None:
    """Horovod's may be another than the framework's; TensorFlow does not tell its own."""
    _, records = gpus_run()
    (first, *_) = records[2].ranks
    assert first.ready is not None and first.nccl is not None
    other = replace(first, nccl=replace(first.nccl, version="2.21.5"))
    silent = replace(first, ready=replace(first.ready, versions={"tensorflow": "2.21.0", "cuda": "12.5.1"}))
    for rank, said_ in ((other, "torch 2.13.0+cu130: CUDA 13.0, cuDNN 9.20.0, NCCL 2.21.5"),
                        (silent, "tensorflow 2.21.0: CUDA 12.5.1, NCCL 2.29.7")):  # fmt: skip
        assert devices.libraries([replace(records[2], ranks=(rank,))]) == said_


def test_where_there_is_no_gpu_nothing_is_said() -> None:
    made = document(*default_run())
    labels = {one.label for section in made.sections for one in section.details}
    assert not labels & {"NCCL", "device"}
    assert not {one.label for one in (*made.facts, *made.how_to_read)} & {"NCCL", "device", "GPU libraries"}


def test_programs_read_the_same() -> None:
    made, records = gpus_run()
    last = list(csv_module.DictReader(io.StringIO(csv.render(records))))[-1]
    assert (last["world_size"], last["sm_clock_mhz"], last["slowest_sm_clock_mhz"]) == ("4", "1351.875", "1200.0")
    assert (last["power_w"], last["peak_memory_bytes"], last["samples_per_j"]) == ("412.0", str(31 * GIB), "7.68")
    assert (last["j_per_sample"], last["energy_is_integral"]) == ("0.1302083333", "False")
    assert last["nccl"] == "NET/IB on mlx5_0 with GPUDirect, P2P/CUMEM, tree simple"
    row = json_module.loads(json.render(made, records))["rows"][-1]
    assert row["device_use"]["utilisation_percent"] == 98
    # Of four ranks and three rounds.
    assert row["nccl"]["transports"] == {name: 12 * count for name, count in ACROSS.transports.items()}
