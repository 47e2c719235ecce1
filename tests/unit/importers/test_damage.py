"""Every tool's sample cut, wrapped, tagged, doubled, or interleaved with a rank: its numbers or a refusal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scaling.errors import UsageError
from tests.support.imported_logs import SAID, SAMPLES, Said, imported, is_near, written

COLUMNS = 80
TAGS = ("[1,0]<stdout>:", "[rank0]: ", "0: ", "2018-09-04T11:27:31.5Z ")


def text_of(name: str) -> str:
    return re.sub("\x1b\\[[0-9;]*m", "", (SAMPLES / name).read_text().replace("\r", "\n"))


def numbers(text: str, said: Said, folder: Path) -> list[tuple[int, int, float]]:
    """Devices, batch and rate of each row, none if refused."""
    try:
        rows = imported(written(folder, text), said.given).rows
    except UsageError:
        return []
    return [(row.world_size, row.batch_size, row.rate or said.rate) for row in rows]


def others(text: str, name: str, folder: Path) -> list[tuple[int, int, float]]:
    """Rows that the sample does not have. A part of a sample may lack its batch."""
    said = SAID[name]
    return [
        (size, batch, rate)
        for size, batch, rate in numbers(text, said, folder)
        if size != said.world_size
        or batch not in (0, said.batch_size)
        or not any(is_near(rate, near) for near in (said.rate, *said.earlier))
    ]


def wrapped(text: str, columns: int) -> str:
    return "".join(
        f"{line[start : start + columns]}\n"
        for line in text.splitlines()
        for start in range(0, max(len(line), 1), columns)
    )


def untagged(text: str) -> list[str]:
    return [re.sub(r"^\[(?:1,|rank)\d+\](?:<stdout>)?: ?", "", line) for line in text.splitlines()]


def interleaved(text: str, first: str, second: str) -> str:
    return "".join(f"{tag}{line}\n" for line in untagged(text) for tag in (first, second))


@pytest.mark.parametrize("name", SAID)
def test_a_log_that_ends_anywhere(name: str, tmp_path: Path) -> None:
    text = (SAMPLES / name).read_text()
    step = max(1, len(text) // 150)
    ends = [*range(0, len(text), step), *range(max(0, len(text) - 60), len(text))]
    assert [found for end in ends if (found := others(text[:end], name, tmp_path))] == []


@pytest.mark.parametrize("name", SAID)
def test_a_line_that_breaks_off_anywhere(name: str, tmp_path: Path) -> None:
    """Another process writes a line between."""
    lines = text_of(name).splitlines(keepends=True)
    last = max(lines, key=len)
    at = lines.index(last)
    broken = (
        "".join([*lines[:at], last[:end], "\nhello world\n", last[end:], *lines[at + 1 :]])
        for end in range(0, len(last), 2)
    )
    assert [found for text in broken if (found := others(text, name, tmp_path))] == []


@pytest.mark.parametrize("columns", [COLUMNS, COLUMNS - 1, 61])
@pytest.mark.parametrize("name", SAID)
def test_a_terminal_that_wraps(name: str, columns: int, tmp_path: Path) -> None:
    assert others(wrapped(text_of(name), columns), name, tmp_path) == []


@pytest.mark.parametrize("name", SAID)
def test_a_number_that_wraps(name: str, tmp_path: Path) -> None:
    """After each digit of each number in turn, with the line's other text on the next line."""
    text = text_of(name)
    ends = [digit.end() for digit in re.finditer(r"\d(?=[\d.])", text)]
    ends = ends[:: max(1, len(ends) // 150)]
    assert [found for end in ends if (found := others(f"{text[:end]}\n{text[end:]}", name, tmp_path))] == []


@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("name", SAID)
def test_tags_change_nothing(name: str, tag: str, tmp_path: Path) -> None:
    if SAID[name].tool == "tf_cnn_benchmarks" and "rank" in tag:
        return
    said = SAID[name]
    text = "".join(f"{tag}{line}\n" for line in untagged(text_of(name)))
    if not said.given.world_size and name != "tf_cnn_8.log":
        ((size, batch, rate),) = numbers(text, said, tmp_path)
        assert (size, batch) == (said.world_size, said.batch_size)
        assert rate == pytest.approx(said.rate, rel=1e-3)
    assert others(text, name, tmp_path) == []


@pytest.mark.parametrize("tags", [("[1,0]<stdout>:", "[1,1]<stdout>:"), ("", "")])
@pytest.mark.parametrize("name", SAID)
def test_two_ranks_that_say_the_same(name: str, tags: tuple[str, str], tmp_path: Path) -> None:
    assert others(interleaved(text_of(name), *tags), name, tmp_path) == []


DAMAGE: list[Callable[[str], str]] = [
    lambda text: text + text,
    lambda text: text + text[: len(text) // 2],
    lambda text: "".join(line + line for line in text.splitlines(keepends=True)),
]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", SAID)
def test_text_that_is_repeated_counts_once(name: str, damage: Callable[[str], str], tmp_path: Path) -> None:
    assert others(damage(text_of(name)), name, tmp_path) == []


def slower(text: str) -> Iterator[str]:
    """The sample with each of its rates halved."""
    for line in text.splitlines(keepends=True):
        yield re.sub(r"\d+\.\d+(?= (?:samples/sec|img/sec|images/sec|examples/second))", _half, line)


def _half(number: re.Match[str]) -> str:
    return f"{float(number[0]) / 2:.2f}"
