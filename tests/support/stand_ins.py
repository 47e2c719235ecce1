"""A shell as the readers of pages have it, in which stand-ins take the place of clusters, engines and checkers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.documented import REPOSITORY

# More flags of a run.
FLAGS = "STAND_IN_FLAGS"
LAUNCH = f'exec {sys.executable} -m tests.support.stand_in_launch "$@"'
STAND_INS = {
    "python": f"""\
case "$2 $3" in
scaling.run*|scaling\\ check*|scaling\\ bisect*) {LAUNCH.replace('"$@"', 'python "$@"')} ;;
tests.*) exec {sys.executable} -c "import $2" ;;
*) exec {sys.executable} "$@" ;;
esac""",
    "scaling": f"""\
case "$1" in
run) shift; {LAUNCH.replace('"$@"', 'python -m scaling.run "$@"')} ;;
check|bisect|certify) {LAUNCH.replace('"$@"', 'python -m scaling "$@"')} ;;
*) exec {sys.executable} -m scaling "$@" ;;
esac""",
    "mpirun": LAUNCH,
    "pytest": """\
for word; do case "$word" in
-n | [0-9] | -m | matrix) ;;
*) [ -e "$word" ] || exit 9 ;;
esac; done""",
    **dict.fromkeys(("mypy", "ruff", "pip"), "exit 0"),
    # What it is of a container, a queue or a cluster is tried in tests/system; files that are named must be there.
    **dict.fromkeys(
        ("apptainer", "docker", "enroot", "kubectl", "podman", "sbatch", "srun", "torchrun"),
        f"""\
for word; do case "$word" in
/*) ;;
launch/* | containers/*) [ -e "$word" ] || exit 9 ;;
scaling.run) {LAUNCH} ;;
esac; done""",
    ),
}


def install(folder: Path) -> None:
    (folder / "bin").mkdir()
    for name, body in STAND_INS.items():
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / "bin" / name).chmod(0o755)


def shell(line: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a line as its reader would, in the folder of a clone whose programs are the stand-ins."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("SCALING_", "VIRTUAL_ENV"))}
    environ |= {
        "PATH": f"{folder}/bin:{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY),
        "SCALING_PAGE": "0",
    } | more
    return subprocess.run(
        ["bash", "-ec", line],
        cwd=folder, env=environ | more, capture_output=True, text=True, timeout=240, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
