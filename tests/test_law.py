"""The house rules that a machine can check: the import law, and what every file must be."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support import law

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "scaling"
FILES = {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}
TESTS = {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted((ROOT / "tests").rglob("*.py"))}
FRAMEWORKS = {"torch", "torchvision", "tensorflow", "keras", "mxnet", "horovod"}
IMPORT = "from scaling.frameworks.pytorch import"
README = (PACKAGE / "README.md").read_text()


def test_the_law_holds() -> None:
    assert law.breaches(FILES) == []


def test_no_imports_run_in_a_circle() -> None:
    assert law.circle(FILES) == []
    assert law.circle({"a.py": "from scaling import b", "b.py": "def f():\n    from scaling.a import x"}) != []


@pytest.mark.parametrize(
    ("file", "source", "said"),
    [
        (
            "records/planted.py",
            "from scaling.hosts import info",
            "1: records/planted.py:1 goes up or across to hosts",
        ),
        (
            "hosts/planted.py",
            "from scaling.tools.lab import state",
            "1: hosts/planted.py:1 goes up or across to lab",
        ),
        ("quiet/planted.py", "from scaling.hosts import proc", "1: quiet/planted.py:1 goes up or across"),
        (
            "analysis/planted.py",
            "from scaling.quiet.agent import Quiet",
            "1: analysis/planted.py:1 goes up or acro",
        ),
        ("heap.py", "import os", "1: heap has no floor"),
        (
            "worker/planted.py",
            "def f():\n    import scaling.agent.child",
            "2: worker/planted.py:2 imports an",
        ),
        ("report/planted.py", "from scaling.hosts import gpus", "3: report/planted.py:1 knows more than records"),
        ("plan/planted.py", "from mpi4py import MPI", "4: plan/planted.py:1 imports mpi4py"),
        ("sweep/planted.py", "from rich import print", "4: sweep/planted.py:1 imports rich"),
        ("run/planted.py", "import typer", "4: run/planted.py:1 imports typer"),
        ("report/planted.py", "import matplotlib.path", "4: report/planted.py:1 imports matplotlib"),
        ("worker/planted.py", "import torch", "5: worker/planted.py:1 imports torch outside its folder"),
        ("frameworks/tf/planted.py", "import torch", "5: frameworks/tf/planted.py:1 imports torch outside its"),
        (
            "plan/planted.py",
            "from scaling.frameworks.pytorch import loop",
            "5: frameworks/pytorch/loop.py imports a",
        ),
        (
            "tools/check/planted.py",
            "from scaling.run.__main__ import main",
            "6: tools/check/planted.py:1 imports a",
        ),
    ],
)
def test_a_file_on_the_wrong_floor_is_found(file: str, source: str, said: str) -> None:
    assert any(breach.startswith(said) for breach in law.breaches({**FILES, file: source})), file


def test_a_worker_file_behind_a_strategy_of_the_table_is_found() -> None:
    """Also where another file of the folder stands between them."""
    planted = {
        **FILES,
        "frameworks/pytorch/strategies.py": f"{FILES['frameworks/pytorch/strategies.py']}\n{IMPORT} between\n",
        "frameworks/pytorch/between.py": f"{IMPORT} loop",
    }
    assert "5: frameworks/pytorch/loop.py imports a framework, and the agent imports it" in law.breaches(planted)


def test_the_readme_says_the_law_in_six_sentences() -> None:
    section = README.partition("## The import law")[2].partition("\n## ")[0]
    sentences = re.findall(r"^(\d)\. ", section, flags=re.MULTILINE)
    assert sentences == ["1", "2", "3", "4", "5", "6"]
    floors = re.findall(r"`([a-z_]+(?:/[a-z]+)?)`", section.partition("\n2. ")[0])
    assert floors == [room for rooms in law.FLOORS for room in sorted(rooms)]


def test_only_the_front_half_knows_the_configuration() -> None:
    knows = {one.file for one in law.imports(FILES) if one.name == "scaling.plan.config.SweepConfig"}
    assert {law.room_of(file) for file in knows} == {"plan", "run"}


# Files and folders whose code names frameworks outside of their folders, with the names and the reason.
NAMING = {
    "frameworks/__init__.py": ("mx pytorch tf", "the order of --list"),
    "frameworks/script/": (
        "jax mxnet tensorflow tf torch",
        "libraries whose hooks, packages and rendezvous a script may use",
    ),
    "importers/": (
        "horovod pytorch tensorflow tf",
        "tools whose logs are read, and the names of their strategies",
    ),
    "records/run.py": ("gloo torch", "the exchange that the emulator's model is of, also in older records"),
    "check/flags.py": ("torch", "help"),
    "check/verdicts/__init__.py": ("gloo", "what mends a slow library"),
    "plan/config.py": ("gloo mxnet tensorflow tf torch", "help"),
    "run/flags.py": ("mxnet", "help"),
    "workloads/data/__init__.py": ("mxnet tensorflow", "formats of files, by the converters that write them"),
    "workloads/models.py": ("mxnet", "sources of models"),
    "workloads/weights.py": ("torch", "the format of files with weights"),
}


@cache
def framework_names() -> tuple[tuple[str, str], ...]:
    return tuple(law.framework_names(FILES))


def naming(found: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The names of frameworks that nothing allows; the folder of a file may have moved."""
    return [
        (file, name)
        for file, name in found
        if not any(f"/{where}" in f"/{file}" and name in words.split() for where, (words, _) in NAMING.items())
    ]


