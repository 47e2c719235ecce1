"""The house rules that a machine can check: who imports whom."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "scaling"
FILES = sorted(PACKAGE.rglob("*.py"))
FRAMEWORKS = {"torch", "torchvision", "tensorflow", "keras", "mxnet", "horovod"}
WORKERS = {
    *(f"frameworks/tf/{name}.py" for name in ("emulated", "loop", "rank", "vision", "ps_server")),
    *(f"frameworks/tf/{name}_trainer.py" for name in ("hvd", "multiworker", "ps")),
}
CONFIG_READERS = {
    "plan/config.py", "plan/matrix.py", "plan/plan.py", "run/__main__.py", "run/flags.py", "sweep/sweep.py",
}  # fmt: skip
RICH_USERS = {"report/formats/terminal.py", "sweep/view/live.py"}


def imports(path: Path, *, top: bool = False) -> Iterator[str]:
    """Dotted names that a file imports; only at its top level if asked."""
    tree = ast.parse(path.read_text())
    for node in tree.body if top else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def users(package: str) -> set[str]:
    """Files of the package that import `package`, anywhere in them."""
    return {str(p.relative_to(PACKAGE)) for p in FILES if any(n.split(".")[0] == package for n in imports(p))}


def test_only_one_file_knows_mpi() -> None:
    assert users("mpi4py") == {"transport/mpi.py"}


def test_only_what_people_see_knows_rich() -> None:
    assert users("rich") == RICH_USERS


def test_only_the_command_lines_know_typer() -> None:
    assert users("typer") <= {"check/cli.py", "run/flags.py", "lab/__main__.py", "report/__main__.py"}


def test_frameworks_are_imported_inside_functions_of_strategies_and_builders() -> None:
    for package in FRAMEWORKS:
        for name in users(package):
            assert name.startswith("frameworks/"), f"{name} imports {package}"
    for path in FILES:
        if path.name != "horovod_rendezvous.py" and str(path.relative_to(PACKAGE)) not in WORKERS:
            assert not FRAMEWORKS & {name.split(".")[0] for name in imports(path, top=True)}, path


def test_only_the_front_half_knows_the_configuration() -> None:
    knows = {str(p.relative_to(PACKAGE)) for p in FILES if "scaling.plan.config.SweepConfig" in set(imports(p))}
    assert knows <= CONFIG_READERS


def test_the_report_knows_only_the_records() -> None:
    forbidden = {"agent", "sweep", "transport", "worker", "plan"}
    for path in [*(PACKAGE / "report").rglob("*.py"), *(PACKAGE / "analysis").glob("*.py")]:
        used = {name.split(".")[1] for name in imports(path) if name.startswith("scaling.")}
        assert not used & forbidden, path


def test_the_worker_knows_no_mpi_and_the_agent_no_framework() -> None:
    for module, absent in (("scaling.worker.__main__", {"mpi4py", "rich"}), ("scaling.run.__main__", FRAMEWORKS)):
        code = f"import sys, {module}; print(*{{name.split('.')[0] for name in sys.modules}})"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert not absent & set(done.stdout.split()), module


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_file_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_files_are_short() -> None:
    longest = {str(p.relative_to(PACKAGE)): len(p.read_text().splitlines()) for p in FILES}
    assert {name: lines for name, lines in longest.items() if lines > 300 and name != "run/flags.py"} == {}
