"""No output has command lines of other ranks. With --anonymous, none has hosts, ranks, users, folders."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from datetime import datetime, timezone
from io import StringIO
from pathlib import Path

import pytest
from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.plan import config, plan
from scaling.records import store
from scaling.records.host import Nic
from scaling.records.messages import SWEEP_DECODER, ToAgent, ToSweep
from scaling.report import __main__ as command
from scaling.report.anonymous import Disguise, hosts_of
from scaling.run import ranks
from scaling.run.invocation import Invocation
from scaling.transport.base import Mailbox
from tests.support.inline import Launch
from tests.support.inline import host as machine
from tests.support.scripted_records import header, point, record, served, written
from tests.support.telling_names import (
    ALICE,
    BOB,
    COMMAND_LINES,
    FOREIGN,
    HOSTS,
    LOG,
    NAMES,
    OLD_WARNING,
    OTHER_WARNING,
    run,
)
from tests.support.training_records import training_record

FIGURES = ("speedup", "efficiency", "loss", "rounds", "ranks", "run")
OUTPUTS = (
    (), ("--verbose",),
    *(("--format", name) for name in ("markdown", "csv", "json", "html", "latex", "openmetrics")),
    *(("--format", "svg", "--figure", name) for name in FIGURES),
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("alice-laptop") / "run-of-alice-laptop", run())


def printed(folder: Path, *argv: str, output: Path) -> str:
    out = ["--output", str(output)] if set(argv) & {"html", "svg"} else []
    assert command.main([str(folder), *argv, *out]) == 0
    return output.read_text() if out else ""


@pytest.mark.parametrize("argv", OUTPUTS, ids=" ".join)
@pytest.mark.parametrize("hidden", [False, True])
def test_no_format_shows_what_it_must_not(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], hidden: bool
) -> None:
    text = (
        printed(folder, *argv, *(["--anonymous"] if hidden else []), output=tmp_path / "out")
        + capsys.readouterr().out
    )
    assert text
    for name in (*COMMAND_LINES, *(NAMES if hidden else ())):
        assert name not in text
    if hidden and argv[1:2] not in (("svg",), ("openmetrics",)):
        assert "node1" in text or "node2" in text


def test_names_of_hosts_and_programs_are_there_without_the_flag(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise the test above could not fail."""
    texts = ""
    for argv in (("--verbose",), ("--format", "json")):
        printed(folder, *argv, output=tmp_path / "out")
        texts += capsys.readouterr().out
    for name in ("python3", "cc1plus", ALICE, BOB, "/home/alice", "/scratch/alice"):
        assert name in texts


def test_a_training_shows_no_command_line_of_a_recorded_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = replace(training_record((0.5, 0.9)), warnings=(OLD_WARNING, OTHER_WARNING))
    ranks = tuple(replace(one, telemetry=replace(one.telemetry, foreign=FOREIGN)) for one in made.ranks)
    run_ = written(tmp_path / "run", (header(), [replace(made, ranks=ranks)]))
    printed(run_, "--format", "json", output=tmp_path / "out")
    out = capsys.readouterr().out
    assert "secret.py" not in out and "foreign load: python3 used 67 % of a core" in out and "no trace" in out


# What is replaced.

HIDDEN = Disguise([ALICE, "node7", "10.1.2.3", "vm"])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"rank 1 on {ALICE}: slow", "rank 1 on node1: slow"),
        ("[alice-laptop:4711] alice-laptop.", "[node1:4711] node1."),
        ("node7 and node7.corp.example", "node2 and node2"),
        ("10.1.2.3, not 10.1.2.30 and not 10.1.9.9", "node3, not 10.1.2.30 and not 10.1.9.9"),
        ("vm: kvm, vmlinux, VM", "node4: kvm, vmlinux, VM"),
        ("/home/alice/x/secret.py:7", "/…/secret.py:7"),
        ("--results=/scratch/alice ~/x ~alice/x", "--results=/… ~/x /…"),
        ("PATH=/home/alice/bin:/usr/bin", "PATH=/…:/usr/bin"),
        ('File "/data/alice/a b", /proc/self/ns/net', 'File "/… b", /proc/self/ns/net'),
        (f"log: {LOG})", "log: logs/0001-a.log)"),
        ("file:///home/alice/x https://corp.example/alice", "file:///… https://…"),
    ],
)  # fmt: skip
def test_texts(text: str, shown: str) -> None:
    assert HIDDEN.text(text) == shown


@pytest.mark.parametrize("text", ["10.0.0.0/24", "images/s", "sizes / 10, x 4", "N/A", "mlx5_0/1", "NET/IB/0"])
def test_a_slash_is_no_path(text: str) -> None:
    assert HIDDEN.text(text) == text


def test_nothing_is_named_without_hosts() -> None:
    assert Disguise(()).text("rank 1 on node1") == "rank 1 on node1"


