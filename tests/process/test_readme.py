"""Each command of README.md finds its program in the shell that the lines before it leave on a bare machine."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.support import documented
from tests.support.documented import REPOSITORY

COMMAND = re.compile(rf"{documented.BEGINS.pattern}|\. |squeue |scancel ")
# What a machine has before the first line: pip, and the commands of the clusters that a section is about.
THERE = ("kubectl", "pip", "podman", "sbatch", "scancel", "squeue", "srun")
TORCH = ("python", "scaling", "torchrun")
# What each program installs, and where.
INSTALLING = {
    "bin/pip": ("bin", TORCH),
    "launch/local": (".venv/bin", TORCH),
    "launch/install": (".venv/bin", (*TORCH, "mpirun")),
}


def program(path: Path, body: str = ":") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)


def machine(folder: Path) -> None:
    for name in THERE:
        program(folder / "bin" / name)
    for name in (*TORCH, "mpirun"):
        program(folder / "made" / name)
    program(folder / "launch/mpirun", "exec mpirun")
    activate = 'echo "PATH=$PWD/.venv/bin:\\$PATH" > .venv/bin/activate'
    for name, (place, made) in INSTALLING.items():
        copies = f"/bin/mkdir -p {place} && cd made && /bin/cp {' '.join(made)} ../{place} && cd .."
        program(folder / name, f"{copies} && {activate if place.startswith('.') else ':'}")


def test_each_line_works_after_those_before(tmp_path: Path) -> None:
    text = (REPOSITORY / "README.md").read_text()
    lines = [documented.PROSE.sub("", line) for line in documented.in_blocks(text) if COMMAND.match(line)]
    assert lines[:3] == ["pip install 'scaling-bench[torch]'", "scaling run", lines[2]] and len(lines) > 20
    machine(tmp_path)
    done = subprocess.run(
        ["/bin/bash", "-ec", "\n".join(lines)],
        cwd=tmp_path, env={"PATH": str(tmp_path / "bin")}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
