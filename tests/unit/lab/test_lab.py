"""The lab without a kernel: what its flags mean, what its files say, how links are to be shaped."""

from __future__ import annotations

import re
import sys
from functools import reduce
from pathlib import Path

import msgspec
import pytest

from scaling.errors import UsageError
from scaling.hosts import networks
from scaling.tools.lab import lifecycle, remote, shapes, state, wires
from scaling.tools.lab.__main__ import main
from scaling.tools.lab.state import Holder, Lab, Nic, Program, Run

HOLDER = Holder(program=Program(pid=1, start_ticks=0), namespaces={}, inodes={})


def nic(name: str = "ib0", rate: float = 1e9, subnet: str = "10.10.0.0/24", shaped: float | None = None) -> Nic:
    return Nic(name=name, subnet=subnet, rate_bits_per_s=rate, shaped_bits_per_s=shaped or rate)


def lab(*nics: Nic, links: dict[str, float] | None = None) -> Lab:
    cards = nics or (nic(), nic("eth0", 1e8, "10.20.0.0/24"))
    return Lab(name="lab", nodes=("node1", "node2"), slots=4, nics=cards, holder=HOLDER, links=links or {})


def test_the_remote_agent_keeps_the_environment_clean() -> None:
    dropped = {"PYTHONPATH": "/x", "OMPI_MCA_btl": "tcp", "LD_LIBRARY_PATH": "/y"}
    kept = {"LANG": "C", "SCALING_LAB": "other", "SCALING_LAB_RUN": "1-2"}
    found = remote.clean({"PATH": "/opt/bin:/bin", **dropped, **kept}, "lab")
    python = str(Path(sys.executable).parent)
    assert found["PATH"] == f"{python}:/opt/bin:/bin"
    assert remote.clean({"PATH": f"/opt/mpi/bin:{python}"}, "lab")["PATH"] == f"/opt/mpi/bin:{python}"
    assert found["SCALING_FABRIC"] == "/run/scaling-lab/lab/fabric.toml"
    assert kept.items() <= found.items() and not dropped.keys() & found.keys()


def test_the_remote_agent_takes_sshs_flags() -> None:
    assert remote.parse(["-x", "node2", "hostname", "-f"]) == (False, "node2", ["hostname", "-f"])
    assert remote.parse(["--as-is", "node1", "a", "--b"]) == (True, "node1", ["a", "--b"])


@pytest.mark.parametrize("words", [[], ["-x"], ["--as-is", "node1"]])
def test_the_remote_agent_wants_a_host(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="255"):
        remote.parse(words)
    assert "write for example" in capsys.readouterr().err


def test_what_of_tmp_a_node_shares() -> None:
    assert "/tmp/a/b" in remote.places({"SCALING_LAB_PLACES": "/tmp/x:/home/y"}, "/tmp/a/b")
    assert "/tmp/x" in remote.places({"SCALING_LAB_PLACES": "/tmp/x:/home/y"}, "/")
    assert not [place for place in remote.places({}, "/tmp") if place in ("/tmp", "/home/y")]


def test_folders_that_a_command_line_names_are_shared(tmp_path: Path) -> None:
    if not str(tmp_path).startswith("/tmp/"):
        pytest.skip("temporary files of this machine are not in /tmp")
    (tmp_path / "new.py").touch()
    words = ["-np", "4", f"--output={tmp_path}/results", str(tmp_path), f"{tmp_path}/new.py", "/tmp"]
    assert lifecycle.folders(words) == [str(tmp_path)]
    assert lifecycle.lost(words) == []
    assert lifecycle.lost(["--output", "/tmp/no-such-folder"]) == ["/tmp/no-such-folder"]
    assert lifecycle.lost([f"{tmp_path}/a/b"]) == [f"{tmp_path}/a/b"]


