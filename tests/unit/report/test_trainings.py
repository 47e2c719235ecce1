"""What the report says of trainings to an accuracy."""

from __future__ import annotations

import json as json_module

from msgspec.structs import replace

from scaling.report.document import document
from scaling.report.formats import json, terminal
from scaling.report.formats.html import page
from scaling.report.material import Material
from tests.support.scripted_records import header
from tests.support.training_records import training_record

RECORDS = [
    training_record([0.9, 0.99], target=0.95),
    training_record([0.8, 0.98], seed=1, target=0.95),
    training_record([0.5, 0.52], size=4, rule="linear", rate=0.4, target=0.95),
    training_record([0.7, 0.90], size=4, rule="linear", rate=0.4, seed=1, target=0.95),
]


def drawn(*records: object) -> str:
    return terminal.draw(document(header(), records), color=False)  # type: ignore[arg-type]


def test_a_table_has_rates_epochs_seconds_and_says_where_a_batch_learns_less() -> None:
    text = drawn(*RECORDS)
    lines = text.splitlines()
    one, four, under = (line.split() for line in lines if line.startswith(("  1    32", "  4   128", "    └")))
    assert one[:8] == ["1", "32", "0.1", "none", "85.0", "98.5", "4.00", "4.00"]
    assert four[:8] == ["4", "128", "0.4", "linear", "60.0", "71.0", "4.60", "-"]
    assert "learns less than batch 32" in " ".join(under)
    assert "seed 0 52.0 %, seed 1 90.0 %" in text
    assert "95 % was not reached in 2 epochs" in text
    assert "no exchange of this run" not in text


def test_the_last_line_has_the_seeds_that_ended_early_too() -> None:
    whole = training_record([0.9, 0.99, 0.99, 0.99], target=0.95)
    ranks = tuple(replace(one, windows=one.windows[:2], evaluations=one.evaluations[:2]) for one in whole.ranks)
    early = replace(whole, ranks=ranks)
    late = training_record([0.5, 0.6, 0.7, 0.8], seed=1, target=0.95)
    assert " top-1 89.5 % epochs 4 " in document(header(), [early, late]).last_line


def test_seconds_to_a_target_of_one_seed_say_so() -> None:
    assert "seconds to 95 % of one seed" in " ".join(drawn(RECORDS[0]).split())


def test_a_training_that_failed_and_one_that_diverged_are_rows() -> None:
    text = drawn(
        training_record([0.1], failed="nan-loss"), training_record([0.1], size=2, failed="crash(SIGKILL)")
    )
    assert "diverged: the loss is no number" in text
    assert "failed: crash(SIGKILL)" in text


def test_ranks_that_do_not_wait_are_marked_beside_those_that_do() -> None:
    text = drawn(RECORDS[0], training_record([0.9, 0.9], size=4, synchronous=False, target=0.95))
    assert "ASYNC" in text
    assert "not comparable with that of synchronous rows" in " ".join(text.split())


def test_confusion_has_a_line_for_each_class() -> None:
    lines = drawn(*RECORDS[:2]).splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("Confusion"))
    assert lines[start].endswith("2 seeds in all")
    assert [line.split() for line in lines[start + 4 : start + 6]] == [["0", "788", "12"], ["1", ".", "."]]


def test_the_last_line_and_the_other_formats_have_it() -> None:
    doc = document(header(), RECORDS)
    assert doc.last_line == "scaling: fake:a N=4 batch 128 lr 0.4 top-1 71.0 % epochs 2 seconds 4.6 flags -"
    (one, four) = json_module.loads(json.render(header(), RECORDS))["trainings"]
    assert (one["seeds"], one["reached"], four["less_than_samples"]) == ([0, 1], 2, 32)
    assert "Training to an accuracy" in page.render(Material(header(), RECORDS))
