"""./launch/install: installs the frameworks together, or one by one if that fails, then Horovod.

It ends with a table. Standard library only, because it installs everything else. The stamp (_install.py) keeps the
rows for the next run. For separate environments (_environments.py) this file runs again inside them.
"""

from __future__ import annotations

import configparser
import difflib
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distributions, version
from itertools import zip_longest
from typing import NoReturn

from launch import _cuda, _environments, _horovod, _imports, _install
from launch._horovod import FRAMEWORKS, Build, Framework, NoHorovod

# Extra -> distribution to remove first, because both have the same files.
RIVALS = {
    "tensorflow": "tensorflow",
    "tensorflow-cuda": "tensorflow-cpu",
    "mxnet": "mxnet-cu112",
    "mxnet-cuda": "mxnet",
}
NO_DRIVER = "cannot be built without a driver; on a machine with one: ./launch/install mxnet-cuda horovod"
MISSING = "-"
# by framework: version, CUDA, features of its Horovod binding, its separate environment if any
Rows = dict[str, list[str]]
PYTHON_WITHOUT_MXNET = (3, 13)  # numpy 1.26 ends at 3.12, see setup.cfg


def main(arguments: Sequence[str]) -> int:
    """Return 1 if something is missing, else 0. SystemExit(2) for a wrong call."""
    asked, words = _cuda.split(arguments)
    names = [word for word in words if word not in _environments.FLAGS]
    known = declared()
    for name in names:
        if name not in known:
            unknown(name, known)
    choice = _cuda.choose(asked)
    extras, refused = wanted(names, choice, alone=not {"test", _environments.HERE}.intersection(words))
    if _environments.PART in words:
        return 1 if bring_here(extras, choice)[1] else 0
    own, apart = (extras, {}) if _environments.HERE in words else _environments.parted(extras)
    rows, problems = bring_here(own, choice)
    for name, its in apart.items():
        row, other = _environments.bring(name, its, choice.wheels if choice.is_cuda else "12")
        rows |= {name: row} if row else {}
        problems |= other
    if stranger := _environments.namesake(distributions()):
        problems["scaling"] = stranger
    remind(own)
    sys.stdout.write(render(rows, extras, horovod_version()))
    for name, reason in (refused | problems).items():
        _install.say(f"{name}: {reason}")
    return 1 if refused | problems else 0


def bring_here(extras: Sequence[str], choice: _cuda.Choice) -> tuple[Rows, dict[str, str]]:
    """Install into this environment. Return the table's rows and the problems, which the stamp keeps too."""
    if (rows := remembered(extras, choice)) is not None:
        return rows, {}
    problems = install(extras, choice)
    found = _imports.examine(extras, problems)
    if "mxnet-cuda" in problems:
        _install.say(f"mxnet-cuda: {problems['mxnet-cuda']}; the one for CPUs is installed instead")
        problems |= install(["mxnet"], choice)
        found = _imports.examine(["mxnet"], problems)
    bound = tuple(one for one in found if one.name in FRAMEWORKS)
    parts, build = horovod(bound, problems, choice) if "horovod" in extras else ({}, None)
    if shared := _environments.told(_environments.shared_files()):
        problems["CUDA's libraries"] = shared
    earlier = _install.read_stamp().get("rows") or {}
    rows = {one.name: table_row(one, parts.get(one.name), earlier.get(one.name)) for one in found}
    built = {"horovod": noted(build)} if build else {}
    _install.stamp([], rows=rows, problems=problems, **built)
    return rows, problems


def remind(extras: Sequence[str]) -> None:
    for name in _imports.NAMES:
        folder = _environments.path(name)
        if folder.exists() and {name, f"{name}-cuda"}.intersection(extras):
            _install.say(f"{name}'s workers run in {folder} while it exists; to remove it: rm -r {folder}")


# ---------------------------------------------------------------- requested extras


