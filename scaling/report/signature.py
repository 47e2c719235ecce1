"""Sign a run, and verify its signature, with ssh-keygen.

A statement (SIGNED) lists the digests of the files that hold a verdict and what it rests on. `ssh-keygen -Y sign`
signs the statement (SIGNED.sig). An archive has other bytes of the same records, because secrets and names are
left out. So the statement lists the digests of these too, and a file must have one of the digests of its name.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from scaling import files
from scaling.errors import ScalingError, UsageError
from scaling.records.store import FILE, unlinked

STATEMENT, SIGNATURE = "SIGNED", "SIGNED.sig"
# The files that a signature binds, if the run has them.
BOUND = (FILE, "preflight.json")
# A signature for another purpose is none for a run.
NAMESPACE = "scaling-certificate"
PROGRAM = "ssh-keygen"
PATIENCE_S = 60.0


class SignatureError(ScalingError):
    """A run without a signature that holds: exit 1."""


class Signers(NamedTuple):
    """A file of allowed signers (ssh-keygen(1)), and the one that must have signed; "" for any of them."""

    file: Path
    identity: str = ""


def signers(text: str) -> Signers:
    """Parse `FILE` or `FILE:IDENTITY`. Raises UsageError if there is no such file, or no ssh-keygen."""
    whole, (path, _, identity) = Path(text), text.rpartition(":")
    found = Signers(whole) if not path or whole.exists() else Signers(Path(path), identity)
    try:
        files.read(found.file)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"--signed-by {text}: {why}; give a file of allowed signers (man ssh-keygen)") from None
    _program("--signed-by")
    return found


# ---------------------------------------------------------------- sign


def check_key(key: Path) -> None:
    """Sign a trial, before work that takes long. Raises UsageError if this key cannot sign here."""
    _signed(b"", key)


def sign(folder: Path, key: Path, forms: Sequence[Mapping[str, bytes]]) -> None:
    """Sign a run's files. `forms` have the same files as archives have them. Raises UsageError."""
    own = {name: files.read(folder / name) for name in BOUND if (folder / name).is_file()}
    lines = {
        f"{sha256(form[name]).hexdigest()}  {name}" for form in (own, *forms) for name in BOUND if name in form
    }
    statement = "".join(f"{line}\n" for line in (NAMESPACE, *sorted(lines))).encode()
    signature = _signed(statement, key)
    try:
        for name, data in ((STATEMENT, statement), (SIGNATURE, signature)):
            unlinked(folder / name).write_bytes(data)
    except OSError as error:
        raise UsageError(f"--sign {key}: {error.filename}: {error.strerror}") from None


def _signed(data: bytes, key: Path) -> bytes:
    with TemporaryDirectory(prefix="scaling-signature-") as place:
        file = Path(place) / STATEMENT
        file.write_bytes(data)
        done = _run("--sign", "sign", "-f", str(key.absolute()), "-n", NAMESPACE, str(file))
        if done.returncode == 0:
            return (Path(place) / SIGNATURE).read_bytes()
    said = done.stderr.decode(errors="replace")
    if not key.exists():
        raise UsageError(f"--sign {key}: No such file or directory; give a key that ssh-keygen made")
    if "passphrase" in said:
        agent = f"load it with ssh-add, and give {key}.pub"
        raise UsageError(f"--sign {key}: has a passphrase, and nobody may be there to type it; {agent}")
    raise UsageError(f"--sign {key}: {PROGRAM} cannot sign with it: {_last(said)}")


# ---------------------------------------------------------------- verify


def verified(folder: Path, allowed: Signers, run: Path) -> str:
    """Return the identity that signed a run in this folder, and its key. Raises SignatureError if no signature of
    an allowed signer holds; messages name the `run`."""
    try:
        statement, signature = files.read(folder / STATEMENT), folder / SIGNATURE
        files.check(signature)
    except FileNotFoundError:
        raise SignatureError(f"{run}: has no signature; scaling certify --sign KEY makes one") from None
    except OSError as error:
        raise SignatureError(f"{run}: its signature cannot be read: {error.strerror}") from None
    said = _accepted(statement, signature, allowed, run)
    try:
        found = {name: files.read(folder / name) for name in BOUND if (folder / name).exists()}
    except OSError as error:
        raise SignatureError(f"{run}: {error.filename}: {error.strerror}") from None
    if wrong := next(_unbound(statement, found), ""):
        raise SignatureError(f"{run}: {wrong}")
    return said


def _accepted(statement: bytes, signature: Path, allowed: Signers, run: Path) -> str:
    trusted, place = ("-f", str(allowed.file)), ("-s", str(signature))
    identity = allowed.identity
    if not identity:
        found = _run("--signed-by", "find-principals", *trusted, *place)
        known = found.stdout.decode(errors="replace").splitlines() if found.returncode == 0 else []
        identity = next(iter(known), "")
    if not identity:
        raise SignatureError(f"{run}: its signer is not in {allowed.file}")
    asked = ("-I", identity, "-n", NAMESPACE)
    done = _run("--signed-by", "verify", *trusted, *asked, *place, given=statement)
    if done.returncode:
        why = _last(done.stderr.decode(errors="replace"))
        raise SignatureError(f"{run}: the signature does not hold for {identity} of {allowed.file}: {why}")
    key = done.stdout.decode(errors="replace").rpartition(" with ")[2].strip()
    return f"{identity} with {key}"


def is_bound(statement: bytes, found: Mapping[str, bytes]) -> bool:
    """Return whether a statement lists these files with their digests, and no other files."""
    return not any(_unbound(statement, found))


def _unbound(statement: bytes, found: Mapping[str, bytes]) -> Iterator[str]:
    title, *lines = statement.decode(errors="replace").splitlines() or [""]
    told = [(name, digest) for digest, _, name in (line.partition("  ") for line in lines)]
    if title != NAMESPACE:
        yield f"{STATEMENT} is no statement of scaling certify"
    for name in sorted({FILE, *found, *(name for name, _ in told)}):
        if name not in found:
            yield f"{name} is missing, but it was signed"
        elif (name, sha256(found[name]).hexdigest()) not in told:
            yield f"{name} is not the file that was signed: it was changed"


# ---------------------------------------------------------------- ssh-keygen


def _program(flag: str) -> str:
    if (found := shutil.which(PROGRAM)) is None:
        raise UsageError(f"{flag}: {PROGRAM} is not installed; install openssh-client")
    return found


def _run(flag: str, action: str, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run ssh-keygen without a terminal, so that it asks for no passphrase. Raises UsageError if it cannot run."""
    environ = {**os.environ, "SSH_ASKPASS_REQUIRE": "never", "LC_ALL": "C"}
    try:
        return subprocess.run(
            [_program(flag), "-Y", action, *arguments],
            input=given, env=environ, capture_output=True, timeout=PATIENCE_S, start_new_session=True, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{flag}: {PROGRAM} -Y {action}: {error}") from None


def _last(said: str) -> str:
    return (said.strip().splitlines() or ["no message"])[-1].strip()
