"""Which faults are planted, that other commits have the same, and how counts are told."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.bench import mutants, mutations
from tests.bench.mutants import Mutant, Name
from tests.bench.mutations import Reach, Result

FILE = "scaling/sweep/file.py"


def planted(body: str, before: str = "", after: str = "def f(a, b, c):") -> list[tuple[str, str]]:
    source = f"{before}{after}\n    {body}\n"
    changed = [(one.name.change, mutants.planted(one, source)) for one in mutants.of_file(FILE, source)]
    return [(change, text.partition(":\n")[2].strip()) for change, text in changed]


@pytest.mark.parametrize(
    ("body", "changes"),
    [
        ("x = a < b", [("< to <=", "x = a <= b")]),
        ("x = a == b != c", [("== to !=", "x = a != b != c"), ("!= to ==", "x = a == b == c")]),
        ("x = a is None", [("is to is not", "x = a is not None")]),
        ("x = a + b * c", [("+ to -", "x = a - b * c"), ("* to /", "x = a + b / c")]),
        ("a -= b", [("- to +", "a += b")]),
        ("x = not a", [("not dropped", "x = a")]),
        ("x = a and b", [("and to or", "x = a or b")]),
        ("x = f(a, k=1)", [("1 to 2", "x = f(a, k=2)")]),
        ("x = [True, 0.5]", [("True to False", "x = [False, 0.5]"), ("0.5 to 1.0", "x = [True, 1.0]")]),
        ("x = [0.0]", [("0.0 to 1.0", "x = [1.0]")]),
        ("return a", [("returns None", "return None")]),
        (
            "if a:\n        b()\n    else:\n        c()",
            [
                ("body dropped", "if a:\n        pass\n    else:\n        c()"),
                ("else dropped", "if a:\n        b()"),
            ],
        ),
    ],
)
def test_each_change_is_made_alone(body: str, changes: list[tuple[str, str]]) -> None:
    assert planted(body) == changes


@pytest.mark.parametrize(
    ("returns", "what", "value"),
    [("bool", "the opposite", "not a"), ("int", "1 more", "a + 1"), ("str", "None", "None")],
)
def test_another_value_is_returned(returns: str, what: str, value: str) -> None:
    assert planted("return a", after=f"def f(a) -> {returns}:") == [(f"returns {what}", f"return {value}")]


@pytest.mark.parametrize(
    "source",
    [
        "x = 1 < 2\nclass A:\n    y: int = 3 + 4\n",
        "def f(a=1, *, b: int = 2 * 3): ...\n",
        '@g(1)\ndef f():\n    """Text of 1 + 1."""\n',
        "def f():\n    x: Literal[1]\n    assert x < 1\n",
        "def f(x):\n    while True:\n        f(f'{x:.3f}' + 'a')\n",
        "def f(x):\n    return None\n",
        "def f(x, y):\n    zip(x, y, strict=True)\n",
        "def f(x):\n    match x:\n        case 1:\n            pass\n",
    ],
)
def test_only_bodies_of_functions_change_and_no_text_or_type(source: str) -> None:
    assert list(mutants.of_file(FILE, source)) == []


BEFORE = """
from scaling.analysis import stats, welch

class Row:
    def _mean(self) -> float:
        return stats.mean(self._values) / 2 + 2 / 2
"""
MOVED = """
from scaling.analysis.moments import mean

class Row:
    def mean(self) -> float:
        return mean(self.values) / 2 + 2 / 2
