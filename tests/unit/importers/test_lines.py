"""A log as lines, and whose log it is."""

from __future__ import annotations

import gc
import re
from itertools import product
from pathlib import Path

import pytest

from scaling.tools.importers import lines
from scaling.tools.importers.logs import NUMBER, Given
from scaling.tools.importers.tools import TOOLS, read_all, recognise
from tests.support.imported_logs import (
    SAID,
    SAMPLES,
    damaged,
    imported,
    invented,
    only_row,
    refusal,
    written,
)

# A log as lines: tags, carriage returns, colours, ends that were cut, lines without end; whose log it is.

# The thousand of each stands in tests/bench/importers.py.
DAMAGES = 40


def test_every_sample_is_told() -> None:
    of_networks = {path.name for path in SAMPLES.iterdir() if path.name.startswith(("nccl_", "rccl_"))}
    assert {path.name for path in SAMPLES.iterdir()} - of_networks == SAID.keys()


@pytest.mark.parametrize("name", SAID)
def test_a_sample_says(name: str) -> None:
    said = SAID[name]
    row = only_row(SAMPLES / name, said.given)
    assert (row.tool, row.world_size, row.batch_size, row.unit) == said[:3] + said[4:5]
    assert row.rate == pytest.approx(said.rate, rel=1e-4)
    assert row.log == name


@pytest.mark.parametrize("name", SAID)
def test_a_sample_twice_in_a_file_is_one(name: str, tmp_path: Path) -> None:
    said = SAID[name]
    text = (SAMPLES / name).read_text()
    row = only_row(written(tmp_path, text + text), said.given)
    assert (row.world_size, row.batch_size) == (said.world_size, said.batch_size)
    assert row.rate == pytest.approx(said.rate, rel=0.02)


@pytest.mark.parametrize("name", SAID)
def test_windows_line_ends_and_colours_change_nothing(name: str, tmp_path: Path) -> None:
    said = SAID[name]
    text = (SAMPLES / name).read_text().replace("\n", "\x1b[0m\r\n")
    assert only_row(written(tmp_path, text), said.given).rate == pytest.approx(said.rate, rel=1e-4)


@pytest.mark.parametrize("name", SAID)
def test_damage_invents_no_row(name: str, tmp_path: Path) -> None:
    """Refused, or what it said before; a digit that was changed where nothing else tells the number is beyond
    any reader."""
    data = (SAMPLES / name).read_bytes()
    found = [invented(one, SAID[name], tmp_path) for one in damaged(data, seed=len(name), count=DAMAGES)]
    assert [rows for rows in found if rows] == []


@pytest.mark.parametrize("name", SAID)
def test_another_number_of_devices_is_refused(name: str, tmp_path: Path) -> None:
    """Where the log says one."""
    said = SAID[name]
    if said.given.world_size:
        return
    with pytest.raises(Exception, match="--world-size 63: the log says"):
        read_all([(SAMPLES / name, Given(world_size=63))])


def test_every_tool_has_a_sample() -> None:
    told = {said.tool for said in SAID.values()} | {imported(path).bandwidths[0].tool for path in networks()}
    assert told == TOOLS.keys()


def networks() -> list[Path]:
    return sorted(path for path in SAMPLES.iterdir() if path.name.startswith(("nccl_", "rccl_")))


SIZES = {"nemo.log": 8, "nccl_tests.log": 8}
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
        (
            "A word cut by a rank[1,2]<stdout>:Model: a",
            None,
            "A word cut by a rank[1,2]<stdout>:Model: a",
        ),
        ("[rank3]:Model: a", 3, "Model: a"),
        ("[rank3]: Model: a", 3, "Model: a"),
        ("[default1]:Model: a", 1, "Model: a"),
        (" 3: Model: a", 3, "Model: a"),
        ("[3] Model: a", 3, "Model: a"),
        ("2018-09-04T11:27:31.565575798Z Model: a", None, "Model: a"),
        ("2018-09-04T11:27:31Z [1,2]<stdout>:Model: a", 2, "Model: a"),
        ("  [1,3]<stdout>:Model: a", 3, "Model: a"),
        ("[1,3]<stdout>:[1,3]<stdout>:Model: a", 3, "Model: a"),
        ("0: [1,3]<stdout>:Model: a", 3, "Model: a"),
        ("1: [rank12]: Model: a", 12, "Model: a"),
        ("1: [default3]:Model: a", None, "Model: a"),  # node 1, process 3 of the node
        ("[pod/trainer-0/pytorch] Model: a", None, "Model: a"),
        ("[pod/trainer-0/pytorch] [1,3]<stdout>:Model: a", 3, "Model: a"),
        ("worker-1  | Model: a", None, "Model: a"),
        ("train_worker_1 | Model: a", None, "Model: a"),
        ("trainer  | Model: a", None, "Model: a"),
        ("(RayTrainWorker pid=123, ip=10.0.0.2) Model: a", None, "Model: a"),
        ("(RayTrainWorker pid=123) [rank1]:Model: a", 1, "Model: a"),
        ("(worker1, rank=1, pid=123, ip=10.0.0.2) Model: a", None, "Model: a"),
        ("(train, pid=123) Model: a", None, "Model: a"),
        ("(RayTrainWorker pid=123) Model: a [repeated 9x across cluster]", None, "Model: a"),
        (
            "(main pid=7) Model: a [repeated 2x across cluster] (Ray deduplicates logs by default.)",
            None,
            "Model: a",
        ),
        ("Jan  2 03:04:05 node7 python[4242]: Model: a", None, "Model: a"),
        ("<30>Jan 12 03:04:05 node7 srun[4242]: 3: Model: a", 3, "Model: a"),
        ("2026-01-01T00:00:00+0200 node7 docker/abc[12]: Model: a", None, "Model: a"),
        ("2026-01-01T00:00:00+02:00 Model: a", None, "Model: a"),
        ("2026-01-01T00:00:00.123456789Z Model: a", None, "Model: a"),
        ("2026-01-01T00:00:00.123456789Z 2026-01-01T00:00:00Z Model: a", None, "Model: a"),
        ("> Model: a", None, "Model: a"),
        ("> > [1,3]<stdout>:Model: a", 3, "Model: a"),
        ("```text", None, ""),
        ("| num | rate \\| x |", None, "num  rate | x"),
        ("2026-01-01 00:00:00,123 Model: a", None, "2026-01-01 00:00:00,123 Model: a"),
        (
            " [2026-01-01 00:00:00] iteration 6/ 100 | ms: 5 |",
            None,
            " [2026-01-01 00:00:00] iteration 6/ 100 | ms: 5 |",
        ),
        ("step 3 | loss 2.1", None, "step 3 | loss 2.1"),
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


