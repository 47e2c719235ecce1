"""Real labs: what a node has of its own, and which wire bytes take."""

from __future__ import annotations

import json
import shlex
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaling.errors import UsageError
from scaling.tools.lab import shapes, state, wires
from scaling.tools.lab.state import Lab
from tests.support import labs
from tests.support.labs import needs_lab

pytestmark = needs_lab
SIZE = 1_000_000


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with labs.lab("nodes") as made:
        yield made


TELL = """
import json, os, socket
from pathlib import Path
cards = {card.name: (card / "operstate").read_text().strip() for card in Path("/sys/class/net").iterdir()}
Path("/tmp/mine").touch(), Path("/dev/shm/mine").touch()
names = {kind: os.readlink("/proc/self/ns/" + kind) for kind in ("net", "uts", "ipc", "mnt")}
print(json.dumps({
    "host": socket.gethostname(), "cards": cards, "names": names, "address": socket.gethostbyname("node1"),
    "tmp": sorted(os.listdir("/tmp")), "shm": os.listdir("/dev/shm"),
    "congestion": Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip(),
    "groups": os.path.isdir("/sys/fs/cgroup"), "cpus": os.path.isdir("/sys/devices/system/cpu"),
}))
"""


def test_a_node_has_its_own_of_everything(lab: Lab) -> None:
    told = [json.loads(labs.python(lab, node, TELL)) for node in lab.nodes]
    for node, one in zip(lab.nodes, told, strict=True):
        assert one["host"] == node
        assert set(one["cards"]) == {"lo", "ib0", "eth0"}
        assert {one["cards"][card] for card in ("ib0", "eth0")} == {"up"}
        assert one["address"] == "10.20.0.1"
        assert one["congestion"] == "reno"
        assert one["shm"] == ["mine"]
        assert "mine" in one["tmp"]
        assert one["cpus"]
        assert one["groups"] == Path("/sys/fs/cgroup").is_dir()
    own = {kind: str(Path("/proc/self/ns", kind).readlink()) for kind in told[0]["names"]}
    for kind, outer in own.items():
        assert len({outer, *(one["names"][kind] for one in told)}) == 3
    assert not Path("/tmp/mine").exists()
    assert not Path("/dev/shm/mine").exists()


def test_the_current_directory_is_there_also_below_tmp(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "outside").touch()
    code = "import os; print(os.getcwd(), os.listdir()); open('from-' + os.uname().nodename, 'w').close()"
    for node in lab.nodes:
        done = labs.agent(lab, node, sys.executable, "-c", shlex.quote(code), cwd=tmp_path)
        assert done.stdout.startswith(str(tmp_path)), done.stderr
        assert "outside" in done.stdout
    assert (tmp_path / "from-node1").exists()
    assert (tmp_path / "from-node2").exists()


def test_the_agent_does_what_sshd_does(lab: Lab) -> None:
    environ = {"LD_LIBRARY_PATH": "/x", "OMPI_MCA_a": "b"}
    done = labs.agent(lab, "node2", "env;", "hostname;", "exit", "3", environ=environ)
    assert done.returncode == 3
    assert done.stdout.splitlines()[-1] == "node2"
    found = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert found["SCALING_LAB"] == lab.name
    assert found["PATH"].startswith(str(Path(sys.executable).parent))
    assert not {"LD_LIBRARY_PATH", "OMPI_MCA_a"} & set(found)


def test_the_agent_cannot_reach_what_is_not_there(lab: Lab) -> None:
    done = labs.on(lab, "node9", "true")
    assert (done.returncode, done.stderr.count("\n")) == (255, 1)
    assert "its nodes are node1, node2" in done.stderr


@pytest.mark.parametrize(
    ("card", "other", "address"), [("ib0", "eth0", "10.10.0.2"), ("eth0", "ib0", "10.20.0.2")]
)
def test_bytes_take_the_card_of_their_address(lab: Lab, card: str, other: str, address: str) -> None:
    before = {name: labs.sent_bytes(lab, "node1", name) for name in (card, other)}
    assert labs.send(lab, address, SIZE) == SIZE
    moved = {name: labs.sent_bytes(lab, "node1", name) - before[name] for name in (card, other)}
    assert SIZE < moved[card] < 1.15 * SIZE
    assert moved[other] < 0.01 * SIZE


def test_the_kernel_shapes_both_ends_as_declared(lab: Lab) -> None:
    for node in lab.nodes:
        assert labs.ends_bits_per_s(lab, node, "ib0") == (5e8, 5e8)
        assert labs.ends_bits_per_s(lab, node, "eth0") == (1e8, 1e8)


