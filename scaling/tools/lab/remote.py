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
    name, here = os.environ.get(NAME, "lab"), "/"
    with suppress(OSError):
        here = str(Path.cwd())
    try:
        enter(name, host)
        share(ROOT / name, places(os.environ, here))
    except (OSError, LookupError) as error:
        _fail(f"{host}: cannot enter this node of lab {name}: {error}")
    for place in (here, pwd.getpwuid(os.getuid()).pw_dir, "/"):
        with suppress(OSError):
            os.chdir(place)
            break
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
    """Enter a node's namespaces, which the holder keeps open. All are opened before the last one hides /proc, and
    exec closes them. Raises LookupError, OSError."""
    try:
        state: dict[str, Any] = json.loads((ROOT / name / "state.json").read_text())
    except FileNotFoundError:
        raise LookupError("no such lab is up") from None
    if host not in state["nodes"]:
        raise LookupError(f"its nodes are {', '.join(state['nodes'])}")
    pid, kept = state["holder"]["program"]["pid"], state["holder"]["namespaces"][host]
    if ns.start_ticks(pid) != state["holder"]["program"]["start_ticks"]:
        raise LookupError("its holder process is gone")
    for descriptor in [os.open(f"/proc/{pid}/fd/{kept[kind]}", os.O_RDONLY) for kind in ns.KINDS]:
        ns.enter(descriptor)


def clean(environ: Mapping[str, str], name: str) -> dict[str, str]:
    user = pwd.getpwuid(os.getuid())
    programs, path = str(Path(sys.executable).parent), environ.get("PATH", DEFAULT_PATH)
    return {
        "HOME": user.pw_dir,
        "LOGNAME": user.pw_name,
        "USER": user.pw_name,
        "SHELL": user.pw_shell or "/bin/sh",
        NAME: name,
        FABRIC: str(ROOT / name / "fabric.toml"),
        **{key: environ[key] for key in ("LANG", NAME, FABRIC, RUN, PLACES) if key in environ},
        # an earlier mpirun keeps its place
        "PATH": path if programs in path.split(":") else f"{programs}:{path}",
    }


def places(environ: Mapping[str, str], here: str) -> list[str]:
    """List folders under the outer /tmp that a node needs: current directory, Python, this package, PLACES."""
    wanted = [here, sys.prefix, sys.base_prefix, str(CHECKOUT), *environ.get(PLACES, "").split(":")]
    found = dict.fromkeys(os.path.normpath(place) for place in wanted if place)
    return [place for place in found if place.startswith(f"{PRIVATE}/")]


def share(folder: Path, wanted: Sequence[str]) -> None:
    for place in map(Path, sorted(wanted)):
        outside = folder / "tmp" / place.relative_to(PRIVATE)
        if not outside.is_dir() or (place.exists() and outside.samefile(place)):
            continue
        place.mkdir(parents=True, exist_ok=True)
        ns.mount(outside, place, flags=ns.MS_BIND | ns.MS_REC)


def _fail(text: str) -> NoReturn:
    sys.stderr.write(f"scaling.tools.lab.remote: {text}\n")
    raise SystemExit(255)


if __name__ == "__main__":
    main(sys.argv[1:])