def wanted(names: Sequence[str], choice: _cuda.Choice, *, alone: bool) -> tuple[list[str], dict[str, str]]:
    """Return the extras to install, and the reasons for refused ones. MXNet for CPUs replaces one that cannot run
    on the GPUs."""
    extras: list[str] = []
    for name in names or ["all"]:
        extras += everything(choice, alone=alone) if name == "all" else [name]
    if "mxnet-cuda" in extras and (why := choice.without_mxnet()):
        extras = ["mxnet" if extra == "mxnet-cuda" else extra for extra in extras]
        return list(dict.fromkeys(extras)), {"mxnet-cuda": f"{why}; the one for CPUs is installed instead"}
    return list(dict.fromkeys(extras)), {}


def declared() -> list[str]:
    config = configparser.ConfigParser()
    config.read(_install.ROOT / "setup.cfg")
    return list(config["options.extras_require"])


def unknown(argument: str, known: Sequence[str]) -> NoReturn:
    near = difflib.get_close_matches(argument, known, 1)
    _install.say(f"{argument}: no such extra; {f'did you mean {near[0]}?' if near else ' '.join(known)}")
    raise SystemExit(2)


def everything(choice: _cuda.Choice, *, alone: bool) -> list[str]:
    """Return the extras that suit this machine. Without `alone` all must fit into one environment, as tests need
    it."""
    cuda = "-cuda" if choice.is_cuda and alone else ""
    extras = ["torch", f"tensorflow{cuda}", "mxnet", f"jax{cuda}", "horovod"]
    if sys.version_info >= PYTHON_WITHOUT_MXNET:
        extras.remove("mxnet")
        _install.say(f"without mxnet: there is none for {_imports.this_python()}; {_imports.other_python()}")
    elif cuda and (why := choice.without_mxnet()):
        _install.say(f"mxnet for CPUs: {why}")
    elif cuda:
        extras[2] = "mxnet-cuda"
    return extras


# ---------------------------------------------------------------- the stamp


def remembered(extras: Sequence[str], choice: _cuda.Choice) -> Rows | None:
    """Return the rows of an earlier successful run if nothing has changed, else None."""
    stamp = _install.read_stamp()
    asked = choice.wheels if choice.is_asked else None
    if not _install.is_vouched(extras, asked) or stamp.get("rows") is None or stamp.get("problems"):
        return None
    if "horovod" in extras and stamp.get("horovod") != noted_again(stamp.get("horovod"), choice):
        return None
    rows: Rows = stamp["rows"]
    return rows


def noted(build: Build) -> dict[str, object]:
    return {"key": build.key(), "frameworks": [[f.name, f.version, f.cuda] for f in build.frameworks]}


def noted_again(earlier: dict[str, list[list[str]]] | None, choice: _cuda.Choice) -> dict[str, object] | None:
    """Return what `noted` gives today; None without Horovod or if the frameworks changed."""
    known = [Framework(name=n, version=v, cuda=bool(c)) for n, v, c in (earlier or {}).get("frameworks", ())]
    if [f.name for f in known] != [name for name in FRAMEWORKS if _horovod.releases(name)]:
        return None
    return noted(_horovod.plan(tuple(known), driver=choice.is_cuda)[0]) if horovod_version() else None


def horovod_version() -> str | None:
    try:
        return version("horovod")
    except PackageNotFoundError:
        return None


# ---------------------------------------------------------------- frameworks


def install(extras: Sequence[str], choice: _cuda.Choice) -> dict[str, str]:
    """Install what the stamp lacks, together so that versions match. Return the reason for each failed extra."""
    if _install.is_vouched(extras, choice.wheels if choice.is_asked else None):
        return {}
    _install.announce(extras, choice)
    _install.need_pip()
    remove_rivals(extras)
    _install.remove_other_torch(extras, choice)
    code, _ = _install.try_pip("install", *choice.pip_options(extras), *_install.editable(extras))
    if code:
        _install.say("these do not install together: one at a time")
        _install.pip(*_install.editable([]))
        return one_by_one(extras, choice)
    _install.stamp(extras, **choice.noted())
    return {}


def one_by_one(extras: Sequence[str], choice: _cuda.Choice) -> dict[str, str]:
    good: list[str] = []
    problems = {}
    for extra in extras:
        options = choice.pip_options([extra])
        code, output = _install.try_pip("install", *options, *_install.editable([*good, extra]))
        if code:
            sys.stderr.write(output)
            problems[extra] = pip_reason(extra, output)
        else:
            good.append(extra)
    _install.stamp(good, **choice.noted())
    return problems


