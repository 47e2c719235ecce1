"""The preflight of one process, and an output that nobody takes."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import msgspec
import pytest

from scaling.tools.check import __main__ as command
from scaling.tools.check.facts import Findings
from scaling.transport import launch
from scaling.transport.base import Hub
from tests.support.started import shelled

ALONE = ("--transport", "mpi")  # no ranks are started


def test_this_process_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(launch, "_connected", lambda *_: Hub(1).rank(0))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert command.main([*ALONE, "--json", "--no-device-rates"]) in (0, 1)
    seen = msgspec.json.decode(capsys.readouterr().out, type=Findings)
    assert seen.facts.nodes == (socket.gethostname(),)
    assert command.main([*ALONE, "--fabric", str(tmp_path / "none.toml")]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"scaling check: error: --fabric {tmp_path}/none.toml: No such file or directory\n")
    assert command.main([*ALONE, "--interconnect", "nonet9"]) == 2
    assert capsys.readouterr().err.startswith("scaling check: error: --interconnect nonet9: no host is on it; ")


def test_output_that_nobody_takes(tmp_path: Path) -> None:
    command = "$PYTHON -m scaling check --ranks 1 --no-device-rates"
    full = "scaling check: error: standard output: No space left on device\n"
    for closing, code, said in (("> /dev/full", 1, full), ("| :", None, ""), (">&-", 0, "")):
        done = shelled(f"{command} {closing}", tmp_path)
        assert done.stderr == said and (code is None or done.returncode == code)
