"""A replacement for ssh that mpirun calls: `python -m scaling.tools.lab.remote HOST WORDS...` runs them on a node.

Like sshd, it gives the command a shell and a clean environment, so missing forwarding shows up. Python is on PATH
and the current directory is kept if it exists. It imports only the standard library, because it starts once per
node.

`--as-is HOST WORDS...` runs the words directly, in this environment.
"""

from __future__ import annotations

import json
import os
import pwd
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import scaling
from scaling.tools.lab import namespaces as ns

ROOT = Path("/run/scaling-lab")
CHECKOUT = Path(scaling.__file__).resolve().parents[1]
# variables of a lab: its name, its networks, the active run, shared folders of /tmp
NAME, FABRIC, RUN, PLACES = "SCALING_LAB", "SCALING_FABRIC", "SCALING_LAB_RUN", "SCALING_LAB_PLACES"
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PRIVATE = "/tmp"


def main(arguments: Sequence[str]) -> NoReturn:
    """Become the command. Exits with 255 and a line on errors, like ssh."""
    as_is, host, words = parse(arguments)
    name = os.environ.get(NAME, "lab")
    here = current()
    try:
        enter(name, host)
        share(ROOT / name, places(os.environ, here))
    except (OSError, LookupError) as error:
        _fail(f"{host}: cannot enter this node of lab {name}: {error}")
    go_to(here)
    try:
        if as_is:
            os.execvp(words[0], words)
        environ = clean(os.environ, name)
        os.execve("/bin/sh", ["sh", "-c", " ".join(words) or 'exec "$SHELL"'], environ)
    except OSError as error:
        _fail(f"{host}: {words[0]}: {error.strerror}")


def parse(arguments: Sequence[str]) -> tuple[bool, str, list[str]]:
    """Return --as-is, host and words. ssh's flags without a value (-x, -q, ...) are skipped."""
    words = list(arguments)
    as_is = words[:1] == ["--as-is"]
    while words and words[0].startswith("-"):
        words.pop(0)
    if not words or (as_is and len(words) == 1):
        _fail("no node or no command; write for example: python -m scaling.tools.lab.remote node1 hostname")
    return as_is, words[0], words[1:]


def enter(name: str, host: str) -> None:
    """Open all namespaces before the last one hides /proc, then enter them. exec closes the descriptors."""
    for descriptor in [os.open(path, os.O_RDONLY) for path in namespace_files(name, host)]:
        ns.enter(descriptor)


def namespace_files(name: str, host: str) -> list[str]:
    """List the descriptors through which the holder keeps a node's namespaces open. Raises LookupError."""
    try:
        state: dict[str, Any] = json.loads((ROOT / name / "state.json").read_text())
    except FileNotFoundError:
        raise LookupError("no such lab is up") from None
    if host not in state["nodes"]:
        raise LookupError(f"its nodes are {', '.join(state['nodes'])}")
    program = state["holder"]["program"]
    if _start_ticks(program["pid"]) != program["start_ticks"]:
        raise LookupError("its holder process is gone")
    kept = state["holder"]["namespaces"][host]
    return [f"/proc/{program['pid']}/fd/{kept[kind]}" for kind in ns.KINDS]


def _start_ticks(pid: int) -> int | None:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return None


def clean(environ: Mapping[str, str], name: str) -> dict[str, str]:
    user = pwd.getpwuid(os.getuid())
    programs = str(Path(sys.executable).parent)
    kept = {key: environ[key] for key in ("LANG", NAME, FABRIC, RUN, PLACES) if key in environ}
    return {
        "HOME": user.pw_dir,
        "LOGNAME": user.pw_name,
        "USER": user.pw_name,
        "SHELL": user.pw_shell or "/bin/sh",
        NAME: name,
        FABRIC: str(ROOT / name / "fabric.toml"),
        **kept,
        "PATH": reaching(programs, environ.get("PATH", DEFAULT_PATH)),
    }


def reaching(folder: str, path: str) -> str:
    """Add a folder to the front of PATH, unless it is there: an earlier mpirun keeps its place."""
    return path if folder in path.split(":") else f"{folder}:{path}"


def places(environ: Mapping[str, str], here: str) -> list[str]:
    """List folders under the outer /tmp that a node needs: current directory, Python, this package, PLACES."""
    wanted = [here, sys.prefix, sys.base_prefix, str(CHECKOUT), *environ.get(PLACES, "").split(":")]
    found = dict.fromkeys(os.path.normpath(place) for place in wanted if place)
    return [place for place in found if place.startswith(f"{PRIVATE}/")]


def share(folder: Path, wanted: Sequence[str]) -> None:
    for place in sorted(wanted):
        outside = folder / "tmp" / place.removeprefix(f"{PRIVATE}/")
        if not outside.is_dir() or same(outside, Path(place)):
            continue
        Path(place).mkdir(parents=True, exist_ok=True)
        ns.mount(outside, place, flags=ns.MS_BIND | ns.MS_REC)


def same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def current() -> str:
    with suppress(OSError):
        return str(Path.cwd())
    return "/"


def go_to(folder: str) -> None:
    """Change to the folder, else to the home directory, else to the root."""
    for place in (folder, pwd.getpwuid(os.getuid()).pw_dir, "/"):
        with suppress(OSError):
            os.chdir(place)
            return


def _fail(text: str) -> NoReturn:
    sys.stderr.write(f"scaling.tools.lab.remote: {text}\n")
    raise SystemExit(255)


if __name__ == "__main__":
    main(sys.argv[1:])
