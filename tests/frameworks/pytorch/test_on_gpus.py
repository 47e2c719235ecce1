"""Whole sweeps of PyTorch on stand-ins of GPUs (support/fake_cuda.py): which devices each rank touches."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from scaling.records import store
from scaling.records.events import Finished
from scaling.records.run import PointRecord
from tests.support import fake_cuda, native_feeds, nvml_library
from tests.support.fake_cuda import Touch

BRIEF = "--precision fp32 --rounds 1 --windows 3 --window-s 0.02 --warm-up-s 0.1 --soak-s 0 --no-page --view plain"
NCCL = "--model digits-cnn --batch-size 8 --strategy torch:nccl"
WITHIN_S = 500
pytestmark = pytest.mark.timeout(600)


class Sweep(NamedTuple):
    """What rank 0 printed, what was measured, and which devices were touched."""

    said: str
    records: tuple[PointRecord, ...]
    touches: set[Touch]

    def of(self, strategy: str, kind: str) -> list[PointRecord]:
        return [one for one in self.records if (one.point.strategy, one.point.kind) == (strategy, kind)]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvml_library.build(tmp_path_factory.mktemp("nvml"))


def sweep(library: Path, folder: Path, ranks: int, flags: str, **settings: Any) -> Sweep:
    """Start ranks by hand on a host of eight GPUs, and wait for their end. All points are measured, and no thread
    of any worker touches another device than its rank's."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{free.getsockname()[1]}"
    launchers = ("OMPI_", "PMI", "SLURM_", "SCALING_")
    environ = {key: value for key, value in os.environ.items() if not key.startswith(launchers)}
    environ |= nvml_library.environ(library, "h100")
    environ |= fake_cuda.environ(folder / "cuda", devices=8, **settings)
    environ |= {"SCALING_SECRET": "bd2f4c1e8a7046d9b35e", "SCALING_PAGE": "0"}
    with ExitStack() as stack:
        processes = []
        for rank in range(ranks):
            said = stack.enter_context((folder / f"{rank}.txt").open("w"))
            place = ("--rank", str(rank), "--ranks", str(ranks), "--coordinator", where)
            process = subprocess.Popen(
                [sys.executable, "-m", "scaling.run", *place, *flags.split(), *BRIEF.split()],
                cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
            )  # fmt: skip
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
        for process in processes:
            process.wait(WITHIN_S)
    (run,) = (folder / "results").iterdir()
    found = Sweep((folder / "0.txt").read_text(), store.load(run)[1], fake_cuda.touched(folder / "cuda"))
    assert {type(one.outcome) for one in found.records} == {Finished}, found.said
    assert {touch for touch in found.touches if touch.device != touch.own} == set(), "another rank's device"
    assert {touch.own for touch in found.touches} == set(range(ranks)), found.said
    return found


def test_two_ranks_by_nccl_and_by_servers_with_all_their_controls(library: Path, tmp_path: Path) -> None:
    """A thread of CUDA begins on GPU 0, and leaving a stream sets that again: a context there, in every rank."""
    two = sweep(library, tmp_path, 2, f"{NCCL},torch:ps-sync --kinds exchange,comm,together --world-sizes 2")
    kinds = {(one.point.strategy, one.point.kind) for one in two.records}
    assert {("torch:nccl", "exchange"), ("torch:nccl", "comm"), ("torch:ps-sync", "exchange")} <= kinds
    (exchange,) = two.of("torch:nccl", "exchange")
    assert all(rank.beside for rank in exchange.ranks)
    threads = {touch.device for touch in two.touches if touch.thread.startswith("ThreadPoolExecutor")}
    assert threads == {0, 1}


def test_a_feed_alone_pins_memory_for_its_own_device(library: Path, tmp_path: Path) -> None:
    native_feeds.write(tmp_path / "pictures", "folders")
    data = f"--data folders --data-dir {tmp_path / 'pictures'} --feed native --model cifar10-cnn --batch-size 4"
    found = sweep(library, tmp_path, 2, f"--strategy torch:nccl --kinds exchange,feed {data} --world-sizes 2")
    assert {touch.device for touch in found.touches if touch.what == "pinned"} == {0, 1}


@pytest.mark.matrix
def test_eight_ranks_keep_to_eight_devices(library: Path, tmp_path: Path) -> None:
    sweep(library, tmp_path, 8, f"{NCCL} --kinds exchange --world-sizes 8")


@pytest.mark.matrix
def test_points_run_one_after_another_on_gpus_that_take_one_process(library: Path, tmp_path: Path) -> None:
    flags = f"{NCCL} --world-sizes 1,2 --kinds exchange,comm,together"
    found = sweep(library, tmp_path, 2, flags, exclusive=True)
    assert "(Exclusive_Process): points are measured one after another" in found.said
    assert {one.epoch for one in found.records} == {None}


@pytest.mark.matrix
@pytest.mark.parametrize(("gib", "together"), [(1, [1, 1]), (2, [2])])
def test_as_many_points_live_together_as_the_memory_of_the_gpus_holds(
    library: Path, tmp_path: Path, gib: int, together: list[int]
) -> None:
    """A worker's context has 500 MiB. One point starts, and is read once it has computed; then more do."""
    flags = f"{NCCL} --world-sizes 1,2 --kinds exchange --interleave"
    found = sweep(library, tmp_path, 2, flags, bytes=gib << 30, start_s=0.2)
    assert "memory ran out" not in found.said
    assert sorted(Counter(one.epoch for one in found.records).values()) == together, found.said
