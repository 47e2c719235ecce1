"""Reports about GPUs: clocks, NCCL, recorded runs, profiled steps."""

from __future__ import annotations

import gzip
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from scaling.analysis.measured.device_use import DeviceUse, gpu_time
from scaling.analysis.measured.traffic import nccl_text
from scaling.analysis.table.analyse import analyse
from scaling.analysis.table.cost import relative
from scaling.analysis.table.rows import Row
from scaling.records import store
from scaling.records.network import NcclChoice
from scaling.records.run import Header, PointRecord
from scaling.records.telemetry import GpuTime
from scaling.report import __main__ as command
from scaling.report import document, facts
from scaling.report.material import Material
from tests.support import scripted_records
from tests.support.golden import check_golden
from tests.support.gpu_records import GIB, gpus_run
from tests.support.scripted_records import header
from tests.support.traced_records import gpu, of_two_devices, runs

# What a report says of GPUs, their libraries and NCCL; nothing where nobody has told.

USE = DeviceUse(
    sm_clock_mhz=1395.2, slowest_sm_clock_mhz=1390.0, max_sm_clock_mhz=1410.0, power_w=412.4,
    utilisation_percent=97.6, peak_memory_bytes=31 * GIB + GIB // 5, samples_per_j=2.314,
)  # fmt: skip


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (USE, "SM 1,395 MHz (1,410 at most), 412 W, 98 % busy, 31.2 GiB, 0.432 J/image, 2.31 images/s/W"),
        (replace(USE, energy_is_integral=True), "...~0.432 J/image, 2.31 images/s/W"),
        (replace(USE, slowest_sm_clock_mhz=1200.0), "SM 1,395 MHz (1,410 at most, the slowest 1,200), ..."),
        (DeviceUse(power_w=70.0), "70 W"),
        (DeviceUse(), ""),
    ],
)
def test_a_device_line(use: DeviceUse, text: str) -> None:
    """A slow device is named, energy of power readings is marked, what no GPU reports is left out."""
    found = document.device(use, scripted_records.point().workload)
    assert re.fullmatch(re.escape(text).replace(r"\.\.\.", ".*"), found)


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
    assert nccl_text(choice) == text


@pytest.mark.parametrize(
    ("number", "version"), [("92000", "9.20.0"), ("90100", "9.1.0"), ("8902", "8.9.2"), ("9", "9")]
)
def test_cudnn_s_number_is_a_version(number: str, version: str) -> None:
    assert facts.cudnn(number) == version


def test_the_nccl_that_was_loaded_is_the_one_in_its_log() -> None:
    """Horovod's may be another than the framework's; TensorFlow does not tell its own."""
    _, records = gpus_run()
    (first, *_) = records[2].ranks
    assert first.ready is not None and first.nccl is not None
    other = replace(first, nccl=replace(first.nccl, version="2.21.5"))
    silent = replace(first, ready=replace(first.ready, versions={"tensorflow": "2.21.0", "cuda": "12.5.1"}))
    for rank, said_ in ((other, "torch 2.13.0+cu130: CUDA 13.0, cuDNN 9.20.0, NCCL 2.21.5"),
                        (silent, "tensorflow 2.21.0: CUDA 12.5.1, NCCL 2.29.7")):  # fmt: skip
        assert facts.libraries([replace(records[2], ranks=(rank,))]) == said_


# Reports on runs that a real GPU recorded; tests/recorded/README.md says which.

TESTS = Path(__file__).parents[2]
RUNS = ("h200-default", "h200-oom", "h200-two-ranks-one-gpu")


def run(folder: Path, name: str) -> Path:
    (folder / store.FILE).write_bytes((TESTS / "recorded" / f"{name}.jsonl").read_bytes())
    return folder


def loaded(folder: Path, name: str) -> tuple[Header, tuple[PointRecord, ...]]:
    return store.load(run(folder, name))


def rows(folder: Path, name: str) -> dict[int, Row]:
    return {row.world_size: row for row in analyse(loaded(folder, name)[1]).rows}


