"""Strategies from outside whose real workers and helpers answer wrongly: their points alone fail, with the hook
and the type that is wanted."""

from __future__ import annotations

from pathlib import Path

from scaling.records.events import Failed, Finished
from tests.support import faulty
from tests.support.children import nothing_left
from tests.support.inline import Launch

TOLD = {
    "null": "embedded null byte",
    "bytes": "strategy tests.support.faulty:bytes: bytes_per_step() is of a wrong type: Expected `array | null`",
    "memory": "FakeTrainer.peak_memory_bytes() is of a wrong type: Expected `int`, got `float`",
    "notes": "FakeTrainer.notes is of a wrong type: Expected `array`, got `str`",
    "exits": "SystemExit",
    "announces": "tests.support.faulty:announces: announce() is of a wrong type: Expected `str`, got `int`",
}


def test_a_wrong_answer_costs_its_point_alone(tmp_path: Path) -> None:
    names = {f"{faulty.MODULE}:{mode}": told for mode, told in TOLD.items()}
    run = Launch(1, real=True).sweep(
        tmp_path,
        strategy=["fake:a", *names],
        rounds=1,
        kinds=["exchange"],
        world_sizes=[1],
        windows=3,
        window_s=0.01,
    )
    found = {record.point.strategy: record.outcome for record in run.records}
    assert isinstance(found.pop("fake:a"), Finished)
    assert found.keys() == names.keys()
    for name, outcome in found.items():
        assert isinstance(outcome, Failed) and names[name] in outcome.message, outcome
    nothing_left()
