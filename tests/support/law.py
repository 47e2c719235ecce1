"""The import law of scaling/README.md as a check: what of a source tree breaks it.

Each function takes the files of a package by their path below it, so that a test may plant one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

PACKAGE = "scaling"
# From the ground up; nobody imports another folder of its own floor. A file may have a floor of its own.
FLOORS: tuple[frozenset[str], ...] = (
    frozenset({"errors", "text"}),
    frozenset({"files", "help"}),
    frozenset({"command", "records"}),
    frozenset({"quiet", "workloads"}),
    frozenset({"hosts", "transport", "emulated", "lab", "analysis"}),
    frozenset({"frameworks", "quiet/agent"}),
    frozenset({"plan", "agent", "worker"}),
    frozenset({"sweep", "report"}),
    frozenset({"run", "check", "compare", "history", "importers", "predict"}),
    frozenset({"bisect"}),
    frozenset({"certify"}),
    frozenset({"__main__"}),
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
READERS = frozenset({"quiet", "analysis", "report", "compare", "history", "importers", "predict"})
READ = frozenset({"errors", "files", "text", "help", "command", "records"}) | READERS
# What frameworks declare of themselves; readers load no strategy.
DECLARED = ("scaling.frameworks", "scaling.frameworks.base.Exchange")
USERS: Mapping[str, frozenset[str]] = {
    "mpi4py": frozenset({"transport/mpi.py"}),
    "zmq": frozenset({"transport/zmq.py"}),
    "rich": frozenset({"sweep/view/live.py", "report/formats/screen.py", "report/formats/terminal.py"}),
    "matplotlib": frozenset(f"report/formats/plots/{name}.py" for name in ("curves", "draw", "sheet")),
    "jinja2": frozenset({"report/formats/html/__init__.py"}),
}
# Whose folder a framework is at home in; Horovod binds to each.
HOMES: Mapping[str, tuple[str, ...]] = {
    "torch": ("frameworks/pytorch/",),
    "torchvision": ("frameworks/pytorch/",),
    "tensorflow": ("frameworks/tf/",),
    "keras": ("frameworks/tf/",),
    "mxnet": ("frameworks/mx/",),
    **dict.fromkeys(("jax", "jaxlib"), ("frameworks/jax/",)),
    "horovod": ("frameworks/",),
}
# Beside `<command>/flags.py`: what all commands do with their flags, and the flags of `scaling` alone.
FLAGS = frozenset({"command.py", "__main__.py"})


class Import(NamedTuple):
    """One imported name of a file: `scaling.records.point.Point`, `rich.table.Table`."""

    file: str
    line: int
    name: str

    @property
    def where(self) -> str:
        """`run/enrolment.py:12`."""
        return f"{self.file}:{self.line}"


Files = Mapping[str, str]


def imports(files: Files) -> Iterator[Import]:
    """Every import of every file, wherever in it it stands."""
    for file, source in files.items():
        yield from _imports_of(file, source)


@cache
def _imports_of(file: str, source: str) -> tuple[Import, ...]:
    found: list[Import] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += (Import(file, node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += (Import(file, node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.append(Import(file, node.lineno, "a relative import"))
    return tuple(found)


def breaches(files: Files) -> list[str]:
    """What breaks the law, a line each, by its sentences."""
    found = list(imports(files))
    return [
        *_floors(found), *_processes(found), *_readers(found), *_libraries(found), *_frameworks(files, found),
        *_commands(found),
    ]  # fmt: skip


def room_of(file: str) -> str:
    """The folder or file right below the package or below `tools/`, or a file that has a floor of its own."""
    path = file.removeprefix("tools/").removesuffix(".py")
    return path if path in FLOOR else path.partition("/")[0]


def _within(found: Iterator[Import] | list[Import]) -> Iterator[tuple[Import, str]]:
    """The imports of the package's own rooms, each with the room; `scaling` itself is the ground."""
    for one in found:
        parts = one.name.replace(f"{PACKAGE}.tools.", f"{PACKAGE}.").split(".")
        if parts[0] == PACKAGE and len(parts) > 1 and not parts[1].startswith("__"):
            yield one, room_of("/".join(parts[1:3]))


def _floors(found: list[Import]) -> Iterator[str]:
    for room in sorted({room_of(one.file) for one in found} - FLOOR.keys() - {"__init__"}):
        yield f"1: {room} has no floor"
    for one, target in _within(found):
        room = room_of(one.file)
        if room != target and FLOOR.get(target, len(FLOORS)) >= FLOOR.get(room, 0):
            yield f"1: {one.where} goes up or across to {target}"


def _processes(found: list[Import]) -> Iterator[str]:
    processes = {"sweep", "agent", "worker"}
    for one, target in _within(found):
        room = room_of(one.file)
        if room in processes and target in processes and room != target:
            yield f"2: {one.where} imports another process: {target}"


