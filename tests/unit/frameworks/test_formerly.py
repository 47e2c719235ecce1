"""Import paths that strategies from outside were told to use hold for one release more."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scaling.frameworks import base, network_env, outside
from scaling.records import point, task
from scaling.workloads import feeds, models

WRITTEN = """
from scaling import data, models, steering
from scaling.points import EXCHANGING
from scaling.strategies.base import Helper, Option, Strategy, Trainer, Traits, read_options
from scaling.strategies.knobs import positive_integer
from scaling.tasks import Task

class Mine(Strategy):
    names = ("{module}:mine",)
"""


def test_the_old_paths_are_the_new_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for old in outside.FORMERLY:
        monkeypatch.delitem(sys.modules, old, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins/written_before.py").write_text(WRITTEN.format(module="plugins.written_before"))
    strategy = outside.load("plugins.written_before", "plugins.written_before:mine")
    found = vars(sys.modules["plugins.written_before"])
    assert isinstance(strategy, base.Strategy)
    assert (found["data"], found["models"], found["steering"]) == (feeds, models, network_env)
    assert (found["Task"], found["EXCHANGING"]) == (task.Task, point.EXCHANGING)