def test_mpirun_gets_the_callers_environment_and_the_labs() -> None:
    begun = Run(program=HOLDER.program, mark="1-0", since_unix_s=0.0, command=("-np", "2"))
    base = {"HOME": "/root", "PATH": "/bin", "TMPDIR": "/tmp/mine", "NCCL_DEBUG": "INFO"}
    found = lifecycle.environment(base, lab(), begun, ["-np", "2"])
    assert found["NCCL_DEBUG"] == "INFO"
    assert "TMPDIR" not in found
    assert found["PATH"].startswith(f"{Path(sys.executable).parent}:")
    assert (found["SCALING_LAB"], found["SCALING_LAB_RUN"]) == ("lab", "1-0")
    assert found["HYDRA_HOST_FILE"] == "/run/scaling-lab/lab/hostfile.mpich"
    assert found["PRTE_MCA_prte_default_hostfile"] == "/run/scaling-lab/lab/hostfile"


def test_a_call_inside_a_node_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Path("/proc/self/ns/net").stat().st_ino
    here = Holder(program=state.program(1), namespaces={}, inodes={"node1": own})
    monkeypatch.setattr(state, "living", lambda: iter([msgspec.structs.replace(lab(), holder=here)]))
    with pytest.raises(UsageError, match="this is a node of lab lab"):
        lifecycle.need_outside("down")


# ---------------------------------------------------------------- rates


@pytest.mark.parametrize(
    ("text", "bits_per_s"),
    [("100mbit", 1e8), ("2.5gbit", 2.5e9), ("10Gbit", 1e10), (" 64 kbit ", 64e3), ("1tbit", 1e12)],
)
def test_a_rate_is_a_number_and_a_unit_of_bits(text: str, bits_per_s: float) -> None:
    assert shapes.parse_rate(text, "--nic") == bits_per_s