def test_code_names_no_framework_outside_its_folder() -> None:
    assert naming(framework_names()) == []


@pytest.mark.parametrize("where", NAMING)
def test_each_exception_is_needed(where: str) -> None:
    found = {name for file, name in framework_names() if f"/{where}" in f"/{file}"}
    assert found == set(NAMING[where][0].split())


@pytest.mark.parametrize(
    ("file", "source", "names"),
    [
        ("plan/planted.py", 'is_late = name.startswith("tensorflow:")', ["tensorflow"]),
        ("report/planted.py", "MXNET_BATCH = 1", ["mxnet"]),
        ("agent/planted.py", "from scaling.frameworks.pytorch import installed", ["pytorch"]),
        ("run/planted.py", 'def f():\n    """A default."""\n    return f"torch:{mode}"', ["torch"]),
        ("frameworks/mx/planted.py", 'word = "torch and Horovod"', ["torch"]),
        ("frameworks/horovod/planted.py", 'word = "Horovod"', []),
        ("hosts/planted.py", '"""As torch.distributed does."""\nx = 1  # MXNet\nword = "torchvision"', []),
    ],
)
def test_a_planted_name_is_found(file: str, source: str, names: list[str]) -> None:
    assert naming(law.framework_names({file: source})) == [(file, name) for name in names]


def test_the_worker_knows_no_mpi_and_the_agent_no_framework() -> None:
    for module, absent in (("scaling.worker.__main__", {"mpi4py", "rich"}), ("scaling.run.ranks", FRAMEWORKS)):
        code = f"import sys, {module}; print(*{{name.split('.')[0] for name in sys.modules}})"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert not absent & set(done.stdout.split()), module


def test_every_file_says_what_it_is() -> None:
    assert [file for file, source in FILES.items() if not ast.get_docstring(ast.parse(source))] == []


