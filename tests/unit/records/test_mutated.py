"""A run of which one value is none that a sweep writes: each command has a result, or one line and exit code 2."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from scaling.analysis.table.burn_in import summarized
from scaling.errors import UsageError
from scaling.records.burn_in import LinkErrors, PointSummary
from scaling.records.run import Header, PointRecord
from scaling.records.store import read
from scaling.report import __main__ as report
from scaling.tools.compare import __main__ as compare
from scaling.tools.history import __main__ as history
from tests.support.gpu_records import gpus_run
from tests.support.predicted_runs import HEADER, prediction, run
from tests.support.report_scenes import default_run
from tests.support.scripted_records import header, sweep, written
from tests.support.training_records import training_record

# By the value that stands there: what is put in its place.
NUMBERS: Sequence[Any] = (-1, 0, 10**18, -(10**18), 1e308, -1e308, 1e-308)
EVERYWHERE: Sequence[Any] = (None, "", [], {}, 7)
Place = tuple[Any, ...]


def mutants(line: Any) -> Iterator[tuple[str, Any]]:
    """Each place of a line's JSON with each hostile value; of the elements of a list the last one alone."""
    for path, value in _places(line, ()):
        for hostile in _hostile(value):
            if hostile != value or type(hostile) is not type(value):
                changed = deepcopy(line)
                _put(changed, path, hostile)
                yield f"{'.'.join(map(str, path))}={hostile!r:.40}", changed


def _places(value: Any, path: Place) -> Iterator[tuple[Place, Any]]:
    if path:
        yield path, value
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _places(one, (*path, key))
    elif isinstance(value, list) and value:
        yield from _places(value[-1], (*path, -1))


def _hostile(value: Any) -> Iterator[Any]:
    yield from EVERYWHERE
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield from NUMBERS
    if isinstance(value, list) and value:
        yield value[:-1]
        yield [*value, value[-1]]
    if isinstance(value, str):
        yield "x" * 300


def _put(line: Any, path: Place, value: Any) -> None:
    for step in path[:-1]:
        line = line[step]
    line[path[-1]] = value


Line = dict[str, Any]
# Of the values that a decoder takes, each so many-th is read by all commands.
EACH = 37


def burn_in_run() -> tuple[Header, list[PointRecord | PointSummary]]:
    errors = (LinkErrors(host="node1", card="eth0", counter="rx_errors", count=1),)
    records = [one for number in range(6) for one in sweep(number, 0.1, {1: 0.1})]
    told = [summarized(one, 60.0 * one.point.round, 60.0 * one.point.round + 60) for one in records]
    faults: dict[str, Any] = {"readings": 9, "throttled": 1, "reasons": ("hw thermal",), "failures": {"hang": 1}}
    return header(config={"for": "2h", "rounds": 2}), [
        *records, *told[:-1], replace(told[-1], link_errors=errors, **faults)
    ]  # fmt: skip


RUNS: dict[str, Any] = {
    "burn-in": burn_in_run,
    "default": default_run,
    "gpus": gpus_run,
    "predicted": lambda: (HEADER, [*run(rounds=2), prediction(4, 0.8)]),
    "training": lambda: (header(), [training_record((0.5, 0.9), seed=seed, size=2) for seed in (0, 1)]),
}


def changed(name: str) -> Iterator[tuple[int, list[bytes]]]:
    """The number of a line, and the lines of a run in which it is another: the header, and a line of each kind."""
    made, records = RUNS[name]()
    lines: list[Line] = [msgspec.json.decode(msgspec.json.encode(one)) for one in (made, *records)]
    written_lines = [msgspec.json.encode(line) + b"\n" for line in lines]
    kinds = {f"{line['type']} {line.get('point', {}).get('kind')}": at for at, line in enumerate(lines)}
    for at in kinds.values():
        for _, mutant in mutants(lines[at]):
            yield at + 1, [*written_lines[:at], msgspec.json.encode(mutant) + b"\n", *written_lines[at + 1 :]]


@pytest.mark.parametrize("name", sorted(RUNS))
def test_each_command_has_a_result_or_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    folder, good = written(tmp_path / "run", RUNS[name]()), written(tmp_path / "good", RUNS[name]())
    commands: tuple[tuple[Any, list[str]], ...] = (
        (report, [str(folder)]),
        (report, [str(folder), "--format", "csv"]),
        (compare, [str(good), str(folder), "--although-different"]),
        (history, [str(tmp_path)]),
    )
    taken = refused = 0
    for number, lines in changed(name):
        (folder / "run.jsonl").write_bytes(b"".join(lines))
        try:
            read(folder)
        except UsageError as error:
            refused += 1
            assert str(error).startswith(f"{folder / 'run.jsonl'}:{number}: "), error
            continue
        taken += 1
        if taken % EACH:
            continue
        for command, argv in commands:
            code = command.main(argv)
            told = capsys.readouterr()
            assert code in (0, 2) or (command is compare and code == 1), (lines[number - 1], told.err)
            assert "Traceback" not in told.err and told.err.count("\n") == (code == 2), told.err
    assert taken > EACH and refused > taken


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"[" * 100_000, ""),
        (b'{"type": "point", "point": ' + b'{"a":' * 1_000_000, "nested too deeply"),
        (b'{"type": "point", "outcome": {"type": "\xff"}}', ""),
        (b'{"type": "elsewhere"}', "elsewhere"),
        (b"7", "object"),
    ],
)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_line_that_is_none_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: bytes, said: str, at: int
) -> None:
    for folder in (written(tmp_path / "a", default_run()), written(tmp_path / "b", default_run())):
        lines = (folder / "run.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "run.jsonl").write_bytes(b"".join([*lines[:at], line + b"\n", *lines[at + 1 :]]))
    assert report.main([str(folder)]) == 2
    error = capsys.readouterr().err
    assert f"run.jsonl:{at + 1}: not a " in error and error.count("\n") == 1
    assert said in error or at == 0
    assert history.main([str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "b: cannot be read" in " ".join(told.split()) and "fake:a" in told


def test_a_bug_of_compare_is_not_called_slower(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(compare, "compare", broken)
    assert compare.main([str(tmp_path), str(tmp_path)]) == 2
    assert "ZeroDivisionError" in capsys.readouterr().err