@pytest.mark.parametrize(
    "text", ["", "fast", "10", "10mb", "10mbps", "-1gbit", "1e3mbit", "0gbit", "9kbit", "2tbit"]
)
def test_any_other_rate_is_refused_with_its_flag(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--nic ib0=: .*(write|rate)"):
        shapes.parse_rate(text, "--nic ib0=")


@pytest.mark.parametrize("text", ["100mbit", "2.5gbit", "1tbit", "12.345kbit", "781.25kbit"])
def test_a_rate_is_shown_as_it_is_written(text: str) -> None:
    assert shapes.show_rate(shapes.parse_rate(text, "")) == text


@pytest.mark.parametrize(
    ("rate", "nodes", "cores", "warns"),
    [(1e9, 4, 2, False), (1.1e9, 4, 2, True), (1e11, 2, 64, True), (1e10, 4, 64, False)],
)
def test_rates_beyond_the_processor_are_warned_of(rate: float, nodes: int, cores: int, warns: bool) -> None:
    assert bool(shapes.too_fast("ib0", rate, nodes, cores)) is warns


def test_the_default_lab_has_the_networks_that_the_studies_compared() -> None:
    wanted = shapes.shape("lab", 4, 4, [])
    assert [(one.name, one.rate_bits_per_s) for one in wanted.nics] == [("ib0", 100e9), ("eth0", 10e9)]


# ---------------------------------------------------------------- flags


def test_cards_get_subnets_of_their_own() -> None:
    wanted = shapes.shape("lab", 3, 2, ["ib0=1gbit", "ib1=2gbit,192.168.7.0/29", "eth0=10mbit"])
    assert [one.subnet for one in wanted.nics] == ["10.10.0.0/24", "192.168.7.0/29", "10.30.0.0/24"]
    assert wanted.nics[1].address(3) == "192.168.7.3"
    assert wanted.nodes == ("node1", "node2", "node3")


@pytest.mark.parametrize(
    ("nics", "said"),
    [
        (["ib0"], "--nic ib0: must be NAME=RATE"),
        (["=1gbit"], "'' cannot name a card"),
        (["lo=1gbit"], "'lo' cannot name a card"),
        (["0ib=1gbit"], "'0ib' cannot name a card"),
        (["infiniband-card0=1gbit"], "1 to 15"),
        (["ib0="], "--nic ib0=: a rate is missing"),
        (["ib0=1gbit,"], "--nic ib0=1gbit,: not a subnet"),
        (["ib0=1gbit,10.10.0.0"], "no addresses for 4 nodes"),
        (["ib0=1gbit,10.10.0.1/24"], "--nic ib0=1gbit,10.10.0.1/24: not a subnet: 10.10.0.1/24 has host bits set"),
        (["ib0=1gbit,fd00::/64"], "not a subnet"),
        (["ib0=1gbit,127.0.0.0/24"], "not a subnet for hosts"),
        (["ib0=1gbit,224.0.0.0/24"], "not a subnet for hosts"),
        (["ib0=1gbit", "ib0=2gbit"], "--nic ib0 was given twice"),
        (["ib0=1gbit", "ib1=2gbit,10.10.0.128/25"], "10.10.0.128/25 overlaps 10.10.0.0/24 of ib0"),
        ([f"ib{number}=1gbit" for number in range(9)], "no more than 8 cards"),
    ],
)
def test_wrong_cards_are_refused(nics: list[str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        shapes.shape("lab", 4, 4, nics)
    assert said in str(caught.value)
    assert str(caught.value).startswith("--nic")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["up", "--nodes", "0"], "--nodes 0: must be a number from 1 to 64"),
        (["up", "--nodes", "four"], "--nodes: 'four' is not"),
        (["up", "--slots", "257"], "--slots 257: must be"),
        (["up", "--name", "../x"], "--name '../x': a lab's name is"),
        (["down", "--name", ""], "--name ''"),
        (["rate", "--name", ".", "ib0=1gbit"], "--name '.'"),
        (["rate"], "rate: nothing to change; write for example"),
        (["run", "--"], "run: nothing to run; write for example"),
        (["upp"], "upp"),
        (["up", "--nic", "ib0=fast"], "--nic ib0=fast: 'fast' is not a rate; write for example 10gbit"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("scaling lab: error: ")
    assert err.count("\n") == 1
    assert said in err


@pytest.mark.parametrize("command", [["up"], ["down"], ["rate", "ib0=1gbit"], ["run", "--", "-np", "2", "true"]])
def test_it_needs_root(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert main(command) == 2
    assert capsys.readouterr().err == (
        f"scaling lab: error: `{command[0]}` needs root, for namespaces and links; call it with sudo\n"
    )


def test_pyroute2_is_asked_for(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setitem(sys.modules, "pyroute2", None)
    assert main(["up", "--name", "never"]) == 2
    assert "pip install 'pyroute2>=0.7'" in capsys.readouterr().err
    assert not state.folder("never").exists()


def test_a_folder_that_cannot_be_made_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(state, "ROOT", tmp_path / "file" / "labs")
    assert main(["up"]) == 2
    assert capsys.readouterr().err == (
        f"scaling lab: error: {tmp_path}/file/labs: Not a directory; labs are kept there and need root\n"
    )


def test_a_lab_that_differs_says_in_what() -> None:
    has, wanted = lab(), shapes.shape("lab", 3, 4, ["ib0=1gbit", "eth0=1gbit"])
    assert shapes.differences(has, wanted) == [
        "--nodes 2 (asked for: --nodes 3)",
        "--nic ib0=1gbit,10.10.0.0/24 --nic eth0=100mbit,10.20.0.0/24 "
        "(asked for: --nic ib0=1gbit,10.10.0.0/24 --nic eth0=1gbit,10.20.0.0/24)",
    ]
    assert shapes.differences(lab(nic(shaped=1e6)), shapes.shape("lab", 2, 4, ["ib0=1gbit"])) == []


# ---------------------------------------------------------------- changes


@pytest.mark.parametrize(
    ("texts", "links", "down"),
    [
        (["node2.ib0=100mbit"], {"node2.ib0": 0.1}, ()),
        (["node2.ib0=10%"], {"node2.ib0": 0.1}, ()),
        (["node2.ib0=10%", "node2.ib0=100%"], {}, ()),
        (["node2.ib0=10%", "node1.eth0=50%", "ib0=4gbit"], {"node1.eth0": 0.5}, ()),  # all links of ib0
        (["node1.ib0=down", "eth0=down"], {}, ("node1.ib0", "node1.eth0", "node2.eth0")),
        (["node1.ib0=down", "eth0=down", "eth0=up", "node1.ib0=up"], {}, ()),
    ],
)
def test_links_have_a_share_of_their_networks_rate_and_cards_go_down_and_up(
    texts: list[str], links: dict[str, float], down: tuple[str, ...]
) -> None:
    found = reduce(shapes.changed, texts, lab())
    assert (found.links, found.down) == (links, down)
    assert found.nics[0] == nic(rate=4e9 if "ib0=4gbit" in texts else 1e9)
    assert found.link_bits_per_s("node2", found.nics[0]) == found.nics[0].rate_bits_per_s * links.get(
        "node2.ib0", 1
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ib0", "ib0: must be CARD=RATE"),
        ("ib1=1gbit", "ib1=1gbit: lab lab has no card 'ib1'; did you mean 'ib0'?"),
        ("node3.ib0=1gbit", "node3.ib0=1gbit: lab lab has no node 'node3'"),
        ("ib0=10%", "of one node's link; write for example node2.ib0=10%"),
        ("node1.ib0=0%", "0.01% to 100%"),
        ("node1.ib0=x%", "0.01% to 100%"),
        ("node1.ib0=nan%", "0.01% to 100%"),
        ("node1.ib0=off", "'off' is not a rate"),
    ],
)
def test_wrong_changes_are_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        shapes.changed(lab(), text)


# ---------------------------------------------------------------- shaping and files


@pytest.mark.parametrize("rate", [1e4, 1e5, 1e6, 5e6, 25e6, 1e8, 1e9, 4e9, 1e10, 1e11, 1e12])
def test_a_bucket_holds_one_packet_of_the_sender(rate: float) -> None:
    burst, limit, offload = wires.bucket(rate)
    headers_bytes = 66 * (offload // 1448 + 1)  # the kernel counts those of every frame
    assert burst > offload + headers_bytes
    assert limit >= 2 * burst


def test_the_buckets_that_were_measured() -> None:
    assert wires.bucket(1e9) == (72089, 4_000_000, 65536)
    assert [wires.bucket(rate)[0] for rate in (4e9, 1e10)] == [256_000, 1_000_000]
    assert wires.bucket(1e7)[2] == 6250  # 5 ms


def test_a_labs_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node's name is its address on MPI's network, the last. The fabric declares rates, not what is shaped."""
    monkeypatch.setattr(state, "ROOT", tmp_path)
    (tmp_path / "lab").mkdir()
    cards = [nic(rate=1e11, shaped=1e6), nic("ib1"), nic("eth0", 5e7, "10.20.0.0/24"), nic("hsn0")]
    lifecycle.write_files(lab(*cards))
    read = {path.name: path.read_text() for path in (tmp_path / "lab").iterdir()}
    assert read["hostfile"] == "node1 slots=4\nnode2 slots=4\n"
    assert read["hostfile.mpich"] == "node1:4\nnode2:4\n"
    assert read["agent"].startswith("#!/bin/sh\n")
    found = networks.read_fabric(str(tmp_path / "lab" / "fabric.toml"))
    assert list(found) == ["ib", "ib1", "ethernet", "hsn0"]
    assert found["ib"] == networks.Entry(interface="ib0", subnet="10.10.0.0/24", rate_gbit=100)
    assert found["ethernet"] == networks.Entry(interface="eth0", subnet="10.20.0.0/24", rate_gbit=0.05)
    assert lifecycle.hosts(("node1", "node2"), lab().nics).splitlines()[2:] == [
        "10.20.0.1 node1 node1-eth0",
        "10.10.0.1 node1-ib0",
        "10.20.0.2 node2 node2-eth0",
        "10.10.0.2 node2-ib0",
    ]


def test_the_state_is_read_as_it_was_written() -> None:
    one = lab(links={"node2.ib0": 0.1})
    assert msgspec.json.decode(msgspec.json.encode(one), type=Lab) == one
    assert {one.port(node, card) for node in one.nodes for card in one.nics} == {"n1c0", "n1c1", "n2c0", "n2c1"}