"""
RENAMED = MOVED.replace("Row", "Line")


@pytest.mark.parametrize("after", [MOVED, RENAMED])
def test_a_mutant_has_the_same_name_where_its_code_has_moved(after: str) -> None:
    before = mutants.mutants({"scaling/analysis/a.py": BEFORE})
    assert len(before) == 7
    found = mutants.again([one.name for one in before], mutants.mutants({"scaling/analysis/table/b.py": after}))
    assert [one.name.change for one in found.values()] == [one.name.change for one in before]
    assert {(one.file, one.line) for one in found.values()} == {("scaling/analysis/table/b.py", 6)}


def test_equal_expressions_of_a_function_are_counted_and_equal_functions_left_out() -> None:
    source = "def f(a):\n    a(1)\n    a(1)\n"
    assert [one.name.nth for one in mutants.mutants({FILE: source})] == [0, 1]
    assert mutants.mutants({FILE: source, "scaling/agent/file.py": source}) == []


def test_changed_code_is_gone() -> None:
    (one,) = mutants.mutants({FILE: "def f(a):\n    a(1)\n"})
    assert mutants.again([one.name], mutants.mutants({FILE: "def f(a):\n    a(2)\n"})) == {}


def sources() -> dict[str, str]:
    body = "".join(f"def f{{0}}_{n}(a):\n    return a < {n}\n" for n in range(9))
    files = ("agent/a", "sweep/view/a", "analysis/a", "analysis/measured/less_work", "report/formats/a", "run/a")
    return {f"scaling/{file}.py": body.format(number) for number, file in enumerate(files)}


def test_each_group_has_as_many_from_functions_of_their_own() -> None:
    found = mutants.mutants(sources())
    chosen = mutations.sixty(found, 20, seed=1)
    assert [group for group, _ in chosen] == [group for group in mutations.GROUPS for _ in range(4)]
    assert len({one.name.function for _, one in chosen}) == 20
    assert chosen == mutations.sixty(found[::-1], 20, seed=1) != mutations.sixty(found, 20, seed=2)


def test_all_of_scaling_can_be_parsed_and_changed() -> None:
    files = sorted((Path(mutants.__file__).parents[2] / "scaling/analysis").rglob("*.py"))
    for file in files[:5]:
        source = file.read_text()
        for one in list(mutants.of_file(file.name, source))[:3]:
            assert mutants.planted(one, source) != ast.unparse(ast.parse(source)) + "\n"


def test_files_that_run_little_else_come_first() -> None:
    where = {"scaling/a.py:3"}
    more = {*where, "scaling/a.py:9"}
    unit = {"tests/unit/b.py": more, "tests/unit/c.py": {"scaling/a.py:9"}, "tests/unit/a.py": where}
    known = Reach(unit, dict.fromkeys(unit, 1.0), ())
    files = known.files(Mutant(Name("f", "< to <=", "a < b", 0), "scaling/a.py", 4, 3))
    assert files == ["tests/unit/a.py", "tests/unit/b.py"]


def test_the_first_file_runs_and_then_those_that_fit_into_the_time() -> None:
    where = {"scaling/report/a.py:3"}
    seconds = {"tests/unit/report/test_a.py": 70.0, "tests/unit/a/test_b.py": 70.0, "tests/unit/a/test_c.py": 1.0}
    mutant = Mutant(Name("f", "< to <=", "a < b", 0), "scaling/report/a.py", 4, 3)
    assert Reach(dict.fromkeys(seconds, where), seconds, ()).files(mutant) == ["tests/unit/report/test_a.py"]
    seconds["tests/unit/report/test_a.py"] = 50.0
    files = Reach(dict.fromkeys(seconds, where), seconds, ()).files(mutant)
    assert files == ["tests/unit/report/test_a.py", "tests/unit/a/test_c.py"]


def test_tests_that_import_the_folder_or_mirror_it_are_concerned(tmp_path: Path) -> None:
    for file, text in {
        "unit/sweep/test_a.py": "",
        "unit/run/test_b.py": "from scaling.sweep.view import live",
        "unit/run/test_c.py": "from scaling.sweeper import live",
        "unit/test_d.py": "from scaling import agent, sweep",
        "unit/test_e.py": "from scaling import agent",
        "process/test_f.py": "from scaling.sweep.view import live",
        "process/test_g.py": "from scaling.sweep import live",
    }.items():
        path = tmp_path / "tests" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    wanted = ["tests/unit/run/test_b.py", "tests/unit/sweep/test_a.py", "tests/unit/test_d.py"]
    assert mutations.concerned(tmp_path, {"sweep"}) == wanted
    mutant = Mutant(Name("f", "< to <=", "a < b", 0), "scaling/sweep/view/live.py", 4, 3)
    assert mutations.with_processes(tmp_path, mutant) == ["tests/process/test_f.py"]


def test_both_counts_of_each_group_are_told() -> None:
    name = Name("f", "< to <=", "a < b", 0)
    results = [Result(name, "agent", outcome) for outcome in ("caught", "survived", "survived", "gone")]
    said = mutations.summary(results, "0" * 40)
    assert "agent: 1 caught, 2 survived, 1 gone\n" in said
    assert said.endswith("all: 1 caught, 2 survived, 1 gone\n")
