"""Open archives of runs that anybody may have written: bounded, into a folder of their own, with checked sums.

The format is read block by block here. tarfile reads an extended header of any size into memory, and releases of
Python differ in what they refuse.
"""

from __future__ import annotations

import signal
import tarfile
import threading
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from gzip import BadGzipFile, GzipFile
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import NamedTuple

from scaling import files
from scaling.errors import Interrupted, ScalingError, UsageError

SUFFIXES = (".tgz", ".tar.gz")
SUMS = "SHA256SUMS"
# Of all unpacked files together. Records of a week of training have less.
MOST_BYTES = 2 << 30
MOST_FILES = 100_000  # with folders
MOST_SUMS_BYTES, DEEPEST = 16 << 20, 8
_LONGEST_NAME = 4096
_PIECE = 1 << 20
_AGAIN = "ask for it again"


def is_archive(path: Path) -> bool:
    """Return whether a path names an archive of a run; a folder is a run, whatever its name."""
    return path.name.endswith(SUFFIXES) and not path.is_dir()


@contextmanager
def unpacked(runs: Iterable[Path]) -> Iterator[dict[Path, Path]]:
    """Yield the folder of each run. Archives are unpacked into temporary folders, which are deleted at the end.
    Raises UsageError if an archive is damaged, or not one of `scaling report`."""
    with ExitStack() as stack:
        yield {run: stack.enter_context(_folder(run)) if is_archive(run) else run for run in dict.fromkeys(runs)}


@contextmanager
def _folder(archive: Path) -> Iterator[Path]:
    with _ended_by_term(), TemporaryDirectory(prefix="scaling-archive-") as place:
        try:
            yield _extracted(archive, Path(place))
        except ScalingError as error:  # it names files of a folder that is gone then
            error.args = (str(error).replace(place, str(archive)),)
            raise


@contextmanager
def _ended_by_term() -> Iterator[None]:
    """Raise Interrupted for SIGTERM, so that temporary folders are deleted."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise Interrupted(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _extracted(archive: Path, place: Path) -> Path:
    """Unpack an archive below `place`, check its sums, and return its only folder."""
    try:
        with files.loading(archive):
            files.check(archive)
            if not archive.stat().st_size:
                raise _Refused("is empty")
            with archive.open("rb") as file:
                sums = dict(_written(_Blocks(GzipFile(fileobj=file)), place))
        folders = {name.partition("/")[0] for name in sums}
        if len(folders) != 1:
            raise _Refused("has no file" if not sums else "has several folders, but a run is one")
        (folder,) = folders
        _check_sums({name.partition("/")[2]: digest for name, digest in sums.items()}, place / folder)
    except _Refused as error:
        raise UsageError(f"{archive}: {error}") from None
    except (EOFError, BadGzipFile, zlib.error, tarfile.HeaderError, UnicodeDecodeError) as error:
        raise UsageError(f"{archive}: {_reason(error)}") from None
    except OSError as error:
        raise UsageError(f"{archive}: cannot be unpacked: {error.strerror or error}") from None
    return place / folder


class _Refused(Exception):
    """An archive that is damaged or hostile; the message follows its name."""


def _reason(error: Exception) -> str:
    if isinstance(error, BadGzipFile) and "Not a gzipped" in str(error):
        return "no archive of a run: not compressed by gzip"
    return f"is cut short; {_AGAIN}" if isinstance(error, EOFError) else f"is damaged; {_AGAIN}"


# ---------------------------------------------------------------- the format


class _Blocks:
    """A decompressed stream, read in whole blocks up to the limit."""

    def __init__(self, stream: GzipFile) -> None:
        self._stream = stream
        self._left = MOST_BYTES

    def read(self, count: int) -> bytes:
        """Return the next `count` bytes. Raises EOFError if there are fewer."""
        self.reserve(count)
        self._left -= count
        data = self._stream.read(count)
        if len(data) < count:
            raise EOFError
        return data

    def reserve(self, count: int) -> None:
        """Raise if `count` more bytes are above the limit."""
        if not 0 <= count <= self._left:
            raise _Refused(f"is larger than {MOST_BYTES >> 30} GiB unpacked, the limit")

    def content(self, size: int) -> Iterator[bytes]:
        """Yield a file's content in pieces, and pass over the rest of its last block."""
        self.reserve(size)
        for start in range(0, size, _PIECE):
            yield self.read(min(_PIECE, size - start))
        self.read(-size % tarfile.BLOCKSIZE)

    def end(self) -> None:
        """Read to the end, which checks the stream's own sum. Raises if there is more than padding."""
        rest = self._stream.read(tarfile.RECORDSIZE * 100)
        if rest.strip(b"\0") or self._stream.read(1):
            raise _Refused("has data behind its end")


