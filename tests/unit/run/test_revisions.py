"""`--against REV`: what is left of the other revision's folder."""

from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scaling.plan import config
from scaling.run import revisions


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    packed = io.BytesIO()
    tarfile.open(fileobj=packed, mode="w").close()
    monkeypatch.setattr(revisions, "archived", lambda *_: packed.getvalue())
    monkeypatch.setattr(revisions, "_try_on_hosts", lambda *_: None)
    monkeypatch.setattr(revisions, "replace", lambda plan, **_: plan)
    fields = {"against": "c0de", "results": str(tmp_path / "results")}
    return SimpleNamespace(config=config.build(fields, source="test"))


def checked_out(made: Any) -> Any:
    mailbox: Any = None
    return revisions.checked_out(made, mailbox, ())


def test_an_empty_folder_of_results_that_it_made_goes(made: Any, tmp_path: Path) -> None:
    with checked_out(made):
        assert len(list((tmp_path / "results").iterdir())) == 1
    assert not list(tmp_path.iterdir())


def test_results_stay(made: Any, tmp_path: Path) -> None:
    with checked_out(made):
        (tmp_path / "results/run").mkdir()
    assert [one.name for one in (tmp_path / "results").iterdir()] == ["run"]


def test_a_folder_of_results_that_is_gone_meanwhile_is_no_error(made: Any, tmp_path: Path) -> None:
    with checked_out(made):
        shutil.rmtree(tmp_path / "results")
    assert not list(tmp_path.iterdir())
