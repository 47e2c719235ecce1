"""Samples of other kinds and sizes than images; sections about batches and trainings."""

from __future__ import annotations

import ast
import csv as csv_module
import io
import json as json_module
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import scaling.report
from scaling.analysis.table import catalogue
from scaling.analysis.table.analyse import rows
from scaling.records.point import Unit
from scaling.records.run import PointRecord
from scaling.report.formats import csv, json, markdown, terminal
from scaling.report.material import Material
from tests.support.inline import Launch
from tests.support.points import changed
from tests.support.report_scenes import SCENES, Run, default_run, frameworks_run, rendered
from tests.support.scripted_records import by_one_worker, failed, header, point, record, sweep
from tests.support.training_records import training_record

PACKAGE = Path(scaling.report.__file__).parent


def counted_in(unit: Unit, run: Run) -> Run:
    made, records = run
    return made, [_of(unit, one) for one in records]


def _of(unit: Unit, one: PointRecord) -> PointRecord:
    return replace(one, point=changed(one.point, unit=unit))


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("unit", ["tokens", "samples"])
def test_what_people_read_names_the_unit_and_never_images(scene: str, unit: Unit) -> None:
    made, records = SCENES[scene]()
    usual = [rendered(scene), markdown.draw(Material(made, records).doc)]
    made, records = counted_in(unit, (made, records))
    for text, before in zip(
        (terminal.render(made, records, color=False), markdown.draw(Material(made, records).doc)),
        usual,
        strict=True,
    ):
        assert "image" not in text
        assert text.count(f"{unit}/s") == before.count("images/s") > 0


def test_an_audit_names_tokens() -> None:
    made, records = counted_in("tokens", default_run())
    fed = [replace(one, ranks=(by_one_worker(one).ranks[0], *one.ranks[1:])) for one in records]
    text = terminal.render(made, fed, color=False)
    assert "audit: tokens/s x time gives" in text and "image" not in text


def test_no_table_mixes_units() -> None:
    made, images = default_run()
    _, tokens = counted_in("tokens", default_run())
    doc = Material(made, [*images, *tokens]).doc
    key = catalogue.RATE.key
    rates = [column.title for section in doc.sections for column in section.columns if column.key == key]
    assert sorted(rates) == ["images/s", "tokens/s"]
    assert not doc.comparisons and len(doc.sections) == 2
    assert [(table.columns[2].unit, len(table.lines)) for table in doc.baselines] == [
        ("images/s", 2),
        ("tokens/s", 2),
    ]
    text = terminal.render(made, [*images, *tokens], color=False)
    assert "Baselines, images/s\n" in text and "Baselines, tokens/s\n" in text


def test_programs_read_samples_and_find_no_images_per_s_that_are_none() -> None:
    made, records = counted_in("tokens", default_run())
    for line in csv_module.DictReader(io.StringIO(csv.of_rows(rows(records)))):
        assert (line["images_per_s"], line["unit"]) == ("", "tokens") and float(line["samples_per_s"]) > 0
    found = json_module.loads(json.render(Material(made, records)))
    for entry in (*found["rows"], *found["baselines"]):
        assert (entry["images_per_s"], entry["unit"]) == (None, "tokens") and entry["samples_per_s"]["mean"] > 0


def names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.keyword(arg=str(name)) | ast.Attribute(attr=name) | ast.Name(id=name):
                yield name


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_name_of_the_report_says_images(path: Path) -> None:
    assert not [name for name in names(ast.parse(path.read_text())) if "image" in name.lower()]


def test_no_key_of_a_column_or_cell_says_images() -> None:
    doc = Material(*frameworks_run()).doc
    keys = {column.key for section in (*doc.comparisons, *doc.sections) for column in section.columns}
    keys |= {key for section in (*doc.comparisons, *doc.sections) for line in section.lines for key in line.cells}
    assert catalogue.RATE.key in keys and not [key for key in keys if "image" in key]


# The table of a sweep over batches: what stands in it, what is said of a batch that does not pay or fit.

PLAIN: dict[str, Any] = {"strategy": "fake:plain"}


def records(times: dict[int, float], **fields: Any) -> list[PointRecord]:
    return [
        record(point("exchange", 1, number, batch_size=size, **{**PLAIN, **fields}), drift * step_s)
        for number, drift in enumerate((0.999, 1.0, 1.002, 1.001))
        for size, step_s in times.items()
    ]


