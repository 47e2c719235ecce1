"""Whole sweeps on a virtual clock, before and after a change of a strategy: red, and green on a null pair."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from scaling.tools.compare import __main__ as command
from tests.support.compared_runs import on_disk
from tests.support.inline import Launch

NOISE = ("noise=0.02", "round_noise=0.004", "exchange_s=0.001")


def swept(folder: Path, seed: int, *options: str) -> str:
    """A sweep of 1, 2 and 4 ranks; its options stand for code, and are in no name."""
    folder.mkdir()
    run = Launch(4).sweep(folder, option=[*NOISE, *options], seed=seed, rounds=5)
    records = [replace(one, point=replace(one.point, options={})) for one in run.records]
    return on_disk(folder / "run", (run.header, records))


@pytest.mark.parametrize(("planted", "code"), [((), 0), (("overhead_s=0.0006",), 1)])
def test_the_gate(tmp_path: Path, planted: tuple[str, ...], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    """0.6 ms of 10 to 11: 5 to 6 %."""
    base = swept(tmp_path / "base", 1)
    assert command.main([base, swept(tmp_path / "new", 2, *planted)]) == code
    assert ("slower" in capsys.readouterr().out.partition("How to read")[0].partition("! ")[2]) is bool(code)
