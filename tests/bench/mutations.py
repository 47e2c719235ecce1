"""Do the tests notice small faults? Sixty are planted, one at a time, in a clone of a commit.

    python -m tests.bench.mutations --json before.json --root ../before      # a worktree of another commit
    python -m tests.bench.mutations --json after.json --only-list before.json  # the same faults, here

Twelve faults each of agent, sweep, analysis, receipts and report are chosen by a hash of their names and the
seed. First, the files of tests/unit that import a folder of these faults run once, each up to UNIT_S: the script
learns which functions each file runs. For each fault, files of tests/unit run that reach its function, those of
its own folder first, up to UNIT_S. If there is none, the files of tests/process do that import its module. Some
faults change nothing that a test could notice: compare the counts of two commits.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import psutil

from tests.bench import mutants
from tests.bench.mutants import Mutant, Name

HERE = Path(__file__).resolve().parents[2]
GROUPS = ("agent", "sweep", "analysis", "receipts", "report")
# Files of receipts: here, and in commits whose analysis/ has no storeys.
RECEIPTS = ("traffic", "controls", "cpu", "audit", "traffic_receipt", "less_work", "cpu_time")
UNIT, PROCESS = "tests/unit", "tests/process"
UNIT_S = 60.0  # in the first run, which is slower
TEST_S = 60  # of one test; pytest-timeout then fails it
START_S = 60.0
SLOWER = 5.0  # a run may take so many times what its files took at first


class Run(NamedTuple):
    """How pytest ended: its exit code, None if it was killed; tests that failed."""

    code: int | None
    failed: Sequence[str]


class Reach(NamedTuple):
    """What the first run told: functions and seconds of each file of tests/unit, tests that fail anyway."""

    functions: Mapping[str, Collection[str]]
    seconds: Mapping[str, float]
    failing: Sequence[str]

    def files(self, mutant: Mutant) -> list[str]:
        """Files of tests that run the fault's function: of its folder first, then those that run little else."""
        where = f"{mutant.file}:{mutant.function_line}"
        files = [file for file, functions in self.functions.items() if where in functions]
        folder = f"{UNIT}/{Path(mutant.file).parts[1]}/"
        files.sort(key=lambda file: (not file.startswith(folder), len(self.functions[file]), file))
        return list(self._short(files))

    def _short(self, files: Sequence[str]) -> Iterator[str]:
        sum_s = 0.0
        for number, file in enumerate(files):
            if not number or sum_s + self.seconds[file] <= UNIT_S:
                sum_s += self.seconds[file]
                yield file


class Result(NamedTuple):
    """What became of one fault; `by` is the test that failed, or why there was none."""

    name: Name
    group: str
    outcome: str
    by: str = ""
    file: str = ""
    line: int = 0
    files_run: int = 0
    seconds: float = 0.0


def group_of(file: str) -> str:
    """The group of a file scaling/..., or ""."""
    path = Path(file)
    if "analysis" in path.parts and path.stem in RECEIPTS:
        return "receipts"
    folder = "sweep" if path.parts[1] == "quiet" else path.parts[1]
    return folder if folder in GROUPS else ""


