"""Separate environments for frameworks whose CUDA libraries would overwrite another's.

Wheels of CUDA 11, 12 and 13 install files of the same name (nvidia/nccl/lib/libnccl.so.2), and pip reports no
conflict. Workers start in these environments by scaling/agent/environment.py.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from launch import _install

APART = {"tensorflow-cuda": "tensorflow", "mxnet-cuda": "mxnet", "jax-cuda": "jax"}
# installed in a separate environment too, if asked for
SHARED = ("horovod",)
HERE = "--here"  # install everything into one environment
PART = "--part"  # this run is for a separate environment; the caller prints the table
FLAGS = (HERE, PART)


def parted(extras: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Split the extras into those of this environment, and of separate ones by framework."""
    shared = [extra for extra in extras if extra in SHARED]
    apart = {APART[extra]: [extra, *shared] for extra in extras if extra in APART}
    if "jax" in apart:  # Horovod has no binding for it
        apart["jax"] = ["jax-cuda"]
    rest = [extra for extra in extras if extra not in APART]
    return ([] if rest == shared and apart else rest), apart


def path(framework: str) -> Path:
    return Path(f"{sys.prefix}-{framework}")


def bring(framework: str, extras: Sequence[str], cuda: str) -> tuple[list[str], dict[str, str]]:
    """Install into a separate environment, created if needed. Return its row of the table (maybe empty) and the
    problems."""
    folder = path(framework)
    python = folder / "bin/python"
    if not python.exists():
        _install.say(f"making {folder}: {framework} with CUDA needs an environment of its own")
        if subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=False).returncode:
            return [], {extras[0]: f"{sys.executable} -m venv {folder} failed (above)"}
    command = [str(python), "-m", "launch._frameworks", PART, "--cuda", cuda, *extras]
    code = subprocess.run(command, cwd=_install.ROOT, check=False).returncode
    noted = _install.read_stamp(folder / _install.STAMP.name)
    if code not in (0, 1) or "problems" not in noted or bool(code) != bool(noted["problems"]):
        return [], {extras[0]: f"installing into {folder} failed (above)"}
    row = noted["rows"].get(framework)
    return [*row, str(folder)] if row else [], noted["problems"]


# ---------------------------------------------------------------- files of several distributions


def shared_files() -> dict[tuple[str, ...], list[str]]:
    return overlaps({one.metadata["Name"]: map(str, one.files or ()) for one in metadata.distributions()})


def overlaps(files: Mapping[str, Iterable[str]]) -> dict[tuple[str, ...], list[str]]:
    """Find files of nvidia/*/lib that several distributions list, by these distributions."""
    owners: dict[str, set[str]] = {}
    for name, owned in files.items():
        for file in owned:
            if re.fullmatch(r"nvidia/.+/lib/.*\.so[.\d]*", file):
                owners.setdefault(file, set()).add(name)
    found: dict[tuple[str, ...], list[str]] = {}
    for file, names in sorted(owners.items()):
        if len(names) > 1:
            found.setdefault(tuple(sorted(names)), []).append(file)
    return found


def told(found: Mapping[tuple[str, ...], Sequence[str]]) -> str | None:
    if not found:
        return None
    whose = (f"{some(files)} of {' and '.join(names)}" for names, files in found.items())
    return f"overwritten by each other: {'; '.join(whose)}; make the environment anew (rm -r {sys.prefix})"


def namesake(installed: Iterable[metadata.Distribution]) -> str | None:
    """Name PyPI's `scaling`, another project with a module of our name; None if it is not installed.

    Ours is `scaling-bench`; an editable install of ours owns no file of the module.
    """
    for one in installed:
        if one.metadata["Name"] == "scaling" and "scaling/__init__.py" in map(str, one.files or ()):
            version, mend = one.version, f"{sys.executable} -m pip uninstall scaling"
            return f"PyPI's scaling {version} is another project with a module of this name: {mend}"
    return None


def some(files: Sequence[str]) -> str:
    return files[0] + (f" and {len(files) - 1} more" if len(files) > 1 else "")
