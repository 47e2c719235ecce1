"""LaTeX: nothing of a run is a command, every table is whole."""

from __future__ import annotations

import re

import pytest

from scaling.report.document import document
from scaling.report.formats import latex
from scaling.report.parts import Section
from tests.support.report_scenes import SCENES


@pytest.mark.parametrize("scene", sorted(SCENES))
def test_tables_have_as_many_cells_as_columns(scene: str) -> None:
    text = latex.render(document(*SCENES[scene]()))
    for kinds, body in re.findall(r"\\begin{tabular}{(\w+)}\n(.*?)\\end{tabular}", text, flags=re.DOTALL):
        for line in body.splitlines():
            if line.endswith(r"\\") and "multicolumn" not in line:
                assert len(re.findall(r"(?<!\\)&", line)) == len(kinds) - 1, line
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == len(document(*SCENES[scene]()).tables)


def test_signs_of_latex_are_printed_as_they_are() -> None:
    assert latex.escaped(r"\input{/etc/passwd} 5 % & $x_1$ ~^#") == (
        r"\textbackslash{}input\{/etc/passwd\} 5 \% \& \$x\_1\$ \textasciitilde{}\textasciicircum{}\#"
    )


def test_no_sign_asks_for_another_encoding_of_fonts() -> None:
    """In OT1, which a document has without fontenc, a straight quotation mark is no command."""
    assert latex.escaped('open "libnccl.so" at 80 °') == "open ''libnccl.so'' at 80 $^\\circ$"


def test_marks_are_notes_below_their_table() -> None:
    doc = document(*SCENES["networks"]())
    text = latex.render(doc)
    assert r"MISLABELLED\textsuperscript{3,1}" in text
    assert rf"\textsuperscript{{3}} {latex.escaped(doc.footnotes[2])}" in text


def test_what_a_comparison_can_tell_stands_below_it_and_the_details_of_a_curve_do_not() -> None:
    doc = document(*SCENES["frameworks"]())
    text = latex.render(doc)
    compared = [section for section in doc.tables if isinstance(section, Section) and not section.is_curve]
    told = [detail.label for section in compared for detail in section.details]
    assert any("rounds tell" in label for label in told)
    assert all(rf"\par\footnotesize {latex.escaped(label)}: N=" in text for label in told)
    curves = [section for section in doc.tables if isinstance(section, Section) and section.is_curve]
    assert curves and curves[0].details
    assert not any(f"{latex.escaped(detail.label)}: N=" in text for detail in curves[0].details)