def test_a_log_that_is_refused_within_is_closed(tmp_path: Path) -> None:
    """Without the collector of cycles, which an exception makes."""
    log = written(
        tmp_path, f"  Continuing training from global step 288\n{(SAMPLES / 'hf_trainer.log').read_text()}"
    )
    gc.disable()
    try:
        assert "was resumed from global step 288" in refusal(log)
        assert log not in {one.resolve() for one in Path("/proc/self/fd").iterdir()}
    finally:
        gc.enable()


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
    match = re.match(NUMBER, text)
    assert (match[1] if match else None) == found


def test_two_tools_in_one_file_are_refused(tmp_path: Path) -> None:
    both = HOROVOD + (SAMPLES / "tf_cnn_2.log").read_text()
    said = "has lines of horovod and of tf_cnn_benchmarks: split it, or choose one with --tool horovod"
    assert refusal(written(tmp_path, both)) == said
    assert imported(written(tmp_path, both), Given(), "horovod").rows[0].world_size == 1


RANK_TAGS = [
    "[1,0]<stdout>:",
    "  [1,0]<stdout>:[1,0]<stdout>:",
    "[1,mpirank:0,algo-1]<stdout>:",
    "[rank0]:",
    "[0] ",
    "0: ",
]
TAGS = [
    "2018-09-04T11:27:31.5Z ",
    "2018-09-04T11:27:31+02:00 ",
    "[pod/trainer-0/pytorch] ",
    "worker-1  | ",
    "(RayTrainWorker pid=123, ip=10.0.0.2) ",
    "Jan  2 03:04:05 node7 python[4242]: ",
    "> ",
    "\x1b[36m(main pid=7)\x1b[0m ",
]


@pytest.mark.parametrize(
    ("tag", "name"),
    [*product([*TAGS, *RANK_TAGS], SAID)],
)
def test_tags_change_nothing_of_any_tool(name: str, tag: str, tmp_path: Path) -> None:
    said = SAID[name]
    lines = (SAMPLES / name).read_text().splitlines()
    tagged = written(tmp_path, "".join(f"{tag}{line}\n" for line in lines))
    row = only_row(tagged, said.given)
    assert (row.tool, row.world_size, row.batch_size, row.unit) == said[:3] + said[4:5]
    assert row.rate == pytest.approx(said.rate, rel=1e-4)
    assert recognise(tagged)[1] == recognise(SAMPLES / name)[1]


@pytest.mark.parametrize("name", SAID)
def test_a_log_in_a_code_fence_says_the_same(name: str, tmp_path: Path) -> None:
    fenced = written(tmp_path, f"```text\n{(SAMPLES / name).read_text()}```\n")
    assert only_row(fenced, SAID[name].given).rate == pytest.approx(SAID[name].rate, rel=1e-4)


def test_a_table_of_nccl_tests_in_markdown_says_the_same(tmp_path: Path) -> None:
    lines = (SAMPLES / "nccl_tests.log").read_text().splitlines()
    cells = (f"| {' | '.join(line.split())} |" if line.split() and "Rank" not in line else line for line in lines)
    table = imported(written(tmp_path, "\n".join(cells) + "\n"), Given(world_size=8))
    plain = imported(SAMPLES / "nccl_tests.log", Given(world_size=8))
    assert [one.busbw_gbytes_per_s for one in table.bandwidths] == [
        one.busbw_gbytes_per_s for one in plain.bandwidths
    ]


@pytest.mark.parametrize("tag", [*TAGS, *RANK_TAGS])
@pytest.mark.parametrize("name", ["nemo.log", "nccl_tests.log"])
def test_a_log_is_recognised_behind_tags(name: str, tag: str, tmp_path: Path) -> None:
    text = (SAMPLES / name).read_text()
    tagged = written(tmp_path, "".join(f"{tag}{line}\n" for line in text.splitlines()))
    plain = recognise(SAMPLES / name)
    assert recognise(tagged)[0] == plain[0]
    found, said = (
        imported(tagged, Given(world_size=SIZES[name])),
        imported(SAMPLES / name, Given(world_size=SIZES[name])),
    )
    assert [row.rate for row in found.rows] == [row.rate for row in said.rows]
    assert len(found.bandwidths) == len(said.bandwidths)
