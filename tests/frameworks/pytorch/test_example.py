"""The example of a strategy in one file: its ranks agree, and the file is named as users name it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scaling.frameworks.pytorch import plain
from tests.support import ranks

FOLDER = Path(plain.__file__).parent
NAME = f"{os.path.relpath(FOLDER / 'example_one_by_one.py')}:gloo"


def test_ranks_agree_and_learn_what_the_plain_loop_learns() -> None:
    first, second = ranks.run(ranks.tasks(NAME, "exchange", 2))
    (alone,) = ranks.run(ranks.tasks("torch:plain", "solo", 1), joined=2)
    assert first.digest == second.digest
    for name, value in alone.after.items():
        assert first.after[name] == pytest.approx(value, abs=1e-5)
