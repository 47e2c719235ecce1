"""LaTeX of reports: compiled by pdflatex as a paper would, with nothing but booktabs."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from scaling.report.formats import latex
from scaling.report.material import Material, Source
from tests.support.hostile import hostile_run
from tests.support.report_scenes import SCENES

PAPER = r"""\documentclass[twocolumn]{article}
\usepackage{booktabs}
\begin{document}
%s
See Table~\ref{tab:2026-11-28-sweep}.
\end{document}
"""
RUNS = {name: run for name, run in {**SCENES, "hostile": hostile_run}.items() if Material(*run()).rows}
SOURCE = Source("2026-11-28_sweep", "")


def compact(run: str) -> str:
    made, records = RUNS[run]()
    return latex.compact(Material(made, records, sources=[SOURCE]))


@pytest.mark.parametrize("run", sorted(RUNS))
def test_a_paper_with_the_tables_compiles(run: str, tmp_path: Path) -> None:
    if shutil.which("pdflatex") is None:
        pytest.skip("no pdflatex: apt-get install texlive-latex-base texlive-latex-recommended")
    made, records = RUNS[run]()
    text = compact(run) + latex.render(Material(made, records).doc)
    (tmp_path / "paper.tex").write_text(PAPER % text, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "paper.tex"]
    for _ in range(2):  # the second resolves references
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout[-2000:]
    assert "undefined" not in done.stdout and "Missing character" not in done.stdout


@pytest.mark.parametrize("run", sorted(RUNS))
def test_the_compact_table_has_a_line_for_each_row(run: str) -> None:
    made, records = RUNS[run]()
    text = compact(run)
    (kinds, body), *more = re.findall(r"\\begin{tabular}{(\w+)}\n(.*?)\\end{tabular}", text, flags=re.DOTALL)
    lines = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert not more and len(lines) == len(Material(made, records).rows) + 1
    assert all(len(re.findall(r"(?<!\\)&", line)) == len(kinds) - 1 for line in lines)
    assert r"\label{tab:2026-11-28-sweep}" in text


def test_a_minus_is_no_hyphen() -> None:
    assert latex.escaped("-2.1 ± 3.2, (-1 to 2)") == r"$-$2.1 $\pm$ 3.2, ($-$1 to 2)"
    assert latex.escaped("2026-11-28 --batch-size 64 x-1") == "2026-11-28 --batch-size 64 x-1"