def test_files_and_functions_are_short() -> None:
    lines = {file: len(source.splitlines()) for file, source in {**FILES, **TESTS}.items()}
    assert {file: count for file, count in lines.items() if count > 600} == {}
    sizes = sorted(
        node.end_lineno - node.lineno + 1
        for source in FILES.values()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.end_lineno
    )
    assert sizes[len(sizes) // 2] <= 9
    assert sizes[len(sizes) * 9 // 10] <= 30


COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def shadowing(source: str) -> Iterator[str]:
    """Each variable of a comprehension whose name the function around it calls elsewhere: CPython 3.12.1 to 3.12.3
    take the called name for the variable."""
    functions = (one for one in ast.walk(ast.parse(source)) if isinstance(one, ast.FunctionDef))
    for nodes in map(list, map(ast.walk, functions)):
        called = [one.func for one in nodes if isinstance(one, ast.Call) and isinstance(one.func, ast.Name)]
        names = {name.id for name in called}
        for made in (one for one in nodes if isinstance(one, COMPREHENSIONS)):
            targets = (one for each in made.generators for one in ast.walk(each.target))
            if variables := names.intersection(one.id for one in targets if isinstance(one, ast.Name)):
                inside = set(map(id, ast.walk(made))) - set(map(id, ast.walk(made.generators[0].iter)))
                yield from variables.intersection(name.id for name in called if id(name) not in inside)


def test_no_comprehension_takes_the_name_of_what_its_function_calls() -> None:
    launchers = {f"launch/{path.name}": path.read_text() for path in (ROOT / "launch").glob("*.py")}
    found = {file: list(shadowing(source)) for file, source in {**FILES, **TESTS, **launchers}.items()}
    assert {file: names for file, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("[line for line in x], [line(one) for one in x]", ["line"]),
        ("[line for _, line in line(x)]", ["line"]),
        ("[line() for line in x]", []),
        ("[one for one in x], line(x)", []),
    ],
)
def test_a_comprehension_with_the_name_of_a_function_is_found(body: str, found: list[str]) -> None:
    assert list(shadowing(f"def f(x):\n    return {body}\n")) == found


def unbound(source: str) -> Iterator[str]:
    """Names assigned by `:=` behind an `and` or `or`, and read by their statement where that need not have run."""
    for statement in ast.walk(ast.parse(source)):
        if isinstance(statement, ast.Assign | ast.AnnAssign | ast.Return | ast.Expr):
            nodes = list(ast.walk(statement))
            for choice in (node for node in nodes if isinstance(node, ast.BoolOp)):
                later = (node for value in choice.values[1:] for node in ast.walk(value))
                names = {node.target.id for node in later if isinstance(node, ast.NamedExpr)}
                around = (node for node in nodes if isinstance(node, (ast.BoolOp, ast.IfExp, *COMPREHENSIONS)))
                inside = {id(part) for node in around if choice in ast.walk(node) for part in ast.walk(node)}
                reads = (node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in inside)
                yield from names.intersection(reads)


def test_no_expression_reads_a_name_that_may_be_unbound() -> None:
    assert list(unbound('said = (not a and (b := f()), f"{b}")')) == ["b"]
    assert list(unbound("said = [b for a in c if a and (b := f(a))]")) == []
    assert {file: names for file, source in FILES.items() if (names := list(unbound(source)))} == {}


# ---------------------------------------------------------------- what documents say

NAMED = re.compile(r"(?<![\w./-])((?:[\w-]+/)*[\w-]+\.(?:py|toml|json|md|sbatch|yaml))\b")
# Examples, files of a user or a run, and the end of a name.
NOT_OURS = {
    "FILE.md", "FILE.toml", "sweep.toml", "prices.toml", "mine.py", "mine_trainer.py", "_server.py", "keras.json",
    "train.py", "pytorch_synthetic_benchmark.py", "reference.toml", "preflight.json", "run.json", "state.json",
    "verdict.json", "main.py", "train_torch.py", "backbone_image_classifier.py", "train_unconditional.py",
}  # fmt: skip
OWN = [
    path.relative_to(ROOT).as_posix()
    for folder in ("scaling", "tests", "launch", "hostfiles", "containers")
    for path in (ROOT / folder).rglob("*")
    if path.is_file()
] + [path.name for path in ROOT.iterdir()]


def documents() -> Iterator[tuple[str, str]]:
    beside = [
        path
        for folder in ("tests", "containers", "hostfiles", "launch", "launch/studies")
        for path in (ROOT / folder).glob("*.md")
    ]
    for path in [*ROOT.glob("*.md"), *PACKAGE.rglob("*.md"), *beside]:
        yield path.name, path.read_text()
    for file, source in FILES.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                yield file, ast.get_docstring(node) or ""
        yield file, "\n".join(re.findall(r"#(.*)", source))


def test_documents_name_files_that_exist() -> None:
    lost = [
        (where, name)
        for where, text in documents()
        for name in NAMED.findall(text)
        if name.rpartition("/")[2] not in NOT_OURS and not any(f"/{own}".endswith(f"/{name}") for own in OWN)
    ]
    assert lost == []


# ---------------------------------------------------------------- the tests


def test_no_test_imports_a_test() -> None:
    found = [
        one.where
        for one in law.imports(TESTS)
        if one.name.startswith("tests.") and re.search(r"(^|\.)test_", one.name)
    ]
    assert found == []


# ---------------------------------------------------------------- three questions, three hops


HOPS = re.findall(r"^\| ([^|]+\?) \|(.+)\|$", README, flags=re.MULTILINE)


def test_three_questions_are_answered() -> None:
    assert [question.split()[0] for question, _ in HOPS] == ["How", "What", "Which"]


@pytest.mark.parametrize(("question", "hops"), HOPS)
def test_each_answer_is_three_hops_of_files_and_names_that_exist(question: str, hops: str) -> None:
    cells = [re.findall(r"`([^`]+)`", cell) for cell in hops.split("|")]
    assert len(cells) == 3
    for file, *names in cells:
        assert names and file in FILES, file
        assert all(re.search(rf"\b(def|class) {name}\b", FILES[file]) for name in names), (file, names)


LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize(
    "page", [name for name in OWN if name.endswith(".md") and not name.startswith("tests/golden")]
)
def test_links_of_a_page_lead_to_files(page: str) -> None:
    targets = LINK.findall((ROOT / page).read_text())
    assert [target for target in targets if not (ROOT / page).parent.joinpath(target).exists()] == []
