"""nccl-tests: columns by the header's names, wrong values, runs without MPI, several ranks on one GPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scaling.errors import UsageError
from scaling.tools.importers import __main__ as command
from scaling.tools.importers.logs import Given
from tests.support.imported_logs import SAMPLES, damaged, imported, refusal, written

TEXT = (SAMPLES / "nccl_tests.log").read_text()
BUSBW = [55.44, 54.78, 237.48, 237.86]


def told(path: Path, given: Given = Given()) -> list[float]:  # noqa: B008
    return [one.busbw_gbytes_per_s for one in imported(path, given).bandwidths]


def test_the_table_says() -> None:
    first, *_, last = imported(SAMPLES / "nccl_tests.log").bandwidths
    assert (first.collective, first.world_size, first.dtype, first.redop) == ("all_reduce", 8, "float", "sum")
    assert (first.size_bytes, first.algbw_gbytes_per_s) == (1048576, 31.68)
    assert first.time_s == pytest.approx(33.1e-6)
    assert (last.in_place, last.busbw_gbytes_per_s, last.wrong) == (True, 237.86, 0)


def test_twice_in_a_file_is_once(tmp_path: Path) -> None:
    assert told(written(tmp_path, TEXT + TEXT)) == BUSBW


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
    assert told(log, Given(world_size=8)) == [55.44, 54.78]


def test_signs_that_markdown_took_are_not_missed(tmp_path: Path) -> None:
    pasted = "\n".join(line.removeprefix("#") for line in TEXT.splitlines())
    for text in (pasted, "\n".join(map(str.strip, pasted.splitlines()))):
        bare = imported(written(tmp_path, text + "\n")).bandwidths
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


@pytest.mark.parametrize("said", ["3", "1.04858e+06", "6505077235894974"])
def test_wrong_values_of_any_size_are_told(said: str, tmp_path: Path) -> None:
    log = written(tmp_path, TEXT.replace(" 55.44      0", f" 55.44 {said}"))
    assert imported(log).bandwidths[0].wrong == int(float(said))


def test_one_wrong_repetition_is_enough(tmp_path: Path) -> None:
    row = next(line for line in TEXT.splitlines() if " 55.44 " in line)
    slow = row.replace(" 55.44      0", " 50.00      7")
    found = imported(written(tmp_path, TEXT.replace(row, f"{row}\n{slow}\n{row.replace('55.44', '57.00')}")))
    assert [one.wrong for one in found.bandwidths][:2] == [7, 0]


def with_errors(text: str) -> str:
    """As older versions print it: an error instead of a count."""
    return "\n".join(
        line.replace("#wrong", " error") if "algbw" in line else line.replace("      0", "  1e+00")
        for line in text.splitlines()
    )


def test_a_failed_check_is_an_audit_where_no_line_says_which(tmp_path: Path) -> None:
    log = written(tmp_path, with_errors(TEXT) + "\n# Out of bounds values : 248 FAILED\n")
    found = imported(log).bandwidths
    assert [one.wrong for one in found] == [None] * 4
    assert all("out of bounds 248" in one.audit for one in found)
    fine = written(tmp_path, with_errors(TEXT) + "\n# Out of bounds values : 0 OK\n", "fine.log")
    assert not any(one.audit for one in imported(fine).bandwidths)


def test_the_collective_of_a_build_with_a_suffix(tmp_path: Path) -> None:
    log = written(tmp_path, "$ srun all_gather_perf_mpi -b 1M\n" + TEXT.replace("all_reduce_perf", "x"))
    assert {one.collective for one in imported(log).bandwidths} == {"all_gather"}


NO_RANKS = "\n".join(line for line in TEXT.splitlines() if "Rank" not in line)


def test_two_collectives_are_not_one_table(tmp_path: Path) -> None:
    log = written(tmp_path, f"{NO_RANKS}\n{NO_RANKS.replace('all_reduce', 'reduce_scatter')}\n")
    assert "has tables of several collectives (all_reduce, reduce_scatter)" in refusal(log, Given(world_size=8))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TEXT.replace("Rank  7 Group  0", "Rank  7 Group  1"), "has 2 groups at once (NCCL_TESTS_SPLIT)"),
        (TEXT.replace("Rank  1 Group", "Rank  0 Group"), "has several Rank 0"),
        (TEXT.replace("Rank  7 Group", "Rank  9 Group"), "lacks lines of ranks"),
        (NO_RANKS.replace("all_reduce", "broadcast"), "(no Rank lines): add --world-size N"),
        (TEXT.replace("1048576  ", "10x8576  ").replace("1073741824  ", "...  "), "no line that is whole"),
        (TEXT.replace(" time ", " cputime "), "has CPU times (-C 1)"),
        (TEXT.replace(" time ", " tme "), "no line that is whole"),
    ],
)
def test_what_is_refused(text: str, said: str, tmp_path: Path) -> None:
    assert said in refusal(written(tmp_path, text))


def test_damage_invents_no_line(tmp_path: Path) -> None:
    for data in damaged((SAMPLES / "nccl_tests.log").read_bytes(), seed=3, count=60):
        path = tmp_path / "damaged.log"
        path.write_bytes(data)
        try:
            assert set(told(path)) <= set(BUSBW)
        except UsageError:
            continue


@pytest.mark.parametrize("busbw", ["9e999", "1e300", "2375.44", "-55.44"])
def test_a_busbw_of_more_than_twice_its_algbw_is_not_read(busbw: str, tmp_path: Path) -> None:
    assert told(written(tmp_path, TEXT.replace("55.44", busbw, 1))) == BUSBW[2:]


@pytest.mark.parametrize(
    ("name", "value"), [("ranks", "1e999"), ("size", "NaN"), ("time", "0"), ("time", "1e999"), ("busBw", "1e9")]
)
def test_an_impossible_value_of_rccl_is_no_row(name: str, value: str, tmp_path: Path) -> None:
    text = re.sub(rf'"{name}":[\d.]+', f'"{name}":{value}', (SAMPLES / "rccl_tests.json").read_text(), count=1)
    path = tmp_path / "rccl.json"
    path.write_text(text)
    assert told(path) == [145.347168, 183.5008, 182.361043]


# ---------------------------------------------------------------- devices by bandwidths, headers of one place

ONE_PLACE = """#       size         count      type   redop    root     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1      33.1   31.68   55.44      0
  1073741824     268435456     float     sum      -1    7912.4  135.70  237.48      0
