"""What a report says of the size of samples and of what updates: rates of others are no rates of the same work."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.records.run import PointRecord
from scaling.report.document import document
from scaling.report.formats import csv, terminal
from tests.support.points import changed
from tests.support.scripted_records import header, sweep
from tests.support.training_records import training_record

# The model's own size, and what may stand in its place.
WORKS: dict[str, dict[str, Any]] = {
    "64 px": {"image_size": 64},
    "1,024 tokens": {"sequence_length": 1024, "unit": "tokens"},
    "adam": {"optimizer": "adam"},
}


def of(records: Iterable[PointRecord], **work: Any) -> list[PointRecord]:
    return [replace(record, point=changed(record.point, **work)) for record in records]


def measured(**work: Any) -> list[PointRecord]:
    return [one for number in range(3) for one in of(sweep(number, 0.1, {2: 0.11}), **work)]


def drawn(records: Iterable[PointRecord]) -> list[str]:
    text = terminal.draw(document(header(), list(records)), color=False)
    return [" ".join(line.split()) for line in text.splitlines()]


def test_the_header_says_what_is_not_the_model_s_own() -> None:
    def model(**work: Any) -> str:
        return next(line for line in drawn(measured(**work)) if line.startswith("model "))

    assert "px" not in model()
    assert " at 64 px on " in model(image_size=64)
    assert " at 1,024 tokens on " in model(sequence_length=1024, unit="tokens")
    assert ", fp32, adam" in model(optimizer="adam")


@pytest.mark.parametrize("said", WORKS)
def test_tables_and_baselines_of_one_report_say_which_is_which(said: str) -> None:
    lines = drawn([*measured(), *measured(**WORKS[said])])
    for name in ("fake:a", "fake:plain"):
        assert any(line.startswith(name) and said in line for line in lines), name
        assert any(line.startswith(name) and "its own" in line for line in lines), name


def test_programs_are_told_too() -> None:
    (line,) = csv.render(measured(image_size=64, optimizer="adam")).splitlines()[1:]
    assert line.endswith(",64,0,adam")


@pytest.mark.parametrize(
    ("regime", "said", "usual"),
    [
        ({"weights": "/w.npz"}, "from /w.npz", "from drawn weights"),
        ({"optimizer": "adam"}, "adam", "sgd"),
        ({"augment_epochs": 1}, "1 of them augmented", "0 of them augmented"),
        ({"warmup_epochs": 1}, "1 of warm-up", "0 of warm-up"),
        ({"lr_steps": (1,)}, "rate falls at 1", "rate falls at none"),
        ({"test_samples": 60}, "60 held out", "all held out"),
    ],
)
def test_trainings_of_one_report_say_which_is_which(regime: dict[str, Any], said: str, usual: str) -> None:
    one = training_record([0.8, 0.9])
    assert one.point.regime is not None
    other = replace(one, point=replace(one.point, regime=replace(one.point.regime, **regime)))
    titles = [line for line in drawn([one, other]) if line.startswith("Training to an accuracy: ")]
    assert sorted(line.rpartition(": ")[2] for line in titles) == sorted((f"fake:a, {usual}", f"fake:a, {said}"))
