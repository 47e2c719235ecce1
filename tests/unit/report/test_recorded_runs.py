"""Reports on runs that a real GPU recorded; tests/recorded/README.md says which."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import pytest

from scaling.analysis.measured.trace_split import gpu_time
from scaling.analysis.table.analyse import analyse
from scaling.analysis.table.cost import relative
from scaling.analysis.table.rows import Row
from scaling.records import store
from scaling.records.run import Header, PointRecord
from scaling.records.telemetry import GpuTime
from scaling.report import __main__ as command
from tests.support.golden import check_golden

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
    assert command.main([str(run(tmp_path, name))]) == 0
    check_golden(f"{name}.txt", capsys.readouterr().out)


@pytest.mark.parametrize("name", RUNS)
def test_the_pages_say_the_same_marks(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([str(run(tmp_path, name)), "--format", "html"]) == 0
    page = capsys.readouterr().out
    assert "1 x NVIDIA H200" in page
    assert ("OVERSUBSCRIBED" in page) is (name == "h200-two-ranks-one-gpu")
    assert ("OOM" in page) is (name == "h200-oom")


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


def test_telemetry_is_plausible(tmp_path: Path) -> None:
    use = rows(tmp_path, "h200-default")[1].device_use
    assert use is not None and use.sm_clock_mhz == 1980 and use.energy_is_integral is False
    assert use.power_w == pytest.approx(584, abs=1) and use.utilisation_percent == 100
    assert use.samples_per_j == pytest.approx(4554 / 584, rel=0.02)


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


def test_a_traced_step_of_a_gpu_falls_into_these_parts(tmp_path: Path) -> None:
    traced = rows(tmp_path, "h200-default")[1].traced
    assert traced is not None and traced.gpu is not None
    gpu = traced.gpu
    split = (gpu.compute_s, gpu.slowed_s, gpu.other_s, gpu.idle_s, gpu.host_s)
    assert [round(1e3 * part, 2) for part in split if part is not None] == [53.33, 0.19, 0.45, 1.88, 1.23]
