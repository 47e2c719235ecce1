"""A search that leads a launch: found, proved, broken off."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from scaling.analysis.table.analyse import analyse
from scaling.errors import Interrupted, UsageError
from scaling.plan import config, plan
from scaling.plan.groups import Group
from scaling.records import store
from scaling.records.events import Finished
from scaling.records.host import Nic
from scaling.records.messages import SWEEP_DECODER, Dismiss, ToAgent, ToSweep
from scaling.records.run import Header, PointRecord
from scaling.records.task import Run as RunCommand
from scaling.report.material import Material
from scaling.run.ranks import Lead
from scaling.sweep.sweep import Sweep
from scaling.sweep.view.live import make as make_view
from scaling.tools.bisect import leading
from scaling.tools.bisect.flags import parse
from scaling.tools.bisect.leading import Bisection
from scaling.transport.base import Mailbox
from tests.support.inline import Launch, host

# A whole search on scripted hosts: evidence, waves at once, proof, and what the report makes of it.

KINDS = ["exchange", "solo", "together", "comm"]


class Told(NamedTuple):
    """How a search ended: its exit code, what it said, its run."""

    code: int
    said: Sequence[str]
    header: Header
    records: tuple[PointRecord, ...]
    launch: Launch


def nic(address: str) -> Nic:
    return Nic(name="eth0", address=address, netmask="255.255.255.0", up=True, mtu=1500)


def bisected(results: Path, *, nodes: int = 4, each: int = 1, noise: float | None = None, **fields: Any) -> Told:
    hosts = [
        host(f"node{number}", cores=each, nics=(nic(f"10.0.0.{number}"),))
        for number in range(1, nodes + 1)
        for _ in range(each)
    ]
    launch = Launch(len(hosts), hosts)
    own = {"strategy": ["fake:a"], "device": "cpu", "interleave": False, "windows": 4, "window_s": 0.02}
    wanted = config.build(
        {**own, "kinds": KINDS, "rounds": 3, "world_sizes": [len(hosts)], **fields}, source="test"
    )
    made = plan.make(wanted, launch.enrolled)
    leading._check(made)
    mailbox = Mailbox[ToAgent, ToSweep](launch.hub.rank(0), SWEEP_DECODER, turn=launch.turn, wait=launch.wait)
    screen = make_view("none", sys.stdout)
    now = datetime.fromtimestamp(launch.now(), timezone.utc)
    with store.Store.create(results, "bisect", now, launch.header(made, wanted)) as opened:
        sweep = Sweep(made, mailbox, opened, screen, clock=launch.now, unix_clock=launch.clock)
        search = Bisection(made, sweep, screen, noise)
        try:
            code = search.run()
        finally:
            mailbox.order_all(Dismiss())
            launch.turn()
    header, kept = store.load(opened.folder)
    return Told(code, search.said, header, kept, launch)


SLOW_BROKEN_OFF = ["slow_host=node3", "slow_by=3", "comm_s=0.004", "exchange_s=0.004"]


@pytest.mark.parametrize(
    ("at", "last"),
    [
        ("comm", "stopped before a slow node was found: the measured points are kept; start again"),
        ("solo", "stopped before the proof of node3 was complete: the measured points are kept; start again"),
    ],
)
def test_ctrl_c_keeps_the_measured_points_and_reports_the_progress(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, at: str, last: str
) -> None:
    hosts = [host(f"node{number}", cores=1, nics=(nic(f"10.0.0.{number}"),)) for number in range(1, 5)]
    launch = Launch(4, hosts)

    def turn() -> None:
        launch.turn()
        if any(f" {at} " in label for label in launch.order):
            launch.agents[1].interrupt(signal.SIGINT)

    monkeypatch.setattr(Lead, "proved", lambda _, made: made)  # by real connections: tests/process/test_proof.py
    monkeypatch.setattr(Lead, "header", lambda _, made: launch.header(made, made.config))
    mailbox = Mailbox[ToAgent, ToSweep](launch.hub.rank(0), SWEEP_DECODER, turn=turn, wait=launch.wait)
    argv = [word for option in SLOW_BROKEN_OFF for word in ("--option", option)]
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
    assert Material(header, kept).doc.sections


SLOW = ["slow_host=node3", "slow_by=3", "comm_s=0.004", "exchange_s=0.004"]


def test_a_slow_node_is_found_and_proved(tmp_path: Path) -> None:
    found = bisected(tmp_path, option=SLOW)
    said = "\n".join(found.said)
    assert found.code == 0, said
    assert "slow: node3 (" in said
    # A step of 10 ms and an exchange of 16 or 4: 38.5 and 71.4 %.
    assert "38.5 -> 71.4 % (+33.0 ± 0.0) without node3; without node" in said
    assert ": 38.5 %" in said


def test_without_the_gradients_of_a_script_groups_of_nodes_train(tmp_path: Path) -> None:
    found = bisected(tmp_path, option=SLOW, kinds=[kind for kind in KINDS if kind != "comm"])
    said = "\n".join(found.said)
    assert found.code == 0 and "slow: node3 (" in said, said
    assert "38.5 -> 71.4 % (+33.0 ± 0.0) without node3; without node" in said
    keys = [record.point.key for record in found.records]
    assert len(set(keys)) == len(keys)


def test_the_groups_of_a_wave_are_measured_at_the_same_time(tmp_path: Path) -> None:
    found = bisected(tmp_path, nodes=6, option=SLOW)
    groups = [record.point for record in found.records if record.point.kind == "comm" and not record.point.round]
    assert len(groups) == 3
    orders = [label for label in found.launch.order if " comm " in label and "round 1" in label]
    assert len(orders) == 6
    told = [one for one in found.launch.told if one.task.point.kind == "comm" and one.task.point.round == 0]
    assert max(len({task.point.key for task in one.running}) for one in told) == 3
    # Beside each other they would slow each other's canaries down.
    assert not any(one.command.canary for one in told if isinstance(one.command, RunCommand))


def test_a_wave_that_never_became_steady_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once: what is disturbed for good is taken as it is."""
    measure = Sweep.measure

    def disturbed(sweep: Sweep, group: Group, total: int, **how: Any) -> tuple[PointRecord, ...]:
        found = measure(sweep, group, total, **how)
        # The first wave, and the second one both times.
        unsteady = how.get("at_once") and found[0].point.round in (0, 2, 3)
        return tuple(replace(one, settled=False) for one in found) if unsteady else found

    monkeypatch.setattr(Sweep, "measure", disturbed)
    found = bisected(tmp_path, option=SLOW)
    assert found.code == 0
    again = [line for line in found.said if "measured again" in line]
    assert again == [
        "wave 1 never became steady: its groups are measured again",
        "wave 3 never became steady: its groups are measured again",
    ]
    waves = [line.partition(": ")[2] for line in found.said if line.startswith("wave ") and line not in again]
    assert waves[0] == waves[1] and waves[2] == waves[3] and len(waves) == 5
    assert any("slow: node3 (" in line and "in 5 waves" in line for line in found.said)


