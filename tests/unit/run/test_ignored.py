"""Flags that would change nothing are refused, and a list that is given twice."""

from __future__ import annotations

import pytest

from scaling.errors import UsageError
from scaling.run import flags, invocation
from scaling.run.flags import Shown


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("--max-rounds 9", "--max-rounds 9: says how far --target-ci may go"),
        ("--target-ci 1% --kinds exchange,comm", "--target-ci 1%: of efficiencies, which --kinds exchange,comm"),
        ("--pass forward --kinds exchange,solo", "--kinds with --pass forward: passes have no controls"),
        ("--memory-format channels_last --model gpt2-tiny", "gpt2-tiny reads tokens, and that is of images"),
        ("--strategy fake:a --strategy=fake:b", "--strategy: given twice; write --strategy fake:a,fake:b"),
        ("--world-sizes 1 --seed 2 --world-sizes 2", "--world-sizes: given twice; write --world-sizes 1,2"),
    ],
)
def test_a_flag_that_changes_nothing_is_refused(command: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        invocation.resolve(flags.parse(command.split()))
    assert words in str(refused.value)


@pytest.mark.parametrize(
    "command",
    [
        "--max-rounds 9 --target-ci 1%",
        "--target-ci 1% --kinds exchange,solo",
        "--pass forward --kinds exchange",
        "--memory-format contiguous --model gpt2-tiny",
        "--option step_s=1 --option error_at=2",
    ],
)
def test_what_has_its_use_is_taken(command: str) -> None:
    invocation.resolve(flags.parse(command.split()))


def test_what_an_older_run_says_beyond_need_is_no_mistake() -> None:
    assert invocation.resolve(flags.parse(["--rounds", "2"]), {"max_rounds": 9}).max_rounds == 9


def test_of_single_values_the_last_holds() -> None:
    assert invocation.resolve(flags.parse(["--rounds", "2", "--rounds=3"])).rounds == 3


def test_help_by_its_short_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Shown):
        flags.parse(["-h"])
    assert "Usage: python -m scaling.run" in capsys.readouterr().out
