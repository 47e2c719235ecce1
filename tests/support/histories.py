"""Folders of runs as pages: marks of all kinds, and names that would run a script if a page let them."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from scaling.tools.history.__main__ import page
from scaling.tools.history.lines import RunLine, Unreadable, lettered, line
from tests.support import hostile
from tests.support.compared_runs import without_noise
from tests.support.emulated_records import emulated_run
from tests.support.report_scenes import SCENES
from tests.support.scripted_records import UNIX_S

DAY_S = 86400.0


def history_lines() -> list[RunLine]:
    """Scenes twice, a day after the other, and a small sweep that gets slower."""
    scenes = [SCENES["cluster"](), SCENES["networks"](), emulated_run(), hostile.hostile_run()]
    runs = [*scenes, *scenes, *(without_noise(lost=0.01 * day) for day in range(5))]
    found = []
    for day, (header, records) in enumerate(runs):
        made = replace(header, created_unix_s=UNIX_S + day * DAY_S)
        found.append(
            line(Path(f"20260725-172000-{hostile.HOST if day % 2 else day}"), made, records, all_exchanges=True)
        )
    return lettered(found)


def history_page() -> str:
    """One page of all of them, and of a run that cannot be read."""
    return page(hostile.HOST, history_lines(), [Unreadable(run=hostile.NOTE, reason=hostile.NETWORK)])
