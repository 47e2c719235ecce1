"""A search that a signal ends: what was measured is kept, and one line says how far it came."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from scaling.errors import Interrupted
from scaling.records import store
from scaling.records.events import Finished
from scaling.records.messages import SWEEP_DECODER, Dismiss, ToAgent, ToSweep
from scaling.report.document import document
from scaling.run.ranks import Lead
from scaling.tools.bisect import leading
from scaling.tools.bisect.flags import parse
from scaling.transport.mailbox import Mailbox
from tests.support.bisected import nic
from tests.support.inline import Launch, host

SLOW = ["slow_host=node3", "slow_by=3", "comm_s=0.004", "exchange_s=0.004"]


@pytest.mark.parametrize(
    ("at", "last"),
    [
        ("comm", "broken off before a node could be blamed: what was measured is kept; start it again"),
        ("solo", "broken off before the proof of node3 was whole: what was measured is kept; start it again"),
    ],
)
def test_ctrl_c_keeps_what_was_measured_and_says_how_far_it_came(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, at: str, last: str
) -> None:
    hosts = [host(f"node{number}", cores=1, nics=(nic(f"10.0.0.{number}"),)) for number in range(1, 5)]
    launch = Launch(4, hosts)

    def turn() -> None:
        launch.turn()
        if any(f" {at} " in label for label in launch.order):
            launch.agents[1].interrupt(signal.SIGINT)

    monkeypatch.setattr(Lead, "proved", lambda _, made: made)  # by real connections: tests/process/test_proof.py
    monkeypatch.setattr(leading, "make_header", lambda _cluster, made, *_: launch.header(made, made.config))
    mailbox = Mailbox[ToAgent, ToSweep](launch.hub.rank(0), SWEEP_DECODER, turn=turn, wait=launch.wait)
    argv = [word for option in SLOW for word in ("--option", option)]
    argv += ["--strategy", "fake:a", "--device", "cpu", "--windows", "4", "--window-s", "0.02", "--view", "none"]
    asked = parse([*argv, "--results", str(tmp_path)])
    assert asked is not None
    with pytest.raises(Interrupted) as stop:
        leading.bisect(Lead(launch.hub.rank(0), mailbox, launch.enrolled, argv), asked)
    mailbox.order_all(Dismiss())
    launch.turn()
    assert stop.value.exit_code == 130
    (folder,) = tmp_path.iterdir()
    said = capsys.readouterr().out.splitlines()
    assert said[-2:] == [last, f"run: {folder}"]
    header, kept = store.load(folder)
    assert {record.point.kind for record in kept} >= {"together", "exchange"}
    assert all(isinstance(record.outcome, Finished) for record in kept)
    assert document(header, kept).sections
