"""What ./launch/install does: the frameworks, each for itself if they do not install together, then Horovod.

Ends in a table of what is there and a line for each thing that is not, with what mends it. Standard library
alone: this installs all else. The stamp (_install.py) remembers the table, so that a second run only shows it.
"""

from __future__ import annotations

import configparser
import difflib
import re
import shutil
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NoReturn

from launch import _horovod, _imports, _install
from launch._horovod import FRAMEWORKS, Build, Framework, NoHorovod

# Distributions of which a later one would overwrite the other's files. Extra -> what has to go first.
RIVALS = {
    "tensorflow": "tensorflow",
    "tensorflow-cuda": "tensorflow-cpu",
    "mxnet": "mxnet-cu112",
    "mxnet-cuda": "mxnet",
}
PYTHON_WITHOUT_MXNET = (3, 13)  # numpy 1.26 ends at 3.12, see setup.cfg
MISSING = "-"


def main(arguments: Sequence[str]) -> int:
    """Install what is asked; returns 0, or 1 if something of it is missing at the end. SystemExit(2): bad call."""
    extras = wanted(arguments)
    if (table := remembered(extras)) is not None:
        sys.stdout.write(table)
        return 0
    problems = install(extras)
    found = _imports.examine(extras, problems)
    parts, build = horovod(found, problems) if "horovod" in extras else ({}, None)
    table = render(found, parts, extras)
    sys.stdout.write(table)
    for name, reason in problems.items():
        _install.say(f"{name}: {reason}")
    built = {"horovod": noted(build)} if build else {}
    _install.stamp([], table=None if problems else table, **built)
    return 1 if problems else 0


# ---------------------------------------------------------------- what is asked


def wanted(arguments: Sequence[str]) -> list[str]:
    """The extras to install: without any, and for `all`, those that suit this machine."""
    known = declared()
    extras: list[str] = []
    for argument in arguments or ["all"]:
        if argument not in known:
            unknown(argument, known)
        extras += everything() if argument == "all" else [argument]
    return list(dict.fromkeys(extras))


def declared() -> list[str]:
    config = configparser.ConfigParser()
    config.read(_install.ROOT / "setup.cfg")
    return list(config["options.extras_require"])


def unknown(argument: str, known: Sequence[str]) -> NoReturn:
    near = difflib.get_close_matches(argument, known, 1)
    _install.say(f"{argument}: no such extra; {f'did you mean {near[0]}?' if near else ' '.join(known)}")
    raise SystemExit(2)


def everything() -> list[str]:
    """What suits this machine and this Python, saying what does not."""
    cuda = "-cuda" if driver() else ""
    extras = ["torch", f"tensorflow{cuda}", f"mxnet{cuda}", "horovod"]
    if sys.version_info >= PYTHON_WITHOUT_MXNET:
        extras.remove(f"mxnet{cuda}")
        _install.say(f"without mxnet: there is none for {_imports.this_python()}; {_imports.other_python()}")
    return extras


def driver() -> bool:
    """Whether this machine has an NVIDIA driver."""
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


# ---------------------------------------------------------------- the stamp


def remembered(extras: Sequence[str]) -> str | None:
    """The table of an earlier run that all went well, if nothing has changed since; else None."""
    stamp = _install.read_stamp()
    if not _install.stamped(_install.project_key()).issuperset(extras) or not stamp.get("table"):
        return None
    if "horovod" in extras and stamp.get("horovod") != noted_again(stamp.get("horovod")):
        return None
    table: str = stamp["table"]
    return table


def noted(build: Build) -> dict[str, object]:
    """What the stamp says of an installed Horovod."""
    return {"key": build.key(), "frameworks": [[f.name, f.version, f.cuda] for f in build.frameworks]}


def noted_again(earlier: dict[str, list[list[str]]] | None) -> dict[str, object] | None:
    """What `noted` would say today of the same frameworks; None without Horovod or where one came or went."""
    known = [Framework(name=n, version=v, cuda=bool(c)) for n, v, c in (earlier or {}).get("frameworks", ())]
    if [f.name for f in known] != [name for name in FRAMEWORKS if _horovod.releases(name)]:
        return None
    return noted(_horovod.plan(tuple(known), driver=driver())[0]) if horovod_version() else None


def horovod_version() -> str | None:
    try:
        return version("horovod")
    except PackageNotFoundError:
        return None


# ---------------------------------------------------------------- frameworks


