"""`LOG:N:batch=B`: what is given for one log."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaling.errors import UsageError
from scaling.tools.importers import __main__ as command
from scaling.tools.importers.flags import of_one
from scaling.tools.importers.logs import Given
from scaling.tools.importers.tools import read_all
from tests.support.imported_logs import written

ALL = Given(batch_size=16, precision="fp32")


@pytest.mark.parametrize(
    ("end", "given"),
    [
        ("", ALL),
        (":4", Given(world_size=4, batch_size=16, precision="fp32")),
        (":4:batch=32", Given(world_size=4, batch_size=32, precision="fp32")),
        (":precision=bf16:8", Given(world_size=8, batch_size=16, precision="bf16")),
        (":parallelism=pp=2,tp=4", Given(batch_size=16, precision="fp32", parallelism="tp=4,pp=2")),
        (":parallelism=tp=1", Given(batch_size=16, precision="fp32", parallelism="tp=1")),
        (":model=llama3 8B", Given(batch_size=16, model="llama3 8B", precision="fp32")),
    ],
)
def test_a_log_has_its_own_values_before_those_of_all(end: str, given: Given, tmp_path: Path) -> None:
    log = written(tmp_path, "")
    assert of_one(f"{log}{end}", ALL) == (log, given)


def test_a_file_whose_name_has_colons_wins(tmp_path: Path) -> None:
    written(tmp_path, "")
    log = written(tmp_path, "", "a.log:4")
    assert of_one(str(log), ALL) == (log, ALL)
    assert of_one(f"{log}:2", ALL) == (log, Given(world_size=2, batch_size=16, precision="fp32"))


@pytest.mark.parametrize(("name", "log"), [("a.log:4:batch=2", "a.log"), ("a:b.log:4", "a:b.log"), (":4", "")])
def test_the_name_of_a_missing_log_is_without_values(name: str, log: str) -> None:
    assert of_one(f"/nowhere/{name}", ALL)[0] == Path(f"/nowhere/{log}")


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (":0", "'0' is not understood"),
        (":4:", "'' is not understood"),
        (":4x", "'4x' is not understood"),
        (":batch=", "'batch=' is not understood"),
        (":parallelism=dp=4", "'parallelism=dp=4' is not understood"),
        (":world=4", "'world=4' is not understood"),
        (":4:8", "'8' is given twice"),
        (":model=a:model=b", "'model=b' is given twice"),
    ],
)
def test_a_mistake_names_the_log_and_the_form(end: str, said: str, tmp_path: Path) -> None:
    log = written(tmp_path, "")
    with pytest.raises(UsageError) as error:
        of_one(f"{log}{end}", ALL)
    form = f"{log}:N:batch=B:model=NAME:precision=NAME:parallelism=tp=T"
    assert str(error.value) == f"LOG {log}{end}: {said}; write {form}"


@pytest.mark.parametrize(
    ("end", "said"),
    [(":4000000000", "4000000000 devices"), (":4:batch=4000000000", "4000000000 samples per device")],
)
def test_more_than_a_run_can_hold_is_refused(end: str, said: str, tmp_path: Path) -> None:
    text = "".join(f"step: {step}  loss: 7.24  tps: 9.41  mfu: 1%\n" for step in range(3))
    log, given = of_one(f"{written(tmp_path, text)}{end}", Given())
    with pytest.raises(UsageError, match=f"{said}, which is impossible"):
        read_all([(log, given)])


def test_logs_of_several_numbers_of_devices_have_an_efficiency(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No line of this tool has the number of devices."""
    line = "step: {}  loss: 7.24  tps: {}  mfu: 1%\n"
    logs = [
        f"{written(tmp_path, ''.join(line.format(step, rate) for step in range(3)), f'{devices}.log')}:{devices}"
        for devices, rate in ((1, 10.0), (4, 9.0))
    ]
    flags = [
        "--batch-size",
        "2",
        "--model",
        "gpt",
        "--precision",
        "bf16",
        "--parallelism",
        "tp=1",
        "-o",
        str(tmp_path / "run"),
    ]
    assert command.main([*logs, *flags]) == 0
    assert "N=4 36.0 tokens/s speedup 3.60 efficiency 0.900" in capsys.readouterr().out
