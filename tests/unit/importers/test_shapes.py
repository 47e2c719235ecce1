"""Lines of one shape are recognised once, and read together; the result is that of each line alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from scaling.errors import UsageError
from scaling.tools.importers import engine, lines
from scaling.tools.importers.engine import Grammar
from scaling.tools.importers.launch import COMMON
from scaling.tools.importers.logs import Form, Given
from scaling.tools.importers.tools import TOOLS
from tests.support.imported_logs import imported, written

MANY = 6000
HEAD = "Model: ResNet50\nBatch size: 32\nNumber of GPUs: 4\n"
TAIL = "Img/sec per GPU: 103.4 +-3.0\nTotal img/sec on 4 GPU(s): 413.8 +-12.0\n"


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        (r"tok/s: ([\d.]+)", False),
        (r"iter +\d{1,9} (\d{3,})", False),
        (r"epoch 1 .*: (\d+)", True),
        (r"([1-9]\d*) tok/s", True),
        (r"(\d+) of \1", True),
        (r"(?P<n>\d+) of (?P=n)", True),
        (r"\N{DIGIT TWO} (\d+)", True),
        (r"\{2\} (\d+)", True),
        (r"rate{1,2,3} (\d+)", True),
        (r"rate[^{1}] (\d+)", True),
        (r"rate[]{1}] (\d+)", True),
        (r"rate[\]{]x{2} (\d+)", False),
    ],
)
def test_a_pattern_names_a_digit(pattern: str, names: bool) -> None:
    assert lines.names_digit(pattern) is names


def test_no_mark_names_a_digit() -> None:
    """Marks and forms by which a tool is known are searched in shapes."""
    grammars = [tool for tool in TOOLS.values() if isinstance(tool, Grammar)]
    forms = [form for tool in grammars for form in tool.lines]
    marks = [mark for tool in TOOLS.values() for mark in tool.marks] + [form.mark for form in (*forms, *COMMON)]
    marks += [tool.data for tool in grammars]
    patterns = [tool.sure if isinstance(tool, Grammar) else tool.sure.pattern for tool in TOOLS.values()]
    assert not [text for text in marks if re.search(r"\d", text)]
    assert not [text for text in patterns if lines.names_digit(text)]


def rate(step: int) -> float:
    return 100 + step * 37 % 11 / 10


def horovod(step: int) -> str:
    return f"Iter #{step}: {rate(step):.1f} img/sec per GPU\n"


def of_loop(step: int) -> str:
    return f"iter {step} {rate(step):.1f}k tok/s\n"


def without(log: list[str]) -> list[str]:
    return log


def with_an_odd_line(log: list[str]) -> list[str]:
    return [*log[:999], "iter x: img/sec tok/s\n", *log[999:]]


def with_a_restart(log: list[str]) -> list[str]:
    return [*log[:3000], *log[1000:]]


def with_another_rate(log: list[str]) -> list[str]:
    return [*log[:3000], *[re.sub(r"10(\d)\.", r"30\1.", line) for line in log[1000:]]]


def with_ranks(log: list[str]) -> list[str]:
    return [f"[1,{at // 500 % 2}]<stdout>: {line}" for at, line in enumerate(log)]


def with_zeros(log: list[str]) -> list[str]:
    return [re.sub(r"10\d\.\d", "000.0", line) if at % 700 == 5 else line for at, line in enumerate(log)]


def with_steps_beyond_counting(log: list[str]) -> list[str]:
    later = [re.sub(r"(Iter #|iter )(\d+)", lambda at: f"{at[1]}{2**40 + int(at[2])}", line) for line in log]
    return [*later[:3000], *later[2000:]]


def with_a_tiny_number(log: list[str]) -> list[str]:
    return [re.sub(r"\d+\.\d", "1e-320", line) if at == 500 else line for at, line in enumerate(log)]


def with_huge_steps(log: list[str]) -> list[str]:
    return [re.sub(r"(Iter #|iter )(\d)", r"\g<1>99999999999999\2", line) for line in log]


@pytest.mark.parametrize(
    "change",
    [
        without,
        with_an_odd_line,
        with_a_restart,
        with_another_rate,
        with_ranks,
        with_zeros,
        with_huge_steps,
        with_steps_beyond_counting,
        with_a_tiny_number,
    ],
)
@pytest.mark.parametrize(
    ("line", "form"),
    [
        (horovod, Form()),
        (of_loop, Form(rate=r"([\d.]+k?) tok/s", unit="tokens")),
        (of_loop, Form(rate=r"([\d.]+k?) tok/s", unit="tokens", step=r"iter (\d+)")),
        (of_loop, Form(rate=r"([\d.]+k?) tok/s", unit="ms/step", step=r"iter (\d+)")),
        (of_loop, Form(rate=r"([1-3][\d.]+k?) tok/s", unit="tokens", step=r"iter (\d+)")),
    ],
)
def test_lines_that_are_read_together_say_what_each_says_alone(
    line: Callable[[int], str],
    form: Form,
    change: Callable[[list[str]], list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "".join(change([line(step) for step in range(MANY)]))
    log = written(tmp_path, f"{HEAD}{text}{TAIL}" if line is horovod else text)

    def said() -> object:
        try:
            return imported(log, Given(world_size=4, form=form))
        except UsageError as why:
            return str(why)

    together = said()
    monkeypatch.setattr(engine, "_LEAST_RUN", MANY * 2)
    monkeypatch.setattr(engine, "MOST_SHAPES", 0)
    assert said() == together
