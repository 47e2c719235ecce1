"""The verdict of `scaling certify` in words."""

from __future__ import annotations

from collections.abc import Iterator

from scaling.records.run import FAIL, Certificate, Criterion
from scaling.text import counted, decimals


def word(found: Certificate) -> str:
    """Return the verdict as one word for programs: `PASS`, `FAIL` or `NO-VERDICT`."""
    return found.result.replace(" ", "-")


def lines(found: Certificate) -> Iterator[tuple[str, str]]:
    """Yield the lines below a verdict with their labels; further lines of a label have none."""
    if found.why:
        yield "why", found.why
    for label, texts in (("where", found.where), ("judged", [said(one) for one in found.criteria])):
        for index, text in enumerate(texts):
            yield ("" if index else label), text
    if found.reference:
        yield "against", f"reference {found.reference}"
    yield "errors", f"a false FAIL and a false PASS: {100 * found.error:g} % each; budget {found.minutes:g} min"


def said(one: Criterion) -> str:
    """Return `efficiency at N=4: 97.1 % (96.2 to 98.0 %), at least 95.0 %, by 3 looks`."""
    if not one.looks:
        return f"{one.name}: not measured; at least {_value(one, one.line)}"
    last = one.looks[-1]
    between = f"({_number(one, last.low)} to {_value(one, last.high)})"
    looks = counted(len(one.looks), "look")
    return f"{one.name}: {_value(one, last.mean)} {between}, {_line(one)}, by {looks}"


def reason(one: Criterion) -> str:
    """Return why a criterion failed, or why it is undecided."""
    if not one.looks:
        return f"{one.name} was not measured"
    last = one.looks[-1]
    if one.result == FAIL:
        return f"{one.name} is at most {_value(one, last.high)}; {_line(one)} is needed"
    return (
        f"{one.name} is between {_number(one, last.low)} and {_value(one, last.high)}, on both sides of "
        f"{_value(one, one.line)}"
    )


def _line(one: Criterion) -> str:
    of = "" if one.reference is None else f" (reference {_value(one, one.reference)})"
    return f"at least {_value(one, one.line)}{of}"


def _value(one: Criterion, value: float) -> str:
    return f"{_number(one, value)} {one.unit or '%'}"


def _number(one: Criterion, value: float) -> str:
    return f"{value:,.{decimals(value)}f}" if one.unit else f"{100 * value:.1f}"
