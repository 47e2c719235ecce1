"""A machine of stubs for each test of the commands under launch/."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fresh_machine import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)
