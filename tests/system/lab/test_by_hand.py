"""Ranks that are started by hand on the nodes of a lab: they find rank 0 over its network, without MPI."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from scaling.records import store
from scaling.tools.lab.state import Lab
from tests.support import labs
from tests.support.labs import needs_lab
from tests.support.waiting import eventually

pytestmark = needs_lab
WITHIN_S = 200.0
QUICK = ("--kinds", "exchange", "--world-sizes", "2", "--rounds", "1", "--windows", "3", "--window-s", "0.05")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with labs.lab("by-hand", nodes=3, slots=1, nics=("ib0=500mbit", "eth0=500mbit")) as made:
        yield made


@pytest.fixture
def open_files() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def ranks(lab: Lab, count: int, folder: Path, open_files: ExitStack, *words: str) -> list[subprocess.Popen[bytes]]:
    """Start rank R on node R + 1; each writes to a file R.txt. They are killed in the end."""
    started = []
    for rank, node in enumerate(lab.nodes[:count]):
        place = ("--rank", str(rank), "--ranks", str(count), "--coordinator", f"{lab.nodes[0]}:23456")
        command = [str(lab.folder / "agent"), "--as-is", node, sys.executable, "-m", *words, *place]
        out = open_files.enter_context((folder / f"{rank}.txt").open("wb"))
        environ = {**os.environ, "SCALING_SECRET": "a secret of this test", "SCALING_LAB_PLACES": str(folder)}
        one = subprocess.Popen(
            command, cwd=labs.ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environ
        )
        open_files.callback(one.wait)
        open_files.callback(one.kill)
        started.append(one)
    return started


def codes(started: list[subprocess.Popen[bytes]]) -> list[int]:
    return [one.wait(WITHIN_S) for one in started]


def test_two_nodes_end_in_the_table(lab: Lab, tmp_path: Path, open_files: ExitStack) -> None:
    results = ("--results", str(tmp_path / "results"), "--no-page")
    words = ("scaling.run", "--strategy", "torch:gloo", *results, *QUICK)
    assert codes(ranks(lab, 2, tmp_path, open_files, *words)) == [0, 0], (tmp_path / "0.txt").read_text()
    said = (tmp_path / "0.txt").read_text()
    assert re.search(r"^scaling: torch:gloo N=2 .*\bflags \S*VERIFIED", said.splitlines()[-1]), said
    assert (tmp_path / "1.txt").read_text() == ""
    header, _ = store.load(next((tmp_path / "results").iterdir()))
    assert header.mpi.startswith("ZeroMQ ")
    assert [rank.hostname for rank in header.hosts] == list(lab.nodes[:2])


LISTENING = """
import json, psutil
told = [one.laddr for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
print(json.dumps([[one.ip, one.port] for one in told]))
"""


def listening(lab: Lab, node: str) -> dict[str, set[int]]:
    """The ports that are open on a node, by address."""
    found: dict[str, set[int]] = {}
    for address, port in json.loads(labs.python(lab, node, LISTENING)):
        found.setdefault(address, set()).add(port)
    return found


def test_no_rank_listens_on_all_addresses(lab: Lab, tmp_path: Path, open_files: ExitStack) -> None:
    """As launch/README.md says: PyTorch on the measured network alone, rank 0 on the coordinator's address."""
    words = ("--strategy", "torch:gloo", "--interconnect", "ib0", "--kinds", "exchange", "--world-sizes", "2")
    started = ranks(lab, 2, tmp_path, open_files, "scaling.run", *words, "--results", str(tmp_path / "results"))
    log = tmp_path / "0.txt"
    eventually(lambda: "10.10.0.2" in listening(lab, "node2"), log.read_text, within_s=WITHIN_S)
    assert set(listening(lab, "node2")) <= {"10.10.0.2", "127.0.0.1"}
    first = listening(lab, "node1")
    assert first.pop("10.20.0.1") == {23456} and set(first) <= {"10.10.0.1", "127.0.0.1"}, first
    started[0].send_signal(signal.SIGINT)
    assert codes(started) == [130, 130], log.read_text()


def test_a_check_measures_the_links(lab: Lab, tmp_path: Path, open_files: ExitStack) -> None:
    started = ranks(lab, 2, tmp_path, open_files, "scaling", "check", "--no-all-reduce", "--no-device-rates")
    assert codes(started) == [0, 0], (tmp_path / "0.txt").read_text()
    assert "check: 2 ranks on 2 nodes; networks: ib, ethernet\n" in (tmp_path / "0.txt").read_text()


def test_a_bisect_keeps_its_points_when_a_rank_is_interrupted(
    lab: Lab, tmp_path: Path, open_files: ExitStack
) -> None:
    flags = ("--strategy", "fake:a", "--interconnect", "eth0", "--windows", "20", "--window-s", "0.1")
    started = ranks(
        lab, 3, tmp_path, open_files, "scaling", "bisect", *flags, "--results", str(tmp_path / "results")
    )
    log = tmp_path / "0.txt"
    eventually(lambda: b"[ 1/" in log.read_bytes(), log.read_text, within_s=WITHIN_S)
    started[2].send_signal(signal.SIGINT)
    assert codes(started) == [130, 130, 130], log.read_text()
    assert "\nstopped before a slow node was found: the measured points are kept; start again\n" in log.read_text()
    (run,) = (tmp_path / "results").iterdir()
    assert store.load(run)[1]
