"""Other runs: `--against RUN`, `--like`, and how a run ends."""

from __future__ import annotations

import fcntl
import shutil
import signal
import subprocess
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.errors import Interrupted, StoreError, UsageError
from scaling.plan import config, plan
from scaling.plan.config import SweepConfig, fields_of
from scaling.records import store
from scaling.records.messages import SWEEP_DECODER, ToAgent, ToSweep
from scaling.report.formats import openmetrics, screen
from scaling.report.material import Material, Place
from scaling.run import flags, invocation, ranks
from scaling.run.invocation import Invocation
from scaling.transport.base import Mailbox
from tests.support.compared_runs import on_disk, without_noise
from tests.support.inline import Launch
from tests.support.scripted_records import failed, header, point

# `--against RUN`: what is refused before anything is measured, and what a comparison that failed is worth.

BASE, NEW = Path("base"), Path("new")


def answer(code: int, out: str = "", err: str = "") -> Any:
    return lambda *_: subprocess.CompletedProcess([], code, out, err)


def refusal(run: Path) -> str:
    with pytest.raises(UsageError) as error:
        ranks.comparable_header(run)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_the_settings_are_those_of_the_run(tmp_path: Path) -> None:
    run = without_noise()
    assert ranks.comparable_header(Path(on_disk(tmp_path / "base", run))) == run[0]


def test_what_is_no_run_is_named_with_its_flag(tmp_path: Path) -> None:
    assert refusal(tmp_path).startswith(f"--against {tmp_path}: not a run: ")


@pytest.mark.parametrize("name", ["HEAD~1", "main", "v1.2", "a" * 300])
def test_a_revision_is_measured_in_a_run_of_its_own(name: str) -> None:
    said = refusal(flags.parse(("--against", name)).against or Path())
    assert said.startswith(f"--against {name}: ")
    assert said.endswith(
        "; a revision is measured in a git worktree of its own; then: python -m scaling compare BASE NEW"
    )


def test_a_run_still_being_written_is_refused(tmp_path: Path) -> None:
    run = Path(on_disk(tmp_path / "base", without_noise()))
    with (run / store.FILE).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert refusal(run) == f"--against {run}: is still being written; wait until its sweep has ended"


def test_trainings_and_runs_without_any_exchange_have_nothing_to_compare(tmp_path: Path) -> None:
    train = Path(on_disk(tmp_path / "train", (replace(header(), config={"epochs": 2}), [])))
    assert "a training to an accuracy" in refusal(train)
    none = Path(on_disk(tmp_path / "none", (header(), [failed(point())])))
    assert "it has no measured exchange" in refusal(none)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--like", "A"), "--like, --against: both give the settings of a run"),
        (("--resume", "A"), "python -m scaling compare {} A"),
    ],
)
def test_one_older_run_at_a_time(tmp_path: Path, argv: tuple[str, ...], words: str) -> None:
    with pytest.raises(UsageError) as error:
        flags.parse((*argv, "--against", str(tmp_path)))
    assert words.format(tmp_path) in str(error.value)


@pytest.mark.parametrize("code", [0, 1])
def test_a_verdict_is_the_exit_code(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(ranks, "command_output", answer(code, "the table\n"))
    again = "against: base (again: python -m scaling compare base new)"
    assert ranks.compared(BASE, NEW) == (f"the table\n\n{again}\n", code, "")


def test_an_undecided_cell_is_an_exit_code_if_proof_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    """-19.4 % +- 36.4 was green."""
    given = []

    def compare(command: str, arguments: list[str], _look: object) -> subprocess.CompletedProcess[str]:
        given.append([command, *arguments])
        return subprocess.CompletedProcess([], 3, "the table\n", "")

    monkeypatch.setattr(ranks, "command_output", compare)
    found = ranks.compared(BASE, NEW, require_proof=True)
    assert given == [["compare", "base", "new", "--require-proof"]]
    assert found.code == 3 and "again: python -m scaling compare base new --require-proof" in found.text


def test_proof_is_required_of_comparisons_alone() -> None:
    assert flags.parse(("--against", ".", "--require-proof")).require_proof
    with pytest.raises(UsageError, match="--require-proof: only with --against RUN: "):
        flags.parse(("--require-proof",))


@pytest.mark.parametrize("out", ["", "the table\n"])
def test_without_a_cell_that_could_be_compared_it_is_2(monkeypatch: pytest.MonkeyPatch, out: str) -> None:
    monkeypatch.setattr(ranks, "command_output", answer(2, out, "scaling compare: error: RUN: they differ\n"))
    found = ranks.compared(BASE, NEW)
    assert (found.code, found.why) == (2, "--against base: not compared: they differ")
    assert bool(found.text) == bool(out)


@pytest.mark.parametrize("done", [answer(0), answer(1), answer(-9, "the ta"), answer(3, "the table\n")])
def test_a_comparison_that_came_to_no_end_is_never_green(monkeypatch: pytest.MonkeyPatch, done: Any) -> None:
    monkeypatch.setattr(ranks, "command_output", done)
    with pytest.raises(
        StoreError, match=r"--against base: not compared: .*; try: python -m scaling compare base new"
    ):
        ranks.compared(BASE, NEW)


def test_one_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object) -> None:
        raise subprocess.TimeoutExpired("python", 120)

    monkeypatch.setattr(ranks, "command_output", hang)
    with pytest.raises(StoreError, match="timed out"):
        ranks.compared(BASE, NEW)


# What a new run takes over from an older one, and what flags displace of it.

