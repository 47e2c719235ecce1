"""Notes below the tables: one a cause, with counts and sizes, and short."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from scaling.quiet.notes import Load, briefs
from scaling.records.run import PointRecord
from scaling.records.telemetry import Foreign
from scaling.report.material import Material
from scaling.report.notes import MOST, MOST_OF_FAILURE, Notes, shortened
from tests.support.report_scenes import SCENES
from tests.support.scripted_records import header, sweep

SLOW = "slow rank: rank {} on node{} (CPU {}) takes {} % longer than the others when all run"


def merged(*texts: str) -> tuple[str, ...]:
    notes = Notes()
    marks = [notes.causes([text]) for text in texts]
    assert {number for one in marks for number in one} == set(range(1, len(notes.texts()) + 1))
    return notes.texts()


@pytest.mark.parametrize(
    ("texts", "note"),
    [
        (["a took 2.0 % of 25 windows", "a took 12 % of 9 windows"], "a took 2.0 to 12 % of 9 to 25 windows"),
        (["1 window repeated", "3 windows repeated"], "1 to 3 windows repeated"),
        (["changed by -2.0 % per second", "changed by +0.5 % per second"], "changed by -2.0 to +0.5 % per second"),
        (["memory: 1,200 minor faults", "memory: 950 minor faults"], "memory: 950 to 1,200 minor faults"),
        ([SLOW.format(1, 1, 1, "2.0"), SLOW.format(1, 1, 1, "3.1")], SLOW.format(1, 1, 1, "2.0 to 3.1")),
        ([SLOW.format(1, 1, 1, "2.0"), SLOW.format(3, 2, 3, "3.1")],
         f"{SLOW.format(3, 2, 3, '3.1')}; 1 other like it"),
        (["failed: oom (rank 0 on a; log: logs/1.log)", "failed: oom (rank 1 on b; log: logs/2.log)"],
         "failed: oom (rank 0 on a; log: logs/1.log); 1 other like it"),
    ],
)  # fmt: skip
def test_notes_that_differ_in_numbers_and_places_are_one(texts: list[str], note: str) -> None:
    assert merged(*texts) == (note,)


@pytest.mark.parametrize(
    "texts",
    [
        ("no solo control; counted in the rest", "no comm control; counted in the rest"),
        ("throttled: sw thermal", "throttled: hw thermal"),
        ("joined although versions differ: 2.11.0", "joined although versions differ: 2.13.0"),
        ("asked for eth0", "asked for eth1"),
    ],
)
def test_notes_that_differ_in_words_are_several(texts: tuple[str, ...]) -> None:
    assert merged(*texts) == texts


def test_values_of_a_table_are_printed_unchanged() -> None:
    notes = Notes()
    texts = ["seed 1 97.5 %", "seed 1 98.5 %"]
    assert [notes.marks([text]) for text in texts] == [(1,), (2,)]
    assert list(notes.texts()) == texts


def test_a_row_with_many_causes_counts_the_rest() -> None:
    notes = Notes()
    assert notes.causes(["a", "b", "c", "d", "e", "took 1 s", "took 2 s"]) == (1, 2, 3, 4)
    assert notes.texts() == ("a", "b", "c", "and 3 more notes, in --format json")


OOM = "failed: oom: OutOfMemoryError: CUDA out of memory. Tried to allocate 996.00 MiB"
ADVICE = (
    "failed: error: train.py ended without a training step that was seen: no optimizer stepped; add `scaling.step`"
)
PLACE = "(rank 0 on node1; log: {}logs/0001-a.log)"


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("short", "short"),
        (f"{OOM}. GPU 0 has {'memory ' * 30} {PLACE.format('/home/user/run/')}", f"{OOM} … {PLACE.format('')}"),
        (f"{ADVICE} {PLACE.format('/home/user/run/')}", f"{ADVICE} {PLACE.format('')}"),
        (f"short {PLACE.format('/home/user/run/')}", f"short {PLACE.format('')}"),
        (f"cause (in {'x, ' * 15}y) and more, which is {'long ' * 20}", f"cause (in {'x, ' * 15}y) and more …"),
        ("word " * 50, f"{('word ' * 22).strip()} …"),
    ],
)  # fmt: skip
def test_long_notes_end_with_a_sentence_or_clause(text: str, note: str) -> None:
    assert shortened(text) == note


@pytest.mark.parametrize("scene", SCENES)
def test_no_note_of_a_row_is_long(scene: str) -> None:
    for text in Material(*SCENES[scene]()).doc.footnotes:
        most = MOST_OF_FAILURE if " (rank " in text else MOST
        assert len(text.partition(" (rank ")[0]) <= most + len("; 10 others like it")


# Foreign load is one note of the report.


def disturbed(one: PointRecord, cores: float, *, again: int = 0, slower: float = 0.0) -> PointRecord:
    burner = (Foreign(name="/usr/lib/gcc/cc1plus -quiet /home/alice/secret.c", run_s=cores, over_s=1.0),)
    ranks = []
    for rank in one.ranks:
        windows = [replace(window, canary_s=0.01) for window in rank.windows]
        tries = [replace(windows[0], canary_s=0.01 * (1 + slower))] * again
        ranks.append(
            replace(
                rank,
                windows=tuple(windows),
                disturbed=tuple(tries),
                telemetry=replace(rank.telemetry, foreign=burner),
            )
        )
    return replace(one, ranks=tuple(ranks))


def test_foreign_load_on_rows_and_their_controls_is_one_note() -> None:
    records = []
    for number in range(3):
        for one in sweep(number, 0.1, {1: 0.103, 2: 0.11}):
            size = 0.3 + 0.02 * number
            busy = one.point.kind == "solo" or one.point.cell.startswith("fake:a/exchange/n2")
            records.append(disturbed(one, 0.9, again=2, slower=size) if busy else one)
    doc = Material(header(launch_size=2), records).doc
    assert doc.footnotes[0] == "foreign load on node1: cc1plus; 18 of 45 windows repeated, 30 to 34 % slower"
    assert [line.marks for section in doc.sections for line in section.lines] == [(1,), (2, 1)]


def test_the_kinds_of_load_have_a_line_each() -> None:
    slow = Load(windows=10, slower=(0.2, 0.3), hosts=("a",))
    loads = [slow, Load(), Load(windows=5, again=3, shared=1, hosts=("b",))]
    assert briefs(loads) == {
        "foreign load": "foreign load on b: 3 of 8 windows repeated",
        "slower cores": "slower cores on a: 20 to 30 % slower in 2 of 10 windows",
    }
    assert briefs([Load()]) == {}