def test_names_that_the_analysis_knows_stay() -> None:
    """A host may be called like a strategy or a helper."""
    made = served(record(point("exchange", 2, strategy="torch:gloo"), 0.1, hosts=["torch", "server-0"]), 10.0)
    shown = Disguise(["torch", "server-0"]).of(made)
    assert shown.point.strategy == "torch:gloo"
    assert [rank.host for rank in shown.ranks] == ["node1", "node2"]
    assert [one.name for one in shown.helpers] == ["scheduler", "server-0"]


def test_every_text_of_a_run_is_replaced() -> None:
    made, records = run()
    hidden = Disguise(hosts_of(made, records))
    texts = [*_texts(hidden.of(made)), *(text for one in records for text in _texts(hidden.of(one)))]
    assert not [text for text in texts for name in NAMES if name in text]
    assert [one.hostname for one in hidden.of(made).hosts] == ["node1", "node2"]


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for pair in value.items():
            yield from _texts(pair)
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _texts(one)
    elif hasattr(value, "__struct_fields__"):
        for name in value.__struct_fields__:
            yield from _texts(getattr(value, name))


def test_the_records_are_read_alike_apart_from_names(folder: Path) -> None:
    material = command.joined([folder], although_different=False)
    hidden = Disguise(hosts_of(material.header, material.records)).material(material)
    assert [row.efficiency for row in hidden.rows] == [row.efficiency for row in material.rows]
    assert [row.flags for row in hidden.rows] == [row.flags for row in material.rows]


# During a run.


def launched() -> Launch:
    nic = Nic(name="eth0", address="", netmask="255.255.255.0", up=True, mtu=1500)
    nics = {name: replace(nic, address=f"10.0.0.{number}") for number, name in enumerate(HOSTS, 1)}
    return Launch(2, [machine(name, cores=1, nics=(nics[name],)) for name in HOSTS])


ASKED = Invocation(given={}, base={})


def test_a_run_prints_no_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    launch = launched()
    given = {"strategy": ["fake:a"], "device": "cpu", "rounds": 1, "kinds": ["exchange"], "anonymous": True}
    wanted = config.build({**given, "window_s": 0.02}, source="test")
    made = plan.make(wanted, launch.enrolled)
    mailbox = Mailbox[ToAgent, ToSweep](launch.hub.rank(0), SWEEP_DECODER, turn=launch.turn, wait=launch.wait)
    began, head = datetime.fromtimestamp(0, timezone.utc), launch.header(made, wanted)
    with store.Store.create(tmp_path / "alice-laptop", "test", began, head) as opened:
        ranks.measure(made, mailbox, opened, head, replace(ASKED, view="live", page=False))
        launch.turn()  # the last release
    out, err = capsys.readouterr()
    assert "2 hosts (node1, node2)" in out and "hosts node1 node2" in out
    assert not [name for name in NAMES if name in out + err]
    assert ALICE in (opened.folder / "run.jsonl").read_text()


def test_the_view_of_a_run_names_no_program() -> None:
    hidden, out = Disguise(hosts_of(*run())), StringIO()
    view = ranks._HiddenView(out, hidden)
    one = run()[1][0]
    view.finished(one, (), 1, 2)
    view.closed()
    assert "round 1: foreign load" in out.getvalue()
    assert not [name for name in (*NAMES, *COMMAND_LINES) if name in out.getvalue()]


@pytest.mark.parametrize("hidden", [False, True])
def test_the_page_of_a_run_has_no_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: bool) -> None:
    given: list[str] = []

    def output(_: str, arguments: list[str], *_rest: object) -> subprocess.CompletedProcess[str]:
        given.extend(arguments)
        return subprocess.CompletedProcess([], 0, "", "")

    monkeypatch.setattr("scaling.run.ranks.command_output", output)
    ending = ranks.Ending(ASKED, lambda: None, Disguise(hosts_of(*run())) if hidden else None)
    assert ending.write_page(tmp_path) == str(tmp_path / "page.html")
    assert ("--anonymous" in given) == hidden


def test_a_page_that_is_not_written_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = subprocess.CompletedProcess[str]([], 1, "", "[Errno 28] No space left on device\n")
    monkeypatch.setattr("scaling.run.ranks.command_output", lambda *_: full)
    assert ranks.Ending(ASKED, lambda: None).write_page(tmp_path) == ""


@pytest.mark.parametrize("hidden", [False, True])
def test_a_mistake_names_no_host(tmp_path: Path, hidden: bool) -> None:
    launch = launched()
    mailbox = Mailbox[ToAgent, ToSweep](launch.hub.rank(0), SWEEP_DECODER, turn=launch.turn, wait=launch.wait)
    lead = ranks.Lead(launch.hub.rank(0), mailbox, launch.enrolled, ())
    given = {"strategy": ["fake:a"], "device": "cuda", "results": str(tmp_path), "anonymous": hidden}
    with pytest.raises(UsageError) as error:
        lead.obey(Invocation(given=given, base={}))
    assert (ALICE in str(error.value)) == (not hidden)
    assert ("node1" in str(error.value)) == hidden