def table(text: str, title: str) -> list[str]:
    """The lines of a section, without runs of spaces; rules as they are named."""
    of = text.partition(f"\n{title}\n")[2].partition("\n\n")[0]
    return [" ".join(line.split()) for line in of.splitlines()]


def text_of(found: Iterable[PointRecord]) -> str:
    return terminal.render(header(), list(found), color=False)


def test_a_batch_that_does_not_pay_and_one_that_does_not_fit() -> None:
    lost = [failed(point("exchange", 1, number, batch_size=256, **PLAIN)) for number in range(4)]
    text = text_of([*records({32: 0.211, 64: 0.42028, 128: 0.89986}), *lost])
    assert table(text, "Minibatches: fake:plain")[-5:] == [
        "32 211 ± 0 151.6 ± 0.3 99.6 % ± 0.0 -",
        "64 420 ± 1 152.2 ± 0.3 100.0 % 1.99 ± 0.00",
        "128 900 ± 2 142.2 ± 0.3 93.4 % ± 0.0 2.14 ± 0.00",
        "└ more than 2 x as long as 64",
        "256 OOM [1]",
    ]
    assert "batch 32, 64, 128, 256 per device, each x N in all (weak scaling)" in " ".join(text.split())
    assert "all 4 rounds failed: oom: out of memory" in " ".join(text.split())
    assert "OOM" in text.partition("How to read")[2]
    # A plain loop is no scaling curve and has nothing that its efficiency could be held against.
    assert "speedup  " not in text
    assert "no baseline" not in text


def test_a_batch_whose_ranks_share_cores_claims_its_rate_alone() -> None:
    made = [
        replace(one, oversubscribed=one.point.workload.batch_size == 64) for one in records({32: 0.211, 64: 0.45})
    ]
    text = text_of(made)
    assert table(text, "Minibatches: fake:plain")[-2:] == [
        "32 211 ± 0 151.6 ± 0.3 100.0 % -",
        "64 450 ± 1 142.2 ± 0.3 OVERSUBSCRIBED [1]",
    ]
    assert "2 x as long" not in text
    assert "[1] OVERSUBSCRIBED: more workers than cores" in " ".join(text.split())
    (line,) = (one for one in markdown.draw(Material(header(), made).doc).splitlines() if "| 450" in one)
    assert line.count("OVERSUBSCRIBED") == 1


def test_ranks_that_are_placed_otherwise_are_another_sweep() -> None:
    """Of two runs in one table; a single batch of each is no sweep."""
    both = [*records({32: 0.1, 64: 0.19}), *records({32: 0.1, 64: 0.21}, placement="spread")]
    text = text_of(both)
    assert "1.90 ± 0.00" in table(text, "Minibatches: fake:plain, pack")[-1]
    assert "2.10 ± 0.00" in table(text, "Minibatches: fake:plain, spread")[-2]
    assert "Minibatches" not in text_of([*records({32: 0.1}), *records({32: 0.1}, placement="spread")])


def test_frameworks_of_a_pass_are_ranked_without_efficiencies_that_nobody_has() -> None:
    both = [
        *records({32: 0.1, 64: 0.19}, pass_="forward"),
        *records({32: 0.2, 64: 0.39}, pass_="forward", strategy="torch:plain"),
    ]
    made = Material(header(), both).doc
    assert [section.title for section in made.comparisons] == [
        f"Frameworks at each world size, by their fastest exchange, {size} per device" for size in (32, 64)
    ]
    assert "Minibatches: torch:plain" in markdown.draw(Material(header(), both).doc)


def test_a_swept_run_end_to_end(tmp_path: Path) -> None:
    """By the script 5 ms and 1 ms a sample; the forward pass takes a third; from 32 on there is no memory."""
    option = ["step_s=0.005", "sample_s=0.001", "fail=oom", "fail_batch=32"]
    asked: dict[str, Any] = {"strategy": ["fake:plain"], "option": option, "pass": ["forward", "step"]}
    found = Launch(1).sweep(tmp_path, batch_sizes=[8, 16, 32], **asked)
    assert {one.point.kind for one in found.records} == {"exchange"}
    text = terminal.render(found.header, found.records, color=False)
    lines = table(text, "Minibatches: fake:plain")
    assert [line.split()[:2] for line in lines if line.split()[0] in ("8", "16", "32")] == [
        ["8", "4.33"], ["16", "7.00"], ["32", "OOM"], ["8", "13.0"], ["16", "21.0"], ["32", "OOM"],
    ]  # fmt: skip
    assert found.header.config["batch_sizes"] == [8, 16, 32]