def sixty(found: Sequence[Mutant], count: int, seed: int) -> list[tuple[str, Mutant]]:
    by_group: dict[str, list[Mutant]] = defaultdict(list)
    for one in found:
        by_group[group_of(one.file)].append(one)
    each = {name: mutants.chosen(by_group[name], count // len(GROUPS), seed) for name in GROUPS}
    return [(name, one) for name, some in each.items() for one in some]


def plan(
    found: Sequence[Mutant], options: argparse.Namespace
) -> tuple[list[tuple[str, Name, Mutant]], list[Result]]:
    """Faults to plant, and those of the list that this commit lacks."""
    if not options.only_list:
        return [(group, one.name, one) for group, one in sixty(found, options.count, options.seed)], []
    listed = [
        (one["group"], Name(**one["name"])) for one in json.loads(options.only_list.read_text())["mutations"]
    ]
    matches = mutants.again([name for _, name in listed], found)
    gone = [Result(name, group, "gone") for group, name in listed if name not in matches]
    return [(group, name, matches[name]) for group, name in listed if name in matches], gone


class Tree:
    """A clone of a commit, with its own temporary folder."""

    def __init__(self, root: Path, folder: Path, touched: Path | None = None) -> None:
        self.path, self.tools = folder / "tree", folder / "tools"
        subprocess.run(
            ["git", "-c", "advice.detachedHead=false", "clone", "--quiet", "--shared", str(root), str(self.path)],
            check=True,
        )
        self.commit = self.git("rev-parse", "HEAD").strip()
        self.touched = (touched or folder / "touched").absolute() / self.commit
        for made in (self.tools, self.touched):
            made.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(mutants.__file__).with_name("touching.py"), self.tools)

    def git(self, *arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=self.path, check=True, capture_output=True, text=True
        ).stdout

    def sources(self) -> dict[str, str]:
        files = sorted((self.path / "scaling").rglob("*.py"))
        return {file.relative_to(self.path).as_posix(): file.read_text() for file in files}

    @contextlib.contextmanager
    def planted(self, mutant: Mutant) -> Iterator[None]:
        """The fault is in the tree meanwhile. Equal size and time would make Python take the old bytecode."""
        file = self.path / mutant.file
        source = file.read_text()
        try:
            self._write(file, mutants.planted(mutant, source))
            yield
        finally:
            self._write(file, source)

    @staticmethod
    def _write(file: Path, source: str) -> None:
        file.write_text(source)
        for compiled in file.parent.glob(f"__pycache__/{file.stem}.*.pyc"):
            compiled.unlink()

    def pytest(self, *arguments: str, limit_s: float | None = None, traced: bool = False) -> Run:
        """Run it, and end all its processes."""
        paths = [str(self.path), *([str(self.tools)] if traced else [])]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        if traced:
            environ |= {"SCALING_TOUCHED": str(self.touched), "SCALING_TOUCHED_S": str(UNIT_S)}
        command = (sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "--tb=no")
        with tempfile.TemporaryFile("w+") as out:
            process = subprocess.Popen(
                [*command, "-o", f"timeout={TEST_S}", *arguments],
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=self.path, env=environ,
                start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                end(process)
            out.seek(0)
            return Run(code, re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", out.read(), re.MULTILINE))


def end(process: subprocess.Popen[Any]) -> None:
    """Kill a process, its session and its descendants in sessions of their own."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for one in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def reach(tree: Tree, folders: Collection[str]) -> Reach:
    """Run the tests that concern these folders once, traced, unless that is on record."""
    record = tree.touched / "tests.jsonl"
    files = concerned(tree.path, folders)
    if not record.exists():
        tree.pytest("-p", "touching", *files, traced=True)
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    functions: dict[str, set[str]] = {file: set() for file in files}
    seconds: Counter[str] = Counter()
    for line in lines:
        file = line["test"].partition("::")[0]
        if file in functions:
            functions[file].update(line["functions"])
            seconds[file] += line["seconds"]
    return Reach(functions, seconds, sorted(line["test"] for line in lines if line["failed"]))


def concerned(root: Path, folders: Collection[str]) -> list[str]:
    """Files of tests/unit that import one of these folders of scaling, and all of tests/unit/FOLDER."""
    names = "|".join(sorted(folders))
    own = {root / UNIT / folder for folder in folders}
    by_import = importing(root, UNIT, "scaling", names)
    files = sorted((root / UNIT).rglob("test_*.py"))
    return [one.relative_to(root).as_posix() for one in files if one in by_import or own.intersection(one.parents)]


def importing(root: Path, part: str, package: str, names: str) -> set[Path]:
    """Files of tests that import one of the modules from the package; both are regular expressions."""
    imports = re.compile(rf"{package}\.({names})\b|from {package} import .*\b({names})\b")
    return {file for file in (root / part).rglob("test_*.py") if imports.search(file.read_text())}


def with_processes(root: Path, mutant: Mutant) -> list[str]:
    """Files of tests/process that import the fault's module."""
    path = Path(mutant.file).with_suffix("")
    files = importing(root, PROCESS, re.escape(".".join(path.parent.parts)), path.name)
    return sorted(file.relative_to(root).as_posix() for file in files)


def tried(tree: Tree, mutant: Mutant, known: Reach) -> tuple[str, str, int]:
    """Outcome, the test that failed or why none did, and files run."""
    unit = known.files(mutant)
    if not (files := unit or with_processes(tree.path, mutant)):
        return "survived", "no test runs the function", 0
    by = noticed(tree, files, known, again=not unit)
    return "caught" if by else "survived", by, len(files)


def noticed(tree: Tree, files: Sequence[str], known: Reach, *, again: bool) -> str:
    """The test that fails, or "". With `again` it must fail twice: tests with processes may fail by chance."""
    skipped = [test for test in known.failing if test.partition("::")[0] in files]
    limit_s = START_S + SLOWER * sum(known.seconds.get(file, TEST_S) for file in files)
    while True:
        run = tree.pytest("-x", *(f"--deselect={test}" for test in skipped), *files, limit_s=limit_s)
        if run.code is None:
            return "killed: it ran past its limit"
        if run.code in (0, 5):
            return ""
        if run.code == 4:
            raise RuntimeError(f"pytest could not start with {files}")
        test = run.failed[0] if run.failed else f"pytest ended with {run.code}"
        if not again or "::" not in test or tree.pytest("-x", test, limit_s=limit_s).code not in (0, 5):
            return test
        skipped.append(test)


def summary(results: Sequence[Result], commit: str) -> str:
    """The list and both counts, for people."""
    lines = [f"{len(results)} mutations at {commit[:12]}"]
    for one in results:
        where = f"{one.file}:{one.line}" if one.file else "-"
        text = f"{one.name.function}: {one.name.text[:70]} [{one.name.change}]"
        lines.append(f"{one.outcome:8}  {one.group:8}  {where}  {text}{f'  <- {one.by}' if one.by else ''}")
    for group in (*GROUPS, ""):
        some = Counter(one.outcome for one in results if group in ("", one.group))
        counts = ", ".join(f"{some[outcome]} {outcome}" for outcome in ("caught", "survived", "gone"))
        lines.append(f"{group or 'all'}: {counts}")
    return "\n".join(lines) + "\n"


def write(path: Path | None, results: Sequence[Result], commit: str, known: Reach | None) -> None:
    """For --only-list; whole at any time."""
    if path:
        told = [{**one._asdict(), "name": one.name._asdict()} for one in results]
        failing = known.failing if known else ()
        new = path.with_name(f"{path.name}.new")
        new.write_text(json.dumps({"commit": commit, "failing": failing, "mutations": told}, indent=1) + "\n")
        new.replace(path)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.mutations")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60, help="a fifth of them in each group")
    parser.add_argument("--root", type=Path, default=HERE, help="a checkout; its last commit is cloned")
    parser.add_argument("--only-list", type=Path, metavar="JSON", help="plant what another commit's list names")
    parser.add_argument("--json", type=Path, help="write the list here, after each mutation")
    parser.add_argument("--touched", type=Path, help="a folder that keeps the first run's record of each commit")
    parser.add_argument("--list", action="store_true", help="plant nothing; print the list")
    return parser.parse_args()


def stopped(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def main() -> int:
    """Print each mutation as it ends, then all; 130 if stopped."""
    options = arguments()
    signal.signal(signal.SIGTERM, stopped)
    results: list[Result] = []
    known = None
    with tempfile.TemporaryDirectory(prefix="scaling-mutations-") as folder:
        tree = Tree(options.root, Path(folder), options.touched)
        print(f"{options.root} at {tree.commit}", flush=True)
        planned, gone = plan(mutants.mutants(tree.sources()), options)
        results += gone
        try:
            if not options.list:
                known = reach(tree, {Path(mutant.file).parts[1] for _, _, mutant in planned})
                failing = ", ".join(known.failing) or "none"
                print(f"{len(known.functions)} files of tests; without a fault fail: {failing}", flush=True)
            for group, name, mutant in planned:
                results.append(one(tree, group, name, mutant, known))
                print(
                    f"{results[-1].seconds:6.1f} s  {results[-1].outcome}  {name.function}  {results[-1].by}",
                    flush=True,
                )
                write(options.json, results, tree.commit, known)
            code = 0
        except KeyboardInterrupt:
            code = 130
        write(options.json, results, tree.commit, known)
        print(summary(results, tree.commit), end="")
    return code


def one(tree: Tree, group: str, name: Name, mutant: Mutant, known: Reach | None) -> Result:
    """Plant it and run its tests."""
    began_s = time.monotonic()
    outcome, by, files = "listed", "", 0
    if known:
        with tree.planted(mutant):
            outcome, by, files = tried(tree, mutant, known)
    return Result(name, group, outcome, by, mutant.file, mutant.line, files, time.monotonic() - began_s)


if __name__ == "__main__":
    sys.exit(main())
