"""scaling/hostfile.py, which reads both formats, and the files in hostfiles/."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaling.errors import UsageError
from scaling.hosts import hostfile, networks
from scaling.hosts.hostfile import Format, Host

FOLDER = Path(__file__).resolve().parents[3] / "hostfiles"
FORMATS: tuple[Format, ...] = ("openmpi", "hydra")
NODES = [(f"node{number}", 4) for number in (1, 2, 3, 4)]


def read(text: str) -> list[tuple[str, int | None]]:
    return [(host.name, host.slots) for host in hostfile.parse(text, "hosts")]


def refused(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        hostfile.parse(text, "my/hosts")
    assert "\n" not in str(caught.value)
    assert said in str(caught.value)


# ---------------------------------------------------------------- the files


@pytest.mark.parametrize(
    ("name", "hosts", "wanted"),
    [
        ("local", [("localhost", None)], {"openmpi", "hydra"}),
        ("4x4", NODES, {"openmpi"}),
        ("4x4.mpich", NODES, {"hydra"}),
        ("lab", NODES, {"openmpi"}),
    ],
)
def test_each_file_is_in_the_format_of_the_mpi_it_is_for(
    name: str, hosts: list[tuple[str, int | None]], wanted: set[Format]
) -> None:
    found = hostfile.read(FOLDER / name)
    assert [(host.name, host.slots) for host in found] == hosts
    for form in wanted:
        hostfile.check(found, form, name)
    for form in set(FORMATS) - wanted:
        with pytest.raises(UsageError):
            hostfile.check(found, form, name)


def test_fabric_names_two_networks() -> None:
    found = networks.read_fabric(str(FOLDER / "fabric.toml"))
    shown = {name: (entry.interface, entry.hca, entry.rate_gbit) for name, entry in found.items()}
    assert shown == {"ib": ("ib0", "mlx5_0", 100), "ethernet": ("eth0", "", 10)}


def test_every_file_is_in_the_readme_and_no_other() -> None:
    rows = [line for line in (FOLDER / "README.md").read_text().splitlines() if line.startswith("| `")]
    told = {row.split("`")[1] for row in rows}
    assert told == {path.name for path in FOLDER.iterdir()} - {"README.md"}


# ---------------------------------------------------------------- what is read


@pytest.mark.parametrize(
    "text",
    [
        "a slots=2\nb slots=3\n",
        "a:2\nb:3\n",
        "# of us\n\n  a slots = 2   # the first\n\tb\tslots=3 max_slots=9",
        "root@a slots=2\nb user-name=me slots=3",
        "a:2 user=me\nb:3 binding=none\n",
        "a cpu=2 port=2222\nb count=3 slots-max=4\n",
        "a slots=2 max-cpu=4\nb cpu=3 count_max=3\n",
    ],
)
def test_counts_in_all_their_spellings(text: str) -> None:
    assert [(name.partition("@")[2] or name, slots) for name, slots in read(text)] == [("a", 2), ("b", 3)]


@pytest.mark.parametrize(
    ("line", "name", "slots"),
    [
        ("node-1.cluster", "node-1.cluster", None),
        ("10.0.0.7:4", "10.0.0.7", 4),
        ("fe80::12", "fe80::12", None),
        ("fe80::12 slots=4", "fe80::12", 4),
        ("[fe80::12]:4", "[fe80::12]", 4),
        ("[fe80::12]", "[fe80::12]", None),
        ("unused slots=0", "unused", 0),
    ],
)
def test_names_and_addresses(line: str, name: str, slots: int | None) -> None:
    assert read(line) == [(name, slots)]


def test_a_host_without_a_count_may_stand_there_again() -> None:
    assert read("a\nb\na\n") == [("a", None), ("b", None), ("a", None)]
    assert read("a:2\na:2\n") == [("a", 2), ("a", 2)]


def test_a_host_knows_its_line_and_both_its_spellings() -> None:
    (host,) = hostfile.parse("\n# of us\nnode1:4\n", "hosts")
    assert host == Host(name="node1", slots=4, format="hydra", line=3)
    assert [host.written("openmpi"), host.written("hydra")] == ["node1 slots=4", "node1:4"]


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("b slots=four", "slots=four is not a number of ranks; write 'node1 slots=4' (Open MPI) or"),
        ("b cpu=-1", "cpu=-1 is not a number of ranks"),
        ("b slots=", "slots= is not a number of ranks"),
        ("b slots=\uff14", "is not a number of ranks"),
        ("b:", "'' is not a number of ranks"),
        ("b:four", "'four' is not a number of ranks"),
    ],
)
def test_a_malformed_line_is_named_by_file_and_number(line: str, said: str) -> None:
    refused(f"a slots=4\n{line}\n", f"my/hosts:2: {line.strip()!r}: ")
    refused(f"a slots=4\n{line}\n", said)


@pytest.mark.parametrize("text", ["", "\n\n", "# nobody\n"])
def test_no_host_at_all(text: str) -> None:
    refused(text, "my/hosts: names no host; write 'node1 slots=4' (Open MPI) or 'node1:4' (MPICH, Intel MPI)")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\x7fELF\xff")
    for path, said in (
        (tmp_path / "absent", "absent: cannot read this hostfile: No such file or directory"),
        (tmp_path, "cannot read this hostfile: Is a directory"),
        (binary, "binary: no hostfile but binary"),
    ):
        with pytest.raises(UsageError, match=said):
            hostfile.read(path)


@pytest.mark.parametrize(
    ("text", "wanted", "said"),
    [
        (
            "a\nb:4\n",
            "openmpi",
            "my/hosts:2: 'b:4' is for MPICH and Intel MPI, but mpirun here is of Open MPI: write 'b slots=4'",
        ),
        (
            "a\nb slots=4\n",
            "hydra",
            "my/hosts:2: 'b slots=4' is for Open MPI, but mpirun here is of MPICH and Intel MPI: write 'b:4'",
        ),
    ],
)
def test_the_other_mpis_format_is_refused_with_the_mend(text: str, wanted: Format, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        hostfile.check(hostfile.parse(text, "my/hosts"), wanted, "my/hosts")
    assert str(caught.value) == said
