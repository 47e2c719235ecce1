"""The help pages of all commands, and what is said about wrong words on their command lines."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
import typer

from scaling.__main__ import COMMANDS
from scaling.__main__ import _own as scaling
from scaling.errors import UsageError, near, not_one_of
from scaling.report import flags as report
from scaling.run import flags as run
from scaling.tools.bisect import flags as bisect
from scaling.tools.certify import flags as certify
from scaling.tools.check import flags as check
from scaling.tools.compare import flags as compare
from scaling.tools.history import flags as history
from scaling.tools.importers import flags as importers
from scaling.tools.lab import flags as lab
from scaling.tools.predict import flags as predict

PARSERS: dict[str, Callable[[Sequence[str]], Any]] = {
    "": scaling,
    "run": run.parse,
    "check": check.parse,
    "report": report.parse,
    "compare": compare.parse,
    "history": history.parse,
    "import": importers.parse,
    "predict": predict.parse,
    "bisect": bisect.parse,
    "certify": certify.parse,
    "lab": lab.run_command,
}
APPS = {
    "run": run.app, "check": check.app, "report": report.app, "compare": compare.app, "history": history.app,
    "import": importers.app, "predict": predict.app, "bisect": bisect.app,
    "certify": certify.app,
}  # fmt: skip
SUBCOMMANDS = ("up", "down", "status", "rate", "run")
SHORT = {"run": run.USUAL, "predict": predict.USUAL}
# Commands with flags of scaling.run.
OF_RUN = ("bisect", "certify")
PAGES = [
    *((name, "--help") for name in PARSERS),
    *((name, "--help-all") for name in (*SHORT, *OF_RUN)),
    *(("lab", f"{name} --help") for name in SUBCOMMANDS),
]
EXAMPLE = re.compile(r"^    (?:mpirun -np \d+ (?:--hostfile \S+ )?)?python -m scaling[ .](.+)$", re.M)

Page = Callable[..., str]


@pytest.fixture
def page(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Page:
    def shown(name: str, words: str = "--help", columns: int = 80) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        with suppress(run.Shown):
            PARSERS[name](words.split())
        return capsys.readouterr().out

    return shown


def test_each_command_is_tried() -> None:
    assert {*PARSERS} == {"", *COMMANDS}
    assert {*APPS} == {*COMMANDS} - {"lab"}
    assert {one.callback.__name__ for one in lab.app.registered_commands if one.callback} == {*SUBCOMMANDS}


@pytest.mark.parametrize(("name", "words"), PAGES)
@pytest.mark.parametrize("columns", [20, 60, 80, 200])
def test_a_page_breaks_between_words_and_fits(page: Page, name: str, words: str, columns: int) -> None:
    wide = page(name, words, 100)
    text = page(name, words, columns)
    assert max(map(len, text.splitlines())) <= min(max(columns, 60), 100)
    assert text.replace(" \\\n", "\n").split() == wide.split()


@pytest.mark.parametrize(("name", "words"), PAGES)
def test_a_page_has_our_words_alone(page: Page, name: str, words: str) -> None:
    """A flag without a metavar or help would show None, Typer's own types are in angles."""
    text = page(name, words)
    assert text.startswith(f"Usage: {'python -m ' if name else ''}scaling")
    assert not re.search(r"\bNone\b|<\w+>|OPTIONS|[│╭]", text)


@pytest.mark.parametrize("name", [name for name in PARSERS if name])
def test_a_page_ends_in_the_exit_codes(page: Page, name: str) -> None:
    assert page(name).rpartition("\n\n")[2].startswith("Exit codes: 0 ")


def test_the_short_help_has_three_examples_and_some_flags(page: Page) -> None:
    text = page("run")
    assert text.count("\n") <= 64
    assert len(EXAMPLE.findall(text)) == 3
    assert text.index("mpirun") < text.index("--strategy")
    assert 12 <= len(re.findall(r"^  --", text, re.M)) <= 18
    assert "\n\nAll flags: python -m scaling.run --help-all\n\nExit codes: " in text


