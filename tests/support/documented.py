"""Find the command lines that pages, help texts and messages show, one for each case that they stand for."""

from __future__ import annotations

import ast
import itertools
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).parents[2]
# The history of changes and the tables that tests compare are no pages of commands.
NO_PAGES = ("CHANGELOG.md", "tests/golden/cluster.md")
PROGRAMS = (
    "apptainer|chmod|docker|enroot|kubectl|mpirun|mypy|pip|podman|pytest|python|ruff|sbatch|scaling|srun|torchrun"
)
BEGINS = re.compile(rf"(?:\w+=\S+ )*(?:(?:{PROGRAMS})\s|\./launch/\w|(?:\./)?\.venv/bin/)")
EXAMPLE = re.compile(r"""(?:for example:?|Start it[^:\n]*:)\s+((?:mpirun|python|\./launch/)[^"'\n]+)""")
COMMENTED = re.compile(r"^# {3}((?:sbatch|kubectl|mpirun|\./launch/).*)", re.M)
# The files whose docstrings are help pages.
HELPS = ("flags.py", "__main__.py")
# Prose on the line of a command is set apart by spaces.
PROSE = re.compile(r"\s{3,}\S.*|\s+#.*")


# In a sentence, a program without arguments is a name, and so is `scaling report --sign`.
NAME = re.compile(r"(?:python(?: -m (?:scaling(?: \w+)?|\S+))?|scaling .*|\S+)$")


class Command(NamedTuple):
    """One command line as bash takes it, and the page or file that shows it first."""

    place: str
    line: str

    def __str__(self) -> str:
        return f"{self.place}: {self.line}"


def commands() -> list[Command]:
    found: dict[str, str] = {}
    for place, line in itertools.chain(_of_pages(), _of_code()):
        for case in cases(line):
            found.setdefault(case, place)
    return [Command(place, line) for line, place in found.items()]


def cases(line: str) -> list[str]:
    """The lines that a pattern of usage stands for: `a|b` is each, `[x]` is with and without, `...` is one."""
    line = re.sub(r"(?<=[A-Z])\.\.\.", "", line)
    if optional := re.search(r"(?<= )\[([^][]+)\] ?", line):
        before, after = line[: optional.start()], line[optional.end() :]
        return [one for inside in ("", f"{optional[1]} ") for one in cases(f"{before}{inside}{after}")]
    if choices := re.search(r"(?<= )[\w-]+(?:\|[\w-]+)+", line):
        before, after = line[: choices.start()], line[choices.end() :]
        return [one for choice in choices[0].split("|") for one in cases(f"{before}{choice}{after}")]
    return [line.strip()]


def _of_pages() -> Iterator[tuple[str, str]]:
    for path in sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("[!.]*/**/*.md")]):
        place = path.relative_to(REPOSITORY)
        if str(place) not in NO_PAGES and not any(part.startswith(".") for part in place.parts):
            yield from ((str(place), line) for line in of_page(path.read_text()))


def of_page(text: str) -> Iterator[str]:
    """The command lines of a page: lines of indented blocks, and code within sentences."""
    yield from (PROSE.sub("", line) for line in in_blocks(text) if BEGINS.match(line))
    prose = re.sub(r"^(?: {4}.*\n)+", "\n", text, flags=re.M)
    for code in re.findall(r"`([^`]+)`", prose):
        line = re.sub(r"\s*\n\s*", " ", code)
        if BEGINS.match(line) and not NAME.match(line):
            yield line


def in_blocks(text: str) -> Iterator[str]:
    """The lines of a page's indented blocks; lines that go on behind a backslash are joined."""
    for block in re.findall(r"^(?: {4}.*\n)+", text, re.M):
        yield from re.sub(r"\\\n *", "", textwrap.dedent(block)).splitlines()


def _of_code() -> Iterator[tuple[str, str]]:
    """Examples of help texts and errors, and in the comments that the commands of launch/ show as their help."""
    for pattern in ("scaling/**/*.py", "launch/*"):
        for path in sorted(file for file in REPOSITORY.glob(pattern) if file.is_file()):
            text = path.read_text()
            found = [*EXAMPLE.findall(text), *(COMMENTED.findall(text) if path.suffix != ".py" else ())]
            yield from ((str(path.relative_to(REPOSITORY)), PROSE.sub("", line).rstrip(" .")) for line in found)
            if path.name in HELPS:
                yield from ((str(path.relative_to(REPOSITORY)), line) for line in of_help(text))


def of_help(source: str) -> Iterator[str]:
    """The command lines that help pages show: those of the docstrings of commands."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            yield from of_page(f"{ast.get_docstring(node) or ''}\n")
