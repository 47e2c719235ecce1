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
CONFIG_READERS = {
    "plan/config.py", "plan/matrix.py", "plan/plan.py", "run/flags.py", "run/invocation.py",
}  # fmt: skip
# Loaded by a worker or a helper alone.
IN_WORKERS = {"frameworks/mx/hvd_trainer.py", "frameworks/mx/library.py"}
# The agent's side of PyTorch's strategies; the other files of that folder run in workers and helpers alone.
TORCH_AGENT = {"__init__", "plain", "ddp", "hvd", "ps", "ps_shards"}
COMMANDS = ("run", "check", "lab", "report")
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


def test_only_the_commands_flags_know_typer_and_what_reads_them_all() -> None:
    flags = {f"{name}/flags.py" for name in COMMANDS}
    assert users("typer") == {*flags, "run/panels.py", "command.py"}


def test_nobody_imports_a_commands_main() -> None:
    for path in FILES:
        assert not [name for name in imports(path) if "__main__" in name.split(".")], path


def test_frameworks_are_imported_inside_functions_of_strategies_and_builders() -> None:
    for package in FRAMEWORKS:
        for name in users(package):
            assert name.startswith("frameworks/"), f"{name} imports {package}"
    for path in FILES:
        in_worker = path.parent.name == "pytorch" and path.stem not in TORCH_AGENT
        in_worker = in_worker or str(path.relative_to(PACKAGE)) in IN_WORKERS
        if path.name != "horovod_rendezvous.py" and not in_worker:
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
    for module, absent in (("scaling.worker.__main__", {"mpi4py", "rich"}), ("scaling.run.ranks", FRAMEWORKS)):
        code = f"import sys, {module}; print(*{{name.split('.')[0] for name in sys.modules}})"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert not absent & set(done.stdout.split()), module


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_file_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_files_are_short() -> None:
    longest = {str(p.relative_to(PACKAGE)): len(p.read_text().splitlines()) for p in FILES}
    assert {name: lines for name, lines in longest.items() if lines > 300} == {}