@pytest.mark.parametrize("name", SHORT)
def test_usual_flags_are_in_the_short_help_and_first_in_the_whole(page: Page, name: str) -> None:
    params = {one.name: one for one in typer.main.get_command(APPS[name]).params}
    assert {*SHORT[name]} <= {*params}
    assert set(rows(page(name))) == {shortest(params[one]) for one in SHORT[name]}
    for panel in page(name, "--help-all").split("\n\n"):
        are_usual = [row in rows(page(name)) for row in rows(panel)]
        assert are_usual == sorted(are_usual, reverse=True)


@pytest.mark.parametrize("name", APPS)
def test_every_flag_is_in_the_whole_help(page: Page, name: str) -> None:
    text = page(name, "--help-all" if name in (*SHORT, *OF_RUN) else "--help")
    assert rows(text)
    assert {*rows(text)} == {shortest(one) for one in typer.main.get_command(APPS[name]).params}


def rows(text: str) -> list[str]:
    """The first word of each row: a flag, or the metavar of an argument."""
    return [row.rstrip(",").replace("[no-]", "") for row in re.findall(r"^  (\S+)", text, re.M)]


def shortest(parameter: Any) -> str:
    is_argument = parameter.param_type_name == "argument"
    return str(parameter.metavar if is_argument else min(parameter.opts, key=len))


@pytest.mark.parametrize("name", [name for name in PARSERS if name != "lab"])
def test_every_example_can_be_parsed(page: Page, name: str) -> None:
    for example in EXAMPLE.findall(page(name, columns=200)):
        words = shlex.split(example)
        count = 2 if " ".join(words[:2]) in PARSERS else 1
        assert PARSERS[" ".join(words[:count])](words[count:]) is not None


def test_examples_come_before_flags(page: Page) -> None:
    for name in (*APPS, "lab", ""):
        text = page(name)
        assert EXAMPLE.search(text)
        assert not EXAMPLE.search(text.partition("Flags:\n")[2])


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("name", "argv", "said"),
    [
        ("run", "--strateg torch:gloo", "--strateg: no such flag; did you mean '--strategy'?"),
        ("run", "--output-dir x", "--output-dir: no such flag; did you mean '--results'?"),
        ("run", "--qqq", "--qqq: no such flag; see --help"),
        ("run", "--rounds", "--rounds: needs a value, N"),
        ("run", "--rounds 2 --rounds=x", "--rounds: 'x' is not a whole number"),
        ("run", "--window-s 1s", "--window-s: '1s' is not a number"),
        ("run", "--page=3", "--page: takes no value"),
        ("run", "fast", "fast: unexpected; usage: python -m scaling.run [FLAG]..."),
        ("report", "", "RUN...: missing; usage: python -m scaling report [FLAG]... RUN..."),
        ("report", "RUN --figure spee", ", run, burn-in, screen; did you mean 'speedup'?"),
        ("report", "RUN --theme=blue", "--theme: 'blue' is not one of light, dark"),
        ("import", "LOG", "--output: missing; usage: python -m scaling import --output RUN [FLAG]... LOG..."),
        ("predict", "RUN --up-to 1", "--up-to 1: must be at least 2"),
        ("predict", "RUN --up-to one", "--up-to: 'one' is not a whole number"),
        ("bisect", "--noise much", "--noise: 'much' is not a number"),
        ("lab", "upp", "upp: no such command; did you mean 'up'?"),
        ("lab", "up --nodes", "--nodes: needs a value, N"),
        ("lab", "--force", "--force: no such flag; see --help"),
        ("", "--version=3", "--version: takes no value"),
    ],
)
def test_a_mistake_is_said_in_our_words(name: str, argv: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        PARSERS[name](argv.split())
    assert str(refused.value).endswith(said)


def test_a_mistake_in_a_variable_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALING_PAGE", "perhaps")
    with pytest.raises(UsageError, match=r"^SCALING_PAGE: 'perhaps' is not 1 or 0$"):
        run.parse([])


def test_near_words() -> None:
    assert near("GLOO", ["gloo", "nccl"]) == "did you mean 'gloo'?"
    assert near("x", ["nccl", "gloo"]) == "known: gloo, nccl"
    assert not_one_of("x", ["nccl", "gloo"]) == "'x' is not one of nccl, gloo"