def _readers(found: list[Import]) -> Iterator[str]:
    for one, target in _within(found):
        if room_of(one.file) in READERS and target not in READ and one.name not in DECLARED:
            yield f"3: {one.where} knows more than records: {target}"


def _libraries(found: list[Import]) -> Iterator[str]:
    for one in found:
        library = one.name.split(".")[0]
        if library in USERS and one.file not in USERS[library]:
            yield f"4: {one.where} imports {library}"
        elif library == "typer" and not is_flags(one.file):
            yield f"4: {one.where} imports typer"


def is_flags(file: str) -> bool:
    return file in FLAGS or file.endswith("/flags.py")


# ---------------------------------------------------------------- 5: frameworks


def _frameworks(files: Files, found: list[Import]) -> Iterator[str]:
    for one in found:
        homes = HOMES.get(one.name.split(".")[0])
        if homes and not one.file.startswith(homes):
            yield f"5: {one.where} imports {one.name.split('.')[0]} outside its folder"
    worker_files = {one.file for one in found if one.name.split(".")[0] in HOMES}
    for file in sorted(agent_side(files, found) & worker_files):
        yield f"5: {file} imports a framework, and the agent imports it"


def agent_side(files: Files, found: list[Import]) -> set[str]:
    """All files outside frameworks/, the strategies that its folders list, and whatever these import."""
    targets: dict[str, set[str]] = {}
    for one in found:
        targets.setdefault(one.file, set()).update(_files_of(one.name, files))
    reached: set[str] = set()
    waiting = [file for file in files if not file.startswith("frameworks/")] + list(listed(files))
    while waiting:
        file = waiting.pop()
        if file not in reached:
            reached.add(file)
            waiting += targets.get(file, ())
    return reached


def graph(files: Files) -> dict[str, set[str]]:
    """Return the files of the package that each file imports."""
    found: dict[str, set[str]] = {file: set() for file in files}
    for one in imports(files):
        found[one.file].update(file for file in _files_of(one.name, files) if not _is_around(file, one.file))
    return found


def _is_around(file: str, inner: str) -> bool:
    """Whether a file is the other one, or the `__init__.py` of a folder around it."""
    return file == inner or (file.endswith("__init__.py") and inner.startswith(file.removesuffix("__init__.py")))


def circle(files: Files) -> list[str]:
    """Return the files of one circle of imports, empty if there is none. Imports inside functions count."""
    try:
        list(TopologicalSorter(graph(files)).static_order())
    except CycleError as error:
        return list(error.args[1])
    return []


def listed(files: Files) -> Iterator[str]:
    """The files of the strategies in `Framework(strategies={mode: module})` of each folder."""
    for file, source in files.items():
        folder, _, name = file.rpartition("/")
        if folder.startswith("frameworks/") and name == "__init__.py":
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.keyword) and node.arg == "strategies":
                    modules: dict[str, str] = ast.literal_eval(node.value)
                    yield from (f"{folder}/{module}.py" for module in modules.values())


def _files_of(name: str, files: Files) -> Iterator[str]:
    parts = name.split(".")[1:] if name.split(".")[0] == PACKAGE else []
    for count in range(1, len(parts) + 1):
        path = "/".join(parts[:count])
        yield from (file for file in (f"{path}.py", f"{path}/__init__.py") if file in files)


def _commands(found: list[Import]) -> Iterator[str]:
    for one, _ in _within(found):
        if "__main__" in one.name.split("."):
            yield f"6: {one.where} imports a command"


# ---------------------------------------------------------------- names of frameworks

# Where code may name a framework. A binding of Horovod and the library Gloo are part of several.
OWN_FOLDERS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("torch", "pytorch"), ("frameworks/pytorch/",)),
    **dict.fromkeys(("tensorflow", "tf"), ("frameworks/tf/",)),
    **dict.fromkeys(("mxnet", "mx"), ("frameworks/mx/",)),
    "jax": ("frameworks/jax/",),
    **dict.fromkeys(("horovod", "hvd", "gloo"), ("frameworks/",)),
}


def framework_names(files: Files) -> Iterator[tuple[str, str]]:
    """Each file with the name of a framework that its code has outside of that framework's folder. Docstrings and
    comments are not looked at."""
    for file, source in files.items():
        words = {word for text in _texts(ast.parse(source)) for word in re.findall("[a-z0-9]+", text.lower())}
        foreign = {name for name, folders in OWN_FOLDERS.items() if not file.startswith(folders)}
        yield from ((file, name) for name in sorted(words & foreign))


def _texts(tree: ast.AST) -> Iterator[str]:
    """Every string, name and imported path of some code, except its docstrings."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if id(node) not in docstrings:
            yield from (value for _, value in ast.iter_fields(node) if isinstance(value, str))