NATIVE = {"data": "folders", "feed": "native", "feed_workers": 4, "drop_caches": True}


def resolved(older: dict[str, Any], *argv: str) -> SweepConfig:
    return invocation.resolve(flags.parse(argv), older)


def test_the_weights_file_of_an_older_run_stays_its_own(tmp_path: Path) -> None:
    fields = {"save_weights": "/old.npz", "strategy": ["fake:a"], "rounds": 2}
    first, records = without_noise()
    run = Path(on_disk(tmp_path / "older", (replace(first, config=fields), records)))
    plain = Invocation(given={}, base={})
    assert ranks._settings(plain) is None
    for asked in (replace(plain, like=run), replace(plain, against=run)):
        assert ranks._settings(asked) == {"strategy": ["fake:a"], "rounds": 2}


def test_settings_of_a_newer_version_are_named_with_the_flag_and_the_run(tmp_path: Path) -> None:
    first, records = without_noise()
    newer = replace(first, config={"rounds": 2, "novel": 1, "gone": None}, version="9.9")
    run = Path(on_disk(tmp_path / "newer", (newer, records)))
    for flag in ("like", "against"):
        asked = replace(Invocation(given={}, base={}), **{flag: run})
        with pytest.raises(UsageError, match=rf"--{flag} {run}: was measured by scaling 9\.9 .* know: novel;"):
            ranks._settings(asked)


def test_another_feed_displaces_the_workers_of_the_native_one() -> None:
    found = resolved(NATIVE, "--feed", "reference")
    assert (found.feed, found.feed_workers, found.drop_caches) == ("reference", None, True)
    assert resolved(NATIVE, "--feed", "native").feed_workers == 4


@pytest.mark.parametrize("argv", [("--data", "digits"), ("--model", "digits-cnn"), ("--device", "cpu")])
def test_how_data_was_fed_goes_with_it(argv: tuple[str, str]) -> None:
    found = resolved({**NATIVE, "epochs": 2, "train_samples": 9, "test_samples": 8}, *argv)
    assert (found.feed, found.feed_workers, found.drop_caches) == ("reference", None, False)
    assert (found.train_samples, found.test_samples) == (None, None)


def test_displaced_names_are_fields() -> None:
    displaced = {other for field in fields_of(SweepConfig).values() for other in field.flag.displaces}
    assert displaced and displaced <= set(config.FIELDS)


# How a run ends: with the table of its file, or of what was measured where the file is gone.


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
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[Path], None],
    notes: list[str] | None = None,
    metrics: Path | None = None,
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
        asked = Invocation(given={}, base={}, view="plain", page=False, metrics=metrics)
        code = ranks.measure(made, mailbox, opened, header, asked)
        launch.turn()  # the last release
        return code, opened.folder


def ended(folder: Path) -> str:
    """The last screen of a run, and the line for programs."""
    material = Material(*store.load(folder))
    text = screen.render(material, Place(str(folder), lacks=material.lacks), width=80, color=False)
    return f"{text}{material.doc.last_line}\n"


def test_the_last_table_is_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, folder = measured(tmp_path, monkeypatch, lambda _: None)
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    assert out == ended(folder)
    assert out.splitlines()[-1].startswith("scaling: fake:a N=2 ")


def test_metrics_replace_the_file_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "run.prom"
    file.write_text("of an older run")
    code, folder = measured(tmp_path / "results", monkeypatch, lambda _: None, metrics=file)
    assert code == 0
    assert file.read_text() == openmetrics.render(Material(*store.load(folder)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results", "run.prom"]


def test_metrics_are_of_what_was_measured_before_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = []

    def stop(folder: Path) -> None:
        folders.append(folder)
        raise Interrupted(signal.SIGINT)

    file = tmp_path / "run.prom"
    with pytest.raises(Interrupted):
        measured(tmp_path / "results", monkeypatch, stop, metrics=file)
    assert len(folders) == 1
    assert file.read_text() == openmetrics.render(Material(*store.load(folders[0])))


def test_metrics_that_cannot_be_written_are_a_line_and_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _ = measured(tmp_path / "results", monkeypatch, lambda _: None, metrics=tmp_path / "gone" / "run.prom")
    out, err = capsys.readouterr()
    assert (code, err) == (0, f"scaling: error: --metrics {tmp_path}/gone/run.prom: No such file or directory\n")
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
    assert out == ended(folder)


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
    assert out.startswith(f"not kept:\n{folder}\n")
    rows = [line.split()[0] for line in out.splitlines() if line.strip()[:1].isdigit()]
    assert {"1", "2"} <= set(rows), out
    (line,) = err.splitlines()
    assert line.startswith(f"scaling: error: {folder}: lost during the run (was removed or moved and cannot ")


BURN_IN: dict[str, Any] = {"for": "2h", "rounds": 2}


@pytest.mark.parametrize(("argv", "rounds"), [(("--rounds", "3"), 3), (("--target-ci", "1%"), 2)])
def test_another_rule_of_rounds_takes_for_back(argv: tuple[str, str], rounds: int) -> None:
    assert resolved(BURN_IN).for_ == "2h"
    found = resolved(BURN_IN, *argv)
    assert (found.for_, found.rounds) == (None, rounds)


def test_for_takes_other_rules_of_rounds_back() -> None:
    found = resolved({"rounds": 6, "target_ci": "1%", "max_rounds": 9}, "--for", "30m")
    assert (found.for_, found.rounds, found.target_ci) == ("30m", None, None)
