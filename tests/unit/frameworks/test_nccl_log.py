"""What is read out of NCCL's log: real lines (nccl_logs/ says whose), and lines as its source prints them."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaling.frameworks import nccl_log
from scaling.records.network import NcclChoice

LOGS = Path(__file__).parent / "nccl_logs"


def told(name: str) -> NcclChoice:
    found = nccl_log.parse((LOGS / f"{name}.log").read_text().splitlines())
    assert found is not None
    return found


def parsed(*lines: str) -> NcclChoice:
    found = nccl_log.parse([f"node1:77:77 [0] NCCL INFO {line}" for line in lines])
    assert found is not None
    return found


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
    assert told(name) == expected


def test_every_log_says_whose_it_is() -> None:
    readme = (LOGS / "README.md").read_text()
    assert [path.name for path in LOGS.glob("*.log") if path.name not in readme] == []


def test_cards_are_those_that_connections_take() -> None:
    listed = "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [2]mlx5_2:1/IB [RO]; OOB ib0:10.0.0.1<0>"
    sends = "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/1/GDRDMA"
    assert parsed(listed, "Using network IB").cards == ("mlx5_0", "mlx5_1", "mlx5_2")
    assert parsed(listed, "Using network IB", sends).cards == ("mlx5_1",)


def test_a_card_made_of_two_has_both_names() -> None:
    """net_ib.cc since 2.24: ports that are merged follow the single ones."""
    found = parsed(
        "NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>",
        "NET/IB : Made virtual device [2] name=mlx5_0+mlx5_1 speed=400000 ndevs=2",
        "Using network IB",
        "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/2/GDRDMA",
    )
    assert found.cards == ("mlx5_0+mlx5_1",)


@pytest.mark.parametrize("way", ["/GDRDMA", "/GDRDMA(PCI)", "(3)/GDRDMA", "(3)/GDRDMA/Shared"])
def test_all_ways_of_gpu_direct_count(way: str) -> None:
    """net.cc: in parentheses the rank that sends for it (PXN), or through PCI where the card is C2C's."""
    found = parsed(f"Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/1{way}")
    assert (found.transports, found.gpu_direct) == ({"NET/IB": 1}, 1)


def test_one_that_goes_through_the_host_does_not() -> None:
    assert parsed("Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/1/Shared").gpu_direct == 0


def test_plugins_have_names_with_blanks() -> None:
    found = parsed(
        "NET/OFI Selected provider is efa, fabric is efa (found 4 nics)",
        "Using network AWS Libfabric",
        "Channel 00/0 : 1[0] -> 0[0] [receive] via NET/AWS Libfabric/0/GDRDMA",
    )
    assert (found.network, found.provider, found.transports, found.gpu_direct) == (
        "AWS Libfabric", "efa", {"NET/AWS Libfabric": 1}, 1,
    )  # fmt: skip


def test_the_first_warnings_are_kept() -> None:
    text = "NET/IB : Got completion from peer 10.0.0.2<55921> with status=12 opcode=1 len=0 vendor err 129 (Send)"
    found = nccl_log.parse([f"node1:77:99 [0] net_ib.cc:2121 NCCL WARN {text}"] * 5)
    assert found is not None and found.warnings == (text,)


def test_lines_of_others_tell_nothing() -> None:
    assert nccl_log.parse(["[rank0]: Traceback", "via SHM/direct", ""]) is None


def test_an_algorithm_of_a_newer_release_keeps_its_number() -> None:
    assert parsed("4096 Bytes -> Algo 9 proto 2 time 1.0").algorithms == {"9 simple": 4096}


# ---------------------------------------------------------------- the file


def test_the_file_is_that_of_the_process(tmp_path: Path) -> None:
    given = f"{tmp_path}/100%% a.log.nccl.%p"
    for pid, network in ((7, "IB"), (8, "Socket")):
        (tmp_path / f"100% a.log.nccl.{pid}").write_text(f"n:1:1 [0] NCCL INFO Using network {network}\n")
    assert nccl_log.read(given, 8) == NcclChoice(network="Socket")


@pytest.mark.parametrize("given", ["", "/nowhere/a.nccl.%p"])
def test_without_a_file_nothing_is_known(given: str) -> None:
    assert nccl_log.read(given, 7) is None


def test_what_a_long_run_has_written_is_cut_off(tmp_path: Path) -> None:
    log = tmp_path / "a.nccl.7"
    line = "node1:77:77 [0] NCCL INFO AllReduce: 1000 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..1}\n"
    log.write_text(line * (2 * nccl_log.MOST_BYTES // len(line)))
    found = nccl_log.read(f"{tmp_path}/a.nccl.%p", 7)
    assert found is not None
    assert found.algorithms["ring simple"] == 1000 * (nccl_log.MOST_BYTES // len(line))
    assert log.stat().st_size == nccl_log.MOST_BYTES
