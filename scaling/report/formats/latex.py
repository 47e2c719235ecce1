"""The report as LaTeX with booktabs: one compact table for a paper, or all tables with footnotes below each.

A document needs only `\\usepackage{booktabs}`. Everything from a run is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from scaling.analysis.table.catalogue import EFFICIENCY, NAME, RATE, SPEEDUP, WORLD_SIZE
from scaling.analysis.table.rows import Column
from scaling.report import facts
from scaling.report.formats import screen
from scaling.report.material import Material
from scaling.report.parts import NONE, Document, Section, stamped
from scaling.text import one_line

_ESCAPES = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "_": r"\_", "%": r"\%",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': "''", "±": r"$\pm$", "×": r"$\times$", "°": r"$^\circ$",
    "\N{MINUS SIGN}": "$-$", "·": r"$\cdot$", "…": r"\ldots{}", "–": "--", "└": "",
}  # fmt: skip


# A hyphen before a digit, unless it is inside a word, a number or a date.
_MINUS = re.compile(r"(?<![\w.\-])-(?=\d)")


def render(doc: Document) -> str:
    """Return all tables, each with its footnotes."""
    about = (f"% {one_line(': '.join(fact))}" for fact in doc.facts)
    tables = (line for table in doc.tables for line in ("", *_section(table, doc)))
    return "\n".join([r"% needs \usepackage{booktabs}", *about, *tables]) + "\n"


def compact(material: Material) -> str:
    """Return one table: rate, speedup, efficiency and largest loss of each row, with a caption and a label."""
    rows = material.rows
    named = len({row.curve for row in rows}) > 1
    columns = (*((NAME,) if named else ()), WORLD_SIZE, RATE.of_rows(rows), SPEEDUP, EFFICIENCY, screen.LOSS)
    lines = list(screen.lines(rows, material))
    marked = any(line.stamps for line in lines)
    body: list[str] = []
    for line in lines:
        texts = line.texts(columns)
        if len(texts) < len(columns):  # a failure: why it has no result
            texts += [""] * (len(columns) - len(texts) - 1) + [line.says]
        rule = r"\midrule " if named and texts[0] and body else ""
        texts = ["--" if text == NONE else escaped(text) for text in texts]
        body.append(rule + _row([*texts, *([escaped(stamped(*line.stamps))] if marked else ())]))
    work = ", ".join(facts.setting(material.header, material.records))
    name = "-".join(re.findall(r"[A-Za-z0-9]+", " ".join(source.name for source in material.sources)))
    headings = [*(escaped(column.heading) for column in columns), *(["marks"] if marked else ())]
    title = escaped(f"{work}. Intervals of 95 %; 100 % is the sum of devices alone.")
    caption, kinds = rf"{{{title}}}\label{{tab:{name or 'scaling'}}}", _kinds(columns) + ("l" if marked else "")
    text = _table(caption, kinds, headings, body, over="*" if named else "")
    return "\n".join([r"% needs \usepackage{booktabs}", *text]) + "\n"


def escaped(text: str) -> str:
    return "".join(_ESCAPES.get(sign, sign) for sign in _MINUS.sub("\N{MINUS SIGN}", one_line(text)))


def _section(section: Section, doc: Document) -> Iterator[str]:
    columns = section.columns
    rows = []
    for line in section.lines:
        if line.above:
            rows.append(rf"\midrule \multicolumn{{{len(columns) + 1}}}{{l}}{{{escaped(line.above)}}} \\")
        texts = line.texts(columns)
        texts += [""] * (len(columns) - len(texts))
        said = escaped(stamped(line.says, line.remarks))
        rows.append(_row([*map(escaped, texts), said + _raised(line.marks)]))
    headings = [escaped(column.heading) for column in columns]
    if section.is_baselines:
        headings = ["", "", headings[2], ""]
    numbers = sorted({number for line in section.lines for number in line.marks})
    below = [f"{_raised([one])} {escaped(doc.footnotes[one - 1])}" for one in numbers]
    # A curve has too many details; those of a comparison are its smallest detectable differences.
    details = () if section.is_curve else section.details
    below += [escaped(f"{label}: {', '.join(values)}") for label, values in details]
    yield from _table(f"{{{escaped(section.title)}}}", f"{_kinds(columns)}l", [*headings, ""], rows, below)


def _kinds(columns: Sequence[Column]) -> str:
    return "".join("l" if column.is_text else "r" for column in columns)


def _raised(marks: Sequence[int]) -> str:
    return rf"\textsuperscript{{{','.join(map(str, marks))}}}" if marks else ""


def _row(cells: Sequence[str]) -> str:
    return f"{' & '.join(cells)} \\\\"


def _table(
    caption: str,
    kinds: str,
    headings: Sequence[str],
    rows: Sequence[str],
    below: Iterable[str] = (),
    over: str = "",
) -> Iterator[str]:
    """Yield a table; `caption`: in braces, with its label; with `over`, over both columns of a paper."""
    yield rf"\begin{{table{over}}}"
    yield r"\centering\footnotesize"
    yield r"\setlength{\tabcolsep}{2pt}"
    yield rf"\caption{caption}"
    yield rf"\begin{{tabular}}{{{kinds}}}"
    yield rf"\toprule {_row(headings)}"
    first, *rest = rows
    yield first if first.startswith(r"\midrule") else rf"\midrule {first}"
    yield from rest
    yield r"\bottomrule"
    yield r"\end{tabular}"
    yield from (rf"\par\footnotesize {text}" for text in below)
    yield rf"\end{{table{over}}}"
