"""`--against REV`: find and check out the other revision, and test it on all hosts."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from scaling import frameworks
from scaling.errors import SilentRanks, UsageError
from scaling.hosts.info import PACKAGE
from scaling.plan.config import SweepConfig
from scaling.plan.plan import Plan
from scaling.records.messages import Enrol, ToAgent, ToSweep, Tried, Try
from scaling.records.point import COMMIT_DIGITS, REVISION_SIGN, own_name
from scaling.run.enrolment import first_ranks
from scaling.transport.base import ENROL_S, Mailbox

# ---------------------------------------------------------------- repositories


GIT_S = 60.0


class Source(NamedTuple):
    """Code of which another revision is measured: its folder on sys.path, the part to pack (`.` for all), a
    tracked file."""

    folder: Path
    packed: str
    file: Path

    @property
    def about(self) -> Path:
        """Its name in messages."""
        return self.file if self.packed == "." else self.folder / self.packed


PACKAGE_SOURCE = Source(PACKAGE.parent, PACKAGE.name, PACKAGE / "__init__.py")


def source(strategies: Iterable[str], against: str) -> Source:
    """Return where the code of the strategies is; outside the package, the whole folder is packed. Raises
    UsageError if they are in several folders, or a module is not found."""
    found: dict[Path, Source] = {}
    for name in map(own_name, strategies):
        one = _of_module(name) if frameworks.is_outside(name) else PACKAGE_SOURCE
        if one.packed == "." or one.folder not in found:
            found[one.folder] = one
    if len(found) > 1:
        places = " and ".join(str(one.about) for one in found.values())
        raise UsageError(
            f"--against {against}: {places} are in different folders; measure each in a run of its own"
        )
    return next(iter(found.values()), PACKAGE_SOURCE)


def _of_module(name: str) -> Source:
    module = name.partition(":")[0]
    if module.endswith(".py"):
        raise UsageError(f"--strategy {name}: not with --against a revision; name it package.module:mode")
    frameworks.load(name)  # raises UsageError
    spec = find_spec(module)
    if spec is None or not spec.has_location or spec.origin is None:
        raise UsageError(f"--strategy {name}: {module} has no file")
    file = Path(spec.origin).resolve()
    is_package = file.stem == "__init__"
    return Source(file.parents[module.count(".") + is_package], ".", file)


def commit(of: Source, against: str) -> str:
    """Return the hash of a revision. Raises UsageError if there is none, or git does not track the code."""
    if not git(of, against, "ls-files", "--", str(of.file)):
        raise UsageError(
            f"--against {against}: is neither a run nor a revision: git does not track {of.about}; use a git "
            "checkout (PYTHONPATH), or give an older run"
        )
    asked = f"{against}^{{commit}}"
    return git(of, against, "rev-parse", "--verify", "--end-of-options", asked).decode().strip()


def archived(of: Source, commit_: str) -> bytes:
    """Return the code at a commit as a tar file. Raises UsageError if it did not exist then."""
    prefix = git(of, of.packed, "rev-parse", "--show-prefix").decode().removesuffix("\n")
    in_tree = f"{prefix}{of.packed}".removesuffix("/.")
    if not git(of, commit_, "ls-tree", "--full-tree", "-r", commit_, "--", in_tree):
        raise UsageError(
            f"--against {commit_}: this revision has no {of.about}: it was elsewhere or not yet written"
        )
    return git(of, commit_, "archive", "--format=tar", commit_, of.packed)


def git(of: Source, against: str, *arguments: str) -> bytes:
    """Run git in the folder of the code, without GIT_* of a hook; return its output. Raises UsageError."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", str(of.folder), *arguments],
            env={**environ, "LC_ALL": "C"}, capture_output=True, timeout=GIT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"--against {against}: is not a run, and git does not answer: {error}") from None
    if done.returncode:
        why = (done.stderr.decode(errors="replace").strip().splitlines() or ["nothing said"])[-1]
        raise UsageError(f"--against {against}: is neither a run nor a revision of {of.about}: {why}")
    return done.stdout


# ---------------------------------------------------------------- revisions


def settled(config: SweepConfig) -> SweepConfig:
    """Replace the revision of `--against` by its commit. Raises UsageError."""
    if config.against is None:
        return config
    if ":" in config.against:
        raise UsageError(
            f"--against {config.against}: is not a revision; measure two strategies with --strategy A,B"
        )
    for given, what in ((config.epochs, "--epochs"), (config.has_passes or None, "--pass")):
        if given is not None:
            raise UsageError(f"--against {config.against}: compares exchanges; leave out {what}")
    code = source(config.strategy or (), config.against)
    return replace(config, against=commit(code, config.against))


@contextmanager
def checked_out(made: Plan, mailbox: Mailbox[ToAgent, ToSweep], enrolled: Sequence[Enrol]) -> Iterator[Plan]:
    """Check out the other revision, if there is one; yield the plan with its folder, then remove it.
    Raises UsageError if the folder cannot be made, or workers of that revision cannot start on some host."""
    commit = made.config.against
    if commit is None:
        yield made
        return
    code = source(made.config.strategy or (), commit)
    archive = archived(code, commit)
    results = Path(made.config.results).absolute()
    is_new = not results.exists()
    try:
        results.mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(prefix=f".{REVISION_SIGN}{commit[:COMMIT_DIGITS]}-", dir=results)
    except OSError as error:
        raise UsageError(f"--results {made.config.results}: cannot make a folder: {error.strerror}") from None
    try:
        with tarfile.open(fileobj=BytesIO(archive)) as packed:
            if hasattr(tarfile, "data_filter"):  # Python 3.10.12 and 3.11.4 on
                packed.extraction_filter = tarfile.data_filter
            packed.extractall(folder)
        _try_on_hosts(made, folder, mailbox, enrolled)
        yield replace(made, other_code=folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if is_new:
            with suppress(OSError):  # it has a run, or is gone
                results.rmdir()


def _try_on_hosts(
    made: Plan,
    folder: str,
    mailbox: Mailbox[ToAgent, ToSweep],
    enrolled: Sequence[Enrol],
) -> None:
    names = {own_name(name) for name in made.config.strategy or ()}
    first = first_ranks(enrolled)
    mailbox.order(sorted(first.values()), Try(code=folder, strategies=tuple(sorted(names))))
    answers = mailbox.answers(Tried, first.values(), ENROL_S)
    for host, rank in sorted(first.items()):
        if rank not in answers:
            raise SilentRanks(f"{host}: no answer about --against {made.config.against} within {ENROL_S:g} s")
        if why := answers[rank].error:
            raise UsageError(f"--against {made.config.against}: {why} (on {host})")
