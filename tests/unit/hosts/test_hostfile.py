"""The files in hostfiles/, and hostfiles as ./launch/mpirun reads them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from launch._call import EITHER, HYDRA, OPEN_MPI, Host, read
from scaling.hosts import networks

FOLDER = Path(__file__).resolve().parents[3] / "hostfiles"
NODES = [(f"node{number}", 4) for number in (1, 2, 3, 4)]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("hosts")


@pytest.mark.parametrize(
    ("name", "hosts", "readers"),
    [
        ("local", [("localhost", None)], {OPEN_MPI, HYDRA}),
        ("4x4", NODES, {OPEN_MPI}),
        ("4x4.mpich", NODES, {HYDRA}),
        ("lab", NODES, {OPEN_MPI}),
    ],
)
def test_each_file_is_in_the_format_of_the_mpi_it_is_for(
    name: str, hosts: list[tuple[str, int | None]], readers: set[str]
) -> None:
    for reader in (OPEN_MPI, HYDRA):
        if reader in readers:
            assert [(host.name, host.slots) for host in read(str(FOLDER / name), reader)] == hosts
        else:
            with pytest.raises(SystemExit):
                read(str(FOLDER / name), reader)


def test_fabric_names_two_networks() -> None:
    found = networks.read_fabric(str(FOLDER / "fabric.toml"))
    shown = {name: (entry.interface, entry.hca, entry.rate_gbit) for name, entry in found.items()}
    assert shown == {"ib": ("ib0", "mlx5_0", 100), "ethernet": ("eth0", "", 10)}


def test_every_file_is_in_the_readme_and_no_other() -> None:
    rows = [line for line in (FOLDER / "README.md").read_text().splitlines() if line.startswith("| `")]
    told = {row.split("`")[1] for row in rows}
    assert told == {path.name for path in FOLDER.iterdir()} - {"README.md"}


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a slots=2\nb slots=3\n", [Host("a", 2, OPEN_MPI), Host("b", 3, OPEN_MPI)]),
        ("a:2\nb:3\n", [Host("a", 2, HYDRA), Host("b", 3, HYDRA)]),
        ("# us\n\n  a slots = 2  # one\n\tb\tmax_slots=9", [Host("a", 2, OPEN_MPI), Host("b", None, OPEN_MPI)]),
        ("root@a slots=2\nb user-name=me slots=3", [Host("root@a", 2, OPEN_MPI), Host("b", 3, OPEN_MPI)]),
        ("a:2 user=me\nb:3 binding=none\n", [Host("a", 2, HYDRA), Host("b", 3, HYDRA)]),
        ("a cpu=2 port=2222\nb count=3 slots-max=4\n", [Host("a", 2, OPEN_MPI), Host("b", 3, OPEN_MPI)]),
        ("a cpu=3 count_max=3\n", [Host("a", 3, OPEN_MPI)]),
        ("node-1.cluster", [Host("node-1.cluster", None, "")]),
        ("10.0.0.7:4", [Host("10.0.0.7", 4, HYDRA)]),
        ("fe80::12", [Host("fe80::12", None, "")]),
        ("fe80::12 slots=4", [Host("fe80::12", 4, OPEN_MPI)]),
        ("[fe80::12]:4", [Host("[fe80::12]", 4, HYDRA)]),
        ("[fe80::12]", [Host("[fe80::12]", None, "")]),
        ("unused slots=0", [Host("unused", 0, OPEN_MPI)]),
        ("a\nb\na\n", [Host("a", None, ""), Host("b", None, ""), Host("a", None, "")]),
    ],
)  # fmt: skip
def test_names_and_counts_in_all_their_spellings(written: Path, text: str, hosts: list[Host]) -> None:
    written.write_text(text)
    assert read("hosts", "") == hosts


@pytest.mark.parametrize(
    ("text", "reader", "said"),
    [
        ("b slots=four", "", f"hosts:2: 'b slots=four': slots=four is not a number of ranks; {EITHER}"),
        ("b cpu=-1", "", f"hosts:2: 'b cpu=-1': cpu=-1 is not a number of ranks; {EITHER}"),
        ("b slots=", "", f"hosts:2: 'b slots=': slots= is not a number of ranks; {EITHER}"),
        ("b slots=\uff14", "", f"hosts:2: 'b slots=\uff14': slots=\uff14 is not a number of ranks; {EITHER}"),
        ("b:", "", f"hosts:2: 'b:': '' is not a number of ranks; {EITHER}"),
        ("b:four", "", f"hosts:2: 'b:four': 'four' is not a number of ranks; {EITHER}"),
        ("", "", f"hosts: names no host; {EITHER}"),
        ("b:4", OPEN_MPI,
         "hosts:2: 'b:4' is for MPICH and Intel MPI, but mpirun here is of Open MPI: write 'b slots=4'"),
        ("b slots=4", HYDRA,
         "hosts:2: 'b slots=4' is for Open MPI, but mpirun here is of MPICH and Intel MPI: write 'b:4'"),
        ("b binding=none", OPEN_MPI,
         "hosts:2: 'b' is for MPICH and Intel MPI, but mpirun here is of Open MPI: write 'b'"),
        ("b max_slots=9", HYDRA,
         "hosts:2: 'b' is for Open MPI, but mpirun here is of MPICH and Intel MPI: write 'b'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_by_file_and_line(
    written: Path, text: str, reader: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    written.write_text(f"{'a' if text else '# nobody'}\n{text}\n")
    with pytest.raises(SystemExit, match="2"):
        read("hosts", reader)
    assert capsys.readouterr().err == f"launch: {said}\n"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "cannot read this hostfile: No such file or directory"),
        (Path.mkdir, "cannot read this hostfile: Is a directory"),
        (os.mkfifo, "cannot read this hostfile: is a pipe, name a file"),
        (
            lambda path: path.write_bytes(b"\x7fELF\xff"),
            "no hostfile but binary; write for example 'node1 slots=4'",
        ),
    ],
)
def test_files_that_cannot_be_read(
    written: Path, make: Callable[[Path], object], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make(written)
    with pytest.raises(SystemExit):
        read("hosts", "")
    assert capsys.readouterr().err == f"launch: hosts: {said}\n"
