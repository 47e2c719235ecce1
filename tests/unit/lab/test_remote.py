"""What of a machine a node of the lab shares, and what the remote agent hands on; without a kernel."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from scaling.errors import UsageError
from scaling.tools.lab import lifecycle, remote, running, state
from scaling.tools.lab.processes import Run
from scaling.tools.lab.state import Holder
from tests.support.paper_labs import HOLDER, lab


def test_the_remote_agent_keeps_the_environment_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "PATH": "/opt/bin:/bin",
        "PYTHONPATH": "/x",
        "OMPI_MCA_btl": "tcp",
        "LD_LIBRARY_PATH": "/y",
        "LANG": "C",
    }
    found = remote.clean({**given, "SCALING_LAB": "other", "SCALING_LAB_RUN": "1-2"}, "lab")
    assert found["PATH"] == f"{Path(sys.executable).parent}:/opt/bin:/bin"
    python = str(Path(sys.executable).parent)
    assert remote.clean({"PATH": f"/opt/mpi/bin:{python}"}, "lab")["PATH"] == f"/opt/mpi/bin:{python}"
    assert found["SCALING_FABRIC"] == "/run/scaling-lab/lab/fabric.toml"
    assert found["SCALING_LAB_RUN"] == "1-2"
    assert not {"PYTHONPATH", "OMPI_MCA_btl", "LD_LIBRARY_PATH"} & set(found)


def test_the_remote_agent_takes_sshs_flags() -> None:
    assert remote.parse(["-x", "node2", "hostname", "-f"]) == (False, "node2", ["hostname", "-f"])
    assert remote.parse(["--as-is", "node1", "a", "--b"]) == (True, "node1", ["a", "--b"])


@pytest.mark.parametrize("words", [[], ["-x"], ["--as-is", "node1"]])
def test_the_remote_agent_wants_a_host(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="255"):
        remote.parse(words)
    assert "write for example" in capsys.readouterr().err


def test_the_remote_agents_two_descriptions_of_a_state_agree() -> None:
    assert remote.ROOT == state.ROOT


def test_what_of_tmp_a_node_shares() -> None:
    assert "/tmp/a/b" in remote.places({"SCALING_LAB_PLACES": "/tmp/x:/home/y"}, "/tmp/a/b")
    assert "/tmp/x" in remote.places({"SCALING_LAB_PLACES": "/tmp/x:/home/y"}, "/")
    assert not [place for place in remote.places({}, "/tmp") if place in ("/tmp", "/home/y")]


def test_folders_that_a_command_line_names_are_shared(tmp_path: Path) -> None:
    if not str(tmp_path).startswith("/tmp/"):
        pytest.skip("temporary files of this machine are not in /tmp")
    (tmp_path / "new.py").touch()
    words = ["-np", "4", f"--output={tmp_path}/results", str(tmp_path), f"{tmp_path}/new.py", "/tmp"]
    assert running.folders(words) == [str(tmp_path)]
    assert running.lost(words) == []
    assert running.lost(["--output", "/tmp/no-such-folder"]) == ["/tmp/no-such-folder"]
    assert running.lost([f"{tmp_path}/a/b"]) == [f"{tmp_path}/a/b"]


def test_mpirun_gets_the_callers_environment_and_the_labs() -> None:
    begun = Run(program=HOLDER.program, mark="1-0", since_unix_s=0.0, command=("-np", "2"))
    base = {"HOME": "/root", "PATH": "/bin", "TMPDIR": "/tmp/mine", "NCCL_DEBUG": "INFO"}
    found = running.environment(base, lab(), begun, ["-np", "2"])
    assert found["NCCL_DEBUG"] == "INFO"
    assert "TMPDIR" not in found
    assert found["PATH"].startswith(f"{Path(sys.executable).parent}:")
    assert (found["SCALING_LAB"], found["SCALING_LAB_RUN"]) == ("lab", "1-0")
    assert found["HYDRA_HOST_FILE"] == "/run/scaling-lab/lab/hostfile.mpich"
    assert found["PRTE_MCA_prte_default_hostfile"] == "/run/scaling-lab/lab/hostfile"


def test_who_is_not_outside_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Path("/proc/self/ns/net").stat().st_ino
    here = Holder(program=state.program(1), namespaces={}, inodes={"node1": own})
    monkeypatch.setattr(state, "living", lambda: iter([msgspec.structs.replace(lab(), holder=here)]))
    with pytest.raises(UsageError, match="this is a node of lab lab"):
        lifecycle.need_outside("down")