def install(extras: list[str]) -> dict[str, str]:
    """Install what the stamp does not vouch for; returns why not, for each extra that does not install.

    All in one go, so that their versions suit each other; one after the other only where that fails.
    """
    if _install.stamped(_install.project_key()).issuperset(extras):
        return {}
    _install.announce(extras)
    _install.need_pip()
    remove_rivals(extras)
    code, _ = _install.try_pip("install", *_install.editable(extras))
    if code:
        _install.say("these do not install together: one at a time")
        _install.pip(*_install.editable([]))
        return one_by_one(extras)
    _install.stamp(extras)
    return {}


def one_by_one(extras: Sequence[str]) -> dict[str, str]:
    good: list[str] = []
    problems = {}
    for extra in extras:
        code, output = _install.try_pip("install", *_install.editable([*good, extra]))
        if code:
            sys.stderr.write(output)
            problems[extra] = pip_reason(extra, output)
        else:
            good.append(extra)
    _install.stamp(good)
    return problems


def pip_reason(extra: str, output: str) -> str:
    if found := re.search(r"No matching distribution found for (\S+)", output):
        return f"{found[1]} is not to be had for {_imports.this_python()}: {_imports.other_python()}"
    errors = re.findall(r"^ERROR: (.*)$", output, re.MULTILINE)
    return f"{errors[-1] if errors else 'pip failed'} (above); mend that, then ./launch/install {extra}"


def remove_rivals(extras: Sequence[str]) -> None:
    """Uninstall what shares its files with what comes (tensorflow and tensorflow-cpu)."""
    for extra in extras:
        rival = RIVALS.get(extra, "")
        if any(release.split()[0] == rival for names in FRAMEWORKS for release in _horovod.releases(names)):
            _install.say(f"removing {rival}: {extra} takes its place")
            _install.try_pip("uninstall", "--yes", rival)
            _install.stamp([], without=(extra.replace("-cuda", ""), extra.replace("-cuda", "") + "-cuda"))


# ---------------------------------------------------------------- Horovod


def horovod(found: tuple[Framework, ...], problems: dict[str, str]) -> tuple[dict[str, str], Build | None]:
    """Bring Horovod for the frameworks `found`; returns what each binding has, and how it is built.

    Where a binding does not compile, it is built without. `problems` gets what is missing.
    """
    if "horovod" in problems:
        return {}, None
    if not found:
        problems["horovod"] = "there is no framework to build it for: ./launch/install torch horovod"
        return {}, None
    build, left_out = _horovod.plan(found, driver=driver())
    problems |= {name if name == "horovod" else f"{name}:horovod": why for name, why in left_out.items()}
    try:
        bring(build)
    except NoHorovod as error:
        good = tuple(framework for framework in build.frameworks if framework.name not in error.bindings)
        if not error.bindings or not good:
            problems["horovod"] = str(error)
            return {}, None
        problems |= {f"{name}:horovod": str(error) for name in sorted(error.bindings)}
        return horovod(good, problems)
    return bindings(build, problems), build


def bring(build: Build) -> None:
    """Install the wheel of `build`, unless it is what is installed; NoHorovod where that fails."""
    if horovod_version():
        known = _install.read_stamp().get("horovod")
        if known == noted(build):
            return
        if known is None and _imports.all_bindings(framework.name for framework in build.frameworks):
            _install.say(f"Horovod {horovod_version()} was here already, and stays")
            return
    path = _horovod.wheel(build)
    code, output = _install.try_pip("install", "--no-deps", "--force-reinstall", str(path))
    if code:
        sys.stderr.write(output)
        raise NoHorovod(f"pip cannot install {path} (above)")


def bindings(build: Build, problems: dict[str, str]) -> dict[str, str]:
    parts = {}
    for framework in build.frameworks:
        try:
            parts[framework.name] = _imports.binding(framework.name)
        except _imports.NoImport as error:
            again = f"rm -r {_horovod.cache() / build.key()}; ./launch/install horovod"
            problems[f"{framework.name}:horovod"] = f"does not import: {error}; build anew: {again}"
    return parts


# ---------------------------------------------------------------- the table


def render(found: Sequence[Framework], parts: dict[str, str], extras: Sequence[str]) -> str:
    """A row for each framework: its version, whether it has CUDA, what its binding of Horovod is built with."""
    by_name = {framework.name: framework for framework in found}
    rows = [("", "version", "CUDA", f"Horovod {horovod_version() or ''}".strip())]
    for name in FRAMEWORKS:
        framework = by_name.get(name)
        shown = (framework.version, "yes" if framework.cuda else "no") if framework else (MISSING, MISSING)
        rows.append((name, *shown, parts.get(name, MISSING)))
    width = [max(map(len, column)) for column in zip(*rows, strict=True)]
    kept = 4 if "horovod" in extras else 3
    cells = ([cell.ljust(size) for cell, size in zip(row, width, strict=True)][:kept] for row in rows)
    return "".join("  ".join(row).rstrip() + "\n" for row in cells)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
