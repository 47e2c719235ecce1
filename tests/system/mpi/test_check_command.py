"""The preflight's text, its command line, and real mpirun."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from scaling.check import __main__ as command
from scaling.check import flags, words
from scaling.check.facts import Facts, Findings, Verdict
from scaling.errors import UsageError
from scaling.hosts import fabric
from scaling.transport import launch
from scaling.transport.inline import Hub
from tests.support.check_facts import FOUR, facts, links
from tests.support.mpis import MPIS, Mpi, mpirun

# ---------------------------------------------------------------- what is printed


def test_the_matrix() -> None:
    speed = {("node1", "node2"): 9.4e9, ("node2", "node1"): 38.2e9}
    sound = facts(FOUR[:2], words=("ib",))
    shown = Facts(ranks=sound.ranks, networks=sound.networks, prepared=sound.prepared,
                  links=links(FOUR[:2], "ib", lambda a, b: speed[a, b], latency_s=31e-6))  # fmt: skip
    verdict = Verdict(level="warning", topic="mtu", text="ib: 9000 on node1", mend="ip link")
    assert words.render(Findings(facts=shown, verdicts=(verdict,), wall_s=4.21)).splitlines() == [
        "ib: 10.10.0.0/24, 10 Gb/s by the fabric file",
        "  latency in us, half the median round trip of small messages over TCP",
        "               1     2",
        "   1 node1     -    31",
        "   2 node2    31     -",
        "  bandwidth in Gb/s, one TCP flow from the row's node to the column's",
        "               1     2",
        "   1 node1     -  9.40",
        "   2 node2  38.2     -",
        "",
        "warning  mtu            ib: 9000 on node1; mend: ip link",
        "",
        "1 warning; the preflight took 4.2 s",
    ]


def test_what_was_not_measured_shows_as_such() -> None:
    sound = facts(FOUR[:3], words=("ib",))
    failed = [*sound.links[:2]]
    failed[0] = msgspec.structs.replace(failed[0], forth_bits_per_s=None, back_bits_per_s=None, error="timed out")
    rows = words.render(
        Findings(facts=msgspec.structs.replace(sound, links=tuple(failed)), verdicts=(), wall_s=1.0)
    )
    bandwidth = rows.split("bandwidth in Gb/s")[1].splitlines()
    assert [line.split()[2:] for line in bandwidth[2:5]] == [
        ["-", "x", "9.40"],
        ["x", "-", "."],
        ["9.40", ".", "-"],
    ]
    assert words.LEGEND in bandwidth


def test_many_nodes_are_summed_up() -> None:
    names = tuple(f"n{number}" for number in range(words.WIDE + 1))
    text = words.render(Findings(facts=facts(names, words=("ib",)), verdicts=(), wall_s=1.0))
    assert "least   median     most" in text
    assert max(map(len, text.splitlines())) < 80


# ---------------------------------------------------------------- the command


@pytest.mark.parametrize(
    ("argv", "asked"),
    [
        ([], flags.Asked()),
        (["--json"], flags.Asked(json=True)),
        (["--interconnect", " ib0, eth0"], flags.Asked(interconnect=("ib0", "eth0"))),
        (["--fabric", "f.toml"], flags.Asked(fabric="f.toml")),
    ],
)
def test_the_command_line(monkeypatch: pytest.MonkeyPatch, argv: list[str], asked: flags.Asked) -> None:
    monkeypatch.delenv(fabric.VARIABLE, raising=False)
    assert flags.parse(argv) == asked


def test_the_fabric_of_a_lab_comes_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(fabric.VARIABLE, "/lab/fabric.toml")
    asked = flags.parse([])
    assert asked is not None and asked.fabric == "/lab/fabric.toml"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--interconect", "ib"], "--interconect"),
        (["--interconnect", ","], "names no network"),
        (["--interconnect", "ib,ib"], "names a network twice"),
        (["ib"], "ib"),
    ],
)
def test_mistakes_in_the_call(argv: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        flags.parse(argv)


def test_help_measures_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert flags.parse(["--help"]) is None
    assert "--interconnect" in capsys.readouterr().out


def test_this_process_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(launch, "_connected", lambda: Hub(1).rank(0))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert command.main(["--json"]) in (0, 1)
    seen = msgspec.json.decode(capsys.readouterr().out, type=Findings)
    assert seen.facts.nodes == (socket.gethostname(),)
    assert command.main(["--fabric", str(tmp_path / "none.toml")]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"scaling.check: error: --fabric {tmp_path}/none.toml: No such file or directory\n")
    assert command.main(["--interconnect", "nonet9"]) == 2
    assert capsys.readouterr().err.startswith("scaling.check: error: --interconnect nonet9: on no host; ")


def test_output_that_nobody_takes() -> None:
    command_line = [sys.executable, "-m", "scaling.check"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command_line, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "scaling.check: error: standard output: No space left on device\n",
    )
    gone = subprocess.run(
        ["sh", "-c", '"$@" | :', "sh", *command_line], capture_output=True, text=True, check=False
    )
    assert gone.stderr == ""
    closed = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *command_line], capture_output=True, text=True, check=False
    )
    assert (closed.returncode, closed.stderr) == (0, "")


def test_ranks_load_little() -> None:
    code = "import sys, scaling.check.__main__; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"rich", "typer", "scipy", "torch", "tensorflow", "mxnet"} & set(done.stdout.split())


# ---------------------------------------------------------------- real mpirun

CHECK = ("-m", "scaling.check")


@pytest.mark.parametrize("mpi", MPIS, ids=str)
def test_under_mpirun(mpi: Mpi) -> None:
    done = mpirun(mpi, 2, *CHECK)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "check: one node" in done.stdout
    assert done.stdout.count("ok       launch         1 node with 2 ranks each") == 1
    assert "there are no pairs to measure" in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("mpi", MPIS, ids=str)
def test_json_under_mpirun(mpi: Mpi) -> None:
    done = mpirun(mpi, 2, *CHECK, "--json")
    seen = msgspec.json.decode(done.stdout, type=Findings)
    assert [one.host.hostname for one in seen.facts.ranks] == [socket.gethostname()] * 2
    assert mpi.banner in seen.facts.ranks[1].mpi


@pytest.mark.parametrize("mpi", MPIS, ids=str)
def test_a_mistake_under_mpirun_is_one_line(mpi: Mpi) -> None:
    done = mpirun(mpi, 2, *CHECK, "--interconnect", "nonet9")
    assert done.returncode == 2
    assert [line for line in done.stderr.splitlines() if line.startswith("scaling.check: ")] == [
        line for line in done.stderr.splitlines() if "nonet9: on no host" in line
    ]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("mpi", MPIS, ids=str)
def test_a_bug_under_mpirun_ends_all_ranks(mpi: Mpi) -> None:
    code = (
        "import sys\nfrom scaling.check import __main__ as check, gather\n"
        "def broken(*_): raise RuntimeError('a planted bug')\n"
        "gather.watch = broken\nsys.exit(check.main([]))\n"
    )
    done = mpirun(mpi, 2, "-c", code)
    assert done.returncode != 0
    assert "a planted bug" in done.stderr


@pytest.mark.parametrize("mpi", MPIS, ids=str)
def test_ctrl_c_leaves_nothing(mpi: Mpi, tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom scaling.check import __main__ as check, gather\n"
        "gather.watch = lambda _: time.sleep(60)\nsys.exit(check.main([]))\n"
    )
    said = tmp_path / "said"
    with said.open("w") as out:
        process = subprocess.Popen(
            [str(mpi.mpirun), "-np", "2", sys.executable, "-c", code],
            stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            env={**os.environ, **mpi.environ(2)}, start_new_session=True,
        )  # fmt: skip
    deadline_s = time.monotonic() + 60
    while "check: one node" not in said.read_text() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    started = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    try:
        assert process.wait(30) != 0, said.read_text()
        assert psutil.wait_procs(started, timeout=10)[1] == []
    finally:
        process.kill()
        for one in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
