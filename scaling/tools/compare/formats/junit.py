"""A comparison as JUnit's XML, which Jenkins, GitLab and others show: a test case per cell.

Written by the schema that the Ant task's readers agree on (github.com/testmoapp/junitxml describes it).
"""

from __future__ import annotations

from xml.etree import ElementTree

from scaling.report import words
from scaling.text import one_line
from scaling.tools.compare.document import change, headline
from scaling.tools.compare.found import UNTOLD, Cell, Found
from scaling.tools.compare.metrics import METRICS

SUITE = "scaling compare"


def render(found: Found, *, require_proof: bool) -> str:
    """Return the document; a cell without an answer is skipped, or with `require_proof` failed."""
    cases = [_case(cell, found, require_proof=require_proof) for cell in found.cells]
    suite = ElementTree.Element(
        "testsuite",
        name=SUITE,
        tests=str(len(cases)),
        failures=str(sum(case.find("failure") is not None for case in cases)),
        errors="0",
        skipped=str(sum(case.find("skipped") is not None for case in cases)),
    )
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in (
        ("metric", found.metric),
        ("unit", found.unit),
        ("base", ", ".join(found.base)),
        ("new", ", ".join(found.new)),
        *(("notice", notice) for notice in found.notices),
    ):
        ElementTree.SubElement(properties, "property", name=name, value=one_line(value))
    suite.extend(cases)
    ElementTree.SubElement(suite, "system-out").text = one_line(headline(found))
    ElementTree.indent(suite)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(suite, encoding="unicode")}\n'


def _case(cell: Cell, found: Found, *, require_proof: bool) -> ElementTree.Element:
    marks = "".join(f" {flag}" for flag in cell.flags if flag == "EMULATED")
    case = ElementTree.Element(
        "testcase", classname=f"{SUITE}.{one_line(cell.workload.model)}", name=one_line(f"{cell.name}{marks}")
    )
    said = one_line(_said(cell, found))
    if cell.is_lost or (require_proof and cell.verdict in UNTOLD):
        ElementTree.SubElement(case, "failure", type=cell.verdict, message=said)
    elif cell.verdict in UNTOLD or cell.change is None:
        ElementTree.SubElement(case, "skipped", message=said)
    else:
        ElementTree.SubElement(case, "system-out").text = said
    return case


def _said(cell: Cell, found: Found) -> str:
    """`slower: efficiency -5.1 % ± 0.9: VERIFIED`."""
    metric = METRICS[found.metric]
    by = words.plus_minus(*words.parts(change(cell.change, metric))) if cell.change else ""
    stamps = " ".join(flag for flag in cell.flags if flag != "FAILED")
    return ": ".join(filter(None, (cell.verdict, f"{metric.title} {by}" if by else "", cell.reason, stamps)))