def test_batches_of_an_exchange_have_their_own_baselines_and_curves(tmp_path: Path) -> None:
    found = Launch(2).sweep(tmp_path, batch_sizes=[8, 16], option=["sample_s=0.001"], world_sizes=[1, 2])
    assert {(one.point.kind, one.point.workload.batch_size) for one in found.records} == {
        (kind, size) for kind in ("exchange", "solo", "together", "comm") for size in (8, 16)
    }
    made = Material(found.header, found.records).doc
    assert [section.title for section in made.sections] == [
        "Minibatches: fake:a", "Minibatches: fake:plain, one device alone", "fake:a, 8 per device",
        "fake:a, 16 per device",
    ]  # fmt: skip
    assert [line.above for line in made.sections[0].lines] == ["N = 1", "", "N = 2", ""]


# What the report says of trainings to an accuracy.

RECORDS = [
    training_record([0.9, 0.99], target=0.95),
    training_record([0.8, 0.98], seed=1, target=0.95),
    training_record([0.5, 0.52], size=4, rule="linear", rate=0.4, target=0.95),
    training_record([0.7, 0.90], size=4, rule="linear", rate=0.4, seed=1, target=0.95),
]


def drawn(*records: object) -> str:
    return terminal.draw(Material(header(), records).doc, color=False)  # type: ignore[arg-type]


def test_the_last_line_has_the_seeds_that_ended_early_too() -> None:
    whole = training_record([0.9, 0.99, 0.99, 0.99], target=0.95)
    ranks = tuple(replace(one, windows=one.windows[:2], evaluations=one.evaluations[:2]) for one in whole.ranks)
    early = replace(whole, ranks=ranks)
    late = training_record([0.5, 0.6, 0.7, 0.8], seed=1, target=0.95)
    assert " top-1 89.5 % epochs 4 " in Material(header(), [early, late]).doc.last_line


def test_asynchronous_ranks_are_marked_among_synchronous_ones() -> None:
    text = drawn(RECORDS[0], training_record([0.9, 0.9], size=4, synchronous=False, target=0.95))
    assert "ASYNC" in text
    assert "not comparable with synchronous rows" in " ".join(text.split())


# What a report says of the size of samples and of what updates: rates of others are no rates of the same work.

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


def sample_sizes_drawn(records: Iterable[PointRecord]) -> list[str]:
    text = terminal.draw(Material(header(), list(records)).doc, color=False)
    return [" ".join(line.split()) for line in text.splitlines()]


def test_the_header_says_what_is_not_the_model_s_own() -> None:
    def model(**work: Any) -> str:
        return next(line for line in sample_sizes_drawn(measured(**work)) if line.startswith("model "))

    assert "px" not in model()
    assert " at 64 px on " in model(image_size=64)
    assert " at 1,024 tokens on " in model(sequence_length=1024, unit="tokens")
    assert ", fp32, adam" in model(optimizer="adam")


@pytest.mark.parametrize("said", WORKS)
def test_tables_and_baselines_of_one_report_say_which_is_which(said: str) -> None:
    lines = sample_sizes_drawn([*measured(), *measured(**WORKS[said])])
    for name in ("fake:a", "fake:plain"):
        assert any(line.startswith(name) and said in line for line in lines), name
        assert any(line.startswith(name) and "its own" in line for line in lines), name


def test_programs_are_told_too() -> None:
    (line,) = csv.of_rows(rows(measured(image_size=64, optimizer="adam"))).splitlines()[1:]
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
    titles = [line for line in sample_sizes_drawn([one, other]) if line.startswith("Training to an accuracy: ")]
    assert sorted(line.rpartition(": ")[2] for line in titles) == sorted((f"fake:a, {usual}", f"fake:a, {said}"))
