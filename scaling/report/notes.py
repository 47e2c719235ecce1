"""Numbered notes below the tables: one line a cause, with counts and the range of sizes.

A row's own notes, whole, are in `--format json` and `csv`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from textwrap import shorten

from scaling.quiet.notes import FOREIGN_LOAD, SLOWER_CORES
from scaling.text import counted

# Notes of one line of a table.
MOST_NOTES = 4
# Characters of a note, and of a failure without its place. A longer one is cut after `LEAST` or more of them.
MOST, MOST_OF_FAILURE, LEAST = 110, 240, 40
_LOAD = re.compile(rf"(?:its [a-z ]+ controls?: )?({FOREIGN_LOAD}|{SLOWER_CORES})\b")
# `rank 3 on node2 (CPU 3)`, `log: logs/a.log`, `N=4`, `n4`, `round 2`: names of places, not sizes.
_PLACE = r"\brank \d+(?: on [^\s,;:()]+)?(?: \([CG]PUs? [^)]*\))?|\blog: [^\s)]+|\bN ?= ?\d+|\bn\d+\b|\bround \d+"
_NUMBER = r"(?<![\w.])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?!\w|[.,]\d)"
_PARTS = re.compile(f"(?P<place>{_PLACE})|(?P<number>{_NUMBER})")
# The end of a failure's note: its rank and log.
_END = re.compile(r" \((?:rank \d+ on|log: )[^()]*\)$")


class Notes:
    """Footnotes in the order of their first mark. `of_load`: the lines of notes about foreign load and slow cores
    (`quiet.notes.briefs`)."""

    def __init__(self, of_load: Mapping[str, str] | None = None) -> None:
        self._of_load = of_load or {}
        # By cause: its distinct notes.
        self._texts: dict[str, dict[str, None]] = {}

    def marks(self, texts: Iterable[str]) -> tuple[int, ...]:
        """Return the numbers of these texts, which are printed unchanged."""
        return self._numbered([(text, text) for text in texts])

    def causes(self, texts: Iterable[str]) -> tuple[int, ...]:
        """Return the numbers of a row's notes. Notes that differ only in numbers and places share one."""
        return self._numbered([(_cause(text), text) for text in map(shortened, texts)])

    def _numbered(self, told: Sequence[tuple[str, str]]) -> tuple[int, ...]:
        """Beyond `MOST_NOTES`, one note replaces the rest."""
        causes = list(dict.fromkeys(cause for cause, _ in told))
        if len(causes) > MOST_NOTES:
            more = f"and {len(causes) - MOST_NOTES + 1} more notes, in --format json"
            causes = [*causes[: MOST_NOTES - 1], more]
            told = [*told, (more, more)]
        for cause, text in told:
            if cause in causes:
                self._texts.setdefault(cause, {})[text] = None
        numbers = {cause: number for number, cause in enumerate(self._texts, 1)}
        return tuple(numbers[cause] for cause in causes)

    def texts(self) -> tuple[str, ...]:
        """Return all footnotes; the first has number 1."""
        return tuple(self._of_load.get(cause) or _merged(list(texts)) for cause, texts in self._texts.items())


# ---------------------------------------------------------------- one note of several


def _cause(text: str) -> str:
    """Return what equal causes share: the note without its numbers and places."""
    if found := _LOAD.match(text):
        return found[1]
    bare = _PARTS.sub(lambda part: "@" if part["place"] else "#", text)
    return re.sub(r"(# [a-z]+?)s\b", r"\1", bare)


def _merged(texts: Sequence[str]) -> str:
    if len(texts) == 1:
        return texts[0]
    numbers = [[part["number"] for part in _PARTS.finditer(text) if part["number"]] for text in texts]
    largest = max(range(len(texts)), key=lambda index: [_value(one) for one in numbers[index]])
    places = {tuple(part["place"] for part in _PARTS.finditer(text) if part["place"]) for text in texts}
    if len(places) > 1:
        return f"{texts[largest]}; {counted(len(texts) - 1, 'other')} like it"
    ends = ((min(column, key=_value), max(column, key=_value)) for column in zip(*numbers, strict=True))
    spans = iter([high if low == high else f"{low} to {high}" for low, high in ends])
    return _PARTS.sub(lambda part: next(spans) if part["number"] else part[0], texts[largest])


def _value(number: str) -> float:
    return float(number.replace(",", ""))


# ---------------------------------------------------------------- a short note


def shortened(text: str) -> str:
    """Cut a long note after a sentence or a clause. The rank and the log of a failure are kept."""
    found = _END.search(text)
    end = re.sub(r"log: \S*/(?=logs/)", "log: ", found[0]) if found else ""
    head = text.removesuffix(found[0]) if found else text
    most = MOST_OF_FAILURE if found else MOST
    if len(head) <= most:
        return head + end
    cuts = [(mark[0], mark.start()) for mark in re.finditer(r"[.;,](?= )", head[:most])]
    cuts = [(sign, at) for sign, at in cuts if at >= LEAST and head[:at].count("(") == head[:at].count(")")]
    of_clauses = [at for sign, at in cuts if sign != ","] or [at for _, at in cuts]
    cut = head[: of_clauses[-1]] if of_clauses else shorten(head, most, placeholder="")
    return f"{cut} …{end}"
