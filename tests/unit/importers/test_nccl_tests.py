"""nccl-tests: columns by the header's names, wrong values, runs without MPI, and the object of -J."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaling.errors import UsageError
from scaling.importers import __main__ as command
from scaling.importers.found import Given
from tests.support.imported_logs import SAMPLES, damaged, imported, refusal, written

TEXT = (SAMPLES / "nccl_tests.log").read_text()
JSON = (SAMPLES / "nccl_tests.json").read_text()
BUSBW = [55.44, 54.78, 237.48, 237.86]


def told(path: Path, given: Given = Given()) -> list[float]:  # noqa: B008
    return [one.busbw_gbytes_per_s for one in imported(path, given).bandwidths]


def test_the_table_says() -> None:
    first, *_, last = imported(SAMPLES / "nccl_tests.log").bandwidths
    assert (first.collective, first.world_size, first.dtype, first.redop) == ("all_reduce", 8, "float", "sum")
    assert (first.size_bytes, first.algbw_gbytes_per_s) == (1048576, 31.68)
    assert first.time_s == pytest.approx(33.1e-6)
    assert (last.in_place, last.busbw_gbytes_per_s, last.wrong) == (True, 237.86, 0)


def test_the_object_says_the_same_and_keeps_no_environment(tmp_path: Path) -> None:
    assert told(SAMPLES / "nccl_tests.json") == [55.44, 237.48, 237.86]
    run = tmp_path / "run"
    assert command.main([str(SAMPLES / "nccl_tests.json"), "-o", str(run)]) == 0
    assert "hunter2" not in (run / "run.jsonl").read_text()


@pytest.mark.parametrize("text", [TEXT, JSON])
def test_twice_in_a_file_is_once(text: str, tmp_path: Path) -> None:
    assert told(written(tmp_path, text + text)) == told(written(tmp_path, text, "b.log"))


@pytest.mark.parametrize(
    ("names", "row"),
    [
        (
            "type time algbw busbw error time algbw busbw error",
            "float 33.1 31.68 55.44 1e-07 33.5 31.30 54.78 N/A",
        ),
        ("type root time algbw busbw time algbw busbw", "float 0 33.1 31.68 55.44 33.5 31.30 54.78"),
        (
            "type redop time algbw busbw #wrong time algbw busbw #wrong",
            "float 33.1 31.68 55.44 0 33.5 31.30 54.78 0",
        ),
    ],
)
def test_columns_go_by_the_header(names: str, row: str, tmp_path: Path) -> None:
    log = written(tmp_path, f"#   size   count   {names}\n 1048576 262144 {row}\n")
    assert told(log, Given(world_size=2)) == [55.44, 54.78]


def test_signs_that_markdown_took_are_not_missed(tmp_path: Path) -> None:
    pasted = "\n".join(line.removeprefix("#") for line in TEXT.splitlines())
    bare = imported(written(tmp_path, pasted + "\n")).bandwidths
    assert [(one.world_size, one.busbw_gbytes_per_s) for one in bare] == [(8, value) for value in BUSBW]


def test_a_timestamp_at_the_end_of_a_line_is_two_words(tmp_path: Path) -> None:
    lines = (
        f"{line} timestamp" if "algbw" in line else
        f"{line} 2025-11-22 10:00:00" if line.lstrip()[:1].isdigit() else line
        for line in TEXT.splitlines()
    )  # fmt: skip
    assert told(written(tmp_path, "\n".join(lines) + "\n")) == BUSBW


def test_wrong_values_are_an_audit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = written(tmp_path, TEXT.replace(" 55.44      0", " 55.44      3"))
    assert command.main([str(log), "-o", str(tmp_path / "run")]) == 0
    marked = [line for line in capsys.readouterr().out.splitlines() if "AUDIT" in line]
    assert marked


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TEXT.replace("Rank  1 Group", "Rank  0 Group"), "has several Rank 0"),
        (TEXT.replace("Rank  7 Group", "Rank  9 Group"), "lacks lines of ranks"),
        (
            "\n".join(line for line in TEXT.splitlines() if "Rank" not in line),
            "(no Rank lines): add --world-size N",
        ),
        (TEXT.replace("1048576  ", "10x8576  ").replace("1073741824  ", "...  "), "no line that is whole"),
        (TEXT.replace(" time ", " cputime "), "has CPU times (-C 1)"),
        (TEXT.replace(" time ", " tme "), "no line that is whole"),
        (JSON.replace('"time"', '"cpu_time"'), "has CPU times (-C 1)"),
        (JSON[:-40], "not closed or damaged"),
        (JSON.replace('"rank": 1,', '"rank": 0,'), "has several Rank 0"),
        (JSON.replace('"results"', '"resuits"'), "no object of nccl-tests -J as version 3"),
    ],
)
def test_what_is_refused(text: str, said: str, tmp_path: Path) -> None:
    assert said in refusal(written(tmp_path, text))


@pytest.mark.parametrize("name", ["nccl_tests.log", "nccl_tests.json"])
def test_damage_invents_no_line(name: str, tmp_path: Path) -> None:
    for data in damaged((SAMPLES / name).read_bytes(), seed=3, count=60):
        path = tmp_path / "damaged.log"
        path.write_bytes(data)
        try:
            assert set(told(path)) <= set(BUSBW)
        except UsageError:
            continue