def pip_reason(extra: str, output: str) -> str:
    if found := re.search(r"No matching distribution found for (\S+)", output):
        return f"{found[1]} is not available for {_imports.this_python()}: {_imports.other_python()}"
    errors = re.findall(r"^ERROR: (.*)$", output, re.MULTILINE)
    return f"{errors[-1] if errors else 'pip failed'} (above); mend that, then ./launch/install {extra}"


def remove_rivals(extras: Sequence[str]) -> None:
    """Uninstall packages that share files with the new ones (tensorflow and tensorflow-cpu)."""
    for extra in extras:
        rival = RIVALS.get(extra, "")
        if any(release.split()[0] == rival for names in FRAMEWORKS for release in _horovod.releases(names)):
            _install.say(f"removing {rival}: {extra} takes its place")
            _install.try_pip("uninstall", "--yes", rival)
            _install.stamp([], without=(extra.replace("-cuda", ""), extra.replace("-cuda", "") + "-cuda"))


# ---------------------------------------------------------------- Horovod


def horovod(
    found: tuple[Framework, ...], problems: dict[str, str], choice: _cuda.Choice
) -> tuple[dict[str, str], Build | None]:
    """Install Horovod for the frameworks `found`; return the features of each binding, and the build. A binding
    that does not compile is left out. Problems are added to `problems`."""
    if "horovod" in problems:
        return {}, None
    if not found:
        problems["horovod"] = "there is no framework to build it for: ./launch/install torch horovod"
        return {}, None
    problems |= {f"{one.name}:horovod": NO_DRIVER for one in found if not one.is_tried}
    found = tuple(one for one in found if one.is_tried)
    if not found:
        return {}, None
    build, left_out = _horovod.plan(found, driver=choice.is_cuda)
    problems |= {name if name == "horovod" else f"{name}:horovod": why for name, why in left_out.items()}
    if not build.frameworks:
        return {}, None
    try:
        bring(build)
    except NoHorovod as error:
        good = tuple(framework for framework in build.frameworks if framework.name not in error.bindings)
        if not error.bindings or not good:
            problems["horovod"] = str(error)
            return {}, None
        problems |= {f"{name}:horovod": str(error) for name in sorted(error.bindings)}
        return horovod(good, problems, choice)
    return bindings(build, problems), build


def bring(build: Build) -> None:
    """Install the wheel of `build` unless it is installed. Raises NoHorovod on failure."""
    if horovod_version():
        known = _install.read_stamp().get("horovod")
        if known == noted(build):
            return
        if known is None and _imports.all_bindings(framework.name for framework in build.frameworks):
            _install.say(f"Horovod {horovod_version()} was installed already and is kept")
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


def table_row(framework: Framework, binding: str | None, earlier: Sequence[str] | None) -> list[str]:
    """Return a framework's row; the binding is the `earlier` one if it was not examined now."""
    bound = binding or (earlier[2] if earlier else MISSING)
    return [framework.version, "yes" if framework.cuda else "no", bound]


def render(found: Mapping[str, Sequence[str]], extras: Sequence[str], horovod: str | None) -> str:
    is_bound = any(cells[2] != MISSING for cells in found.values())
    if horovod is None and is_bound:
        horovod = _horovod.VERSION
    rows = [["", "version", "CUDA", f"Horovod {horovod or ''}".strip(), "environment"]]
    named = [name for name in _imports.NAMES if name in FRAMEWORKS or name in found]
    rows += [[name, *found.get(name, [MISSING] * 3)] for name in named]
    width = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    is_apart = any(len(cells) > 4 for cells in rows[1:])
    kept = [0, 1, 2, *([3] if is_bound or "horovod" in extras else []), *([4] if is_apart else [])]
    lines = ("  ".join(cells[at].ljust(width[at]) for at in kept if at < len(cells)) for cells in rows)
    return "".join(line.rstrip() + "\n" for line in lines)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
