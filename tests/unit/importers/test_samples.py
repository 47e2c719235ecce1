"""Each sample by hand: its devices, batch and rate; and what damage, repetition and tags do to all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaling.tools.importers.found import Given
from scaling.tools.importers.tools import TOOLS, read_all
from tests.support.imported_logs import SAID, SAMPLES, damaged, imported, invented, only_row, written

# The thousand of each stands in tests/bench/importers.py.
DAMAGES = 40


def test_every_sample_is_told() -> None:
    of_networks = {path.name for path in SAMPLES.iterdir() if path.name.startswith("nccl_tests")}
    assert {path.name for path in SAMPLES.iterdir()} - of_networks == SAID.keys()


@pytest.mark.parametrize("name", SAID)
def test_a_sample_says(name: str) -> None:
    said = SAID[name]
    row = only_row(SAMPLES / name, said.given)
    assert (row.tool, row.world_size, row.batch_size, row.unit) == said[:3] + said[4:5]
    assert row.rate == pytest.approx(said.rate, rel=1e-4)
    assert row.log == name


@pytest.mark.parametrize("name", SAID)
def test_a_sample_twice_in_a_file_is_one(name: str, tmp_path: Path) -> None:
    said = SAID[name]
    text = (SAMPLES / name).read_text()
    row = only_row(written(tmp_path, text + text), said.given)
    assert (row.world_size, row.batch_size) == (said.world_size, said.batch_size)
    assert row.rate == pytest.approx(said.rate, rel=0.02)


@pytest.mark.parametrize("name", SAID)
def test_windows_line_ends_and_colours_change_nothing(name: str, tmp_path: Path) -> None:
    said = SAID[name]
    text = (SAMPLES / name).read_text().replace("\n", "\x1b[0m\r\n")
    assert only_row(written(tmp_path, text), said.given).rate == pytest.approx(said.rate, rel=1e-4)


@pytest.mark.parametrize("name", SAID)
def test_damage_invents_no_row(name: str, tmp_path: Path) -> None:
    """Refused, or what it said before; a digit that was changed where nothing else tells the number is beyond
    any reader."""
    data = (SAMPLES / name).read_bytes()
    found = [invented(one, SAID[name], tmp_path) for one in damaged(data, seed=len(name), count=DAMAGES)]
    assert [rows for rows in found if rows] == []


@pytest.mark.parametrize("name", SAID)
def test_another_number_of_devices_is_refused(name: str, tmp_path: Path) -> None:
    """Where the log says one."""
    said = SAID[name]
    if said.given.world_size:
        return
    with pytest.raises(Exception, match="--world-size 63: the log says"):
        read_all([SAMPLES / name], None, Given(world_size=63))


def test_every_tool_has_a_sample() -> None:
    told = {said.tool for said in SAID.values()} | {imported(path).bandwidths[0].tool for path in networks()}
    assert told == TOOLS.keys()


def networks() -> list[Path]:
    return sorted(path for path in SAMPLES.iterdir() if path.name.startswith("nccl_tests"))
