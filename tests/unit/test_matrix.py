"""Which cases of a test run by default."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from tests import conftest
from tests.support.matrix import cases
from tests.support.mpis import MPIS, on_mpi, on_mpi_each


def default(parameters: list[Any]) -> list[Any]:
    return [one for one in parameters if not getattr(one, "marks", ())]


def test_cases_beside_the_default_have_the_mark() -> None:
    made = cases([1, (2, 3), 4], [4])
    assert default(made) == [4]
    assert [(one.values, [mark.name for mark in one.marks]) for one in made[:2]] == [
        ((1,), ["matrix"]),
        ((2, 3), ["matrix"]),
    ]


def test_each_value_runs_on_the_mpi_that_is_named_for_it() -> None:
    wanted: dict[Any, str] = {signal.SIGINT: "mpich", None: "openmpi4"}
    mark = on_mpi_each("number", wanted).mark
    assert len(mark.args[1]) == len(mark.kwargs["ids"]) == 2 * len(MPIS)
    assert [(mpi.name, value) for mpi, value in default(mark.args[1])] == [
        ("mpich", signal.SIGINT),
        ("openmpi4", None),
    ]
    assert mark.kwargs["ids"][0] == "openmpi4-SIGINT"
    assert [mpi.name for mpi in default(on_mpi("openmpi5").mark.args[1])] == ["openmpi5"]


@pytest.mark.parametrize(
    ("expression", "left", "told"),
    [("", ["a", "b"], "1 tests are left to the matrix"), ("matrix", [*"amb"], ""), ("not matrix", [*"amb"], "")],
)
def test_the_matrix_is_left_out_with_a_reason_unless_asked_for(
    expression: str, left: list[str], told: str
) -> None:
    def item(name: str) -> Any:
        return SimpleNamespace(name=name, get_closest_marker=lambda mark: name == "m" and mark == "matrix")

    items, lines = [item(name) for name in "amb"], list[str]()
    deselected: list[Any] = []
    hook = SimpleNamespace(pytest_deselected=lambda items: deselected.extend(items))  # noqa: PLW0108  (by name)
    option = SimpleNamespace(markexpr=expression)
    config: Any = SimpleNamespace(option=option, hook=hook, stash=pytest.Stash())
    conftest.pytest_collection_modifyitems(config, items)
    reporter: Any = SimpleNamespace(line=lines.append)
    conftest.pytest_terminal_summary(reporter, config)
    assert [one.name for one in items] == left
    assert [one.name for one in deselected] == [*"m"] * (left != [*"amb"])
    assert ("".join(lines).partition(":")[0]) == told
