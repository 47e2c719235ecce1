"""Shared by the studies: run commands of the package, read reports of their runs, write tables."""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
Json = dict[str, Any]
# each framework's default exchange
RING = {"torch": "torch:gloo", "tensorflow": "tensorflow:ring", "mxnet": "mxnet:dist_sync"}


class Failed(Exception):
    """A command of the study failed. The argument is the exit code."""


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: at least 1")
    return int(text)


def dollars(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: dollars an hour, from 0")
    return value


def seeds(text: str) -> str:
    named = text.split(",")
    if not all(map(str.isdecimal, named)) or len(set(map(int, named))) < len(named):
        raise argparse.ArgumentTypeError(f"{text}: numbers from 0, each once, like 0,1")
    return text


def called_from(text: str) -> str:
    """Resolve a path in the folder of the call (CALLED_IN), because commands run in the root."""
    return str(Path(os.environ.get("CALLED_IN", ""), Path(text).expanduser()).absolute())


def python(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], check=False, env=_env(), cwd=ROOT, text=True, **options)


def _env() -> dict[str, str]:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def sweep(name: str, *flags: str, ranks: int = 1) -> Json:
    """Measure on this machine into results/NAME; return the result of `ended`."""
    results = RESULTS / name
    before = runs(results)
    run = [sys.executable, "-m", "scaling.run", "--verbose", "--results", str(results), *flags]
    return ended(obeyed([*run, "--ranks", str(ranks)]), results, before)


def obeyed(command: Sequence[str]) -> int:
    """Run a command in the root and return its exit code. Raises Failed once the command has obeyed a Ctrl-C."""
    interrupted = False
    with subprocess.Popen(command, env=_env(), cwd=ROOT) as process:
        while process.returncode is None:
            try:
                process.wait()
            except KeyboardInterrupt:
                interrupted = True
    if interrupted:
        raise Failed(128 + signal.SIGINT)
    return process.returncode


def runs(results: Path) -> set[Path]:
    return set(results.glob("*/"))


def ended(code: int, results: Path, before: set[Path]) -> Json:
    """Return the report's JSON of the run that is not in `before`, with `exit_code` (1 if a point failed). Raises
    Failed with the code of a launch that did not end."""
    made = runs(results) - before
    if code not in (0, 1) or not made:
        raise Failed(code or 1)
    said = python("-m", "scaling", "report", str(made.pop()), "--format", "json", capture_output=True)
    said.check_returncode()
    return {**json.loads(said.stdout), "exit_code": code}


def worst(found: Iterable[Json]) -> int:
    return max(int(one["exit_code"]) for one in found)


def table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a table: the first column left-aligned, the others right-aligned."""
    lines = [list(heads), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = ["  ".join([f"{line[0]:{widths[0]}}", *map(str.rjust, line[1:], widths[1:])]) for line in lines]
    return "\n".join([title, *(f"  {text}".rstrip() for text in texts), ""])


def number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