@pytest.mark.parametrize("rate", [20e3, 781_250.0, 3.2e9, 100e9])
def test_any_rate_is_shaped_to_the_byte_and_what_is_declared_stays(lab: Lab, rate: float) -> None:
    try:
        found = wires.shape(lab, {"ib0": rate})
        assert found == state.load(lab.name)
        assert (found.nics[0].rate_bits_per_s, found.nics[0].shaped_bits_per_s) == (5e8, rate)
        for node in lab.nodes:
            assert labs.ends_bits_per_s(lab, node, "ib0") == (rate // 8 * 8, rate // 8 * 8)
            assert labs.ends_bits_per_s(lab, node, "eth0") == (1e8, 1e8)
    finally:
        wires.shape(lab, {"ib0": 5e8})


def test_a_slow_link_still_carries(lab: Lab) -> None:
    wires.shape(lab, {"ib0": 500e3})
    try:
        assert labs.send(lab, "10.10.0.2", 60_000) == 60_000
    finally:
        wires.shape(lab, {"ib0": 5e8})


def test_a_node_reshapes_its_lab(lab: Lab) -> None:
    code = (
        "import sys; from scaling.tools.lab import state, wires\n"
        "wires.shape(state.load(sys.argv[1]), {'ib0': 4e7})"
    )
    labs.python(lab, "node2", code, lab.name)
    try:
        assert state.load(lab.name).nics[0].shaped_bits_per_s == 4e7
        assert labs.ends_bits_per_s(lab, "node1", "ib0") == (4e7, 4e7)
    finally:
        wires.shape(lab, {"ib0": 5e8})


def test_one_nodes_link_at_a_tenth_stays_a_tenth(lab: Lab) -> None:
    """A fault that is planted outlives the reshaping that emulated devices do."""
    assert labs.command("rate", "--name", lab.name, "node2.ib0=50mbit").returncode == 0
    try:
        assert labs.ends_bits_per_s(lab, "node1", "ib0") == (5e8, 5e8)
        assert labs.ends_bits_per_s(lab, "node2", "ib0") == (5e7, 5e7)
        wires.shape(lab, {"ib0": 1e8})
        assert labs.ends_bits_per_s(lab, "node2", "ib0") == (1e7, 1e7)
        shown = labs.command("status", "--name", lab.name).stdout
        assert "500mbit, shaped to 100mbit now" in shown
        assert "node2.ib0 10mbit (10%)" in shown
    finally:
        done = labs.command("rate", "--name", lab.name, "ib0=500mbit")
    assert "node2.ib0" not in done.stdout
    assert labs.ends_bits_per_s(lab, "node2", "ib0") == (5e8, 5e8)


def test_a_card_goes_down_and_comes_back(lab: Lab) -> None:
    state_file = "/sys/class/net/ib0/operstate"
    done = labs.command("rate", "--name", lab.name, "node1.ib0=down")
    assert "node1.ib0 down" in done.stdout
    assert labs.on(lab, "node1", "cat", state_file).stdout == "down\n"
    assert labs.on(lab, "node2", "cat", state_file).stdout == "up\n"
    failed = labs.on(lab, "node1", sys.executable, "-c", labs.SEND, "10.10.0.2", "1")
    assert "Network is unreachable" in failed.stderr
    labs.command("rate", "--name", lab.name, "node1.ib0=up")
    assert labs.send(lab, "10.10.0.2", 1000) == 1000
    assert labs.ends_bits_per_s(lab, "node1", "ib0") == (5e8, 5e8)


def test_a_wrong_change_changes_nothing(lab: Lab) -> None:
    before = state.load(lab.name)
    done = labs.command("rate", "--name", lab.name, "ib0=1mbit", "ib7=1mbit")
    assert done.returncode == 2
    assert done.stderr.startswith("scaling lab: error: ib7=1mbit: ")
    assert state.load(lab.name) == before
    with pytest.raises(UsageError, match="no card 'ib7'"):
        wires.shape(lab, {"ib0": 1e6, "ib7": 1e6})
    assert state.load(lab.name) == before


def test_up_twice_changes_nothing(lab: Lab) -> None:
    before = state.load(lab.name)
    flags = [word for card in labs.NICS for word in ("--nic", card)]
    again = labs.command("up", "--name", lab.name, "--nodes", "2", "--slots", "2", *flags)
    assert (again.returncode, again.stderr) == (0, "")
    assert f"python -m scaling lab run --name {lab.name} -- -np 4" in again.stdout
    assert state.load(lab.name) == before
    other = labs.command("up", "--name", lab.name)
    assert other.returncode == 2
    assert other.stderr.count("\n") == 1
    assert "is up with --nodes 2 (asked for: --nodes 4)" in other.stderr
    assert state.load(lab.name) == before


def test_two_labs_do_not_meet(lab: Lab) -> None:
    with labs.lab("other") as other:
        assert shapes.differences(other, shapes.shape("x", 2, 2, labs.NICS)) == []
        before = labs.sent_bytes(lab, "node1", "ib0")
        assert labs.send(other, "10.10.0.2", SIZE) == SIZE
        assert labs.sent_bytes(lab, "node1", "ib0") - before < 0.01 * SIZE
        wires.shape(other, {"ib0": 1e8})
        assert labs.ends_bits_per_s(lab, "node1", "ib0") == (5e8, 5e8)
        shown = labs.command("status").stdout
        assert f"lab {lab.name}: " in shown
        assert f"lab {other.name}: " in shown
    assert labs.send(lab, "10.10.0.2", 1000) == 1000


def test_a_node_cannot_take_its_lab_down(lab: Lab) -> None:
    done = labs.on(lab, "node1", sys.executable, "-m", "scaling", "lab", "down", "--name", lab.name, "--force")
    assert done.returncode == 2
    assert f"this is a node of lab {lab.name}" in done.stderr
    assert socket.gethostname() != "node1"
