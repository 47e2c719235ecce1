"""How large the package is and how it is cut: files, lines, floors, functions, pages.

python -m tests.bench.figures [--root PATH] [--list]
"""

from __future__ import annotations

import ast
from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from tests.support import law

PAGES = ("README.md", "scaling/README.md", "scaling/analysis/README.md", "CHANGELOG.md", "CONTRIBUTING.md")
# From the flag to the timed loop.
WAY = ("run/", "plan/", "records/", "sweep/", "agent/", "worker/")


def sources(folder: Path) -> dict[str, str]:
    """Return the text of each Python file by its path below the folder."""
    return {path.relative_to(folder).as_posix(): path.read_text() for path in sorted(folder.rglob("*.py"))}


def lines(files: Mapping[str, str]) -> int:
    """Return how many lines the files have in all."""
    return sum(len(text.splitlines()) for text in files.values())


def single_importers(files: Mapping[str, str]) -> Iterator[str]:
    """Yield the modules that one file alone imports, a file in the same folder."""
    importers: dict[str, set[str]] = defaultdict(set)
    for file, targets in law.graph(files).items():
        for target in targets:
            importers[target].add(file)
    for target, of in importers.items():
        if len(of) == 1 and not target.endswith("__init__.py") and Path(target).parent == Path(*of).parent:
            yield target


def floors(files: Mapping[str, str]) -> int:
    """Return the number of files in the longest chain of imports."""
    targets = law.graph(files)

    @cache
    def height(file: str) -> int:
        return 1 + max((height(target) for target in targets[file]), default=0)

    return max(map(height, targets))


def function_lines(files: Iterable[str]) -> list[int]:
    """Return the lengths of all functions, the shortest first."""
    nodes = (node for text in files for node in ast.walk(ast.parse(text)))
    return sorted(
        node.end_lineno - node.lineno + 1
        for node in nodes
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None
    )


def naming(files: Mapping[str, str], name: str) -> list[str]:
    """Return the files between the flag and the timed loop whose code names it."""
    return [file for file, text in files.items() if file.startswith(WAY) and name in _names(text)]


def _names(text: str) -> set[str]:
    nodes = list(ast.walk(ast.parse(text)))
    named = {node.id for node in nodes if isinstance(node, ast.Name)}
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return named | attributes | {node.arg for node in nodes if isinstance(node, ast.arg)}


def report(root: Path) -> Iterator[str]:
    """Yield a line for each figure."""
    files, tests = sources(root / "scaling"), sources(root / "tests")
    analysis = {file: text for file, text in files.items() if file.startswith("analysis/")}
    lengths = function_lines(files.values())
    yield f"scaling/: {lines(files):,} lines in {len(files)} files"
    yield f"modules with one importer, in their folder: {len(list(single_importers(files)))}"
    yield f"analysis/: {lines(analysis):,} lines in {len(analysis)} files on {floors(analysis)} floors"
    middle, long = lengths[len(lengths) // 2], lengths[len(lengths) * 9 // 10]
    yield f"lines of a function: median {middle}, 90th percentile {long}"
    yield f"files from flag to loop that name batch_size: {len(naming(files, 'batch_size'))}"
    yield f"circles of imports: {len(law.circle(files)) and 1}"
    own = {file: text for file, text in tests.items() if not file.startswith("bench/")}
    yield f"tests/: {lines(own):,} lines in {len(own)} files, beside bench/: {lines(tests) - lines(own):,} lines"
    for page in PAGES:
        if (path := root / page).exists():
            yield f"{page}: {path.stat().st_size / 1000:.1f} kB"


def listed(root: Path) -> Iterator[str]:
    """Yield the files that the figures count: modules with one importer, by their lines; the way of batch_size."""
    files = sources(root / "scaling")
    single = sorted(single_importers(files), key=lambda file: len(files[file].splitlines()))
    yield from (f"{len(files[file].splitlines()):>6} {file} has one importer in its folder" for file in single)
    yield from (f"       {file} names batch_size" for file in naming(files, "batch_size"))


def main() -> None:
    """Print the figures of a checkout, by default this one's."""
    parser = ArgumentParser(description="Print how large the package is and how it is cut.")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[2], help="a checkout")
    parser.add_argument("--list", action="store_true", help="list the files behind the figures")
    given = parser.parse_args()
    for line in (*report(given.root), *(listed(given.root) if given.list else ())):
        print(line)


if __name__ == "__main__":
    main()
