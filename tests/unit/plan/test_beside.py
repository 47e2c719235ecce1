"""The CPU beside GPUs: all cores of the first host, in fp32, apart from all else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.agent import forks
from scaling.errors import UsageError
from scaling.plan import plan
from scaling.plan.config import SweepConfig
from scaling.plan.placement import slots_of
from scaling.plan.plan import Plan
from scaling.plan.tasks import rank_tasks
from scaling.records.events import Finished
from scaling.records.host import Gpu, HostInfo, Nic
from scaling.records.network import ALONE
from scaling.records.point import Hardware, Point
from scaling.report.formats import terminal
from tests.support.inline import Launch, enrol, host
from tests.support.points import TASK, changed


def node(name: str, count: int = 2, cores: int = 8) -> HostInfo:
    found = tuple(
        Gpu(index=n, name="NVIDIA H100", uuid=f"GPU-{name}-{n}", memory_bytes=80 << 30, compute_capability=(9, 0))
        for n in range(count)
    )
    nic = Nic(name="eth0", address=f"10.0.0.{name[1:]}", netmask="255.255.255.0", up=True, mtu=1500)
    return host(
        name, cores=cores, gpus=found, boot_id=name, nics=(nic,), gpu_driver="580.95.05", memory_bytes=1 << 40
    )


TWO_NODES = [node("n1")] * 2 + [node("n2")] * 2


def made(strategy: str = "torch:gloo", **fields: Any) -> Plan:
    asked = SweepConfig(strategy=(strategy,), baseline_device="cpu", **fields)
    return plan.make(asked, [enrol(one) for one in TWO_NODES])


def on_cpu(found: Plan) -> list[Point]:
    return [point for point in found.cells if point.hardware.device == "cpu"]


def test_it_is_the_plain_loop_on_all_cores_of_one_host_in_fp32() -> None:
    found = made(batch_size=64)
    (point,) = on_cpu(found)
    assert (point.strategy, point.kind, point.world_size) == ("torch:plain", "solo", 1)
    assert point.hardware == Hardware(device="cpu", cores=8)
    assert point.hardware.label == "cpu (8 cores)"
    assert (point.workload.batch_size, point.workload.precision) == (64, "fp32")
    assert found.config.precision == "bf16"
    (task,) = rank_tasks(point, slots_of(point, found.slots), (), {"n1": ALONE}, attempt=1, logs="",
                         seed=1)  # fmt: skip
    assert (task.cpus, task.threads, task.hosts) == (tuple(range(8)), 8, ("n1",))
    assert found.hardware.device == "cuda"


def test_ranks_on_gpus_keep_their_share_of_the_cores() -> None:
    found = made()
    (gpu, *_) = (point for point in found.cells if point.hardware.device == "cuda")
    assert all(slot.threads == 4 for slot in slots_of(gpu, found.slots))


def test_there_is_one_for_each_framework_batch_and_pass() -> None:
    found = made(batch_sizes=(16, 32), world_sizes=(1, 2))
    assert [point.workload.batch_size for point in on_cpu(found)] == [16, 32]
    passes = made("torch:plain", pass_=("forward", "backward"))
    assert [point.workload.pass_ for point in on_cpu(passes)] == ["forward", "backward"]
    strong = made(global_batch_size=64)
    assert [point.workload.batch_size for point in on_cpu(strong)] == [64]


def test_it_is_measured_by_itself_also_where_others_take_turns() -> None:
    found = made(interleave=True, strategy="fake:a")
    (group,) = (group for group in found.groups if group.points[0].hardware.cores)
    assert len(group.points) == 1
    assert not group.side_by_side
    assert found.side_by_side


def test_beside_a_cpu_it_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--baseline-device cpu: .* measures on cpu; leave it out"):
        made("fake:a", device="cpu")


def test_workers_on_gpus_are_never_forks_of_a_server_for_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    class Server:
        ready = True

        def fork(self, *_: object) -> str:
            return "forked"

    monkeypatch.setattr(forks, "fresh", lambda *_: "fresh")
    starter, point = forks.Starter({}), changed(TASK.point, strategy="torch:plain")
    both = [replace(TASK, point=changed(point, device=device)) for device in ("cpu", "cuda")]
    starter._servers[starter._key(both[0])] = Server()  # type: ignore[assignment]
    assert [str(starter.start(task, {}, forks.Fds(0, 0, 0))) for task in both] == ["forked", "fresh"]


def test_the_table_says_how_many_times_as_fast_gpus_are(tmp_path: Path) -> None:
    """By the script: 20 ms a step, ten times that on the CPU, half as much again of exchange."""
    launch = Launch(2, [node("n1")] * 2)
    option = ["step_s=0.02", "cpu_times=10", "fake:a.exchange_s=0.01"]
    found = launch.sweep(tmp_path, device="cuda", baseline_device="cpu", option=option, batch_size=32)
    assert all(isinstance(record.outcome, Finished) for record in found.records)
    text = terminal.render(found.header, found.records, color=False)
    assert "devices   cuda: 2 x NVIDIA H100; beside them Test CPU, all 8 cores" in text
    table = text.partition("GPUs over the CPU: fake")[2].partition("\n\n")[0]
    rows = [" ".join(line.split()) for line in table.splitlines() if line.strip()][2:]
    assert rows == [
        "cpu (8 cores) - fp32 160.0 ± 0.0 1.00",
        "fake:plain, alone 1 bf16 1600 ± 0 10.00 ± 0.00",
        "fake:a 1 bf16 1600 ± 0 10.00 ± 0.00",
        "fake:a 2 bf16 2133 ± 0 13.33 ± 0.00",
    ], text


def test_a_cpu_that_runs_out_of_memory_is_no_number_but_oom(tmp_path: Path) -> None:
    launch = Launch(1, [node("n1")])
    option = ["fail=oom", "fail_kind=solo", "fail_cores=8"]
    found = launch.sweep(tmp_path, device="cuda", baseline_device="cpu", option=option, batch_size=32, rounds=1)
    text = terminal.render(found.header, found.records, color=False)
    table = text.partition("GPUs over the CPU: fake")[2].partition("\n\n")[0]
    cpu, *others = (" ".join(line.split()) for line in table.splitlines() if "fp32" in line or "bf16" in line)
    assert cpu.startswith("cpu (8 cores) - fp32 OOM [")
    assert all(line.endswith(" -") for line in others)
    (baseline,) = (line for line in text.splitlines() if "fake:plain, cpu (8 cores)" in line)
    assert "OOM" in baseline
