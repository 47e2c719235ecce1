"""Bytes that a strategy sends in a step, and what NCCL wrote of its choices."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from scaling import frameworks
from scaling.frameworks import network_env
from scaling.records.crossing import Bounds, bytes_per_step, nccl_bounds
from scaling.records.network import ALONE, NcclChoice
from scaling.records.point import Device
from scaling.records.task import Server, Task
from tests.support.points import make_point

# What strategies say of the bytes that a step sends between nodes; of all strategies: tests/golden/strategies.txt.

S = 1000
HOSTS = ("a", "a", "b", "b")
# By an option that makes gradients smaller on their way: what it is set to, and the parts that go out and come
# back.
SMALLER: dict[str, tuple[str, float, float]] = {
    "torch:horovod": ("fp16", 1 / 2, 1 / 2), "tensorflow:horovod": ("fp16", 1 / 2, 1 / 2),
    "mxnet:horovod": ("fp16", 1 / 2, 1 / 2), "torch:ps-sync": ("fp16", 1 / 2, 1), "torch:ps-async": ("fp16", 1 / 2,
    1), "mxnet:dist_sync": ("2bit", 1 / 16, 1), "mxnet:dist_device_sync": ("2bit", 1 / 16, 1), "mxnet:dist_async":
    ("2bit", 1 / 16, 1),
}  # fmt: skip


def task(strategy: str, device: Device = "cpu", **options: str) -> Task:
    """Rank 0's of four ranks on two hosts; a server on each where the strategy has some."""
    point = make_point(
        strategy=strategy, kind="exchange", world_size=4, round=0, model="digits-cnn", data="digits",
        device=device, batch_rule="weak", batch_size=32, options=options,
    )  # fmt: skip
    has_servers = frameworks.load(strategy).traits(strategy).servers
    servers = tuple(Server(launch_rank=at, host=HOSTS[at], place=ALONE) for at in (0, 2)) if has_servers else ()
    return Task(
        point=replace(point, servers=len(servers)), attempt=1, rank=0, launch_rank=0, local_rank=0,
        local_world_size=2, hosts=HOSTS, device_index=0, cpus=(), threads=1, seed=1, log="", servers=servers,
    )  # fmt: skip


def said(strategy: str, **options: str) -> Bounds | None:
    return frameworks.load(strategy).bytes_per_step(task(strategy, "cpu", **options), S)


@pytest.mark.parametrize("name", SMALLER)
def test_a_part_where_gradients_are_made_smaller(name: str) -> None:
    way, out, back = SMALLER[name]
    whole = said(name, compression="none")
    assert whole is not None
    assert said(name, compression=way) == pytest.approx([bound * (out + back) / 2 for bound in whole])


def test_what_is_half_precision_already_is_not_made_smaller() -> None:
    """MXNet's gradients are then float16, which gradient_bytes counts as such; other frameworks' stay float32."""
    for name, smaller in (("mxnet:horovod", 1.0), ("torch:horovod", 0.5), ("tensorflow:horovod", 0.5)):
        compressed = task(name, "cuda", compression="fp16").point
        half = replace(compressed, workload=replace(compressed.workload, precision="fp16"))
        assert frameworks.load(name).wire_parts(compressed) == (0.5, 0.5)
        assert frameworks.load(name).wire_parts(half) == (smaller, smaller)


def test_every_option_for_smaller_gradients_is_in_this_test() -> None:
    assert {name for name in frameworks.NAMES if "compression" in frameworks.load(name).options} == set(SMALLER)


@pytest.mark.parametrize(
    ("nodes", "local", "expected"),
    [(1, 8, (0, 0)), (2, 8, (2, 3.75)), (4, 4, (4, 7.5)), (4, 1, (4, 6)), (16, 8, (16, 31.75))],
)
def test_nccl_by_nodes(nodes: int, local: int, expected: tuple[float, float]) -> None:
    """Ratios that were seen as 0.53 of a ring's on 2 x 8, and the like, lie inside."""
    spread = [str(node) for _ in range(local) for node in range(nodes)]
    assert nccl_bounds(1, spread) == nccl_bounds(1, sorted(spread)) == pytest.approx(expected)


