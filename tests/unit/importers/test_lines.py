"""A log as lines: tags, carriage returns, colours, ends that were cut, lines without end; whose log it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaling.errors import UsageError
from scaling.tools.importers import lines
from scaling.tools.importers.found import NUMBER, Given, compiled
from scaling.tools.importers.tools import recognise
from tests.support.imported_logs import SAMPLES, imported, refusal, written

SIZES = {"dllogger_stdout.log": 2, "dllogger_file.log": 8, "nccl_tests.log": 8, "dlbs.log": 4}
HOROVOD = (SAMPLES / "horovod_n1.log").read_text()


def read(folder: Path, data: bytes) -> list[tuple[int | None, str]]:
    path = folder / "a.log"
    path.write_bytes(data)
    return [(line.rank, line.text) for line in lines.of_blocks(lines.blocks(path))]


@pytest.mark.parametrize(
    ("line", "rank", "text"),
    [
        ("[1,13]<stdout>:Model: a", 13, "Model: a"),
        ("[job-7@1,3]<stderr>: Model: a", 3, "Model: a"),
        ("[1,mpirank:10,algo-2]<stdout>:Model: a", 10, "Model: a"),
        ("[1,13]<stdout>:Mod[1,13]<stdout>:el: a[1,13]<stdout>:", 13, "Model: a"),
        ("[1,3]<stdout>:Model: [1,4]<stdout>:b", 3, "Model: [1,4]<stdout>:b"),
        ("[2]<stdout>:Model: a", 2, "Model: a"),
        ("Fri Apr 17 10:00:00 2020[1,2]<stdout>:Model: a", 2, "Model: a"),
        ("[rank3]:Model: a", 3, "Model: a"),
        ("[rank3]: Model: a", 3, "Model: a"),
        ("[default1]:Model: a", 1, "Model: a"),
        (" 3: Model: a", 3, "Model: a"),
        ("[3] Model: a", 3, "Model: a"),
        ("2018-09-04T11:27:31.565575798Z Model: a", None, "Model: a"),
        ("2018-09-04T11:27:31Z [1,2]<stdout>:Model: a", 2, "Model: a"),
        ("Model: a", None, "Model: a"),
        ("[1,2] Model: a", None, "[1,2] Model: a"),
        ("\x1b[31mModel: \x1b[0ma", None, "Model: a"),
        ("\x1b]0;title\x07Model: a", None, "Model: a"),
    ],
)
def test_tags_and_colours_are_taken_off(line: str, rank: int | None, text: str, tmp_path: Path) -> None:
    assert read(tmp_path, line.encode() + b"\n") == [(rank, text)]


def test_a_carriage_return_ends_a_line_and_a_cut_end_is_marked(tmp_path: Path) -> None:
    assert read(tmp_path, b"a\rb\r\nc\xff") == [(None, "a"), (None, "b"), (None, "c\ufffd\u2026")]


def test_blocks_end_with_lines_and_a_line_without_end_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", 16)
    monkeypatch.setattr(lines, "MOST_LINE_BYTES", 40)
    text = b"".join(b"line %d\n" % number for number in range(50))
    assert [text for _, text in read(tmp_path, text)] == [f"line {number}" for number in range(50)]
    (long,) = read(tmp_path, b"x" * 1000)
    assert len(long[1]) <= 60


def test_a_bar_of_an_hour_is_many_lines_and_the_rest_of_a_long_line_is_not_joined_to_its_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bars have no other end than a carriage return: more than the longest line of them in an epoch is usual."""
    monkeypatch.setattr(lines, "BLOCK_BYTES", 16)
    monkeypatch.setattr(lines, "MOST_LINE_BYTES", 40)
    bars = [f"bar {number}" for number in range(50)]
    for ending in ("\r", "\r\n"):
        assert [text for _, text in read(tmp_path, ending.join([*bars, ""]).encode()) if text] == bars
    found = [text for _, text in read(tmp_path, b"rate 1" + b"2" * 100 + b"3 images\rnext\n")]
    assert found == ["rate 1" + "2" * 34 + lines.CUT, "next"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("7,282 ", "7,282"),
        ("7.24, ", "7.24"),
        ("5\u2026", None),
        ("5.\u2026", None),
        ("204.", None),
        ("2x4.75", None),
        ("1e+06\n", "1e+06"),
        ("12...", None),
        ("9'}", "9"),
    ],
)
def test_a_number_is_whole_or_none(text: str, found: str | None) -> None:
    match = compiled(NUMBER).match(text)
    assert (match[1] if match else None) == found


def test_two_tools_in_one_file_are_refused(tmp_path: Path) -> None:
    both = HOROVOD + (SAMPLES / "tf_cnn_2.log").read_text()
    said = "has lines of horovod and of tf_cnn_benchmarks: split it, or choose one with --tool horovod"
    assert refusal(written(tmp_path, both)) == said
    assert imported(written(tmp_path, both), Given(), "horovod").rows[0].world_size == 1


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        recognise(tmp_path / "none")
    with pytest.raises(UsageError, match="is a folder"):
        recognise(tmp_path)


@pytest.mark.parametrize(
    "tag", ["[1,0]<stdout>:", "[1,mpirank:0,algo-1]<stdout>:", "[rank0]:", "[0] ", "2018-09-04T11:27:31.5Z "]
)
@pytest.mark.parametrize("name", ["dllogger_stdout.log", "dllogger_file.log", "nccl_tests.log", "dlbs.log"])
def test_a_log_is_recognised_behind_tags(name: str, tag: str, tmp_path: Path) -> None:
    text = (SAMPLES / name).read_text()
    tagged = written(tmp_path, "".join(f"{tag}{line}\n" for line in text.splitlines()))
    plain = recognise(SAMPLES / name)
    assert recognise(tagged).tool == plain.tool
    found, said = (
        imported(tagged, Given(world_size=SIZES[name])),
        imported(SAMPLES / name, Given(world_size=SIZES[name])),
    )
    assert [row.rate for row in found.rows] == [row.rate for row in said.rows]
    assert len(found.bandwidths) == len(said.bandwidths)