class _Entry(NamedTuple):
    name: str
    size: int
    is_folder: bool


def _entries(blocks: _Blocks) -> Iterator[_Entry]:
    """Yield the entries; the caller reads the content of each file before the next one."""
    longer = ""
    while (block := blocks.read(tarfile.BLOCKSIZE)).strip(b"\0"):
        info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        if info.type == tarfile.GNUTYPE_LONGNAME and info.size <= _LONGEST_NAME:
            longer = b"".join(blocks.content(info.size)).rstrip(b"\0").decode()
            continue
        yield _Entry(longer or info.name, info.size, _is_folder(longer or info.name, info))
        longer = ""
    blocks.end()


def _is_folder(name: str, info: tarfile.TarInfo) -> bool:
    """Return whether an entry is a folder, else it is a file. Raises for links, devices and all others."""
    if info.type in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE):
        return info.isdir()
    kinds = {tarfile.SYMTYPE: "a link", tarfile.LNKTYPE: "a link", tarfile.CHRTYPE: "a device"}
    kinds |= {tarfile.BLKTYPE: "a device", tarfile.FIFOTYPE: "a pipe"}
    raise _Refused(f"{name} is {kinds.get(info.type, 'neither file nor folder')}; an archive has only files")


def _written(blocks: _Blocks, place: Path) -> Iterator[tuple[str, str]]:
    """Write the files below `place`; yield the path and the digest of each."""
    seen: set[str] = set()
    for number, entry in enumerate(_entries(blocks)):
        path = _checked(entry.name)
        if number == MOST_FILES:
            raise _Refused(f"has more than {MOST_FILES:,} files, the limit")
        if entry.is_folder:
            continue
        if path in seen:
            raise _Refused(f"{path} is in it twice")
        if path.endswith(f"/{SUMS}") and entry.size > MOST_SUMS_BYTES:
            raise _Refused(f"its {SUMS} is larger than {MOST_SUMS_BYTES >> 20} MiB, the limit")
        seen.add(path)
        yield path, _write(place / path, blocks.content(entry.size))


def _checked(name: str) -> str:
    """Return the path of an entry. Raises if it leads out of the folder."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or not name.isprintable():
        raise _Refused(f"{name} leads out of its folder")
    if len(parts) > DEEPEST:
        raise _Refused(f"has folders in folders, {len(parts)} deep; {DEEPEST} is the limit")
    return "/".join(parts)


def _write(path: Path, pieces: Iterator[bytes]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    found = sha256()
    with path.open("xb") as file:
        for piece in pieces:
            file.write(piece)
            found.update(piece)
    return found.hexdigest()


# ---------------------------------------------------------------- checksums


def _check_sums(found: dict[str, str], folder: Path) -> None:
    """Raise unless each file has its sum in SHA256SUMS, and each sum its file."""
    if found.pop(SUMS, None) is None:
        raise _Refused(f"no archive of a run: it has no {SUMS}")
    told = dict(_sums((folder / SUMS).read_text(encoding="utf-8")))
    for name in sorted(found.keys() | told.keys()):
        if name not in found:
            raise _Refused(f"{name} is missing, but {SUMS} names it; {_AGAIN}")
        if name not in told:
            raise _Refused(f"{name} is not in {SUMS}: somebody added it; {_AGAIN}")
        if found[name] != told[name]:
            raise _Refused(f"{name} differs from its sum in {SUMS}: damaged or edited; {_AGAIN}")


def _sums(text: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        digest, _, name = line.partition(" ")
        if not name.startswith((" ", "*")):
            raise _Refused(f"{SUMS}:{number}: not a sum and a file's name")
        yield name[1:], digest.lower()