def test_tensorflows_ring_goes_by_the_numbers_of_its_tasks_as_text() -> None:
    """Sixteen ranks on four nodes: six edges cross, as the counters of a lab of four nodes saw, and not four."""
    hosts = tuple(node for node in "abcd" for _ in range(4))
    asked = replace(task("tensorflow:ring"), hosts=hosts)
    assert frameworks.load("tensorflow:ring").bytes_per_step(asked, S) == pytest.approx((6 * 2 * 15 / 16 * S,) * 2)
    assert frameworks.load("torch:gloo").bytes_per_step(asked, S) == pytest.approx((4 * 2 * 15 / 16 * S,) * 2)


@pytest.mark.parametrize(
    ("name", "hosts", "least", "most"),
    [
        ("jax:psum", ("a", "b"), 2, 2),
        ("jax:psum", ("a", "b", "c", "d"), 6, 6),
        ("jax:fsdp", ("a", "a"), 0, 0),
        # An all-gather by a ring, and a reduce-scatter by halves.
        ("jax:fsdp", ("a", "b"), 1 + 1, 1 + 2),
        ("jax:fsdp", ("a", "b", "c", "d"), 3 + 3, 3 + 4),
        ("jax:fsdp", ("a", "a", "b", "b"), 1.5 + 1, 1.5 + 4),
    ],
)
def test_jaxs_shards_are_gathered_in_a_ring(name: str, hosts: tuple[str, ...], least: float, most: float) -> None:
    asked = replace(task(name), hosts=hosts, point=replace(task(name).point, world_size=len(hosts)))
    assert frameworks.load(name).bytes_per_step(asked, S) == (least * S, most * S)


def test_without_ranks_servers_or_a_pattern_nothing_is_known() -> None:
    assert bytes_per_step("ring", S, (), ()) is None
    assert bytes_per_step("servers", S, HOSTS, ()) is None
    assert bytes_per_step("", S, HOSTS, ("a",)) is None


# What is read out of NCCL's log: real lines (nccl_logs/ says whose), and lines as its source prints them.

LOGS = Path(__file__).parent / "nccl_logs"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "infiniband-gdrdma-2.25",
            NcclChoice(version="2.25.1", transports={"P2P/CUMEM": 2, "NET/IB": 2}, gpu_direct=2),
        ),
        ("infiniband-through-the-host", NcclChoice(transports={"NET/IB": 2, "P2P/CUMEM": 1})),
        ("roce-2.22", NcclChoice(version="2.22.3", network="IB", cards=("mlx5_0", "mlx5_1"))),
        ("sharp-plugin", NcclChoice(network="IBext_v8", cards=("mlx5_2",))),
        ("sockets", NcclChoice(transports={"NET/Socket": 4})),
        ("one-rank-2.28", NcclChoice(version="2.28.9", network="Socket", cards=("lo",))),
        (
            "sockets-2.28",
            NcclChoice(version="2.28.9", network="Socket", cards=("eth0",), transports={"NET/Socket": 4}),
        ),
        (
            "shared-memory-2.20",
            NcclChoice(version="2.20.5", network="Socket", cards=("eth0",), transports={"SHM/direct": 2}),
        ),
        ("efa", NcclChoice(network="Libfabric", provider="efa")),
        ("efa-connections", NcclChoice(transports={"NET/AWS Libfabric": 1, "P2P/IPC": 1})),
        ("nvls-and-tuning", NcclChoice(nvls=True, algorithms={"ring simple": 8589934592})),
        ("no-nvls", NcclChoice()),
        ("tuning-by-name", NcclChoice(algorithms={"tree simple": 1024, "tree LL": 32768})),
        ("tuning-collective-named-by-number", NcclChoice()),
        ("virtual-device-2.27", NcclChoice(cards=("mlx5_0", "mlx5_2"))),
    ],
)
def test_what_real_logs_tell(name: str, expected: NcclChoice) -> None:
    assert network_env.parse_nccl_log((LOGS / f"{name}.log").read_text().splitlines()) == expected


def test_every_log_says_whose_it_is() -> None:
    readme = (LOGS / "README.md").read_text()
    assert [path.name for path in LOGS.glob("*.log") if path.name not in readme] == []


