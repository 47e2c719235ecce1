"""Install scaling, editable, into the environment of the Python that runs this: `_install.py EXTRA...`

Standard library alone: this runs first on a fresh machine, perhaps in an environment without pip. A stamp in
the environment remembers what was installed, so that the next start costs a hash and no pip.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STAMP = Path(sys.prefix, "scaling-install.json")
OLDEST_PIP = (22, 3)  # the first with --python, for ./launch/test; editable installs need 21.3
QUIET = ("--disable-pip-version-check", "--no-input", "--progress-bar", "off")
FETCHED = re.compile(
    r" *(?:Downloading|Processing|Using cached) (?:\S*/)?([^\s/-]+-[^\s/-]+)-\S+\.whl(?= |$)( \(.* [kMG]B\))?"
)


def main(extras: list[str]) -> None:
    """Bring the environment up to `extras`; SystemExit with one line where that fails."""
    key = project_key()
    if stamped(key).issuperset(extras):
        return
    wanted = ",".join(extras)
    say(f"installing scaling[{wanted}] into {sys.prefix} (the first time takes minutes)")
    need_pip()
    pip("--editable", f"{ROOT}[{wanted}]")
    STAMP.write_text(json.dumps({"key": key, "extras": extras}))


def say(text: str) -> None:
    sys.stderr.write(f"launch: {text}\n")


def project_key() -> str:
    """Hash of what decides the work of pip: the declared requirements, this Python, this clone."""
    declared = ((ROOT / name).read_text() for name in ("setup.cfg", "pyproject.toml"))
    text = "\0".join((str(ROOT), str(sys.implementation.cache_tag), *declared))
    return hashlib.sha256(text.encode()).hexdigest()


def stamped(key: str) -> frozenset[str]:
    """Return the extras that the stamp vouches for; none where it is absent, cut short or of another key."""
    try:
        stamp = json.loads(STAMP.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return frozenset()
    return frozenset(stamp["extras"] if stamp["key"] == key else ())


def need_pip() -> None:
    """Make sure that the environment has a pip, and that it is new enough."""
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
    """Run `pip install`, naming what it fetches; all of its output only if it fails, then SystemExit."""
    command = [sys.executable, "-m", "pip", "install", *QUIET, *arguments]
    output = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout or ():
            output.append(line)
            if wheel := FETCHED.match(line):
                sys.stderr.write(f"  {wheel[1]}{wheel[2] or ''}\n")
            elif line.startswith("Installing collected packages"):
                say("unpacking")
    if process.returncode:
        sys.stderr.write("".join(output))
        raise SystemExit(f"launch: pip install {' '.join(arguments)} failed; what it said stands above")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        raise SystemExit(130) from None
