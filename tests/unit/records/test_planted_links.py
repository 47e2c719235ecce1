"""What a run writes into its folder goes through no link that somebody else has put there."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaling.command import deliver
from scaling.errors import UsageError
from scaling.records.store import FILE, Store, unlinked
from tests.support.report_scenes import default_run
from tests.support.scripted_records import written


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text("untouched")
    return path


def test_a_page_replaces_a_link_in_the_folder_of_a_run(tmp_path: Path, victim: Path) -> None:
    run = written(tmp_path / "run", default_run())
    page = run / "page.html"
    page.symlink_to(victim)
    deliver("a page", page)
    assert (page.is_symlink(), page.read_text(), victim.read_text()) == (False, "a page", "untouched")


def test_a_link_of_the_user_s_own_is_followed(tmp_path: Path, victim: Path) -> None:
    link = tmp_path / "latest.txt"
    link.symlink_to(victim)
    deliver("a table", link)
    assert link.is_symlink() and victim.read_text() == "a table"


@pytest.mark.parametrize("is_folder", [True, False])
def test_logs_and_traces_go_through_no_link(tmp_path: Path, is_folder: bool) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    planted = tmp_path / ("logs" if is_folder else "0001-a.0.log")
    planted.symlink_to(elsewhere if is_folder else elsewhere / "file")
    assert unlinked(planted) == planted and not planted.is_symlink()
    assert list(elsewhere.iterdir()) == []
    assert unlinked(elsewhere).is_dir()


def test_a_run_s_own_file_is_no_link(tmp_path: Path) -> None:
    other = written(tmp_path / "other", default_run())
    run = tmp_path / "run"
    run.mkdir()
    (run / FILE).symlink_to(other / FILE)
    with pytest.raises(UsageError, match=r"run\.jsonl: cannot be written: is a symbolic link"):
        Store.resume(run)
