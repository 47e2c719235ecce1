"""How a run ends: with the table of its file, or of what was measured where the file is gone."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path

import pytest

from scaling.analysis.statistics.intervals import Estimate
from scaling.analysis.table.analyse import Change
from scaling.plan import config, plan
from scaling.records import store
from scaling.records.messages import SWEEP_DECODER, ToAgent, ToSweep
from scaling.records.run import Header, PointRecord
from scaling.report.formats import terminal
from scaling.run import measuring
from scaling.transport.mailbox import Mailbox
from tests.support.inline import Launch
from tests.support.scripted_records import point


class After:
    def __init__(self, act: Callable[[], None], notes: list[str]) -> None:
        self._act = act
        self._notes = notes

    def __getattr__(self, _name: str) -> object:
        return lambda *_args: None

    def finished(self, *_args: object) -> None:
        self._act()

    def note(self, text: str) -> None:
        self._notes.append(text)


def measured(
    folder: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[Path], None], notes: list[str] | None = None
) -> tuple[int, Path]:
    """Exit code and folder of a run of two points. `act` is done to its folder after each; `notes` are kept."""
    launch, noted = Launch(2), [] if notes is None else notes
    wanted = config.build(
        {"strategy": ["fake:a"], "device": "cpu", "rounds": 1, "kinds": ["exchange"], "window_s": 0.02},
        source="test",
    )
    made = plan.make(wanted, launch.enrolled)
    header = launch.header(made, wanted)
    mailbox = Mailbox[ToAgent, ToSweep](launch.hub.rank(0), SWEEP_DECODER, turn=launch.turn, wait=launch.wait)
    with store.Store.create(folder, "test", datetime.fromtimestamp(0, timezone.utc), header) as opened:
        monkeypatch.setattr("scaling.sweep.view.live.make", lambda *_: After(lambda: act(opened.folder), noted))
        code = measuring.measure(made, mailbox, opened, header, (), "plain", page=False)
        launch.turn()  # the last release
        return code, opened.folder


def ended(read: tuple[Header, Sequence[PointRecord]], where: str) -> str:
    """The table, where the run is, and the line for programs, which is the report's last one too."""
    table, _, last = terminal.render(*read, color=False).rstrip("\n").rpartition("\n\n")
    return f"{table}\n\n{where}\n{last}\n"


def test_the_last_table_is_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, folder = measured(tmp_path, monkeypatch, lambda _: None)
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    assert out == ended(store.load(folder), f"run: {folder}")
    assert out.splitlines()[-1].startswith("scaling: fake:a N=2 ")


@pytest.mark.parametrize("moved", [False, True])
def test_a_run_whose_folder_is_removed_or_moved_is_written_anew_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], moved: bool
) -> None:
    lost: list[Path] = []
    notes: list[str] = []

    def remove(folder: Path) -> None:
        if not lost:
            lost.append(folder.rename(tmp_path / "moved"))
            (folder / "logs").mkdir(parents=True)  # a worker's log makes its folder
            if not moved:
                shutil.rmtree(lost[0])

    code, folder = measured(tmp_path / "results", monkeypatch, remove, notes)
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    (note,) = notes
    assert note.endswith(f"was removed or moved: the run was written anew to {folder}")
    assert folder.name.endswith("-2")
    assert len(store.load(folder)[1]) == 2
    assert out == ended(store.load(folder), f"run: {folder}")


def test_a_run_that_cannot_be_written_anew_ends_in_its_table_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    points: list[Path] = []

    def replace_by_a_file(folder: Path) -> None:
        points.append(folder)
        if len(points) == 2:
            shutil.rmtree(folder.parent)
            folder.parent.write_text("")

    code, folder = measured(tmp_path / "results", monkeypatch, replace_by_a_file)
    out, err = capsys.readouterr()
    assert code == 1
    assert out.splitlines()[-2] == f"not kept: {folder}"
    rows = [line.split()[0] for line in out.splitlines() if line.strip()[:1].isdigit()]
    assert {"1", "2"} <= set(rows), out
    (line,) = err.splitlines()
    assert line.startswith(
        f"scaling: error: {folder}: lost while the run went on (was removed or moved and cannot "
    )


def test_a_cell_that_became_slower_than_with_another_revision_is_exit_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gain = Estimate(mean=-0.05, low=-0.06, high=-0.04, n=3)
    monkeypatch.setattr(measuring, "changes", lambda _: (Change(point(), "1a2b3c4d5e", gain),))
    assert measured(tmp_path, monkeypatch, lambda _: None)[0] == 1