def test_a_healthy_cluster_is_left_alone(tmp_path: Path) -> None:
    found = bisected(tmp_path, option=["comm_s=0.004", "exchange_s=0.004"])
    assert found.code == 0
    assert any(line.startswith("no slow node (") for line in found.said), found.said
    assert "no suspect: ranks compute alike, and paths carry alike" in found.said
    assert {record.point.kind for record in found.records} == {"together", "exchange", "comm"}
    assert any("are not searched" in line for line in found.said)


def test_a_node_that_computes_slowly_is_found_by_its_windows(tmp_path: Path) -> None:
    """`straggle` slows the last rank: no exchange of groups tells it."""
    found = bisected(tmp_path, option=["straggle=0.5", "comm_s=0.004"])
    said = "\n".join(found.said)
    assert "suspect node4: computes 50 % longer than the median node, last in 4 of 4 windows" in said
    assert "without node4" in said


def test_the_report_reads_the_run_and_keeps_groups_out_of_its_tables(tmp_path: Path) -> None:
    found = bisected(tmp_path, option=SLOW)
    rows = analyse(found.records).rows
    assert [row.world_size for row in rows] == [4]
    notices = Material(found.header, found.records).doc.notices
    assert any("of scaling bisect on some of the nodes: in no table" in line for line in notices)


def test_a_group_that_fails_ends_the_search(tmp_path: Path) -> None:
    found = bisected(tmp_path, option=[*SLOW, "fail=oom", "fail_kind=comm"])
    assert found.code == 1
    assert "a group could not be measured" in found.said[-1]


@pytest.mark.parametrize(
    ("nodes", "fields", "words"),
    [
        (1, {}, "this launch has 1 node, a search needs 3"),
        (2, {}, "this launch has 2 nodes, a search needs 3"),
        (3, {"strategy": ["fake:a", "fake:b"]}, "--strategy fake:a,fake:b: a search uses one; name one"),
        (3, {"strategy": ["nope:x"]}, "nope"),
    ],
)
def test_what_cannot_be_searched_is_refused(
    tmp_path: Path, nodes: int, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        bisected(tmp_path, nodes=nodes, each=2, **fields)
    assert list(tmp_path.iterdir()) == []