IB, SENDS = "NET/IB : Using {}", "Channel 00/0 : 0[0] -> 8[0] [send] via NET/"
THREE = IB.format("[0]mlx5_0:1/IB [1]mlx5_1:1/IB [2]mlx5_2:1/IB [RO]; OOB ib0:10.0.0.1<0>")
EFA = "AWS Libfabric"
LINES: list[tuple[tuple[str, ...], NcclChoice]] = [
    # Cards are those that connections take.
    ((THREE, "Using network IB"), NcclChoice(network="IB", cards=("mlx5_0", "mlx5_1", "mlx5_2"))),
    ((THREE, "Using network IB", f"{SENDS}IB/1/GDRDMA"),
     NcclChoice(network="IB", cards=("mlx5_1",), transports={"NET/IB": 1}, gpu_direct=1)),
    # A card made of two has both names (net_ib.cc since 2.24): ports that are merged follow the single ones.
    ((IB.format("[0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>"),
      "NET/IB : Made virtual device [2] name=mlx5_0+mlx5_1 speed=400000 ndevs=2", "Using network IB",
      f"{SENDS}IB/2/GDRDMA"),
     NcclChoice(network="IB", cards=("mlx5_0+mlx5_1",), transports={"NET/IB": 1}, gpu_direct=1)),
    # All ways of GPUDirect (net.cc): in parentheses the rank that sends for it (PXN), or through PCI where the
    # card is C2C's. One that goes through the host does not count.
    *(((f"{SENDS}IB/1{way}",), NcclChoice(transports={"NET/IB": 1}, gpu_direct=way != "/Shared"))
      for way in ("/GDRDMA", "/GDRDMA(PCI)", "(3)/GDRDMA", "(3)/GDRDMA/Shared", "/Shared")),
    # Plugins have names with blanks.
    (("NET/OFI Selected provider is efa, fabric is efa (found 4 nics)", f"Using network {EFA}",
      f"{SENDS}{EFA}/0/GDRDMA"),
     NcclChoice(network=EFA, provider="efa", transports={f"NET/{EFA}": 1}, gpu_direct=1)),
    # An algorithm of a newer release keeps its number.
    (("4096 Bytes -> Algo 9 proto 2 time 1.0",), NcclChoice(algorithms={"9 simple": 4096})),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "expected"), LINES)
def test_what_lines_tell(lines: tuple[str, ...], expected: NcclChoice) -> None:
    found = network_env.parse_nccl_log([f"node1:77:77 [0] NCCL INFO {line}" for line in lines])
    assert found == expected


def test_the_first_warnings_are_kept_and_lines_of_others_tell_nothing() -> None:
    text = "NET/IB : Got completion from peer 10.0.0.2<55921> with status=12 opcode=1 len=0 vendor err 129 (Send)"
    found = network_env.parse_nccl_log([f"node1:77:99 [0] net_ib.cc:2121 NCCL WARN {text}"] * 5)
    assert found is not None and found.warnings == (text,)
    assert network_env.parse_nccl_log(["[rank0]: Traceback", "via SHM/direct", ""]) is None


# ---------------------------------------------------------------- the file


def test_the_file_is_that_of_the_process(tmp_path: Path) -> None:
    given = f"{tmp_path}/100%% a.log.nccl.%p"
    for pid, network in ((7, "IB"), (8, "Socket")):
        (tmp_path / f"100% a.log.nccl.{pid}").write_text(f"n:1:1 [0] NCCL INFO Using network {network}\n")
    assert network_env.read_nccl_log(given, 8) == NcclChoice(network="Socket")


@pytest.mark.parametrize("given", ["", "/nowhere/a.nccl.%p"])
def test_without_a_file_nothing_is_known(given: str) -> None:
    assert network_env.read_nccl_log(given, 7) is None


def test_what_a_long_run_has_written_is_cut_off(tmp_path: Path) -> None:
    log = tmp_path / "a.nccl.7"
    line = "node1:77:77 [0] NCCL INFO AllReduce: 1000 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..1}\n"
    log.write_text(line * (2 * network_env.MOST_BYTES // len(line)))
    found = network_env.read_nccl_log(f"{tmp_path}/a.nccl.%p", 7)
    assert found is not None
    assert found.algorithms["ring simple"] == 1000 * (network_env.MOST_BYTES // len(line))
    assert log.stat().st_size == network_env.MOST_BYTES
