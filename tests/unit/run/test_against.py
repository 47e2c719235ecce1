"""`--against RUN`: what is refused before anything is measured, and what a comparison that failed is worth."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.errors import StoreError, UsageError
from scaling.records import store
from scaling.run import against, flags, invocation, programs
from tests.support.compared_runs import on_disk, without_noise
from tests.support.scripted_records import failed, header, point

BASE, NEW = Path("base"), Path("new")


def answer(code: int, out: str = "", err: str = "") -> Any:
    return lambda *_: subprocess.CompletedProcess([], code, out, err)


def refusal(run: Path) -> str:
    with pytest.raises(UsageError) as error:
        against.read(run)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_the_settings_are_those_of_the_run(tmp_path: Path) -> None:
    run = without_noise()
    assert against.read(Path(on_disk(tmp_path / "base", run))) == run[0]


def test_what_is_no_run_is_named_with_its_flag(tmp_path: Path) -> None:
    assert refusal(tmp_path / "nowhere").startswith(f"--against {tmp_path}/nowhere: not a run: ")


def test_a_folder_that_is_called_as_a_branch_is_told_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "main").mkdir()
    assert refusal(Path("main")).endswith("; is it a revision, and main only a folder here? --against main^0")
    assert flags.parse(("--against", "main")).against == Path("main")
    assert flags.parse(("--against", "main^0")).given == {"against": "main^0"}


def test_a_run_still_being_written_is_refused(tmp_path: Path) -> None:
    run = Path(on_disk(tmp_path / "base", without_noise()))
    with (run / store.FILE).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert refusal(run) == f"--against {run}: is still being written; wait until its sweep has ended"


def test_trainings_and_runs_without_any_exchange_have_nothing_to_compare(tmp_path: Path) -> None:
    train = Path(on_disk(tmp_path / "train", (replace(header(), config={"epochs": 2}), [])))
    assert "trains to an accuracy" in refusal(train)
    none = Path(on_disk(tmp_path / "none", (header(), [failed(point())])))
    assert "no exchange of it was measured" in refusal(none)


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


def test_what_is_no_path_is_a_revision_which_a_run_that_goes_on_knows_already() -> None:
    assert flags.parse(("--like", "A", "--against", "HEAD~1")).given == {"against": "HEAD~1"}
    with pytest.raises(UsageError, match="--resume: goes on with the settings of that run; leave out --against"):
        flags.parse(("--resume", "A", "--against", "HEAD~1"))


@pytest.mark.parametrize(("name", "why"), [("locked/run", "Permission denied"), ("a" * 300, "File name too long")])
def test_a_path_that_cannot_be_looked_at(monkeypatch: pytest.MonkeyPatch, name: str, why: str) -> None:
    real = Path.stat

    def stat(path: Path, **how: Any) -> os.stat_result:
        # As below a folder of another user's; root may look anywhere.
        if path == Path("locked/run"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, **how)

    monkeypatch.setattr(Path, "stat", stat)
    with pytest.raises(UsageError) as error:
        flags.parse(("--against", name))
    assert str(error.value) == f"--against {name}: {why}; give the folder of a run, or a revision"


def test_a_file_names_a_run_or_a_revision_as_the_flag_does(tmp_path: Path) -> None:
    file, run = tmp_path / "a.toml", tmp_path / "run"
    run.mkdir()
    file.write_text(f'against = "{run}"\nrounds = 2\n')
    found = flags.parse(("--config", str(file)))
    assert (found.against, found.base, found.given) == (run, {"rounds": 2}, {})
    with pytest.raises(UsageError, match="--like, --against: both give the settings of a run"):
        flags.parse(("--config", str(file), "--like", "A"))
    # The flag wins.
    found = flags.parse(("--config", str(file), "--against", "HEAD"))
    assert (found.against, invocation.resolve(found).against) == (None, "HEAD")
    file.write_text('against = "HEAD~1"')
    assert invocation.resolve(flags.parse(("--config", str(file)))).against == "HEAD~1"
    found = flags.parse(("--config", str(file), "--against", str(run)))
    assert (found.against, invocation.resolve(found).against) == (run, None)


@pytest.mark.parametrize("code", [0, 1])
def test_a_verdict_is_the_exit_code(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(programs, "output", answer(code, "the table\n"))
    again = "against: base (again: python -m scaling compare base new)"
    assert against.compare(BASE, NEW) == (f"the table\n\n{again}\n", code, "")


@pytest.mark.parametrize("out", ["", "the table\n"])
def test_without_a_cell_that_could_be_compared_it_is_2(monkeypatch: pytest.MonkeyPatch, out: str) -> None:
    monkeypatch.setattr(programs, "output", answer(2, out, "scaling compare: error: RUN: they differ\n"))
    found = against.compare(BASE, NEW)
    assert (found.code, found.why) == (2, "--against base: not compared: they differ")
    assert bool(found.text) == bool(out)


@pytest.mark.parametrize("done", [answer(0), answer(1), answer(-9, "the ta"), answer(3, "the table\n")])
def test_a_comparison_that_came_to_no_end_is_never_green(monkeypatch: pytest.MonkeyPatch, done: Any) -> None:
    monkeypatch.setattr(programs, "output", done)
    with pytest.raises(
        StoreError, match=r"--against base: not compared: .*; try: python -m scaling compare base new"
    ):
        against.compare(BASE, NEW)


def test_one_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object) -> None:
        raise subprocess.TimeoutExpired("python", 120)

    monkeypatch.setattr(programs, "output", hang)
    with pytest.raises(StoreError, match="timed out"):
        against.compare(BASE, NEW)