@pytest.mark.parametrize("name", RUNS)
def test_the_tables(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([str(run(tmp_path, name)), "--verbose"]) == 0
    check_golden(f"{name}.txt", capsys.readouterr().out)


def test_ranks_of_two_nodes_on_one_gpu_claim_nothing(tmp_path: Path) -> None:
    alone, both = (rows(tmp_path, "h200-two-ranks-one-gpu")[n] for n in (1, 2))
    assert "OVERSUBSCRIBED" in both.flags and "OVERSUBSCRIBED" not in alone.flags
    assert any("2 ranks on 1 GPU" in note for note in both.footnotes)
    assert (both.speedup, both.efficiency, both.strategy_efficiency, both.breakdown) == (None,) * 4
    assert (both.standing, both.framework_standing, relative(both)) == (None,) * 3
    assert both.samples_per_s is not None and alone.efficiency is not None


def test_a_shared_gpu_counts_once(tmp_path: Path) -> None:
    """Two ranks draw the power of one GPU: joules per token are power over rate."""
    both = rows(tmp_path, "h200-two-ranks-one-gpu")[2]
    use, rate = both.device_use, both.samples_per_s
    assert use is not None and rate is not None and use.power_w is not None and use.samples_per_j is not None
    assert use.samples_per_j == pytest.approx(rate.mean / use.power_w, rel=0.1)


@pytest.mark.parametrize("uuid", ["", "GPU-of-its-own"])
def test_hosts_whose_gpus_have_other_uuids_or_none_share_none(uuid: str, tmp_path: Path) -> None:
    path = run(tmp_path, "h200-two-ranks-one-gpu") / store.FILE
    header, *lines = path.read_bytes().splitlines(keepends=True)
    plain = msgspec.json.decode(header)
    plain["hosts"][1]["gpus"][0]["uuid"] = uuid
    path.write_bytes(b"".join([msgspec.json.encode(plain) + b"\n", *lines]))
    _, records = store.load(path)
    assert not any(record.oversubscribed for record in records)


def parts(found: GpuTime) -> dict[str, float]:
    names = {f"{one.name} x {one.count}": one.run_s for one in found.kernels}
    return {"span": found.span_s, "computing": found.compute_s, "idle": found.idle_s, **names}


def test_the_trace_of_a_gpu_says_what_its_worker_said(tmp_path: Path) -> None:
    trace = gzip.decompress((TESTS / "traces" / "torch-nccl-h200.json.gz").read_bytes())
    found, recorded = gpu_time(trace, steps=5), loaded(tmp_path, "h200-default")[1][0].ranks[0].gpu
    # Times of the recorded file are above 1e12 us, where a double has steps of 0.001 us.
    assert found is not None and recorded is not None
    assert parts(found) == pytest.approx(parts(recorded), abs=1e-6)
    assert found.collectives == ()


# What a report says of profiled steps.

ALONE = [gpu(compute_s=0.1, idle_s=0.004, kernels=[runs("gemm", 1, 0.1)])] * 2
BESIDE = [
    gpu(compute_s=0.11, idle_s=0.005, runs=[(0.09, 0.0852)], kernels=[runs("gemm", 1, 0.11)]),
    gpu(compute_s=0.11, idle_s=0.005, runs=[(0.08, 0.0752)], kernels=[runs("gemm", 1, 0.11)]),
]


def traced_report_said(step_s: float, gpus: Sequence[GpuTime], alone: Sequence[GpuTime]) -> dict[str, str]:
    made = Material(header(), of_two_devices(step_s, gpus, alone)).doc
    (section,) = made.sections
    entries = dict(made.how_to_read)
    return {**{f"read {label}": text for label, text in entries.items()}, **{
        label: values[0].removeprefix("N=2 ") for label, values in section.details
    }}  # fmt: skip


def test_the_traced_step_stands_beside_the_untraced_one() -> None:
    found = traced_report_said(0.21, [], [])
    assert found["traced step"] == "210 ms, untraced 200 ms"
    assert found["trace files"] == "traces/0001-fake-a-exchange-n2-r0.*"
    assert "https://ui.perfetto.dev" in found["read traced"]
    assert "traced, on the GPU" not in found
    assert "read traced, on the GPU" not in found


def test_where_a_step_went_on_the_gpu() -> None:
    found = traced_report_said(0.2, BESIDE, ALONE)
    assert found["traced, on the GPU"] == (
        "computing 100 ms, slowed 10.0 ms, other kernels 0.00 ms, transfer 77.6 ms, waiting 2.60 ms, "
        "idle 4.00 ms, host 1.00 ms"
    )
    assert "3 %" in found["read traced, on the GPU"]


@pytest.mark.parametrize("step_s", [0.19, 0.21])
def test_a_profiler_that_changed_the_step_leaves_shares(step_s: float) -> None:
    found = traced_report_said(step_s, BESIDE, ALONE)
    assert found["traced, on the GPU"].startswith("computing 51.2 %, slowed 5.1 %, ")


def test_without_profiled_steps_nothing_is_said() -> None:
    made = Material(header(), [one for one in of_two_devices(0.2, [], []) if one.point.round == 1]).doc
    assert "traced" not in dict(made.how_to_read)
    assert not [one for section in made.sections for one in section.details if one[0].startswith("trace")]