"""


def test_a_header_of_one_place_is_read(tmp_path: Path) -> None:
    found = imported(written(tmp_path, ONE_PLACE)).bandwidths
    assert [(one.world_size, one.in_place, one.busbw_gbytes_per_s) for one in found] == [
        (8, False, 55.44),
        (8, False, 237.48),
    ]


@pytest.mark.parametrize("columns", ["time", "time algbw busbw", "count size time time algbw busbw"])
def test_a_damaged_header_is_no_traceback(columns: str, tmp_path: Path) -> None:
    text = ONE_PLACE.replace("time   algbw   busbw #wrong", columns)
    assert refusal(written(tmp_path, text), Given(world_size=8), "nccl_tests")


@pytest.mark.parametrize(
    ("text", "given", "said"),
    [
        (ONE_PLACE, Given(world_size=4), "--world-size 4: the log says 8"),
        (
            "".join(line for line in (SAMPLES / "nccl_tests.log").read_text().splitlines(keepends=True)
                    if "Rank  7" not in line),
            Given(),
            "says 7 devices, but its busbw / algbw is of 8",
        ),
    ],
)  # fmt: skip
def test_bandwidths_tell_the_number_of_devices(text: str, given: Given, said: str, tmp_path: Path) -> None:
    assert said in refusal(written(tmp_path, text), given)
