"""JUnit, by the schema of the Ant task's readers (described at github.com/testmoapp/junitxml)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from xml.etree import ElementTree

from scaling.text import one_line


class Case(NamedTuple):
    """A test case: it failed, was skipped for a reason, or passed.

    `kind`: the type of a failure; `group`: the part of its class after the suite's name.
    """

    name: str
    failure: str = ""
    skipped: str = ""
    out: str = ""
    kind: str = ""
    group: str = ""


def suite(name: str, cases: Sequence[Case], properties: Sequence[tuple[str, str]], out: str) -> str:
    """Return the document of one test suite."""
    failures, skipped = sum(bool(case.failure) for case in cases), sum(bool(case.skipped) for case in cases)
    counts = {"tests": len(cases), "failures": failures, "errors": 0, "skipped": skipped}
    made = ElementTree.Element("testsuite", {"name": name, **{key: str(count) for key, count in counts.items()}})
    listed = ElementTree.SubElement(made, "properties")
    for key, value in properties:
        ElementTree.SubElement(listed, "property", name=key, value=one_line(value))
    for case in cases:
        group = ".".join(filter(None, (name, one_line(case.group))))
        of = ElementTree.SubElement(made, "testcase", classname=group, name=one_line(case.name))
        if case.failure:
            ElementTree.SubElement(of, "failure", type=case.kind or "FAIL", message=one_line(case.failure))
        elif case.skipped:
            ElementTree.SubElement(of, "skipped", message=one_line(case.skipped))
        else:
            ElementTree.SubElement(of, "system-out").text = one_line(case.out)
    ElementTree.SubElement(made, "system-out").text = one_line(out)
    ElementTree.indent(made)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(made, encoding="unicode")}\n'
