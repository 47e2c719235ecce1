"""A field that is declared in the configuration alone has its flag, key, near match and checks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer

from scaling.command import command
from scaling.errors import UsageError
from scaling.plan import config, validation
from scaling.plan.config import HOW, RENAMED, Flag, SweepConfig, fields_of
from scaling.run.flags import read_file, with_fields


class Larger(SweepConfig, frozen=True, kw_only=True, forbid_unknown_fields=True, rename=RENAMED):
    tea_cups: Annotated[
        int | None, Flag("Cups per rank.", panel=HOW, metavar="CUPS", default="one, at five", above=0)
    ] = None
    tea_times: Annotated[
        tuple[int, ...] | None,
        Flag("Hours of tea.", panel=HOW, metavar="H,...", ascending="an hour", example="4,5", of="training"),
    ] = None
    tea_kind: Annotated[
        Literal["green", "black"], Flag("What is brewed.", panel=HOW, metavar="LEAF", of="measuring")
    ] = "green"
    tea_pots: Annotated[
        int | Literal["per-cup"], Flag("Pots.", panel=HOW, metavar="N|WORD", words="a number or per-cup", least=2)
    ] = "per-cup"


def asked(*argv: str) -> dict[str, Any]:
    app = typer.Typer(add_completion=False)

    @app.command()
    @with_fields(of=Larger)
    def tea(context: typer.Context, **flags: Any) -> dict[str, Any]:
        return {key: one.read(flags[one.name]) for key, one in fields_of(Larger).items() if key.startswith("tea")}

    found = command(app, argv, "tea")
    return found if isinstance(found, dict) else {}


def built(**fields: Any) -> Larger:
    made = config.build(fields, source="command line", of=Larger)
    assert isinstance(made, Larger)
    return made


def test_it_is_in_the_help(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    asked("--help")
    shown = " ".join(capsys.readouterr().out.split())
    assert "--tea-cups CUPS Cups per rank. [default: one, at five]" in shown
    assert "--tea-times H,... Hours of tea." in shown
    assert "--tea-kind LEAF What is brewed. [default: green]" in shown
    assert "--tea-pots N|WORD Pots. [default: per-cup]" in shown
    assert "--batch-size" in shown


def test_its_flag_is_read_by_its_type() -> None:
    assert asked() == {"tea_cups": None, "tea_times": None, "tea_kind": "green", "tea_pots": "per-cup"}
    found = asked("--tea-cups", "3", "--tea-times", "4, 5", "--tea-kind", "black", "--tea-pots", "2")
    assert found == {"tea_cups": 3, "tea_times": [4, 5], "tea_kind": "black", "tea_pots": 2}


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--tea-cup", "3"), "--tea-cups"),
        (("--tea-cups", "many"), "--tea-cups"),
        (("--tea-times", "four"), "--tea-times four: not numbers"),
        (("--tea-times", "4", "--tea-times", "5"), "--tea-times: given twice; write --tea-times 4,5"),
    ],
)
def test_a_mistake_in_its_flag_is_refused(argv: tuple[str, str], words: str) -> None:
    with pytest.raises(UsageError) as refused:
        asked(*argv)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tea_cups = 2\ntea_pots = 3", ""),
        ("tea_cup = 2", "unknown key 'tea_cup'; did you mean 'tea_cups'?"),
        ("tea_cups = 'two'", "tea_cups: expected a whole number, got text"),
        ("tea_kind = 'blak'", "tea_kind: 'blak' is not one of green, black; did you mean 'black'?"),
        ("tea_pots = 'per-cap'", "tea_pots: 'per-cap' is not a number or per-cup"),
    ],
)
def test_it_is_a_key_of_files(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "tea.toml"
    path.write_text(text)
    if not words:
        assert read_file(path, Larger) == {"tea_cups": 2, "tea_pots": 3}
        return
    with pytest.raises(UsageError) as refused:
        read_file(path, Larger)
    assert words in str(refused.value)
    with pytest.raises(UsageError, match="unknown key"):
        read_file(path)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tea_cups": 0}, "--tea-cups 0: must be a number above 0"),
        ({"tea_cups": 1 << 40}, f"--tea-cups {1 << 40}: at most"),
        ({"tea_pots": 1}, "--tea-pots 1: at least 2"),
        ({"tea_times": ()}, "--tea-times: empty; write for example 4,5"),
        ({"tea_times": (5, 4), "epochs": 1}, "--tea-times 5,4: not ascending; write 4,5"),
        ({"tea_times": (0,), "epochs": 1}, "--tea-times 0: an hour is at least 1"),
        ({"tea_times": (4, 5)}, "--tea-times: only for a training to an accuracy; add --epochs N"),
    ],
)
def test_its_values_are_checked(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as refused:
        validation.validate(built(**fields))
    assert words in str(refused.value)


def test_right_values_are_taken() -> None:
    validation.validate(built(tea_cups=1, tea_pots=2, tea_kind="black"))
    validation.validate(built(tea_times=(4, 5), epochs=1))


def test_a_flag_without_effect_is_refused() -> None:
    training = built(tea_kind="black", epochs=1)
    validation.check_given(training, ["tea_cups"])
    with pytest.raises(UsageError, match="--tea-kind with --epochs"):
        validation.check_given(training, ["tea_kind"])
