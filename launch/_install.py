"""Installs scaling, editable, into this Python's environment: `_install [--cuda WHICH] EXTRA...`

Standard library only: it runs first, maybe without pip. A stamp records what is installed, so the next start is
fast.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from launch import _cuda

ROOT = Path(__file__).resolve().parent.parent
STAMP = Path(sys.prefix, "scaling-install.json")
OLDEST_TORCH = (2, 4)  # oldest supported release
OLDEST_PIP = (22, 3)  # the first with --python, for ./launch/test; editable installs need 21.3
# Settings of pip under which nothing can be installed, and those that name another place.
REFUSED = {
    "PIP_DRY_RUN": "pip would install nothing",
    "PIP_REQUIRE_HASHES": "the packages of setup.cfg have no hashes",
}
PLACES = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_PYTHON")
QUIET = ("--disable-pip-version-check", "--no-input")
FETCHED = re.compile(
    r" *(?:Downloading|Processing|Using cached) (?:\S*/)?([^\s/-]+-[^\s/-]+)-\S+\.whl(?= |$)( \(.* [kMG]B\))?"
)


def main(arguments: list[str]) -> None:
    """Install these extras unless the stamp has them. SystemExit with one line on failure."""
    asked, extras = _cuda.split(arguments)
    if is_vouched(extras, asked):
        return
    choice = _cuda.choose(asked)
    announce(extras, choice)
    need_pip()
    remove_other_torch(extras, choice)
    pip(*choice.pip_options(extras), *editable(extras))
    stamp(extras, **choice.noted())


def announce(extras: Sequence[str], choice: _cuda.Choice) -> None:
    say(f"installing scaling[{','.join(extras)}] into {sys.prefix} (the first time takes minutes)")
    if choice.is_cuda or choice.is_asked:
        say(choice.told() + ("" if choice.is_asked else "; --cuda 12, 13 or none says otherwise"))


def remove_other_torch(extras: Iterable[str], choice: _cuda.Choice) -> None:
    """Uninstall a torch of another CUDA: pip treats all its builds as the same version."""
    if "torch" in extras and (other := _cuda.other_torch(choice)):
        say(f"removing torch, which is built for {f'CUDA {other}' if other != 'none' else 'CPUs'}")
        try_pip("uninstall", "--yes", "torch", "torchvision")


def brought_torch() -> str | None:
    """Return the release of an installed, supported torch that differs from setup.cfg's, else None."""
    try:
        found = version("torch")
    except PackageNotFoundError:
        return None
    named = re.search(r"^ *torch==(\S+)", (ROOT / "setup.cfg").read_text(), re.MULTILINE)
    numbers = tuple(int(number) for number in re.findall(r"\d+", found)[:2])
    is_ours = named is not None and found.partition("+")[0] == named[1]
    return found if numbers >= OLDEST_TORCH and not is_ours else None


def editable(extras: Sequence[str]) -> tuple[str, str]:
    """Return the arguments of `pip install` for this clone with `extras`. A user's own torch is kept."""
    if "torch" in extras and (found := brought_torch()):
        say(f"torch {found} is installed already and is kept; for another: pip uninstall torch torchvision")
        extras = [extra for extra in extras if extra != "torch"]
    return "--editable", f"{ROOT}[{','.join(extras)}]" if extras else str(ROOT)


def say(text: str) -> None:
    sys.stderr.write(f"launch: {text}\n")


def project_key() -> str:
    declared = ((ROOT / name).read_text() for name in ("setup.cfg", "pyproject.toml"))
    text = "\0".join((str(ROOT), str(sys.implementation.cache_tag), *declared))
    return hashlib.sha256(text.encode()).hexdigest()


def is_vouched(extras: Iterable[str], cuda: str | None) -> bool:
    """Return True if the stamp has these extras. `cuda` is the asked one, None for any."""
    noted = read_stamp()
    if noted.get("key") != project_key() or not stamped(noted["key"]).issuperset(extras):
        return False
    if cuda is not None:
        return bool(cuda == noted.get("cuda"))
    return not (noted.get("for_want_of_driver") and _cuda.driver())


def stamped(key: str) -> frozenset[str]:
    """Return the stamp's extras; empty if it is missing, truncated or has another key."""
    found = read_stamp()
    return frozenset(found["extras"] if found.get("key") == key else ())


def read_stamp(path: Path = STAMP) -> dict[str, Any]:
    """Read the stamp; empty if it is missing or truncated."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return found


def stamp(extras: Iterable[str], *, without: Iterable[str] = (), **more: Any) -> None:
    """Add `extras` and `more` to the stamp, and remove the extras in `without`."""
    key = project_key()
    kept = sorted(stamped(key).difference(without).union(extras))
    STAMP.write_text(json.dumps({**read_stamp(), "key": key, "extras": kept, **more}))


def settle_pip() -> None:
    """Have pip install into this environment, whatever its variables and files say. SystemExit with one line if
    that would not be what they ask for."""
    for name, why in REFUSED.items():
        if os.environ.get(name, "").lower() not in ("", "0", "false", "no", "off", "n", "f"):
            raise SystemExit(f"launch: {name}={os.environ[name]}: {why}; unset {name}")
    for name in PLACES:
        if os.environ.pop(name, ""):
            say(f"{name} is not used: packages go into {sys.prefix}")
    os.environ["PIP_USER"] = "0"


def need_pip() -> None:
    settle_pip()
    if pip_version() is None:
        bundled = subprocess.run([sys.executable, "-m", "ensurepip"], capture_output=True, check=False)
        if bundled.returncode:
            say("this Python has no ensurepip; getting pip from the package index")
            fetched = subprocess.run([sys.executable, Path(__file__).with_name("_get_pip.py")], check=False)
            if fetched.returncode:
                raise SystemExit(fetched.returncode)
    if (pip_version() or ()) < OLDEST_PIP:
        pip("--upgrade", "pip")


def pip_version() -> tuple[int, ...] | None:
    importlib.invalidate_caches()
    try:
        return tuple(int(number) for number in re.findall(r"\d+", version("pip")))
    except PackageNotFoundError:
        return None


def pip(*arguments: str) -> None:
    """Run `pip install` and print what it downloads. On failure print its whole output and raise SystemExit."""
    code, output = try_pip("install", "--progress-bar", "off", *arguments)
    if code:
        sys.stderr.write(output)
        raise SystemExit(f"launch: pip install {' '.join(arguments)} failed (above)")


def try_pip(verb: str, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pip", verb, *QUIET, *arguments]
    output = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout or ():
            output.append(line)
            if wheel := FETCHED.match(line):
                sys.stderr.write(f"  {wheel[1]}{wheel[2] or ''}\n")
            elif line.startswith("Installing collected packages"):
                say("unpacking")
    importlib.invalidate_caches()
    return process.returncode, "".join(output)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        raise SystemExit(130) from None
