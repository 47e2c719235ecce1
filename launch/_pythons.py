"""Runs the unit tests and the law with every Python of this machine: `_pythons FOLDER` (./launch/test --pythons).

Each gets two environments without frameworks: newest dependencies, and oldest (lower bounds of setup.cfg, or the
first releases above with a wheel). uv resolves to the oldest.
"""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from launch import _install

MINORS = range(10, 16)
RESOLUTIONS = {"oldest": "lowest-direct", "newest": "highest"}
TESTS = ("-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "tests/unit", "tests/test_law.py")


def main(folder: Path) -> int:
    """Print the last line of each test run; return 1 if one failed."""
    folder.mkdir(parents=True, exist_ok=True)
    requirements = folder / "requirements.txt"
    requirements.write_text(declared())
    results = {
        f"{name} {kind}": result(folder / f"{name}-{kind}", python, kind, requirements)
        for name, python in pythons()
        for kind in RESOLUTIONS
    }
    for what, (code, said) in results.items():
        sys.stdout.write(f"{what}: {'failed' if code else 'passed'}: {said}\n")
    return int(not results or any(code for code, _ in results.values()))


def declared() -> str:
    config = configparser.ConfigParser()
    config.read(_install.ROOT / "setup.cfg")
    return config["options"]["install_requires"] + config["options.extras_require"]["test"]


def pythons() -> Iterator[tuple[str, str]]:
    """Yield the name and path of each minor version that starts, from PATH or pyenv."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    for name in (f"python3.{minor}" for minor in MINORS):
        known = [shutil.which(name), *sorted(map(str, versions.glob(f"*/bin/{name}")), reverse=True)]
        if working := next((path for path in known if path and run(path, "-c", "")[0] == 0), None):
            yield name, working


def result(environment: Path, python: str, kind: str, requirements: Path) -> tuple[int, str]:
    """Return exit code and last line of the tests, or of the step that failed before them."""
    _install.say(f"{environment.name}: installing, then testing; the output goes to {environment}.log")
    inside = str(environment / "bin/python")
    packages = ("--python", inside, "--no-build", "--resolution", RESOLUTIONS[kind], "-r", str(requirements))
    with environment.with_name(f"{environment.name}.log").open("w") as log:
        for command in (
            ("uv", "venv", "--quiet", "--clear", "--python", python, str(environment)),
            ("uv", "pip", "install", "--quiet", *packages),
            (inside, *TESTS),
        ):
            code, said = run(*command)
            log.write(said)
            if code:
                break
    return code, (said.strip().splitlines() or ["said nothing"])[-1]


def run(*command: str) -> tuple[int, str]:
    done = subprocess.run(
        command, cwd=_install.ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.returncode, done.stdout


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1])))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
