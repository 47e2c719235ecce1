"""Which code runs here: a hash to compare ranks, and the revision for people."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

from scaling.hosts import proc

PACKAGE = Path(__file__).parents[1]
# Written when an image is made, which has neither git nor a checkout.
STAMP = "REVISION"
DIGITS = 10


def code_hash(package: Path = PACKAGE) -> str:
    """Return the first 12 hex digits of SHA-256 over the names and contents of the package's Python files."""
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(package).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:12]


def revision(package: Path = PACKAGE) -> str:
    """Return the commit of the package's checkout (10 digits), else the stamp of its image, else "". `-dirty`
    follows if the package differs from the commit, `-unchecked` if git did not run."""
    return _asked(package) or _read(package.parent / ".git") or proc.text(package / STAMP)[:DIGITS]


def _asked(package: Path) -> str:
    tracked = proc.output("git", "-C", str(package), "rev-parse", "HEAD", "HEAD:./__init__.py")
    if not tracked:
        return ""
    changed = proc.output("git", "-C", str(package), "--no-optional-locks", "status", "--porcelain", "--", ".")
    return tracked[:DIGITS] + ("-dirty" if changed else "")


def _read(folder: Path) -> str:
    """Read HEAD from git's own files, only if the package is in the root of the project's checkout."""
    with suppress(OSError):
        if not (folder.parent / "setup.cfg").exists():
            return ""
        head = (folder / "HEAD").read_text().strip().removeprefix("ref: ")
        found = head if "/" not in head else _reference(folder, head)
        return f"{found[:DIGITS]}-unchecked" if found else ""
    return ""


def _reference(folder: Path, name: str) -> str:
    with suppress(OSError):
        return (folder / name).read_text().strip()
    lines = (line.split() for line in (folder / "packed-refs").read_text().splitlines())
    return next((words[0] for words in lines if words[1:] == [name]), "")
