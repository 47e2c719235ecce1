"""A lab comes whole or not at all, and goes without a trace, whatever died before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyroute2.netlink.rtnl import tcmsg  # type: ignore[import-untyped, unused-ignore]

from scaling.errors import LaunchError
from scaling.tools.lab import lifecycle, namespaces, state, wires
from scaling.tools.lab.state import Lab
from tests.support import labs
from tests.support.labs import needs_lab
from tests.support.waiting import eventually

pytestmark = needs_lab
UP = ("--nodes", "2", "--slots", "2")


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = labs.outside()
    yield
    assert labs.outside() <= before
    assert not [name for name in state.names() if name.startswith(labs.name(""))]


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: namespaces.start_ticks(pid) is None)


def stay_on(lab: Lab, node: str) -> subprocess.Popen[str]:
    """A process that lives on a node, deaf to TERM."""
    deaf = "trap '' TERM; echo up; while :; do sleep 1000; done"
    words = [str(lab.folder / "agent"), node, deaf]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def test_down_ends_all_that_lives_in_the_lab() -> None:
    lab = labs.make("full")
    with stay_on(lab, "node2") as process:
        assert process.pid in state.processes(lab)
        done = labs.command("down", "--name", lab.name)
    assert (done.returncode, done.stdout) == (0, f"lab {lab.name} is down\n")
    assert process.returncode == -signal.SIGKILL
    assert labs.traces(lab) == []


def test_down_of_nothing_is_no_error() -> None:
    done = labs.command("down", "--name", labs.name("none"))
    assert (done.returncode, done.stdout) == (0, f"there is no lab {labs.name('none')}\n")


def test_down_after_a_killed_holder() -> None:
    lab = labs.make("headless")
    with stay_on(lab, "node2") as process:
        kill(lab.holder.program.pid)
        assert "broken, its holder" in labs.command("status").stdout
        for command in (["rate", "ib0=1mbit"], ["run", "-np", "2", "hostname"], ["status"]):
            done = labs.command(command[0], "--name", lab.name, *command[1:])
            assert (done.returncode, done.stderr.count("\n")) == (2, 1)
            assert "its holder process is gone" in done.stderr
        assert labs.on(lab, "node1", "true").returncode == 255
        assert labs.end("headless")
    assert process.returncode == -signal.SIGKILL
    assert labs.traces(lab) == []


def test_up_after_a_killed_holder_makes_the_lab_anew() -> None:
    first = labs.make("again")
    kill(first.holder.program.pid)
    done = labs.command("up", "--name", first.name, *UP)
    assert done.returncode == 0
    assert "removing what is left" in done.stderr
    second = labs.load("again")
    assert second.holder.program != first.holder.program
    assert labs.send(second, "10.10.0.2", 1000) == 1000
    assert labs.end("again")
    assert labs.traces(second) == []


# Each step of `up` that an `up` may be killed before or in.
STEPS = ("lifecycle._holder", "wires.connect", "wires._plug", "wires.apply", "lifecycle.write_files", "state.save")
KILLED = """
import os, signal, sys
from scaling.tools.lab import lifecycle, state, wires
from scaling.tools.lab.__main__ import main
module, name = sys.argv.pop(1).split(".")
setattr(vars()[module], name, lambda *args: os.kill(os.getpid(), signal.SIGKILL))
main(sys.argv[1:])
"""


@pytest.mark.parametrize("step", STEPS)
def test_an_up_that_is_killed_leaves_nothing_running(step: str) -> None:
    name = labs.name("half")
    words = [sys.executable, "-c", KILLED, step, "up", "--name", name, *UP]
    done = subprocess.run(words, check=False, cwd=labs.ROOT, capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGKILL
    eventually(lambda: not called(name))
    assert "incomplete" in labs.command("status").stdout
    assert labs.end("half")
    assert not state.folder(name).exists()


def called(name: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        found += [str(words)] if name.encode() in words else []
    return found


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(5, "input/output error")])
def test_an_up_that_fails_takes_everything_back(
    error: BaseException | type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object) -> None:
        raise error

    monkeypatch.setattr(wires, "apply", fail)
    with pytest.raises(error if isinstance(error, type) else type(error)):
        labs.make("failed")
    assert not state.folder(labs.name("failed")).exists()
    assert called(labs.name("failed")) == []


def test_a_kernel_without_tbf_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tcmsg.plugins, "nosuch", wires.register_tbf())
    monkeypatch.setattr(wires, "DISCIPLINE", "nosuch")
    with pytest.raises(LaunchError, match=r"this kernel provides no nosuch .*modprobe sch_tbf"):
        labs.make("notbf")
    assert not state.folder(labs.name("notbf")).exists()


def test_a_machine_without_namespaces_is_told() -> None:
    """Root without the right to make any, as in a container."""
    name = labs.name("caged")
    words = ["setpriv", "--bounding-set=-sys_admin", sys.executable, "-m", "scaling", "lab", "up", "--name", name]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=labs.ROOT, timeout=60)
    assert done.returncode == 2
    error = done.stderr.splitlines()[-1]
    assert error.startswith("scaling lab: error: this machine refuses namespaces (")
    assert "Operation not permitted" in error
    assert not state.folder(name).exists()


def test_a_state_that_cannot_be_read_is_told() -> None:
    lab = labs.make("torn")
    path = lab.folder / "state.json"
    content = path.read_bytes()
    path.write_text("{}")
    done = labs.command("down", "--name", lab.name)
    assert done.returncode == 2
    assert done.stderr.startswith(f"scaling lab: error: {path} cannot be read (Object missing required field")
    path.write_bytes(content)
    assert labs.end("torn")


def test_two_ups_at_once_make_one_lab() -> None:
    words = [sys.executable, "-m", "scaling", "lab", "up", "--name", labs.name("both"), *UP]
    pair = [subprocess.Popen(words, cwd=labs.ROOT, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=60)[1] for process in pair]
    assert [process.returncode for process in pair] == [0, 0]
    assert sorted("creating" in text for text in said) == [False, True]
    lab = labs.load("both")
    assert labs.end("both")
    assert labs.traces(lab) == []


def test_the_switch_is_reached_by_its_namespace_alone() -> None:
    with labs.lab("wires", nics=("ib0=1gbit", "ib1=1gbit", "a-long-card-name=1mbit")[:2]) as lab:
        with wires.inside(lab, state.SWITCH) as ip:
            names = {link.get_attr("IFLA_IFNAME") for link in ip.get_links()}
        assert {"br0", "br1", "n1c0", "n1c1", "n2c0", "n2c1"} <= names
        outer = {path.name for path in Path("/sys/class/net").iterdir()}
        assert not {"br0", "br1", "n1c0", "n1c1", "n2c0", "n2c1"} & outer
    assert lifecycle.down(lab.name, force=False, say=print) is False
