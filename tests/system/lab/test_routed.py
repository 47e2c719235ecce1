"""Nodes that share no subnet, as pods of Calico do not: each has an address of its own and a default route. Nodes
are those of a lab, whose switch forwards between them."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from scaling.analysis.measured import traffic
from scaling.records import store
from scaling.tools.check.facts import Findings
from scaling.tools.lab import wires
from scaling.tools.lab.state import SWITCH, Lab
from tests.support import labs
from tests.support.labs import needs_lab
from tests.support.matrix import cases

pytestmark = needs_lab
GATEWAY = "169.254.1.1"
QUICK = (
    "--rounds", "1", "--kinds", "exchange", "--window-s", "0.1", "--windows", "5", "--soak-s", "0",
    "--device", "cpu",
)  # fmt: skip


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with labs.lab("routed", nodes=2, slots=1, nics=("eth0=200mbit",)) as made:
        with wires.inside(made, SWITCH) as ip:
            bridge = socket.if_nametoindex("br0")
            ip.addr("add", index=bridge, address=GATEWAY, prefixlen=32)
            ip.route("add", dst="10.10.0.0/24", oif=bridge, scope="link")
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        for number, node in enumerate(made.nodes, 1):
            make_alone(made, node, f"10.10.0.{number}")
        yield made


def make_alone(lab: Lab, node: str, address: str) -> None:
    with wires.inside(lab, node) as ip:
        card = socket.if_nametoindex("eth0")
        ip.flush_addr(index=card)
        ip.addr("add", index=card, address=address, prefixlen=32)
        ip.route("add", dst=f"{GATEWAY}/32", oif=card, scope="link")
        ip.route("add", dst="default", gateway=GATEWAY, oif=card)


def swept(lab: Lab, results: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return labs.run(lab, 2, "-m", "scaling.run", "--results", str(results), "--world-sizes", "2", *QUICK, *flags)


SCRIPTED = ("fake:a", "--option", "traffic_bytes=1000000", "--option", "step_s=0.05")


@pytest.mark.parametrize(
    ("word", "strategy"),
    cases(
        [AUTO := ("auto", ("torch:gloo",)), ("eth0", SCRIPTED), SUBNET := ("10.10.0.0/16", SCRIPTED)],
        [AUTO, SUBNET],
    ),
)
def test_a_sweep_is_measured_and_verified(lab: Lab, tmp_path: Path, word: str, strategy: Sequence[str]) -> None:
    done = swept(lab, tmp_path, "--strategy", *strategy, "--interconnect", word, "--verbose")
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = tmp_path.iterdir()
    header, (record,) = store.load(run)
    (network,) = header.networks
    assert (network.routed, network.connections) == (True, 2)
    receipt = traffic.of(record)
    assert receipt is not None
    assert (receipt.verdict, receipt.wanted) == ("VERIFIED", ("eth0",))
    assert "routed, proved by 2 connections" in " ".join(done.stdout.split())


def test_the_preflight_measures_it(lab: Lab) -> None:
    done = labs.run(lab, 2, "-m", "scaling", "check", "--json", "--no-device-rates", "--interconnect", "eth0")
    found = msgspec.json.decode(done.stdout, type=Findings)
    (network,) = found.facts.networks
    assert (network.word, network.routed, sorted(network.places)) == ("eth0", True, ["node1", "node2"])
    assert len(found.facts.bandwidths("eth0")) == 2
    assert [one.text for one in found.verdicts if one.topic in ("network", "names") and one.level != "ok"] == []


# ---------------------------------------------------------------- faults


@pytest.fixture
def two_networks() -> Iterator[Lab]:
    """Beside eth0, whose addresses are alone, a common network, over which the launcher works whatever happens."""
    with labs.lab("beside", nodes=2, slots=1, nics=("eth0=200mbit", "ib0=200mbit")) as made:
        for number, node in enumerate(made.nodes, 1):
            with wires.inside(made, node) as ip:
                card = socket.if_nametoindex("eth0")
                ip.flush_addr(index=card)
                ip.addr("add", index=card, address=f"10.10.0.{number}", prefixlen=32)
                ip.route("add", dst="10.10.0.0/24", oif=card, scope="link")
        yield made


def test_hosts_that_do_not_meet_are_named_in_advance(two_networks: Lab, tmp_path: Path) -> None:
    with labs.unreachable(two_networks, "node1", "eth0", "10.10.0.2"):
        done = swept(two_networks, tmp_path, "--strategy", "fake:a", "--interconnect", "eth0")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "--interconnect eth0: not all hosts can connect there: node1 to node2 at 10.10.0.2: " in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_way_by_another_interface_is_found_in_advance(two_networks: Lab, tmp_path: Path) -> None:
    with wires.inside(two_networks, "node1") as ip:
        ip.route("add", dst="10.10.0.2/32", gateway="10.20.0.2", oif=socket.if_nametoindex("ib0"))
    done = swept(two_networks, tmp_path, "--strategy", "fake:a", "--interconnect", "eth0")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "node1 goes to node2 at 10.10.0.2 by ib0 (10.20.0.1), not by eth0" in done.stderr
