"""Pack a run into one file to send: its records, page and logs, with the versions of software and checksums. Open
archives that anybody may have written: bounded, into a folder of their own, with checked sums.

The format is read block by block here. tarfile reads an extended header of any size into memory, and releases of
Python differ in what they refuse.
"""

from __future__ import annotations

import io
import os
import pwd
import re
import signal
import tarfile
import threading
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from gzip import BadGzipFile, GzipFile
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import msgspec
from msgspec.structs import replace

from scaling import __version__, files
from scaling.errors import Interrupted, ScalingError, UsageError
from scaling.records.host import SECRET, USERINFO
from scaling.records.run import SCHEMA, Header
from scaling.records.store import FILE, Whole, folder_of, read
from scaling.records.telemetry import Foreign
from scaling.report import signature
from scaling.report.anonymous import Disguise, hosts_of
from scaling.report.material import PAGE_FILE, Material, Source
from scaling.text import counted, date, one_line, readable

SUFFIXES = (".tgz", ".tar.gz")
SUMS = "SHA256SUMS"
# Of all unpacked files together. Records of a week of training have less.
MOST_BYTES = 2 << 30
MOST_FILES = 100_000  # with folders
MOST_SUMS_BYTES, DEEPEST = 16 << 20, 8
_LONGEST_NAME = 4096
_PIECE = 1 << 20
_KINDS = {
    tarfile.SYMTYPE: "a link", tarfile.LNKTYPE: "a link", tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device", tarfile.FIFOTYPE: "a pipe",
}  # fmt: skip
_AGAIN = "ask for it again"

# ---------------------------------------------------------------- redaction
#
# What an archive of a run leaves out: secrets, arguments of other programs and, if it is anonymous, names.
#
# A secret is the value of a variable whose name says so: in the records, in the logs, or in this process.


LEFT_OUT, A_USER = "(left out)", "user"
# A shorter value is left out next to its name only: as a word it may be anywhere.
LEAST_CHARACTERS = 6
# The end of a name and its value, as shells, YAML, JSON and Python write them. The match ends before the value,
# because that may be another name with a value. First letters are looked at first, because logs are long.
_ASSIGNED = re.compile(
    rf"(?=[ACKPST])(?P<end>(?:{SECRET.pattern})[\w.-]{{0,80}})"
    r"""["']?\]?[ \t]{0,2}[=:][ \t]{0,2}["']?(?=(?P<value>(?<=["'])[^"'\n]+|[^\s"',;&)\]}]+))""",
    re.IGNORECASE,
)
_BEGIN = re.compile(r"[\w.-]*\Z")
# Names in lower case. `max_tokens=512` and `key: value` hold no secret.
_SAYS = re.compile(r"(.*[_.-])?(passw(or)?d|secret|token|(api|access|private|secret)[_-]?key)", re.IGNORECASE)
_BEARER = re.compile(r"(?<=bearer )[\w.~+/=-]{6,}", re.IGNORECASE)
_PRIVATE_KEY = re.compile(r"(?<=PRIVATE KEY-----).*?(?=-----END|\Z)", re.DOTALL)
_HOME = re.compile(r"(?<![\w.:/])(?:/home/|/Users/|~(?=[\w.-]+/))([A-Za-z_][\w.-]*)")
# Users that are no person.
_NOBODY = frozenset({"nobody", "root", "runner", "ubuntu", "user"})
_NUMBERED = re.compile(r"(?<![A-Za-z0-9])node\d+")
_SHORT = 5


class Redaction(Disguise):
    """Replaces secrets and arguments of other programs. If `anonymous`, also names of hosts, users and folders."""

    def __init__(
        self, secrets: Iterable[str], hosts: Iterable[str] = (), users: Collection[str] = (), *, anonymous: bool
    ) -> None:
        super().__init__(hosts)
        self.is_anonymous = anonymous
        self._secrets = re.compile(_any_of(secrets))
        self._users = re.compile(rf"(?<![A-Za-z0-9])(?:{_any_of(users)})(?![A-Za-z0-9])")
        names = map(_anywhere, sorted({*self._nodes, *users}))
        self._names = re.compile("|".join(names) or r"(?!)", re.IGNORECASE)

    def text(self, text: str) -> str:
        """Return a text without secrets and, if anonymous, without names."""
        text = _PRIVATE_KEY.sub(LEFT_OUT, _BEARER.sub(LEFT_OUT, USERINFO.sub(f"//{LEFT_OUT}@", text)))
        text = self._secrets.sub(LEFT_OUT, _without_values(text))
        return self._users.sub(A_USER, super().text(text)) if self.is_anonymous else text

    def still_names(self, text: str) -> bool:
        """Return whether an anonymous text has a name nevertheless: in capitals, in a word, or a home folder."""
        rest = _NUMBERED.sub("", text)
        return self.is_anonymous and bool(self._names.search(rest) or users_in(rest))

    def _of(self, value: Any) -> Any:
        match value:
            case dict():
                value = {key: LEFT_OUT if one and _is_variable(key) else one for key, one in value.items()}
            case Foreign() if not self.is_anonymous:
                return replace(value, name=value.program)
        return super()._of(value)


def _any_of(words: Iterable[str]) -> str:
    longest = sorted(set(words), key=lambda word: (-len(word), word))
    return "|".join(map(re.escape, longest)) or r"(?!)"


def _anywhere(name: str) -> str:
    """Return the pattern of a name inside of words; short names are part of too many."""
    found = re.escape(name)
    return found if len(name) >= _SHORT else rf"(?<![A-Za-z]){found}(?![A-Za-z])"


def _is_variable(name: object) -> bool:
    """Return whether this is the name of a variable, in capitals, that holds a secret."""
    return isinstance(name, str) and name == name.upper() and SECRET.search(name) is not None


def _assigned(text: str) -> Iterator[re.Match[str]]:
    for found in _ASSIGNED.finditer(text):
        begin, value = _BEGIN.search(text[max(found.start() - 80, 0) : found.start()]), found["value"]
        name = f"{begin[0] if begin else ''}{found['end']}"
        says = len(value) >= LEAST_CHARACTERS and not value.isdigit() and _SAYS.fullmatch(name)
        if not LEFT_OUT.startswith(value) and (says or _is_variable(name)):
            yield found


def _without_values(text: str) -> str:
    parts, end = [], 0
    for found in _assigned(text):
        if found.start("value") >= end:
            parts += [text[end : found.start("value")], LEFT_OUT]
            end = found.end("value")
    return "".join((*parts, text[end:]))


# ---------------------------------------------------------------- what is known of secrets and users


def secrets_of(environ: Mapping[str, str], *texts: str) -> set[str]:
    """Return the secrets of an environment, and those that texts assign to names."""
    found = {value for name, value in environ.items() if SECRET.search(name)}
    found |= {one["value"] for text in texts for one in _assigned(text)}
    return set(filter(_is_worth_a_search, found))


def _is_worth_a_search(value: str) -> bool:
    """Return whether a value may be looked for anywhere. The path of a file that has a secret is none."""
    try:
        return len(value) >= LEAST_CHARACTERS and not Path(value).exists()
    except (OSError, ValueError):
        return True


def users_in(text: str) -> set[str]:
    """Return the users whose home folders a text names."""
    return {*_HOME.findall(text)} - _NOBODY


def owner(path: Path) -> set[str]:
    """Return the user that a file belongs to."""
    try:
        return {pwd.getpwuid(path.stat().st_uid).pw_name} - _NOBODY
    except (KeyError, OSError):
        return set()


# ---------------------------------------------------------------- pack


VERSIONS, LOGS = "VERSIONS", "logs"
# What scaling certify may have written into the run's folder.
OTHERS = ("junit.xml", "preflight.json", "verdict.json")
_STRANGE = re.compile(r"[^A-Za-z0-9._+=-]+")
_LONGEST_FILE = 200


def pack(run: Path, extra: Mapping[str, bytes] = {}, *, anonymous: bool = False) -> bytes:
    """Return the archive of a run with `extra` files, a .tgz with one folder. The same run gives the same bytes.
    `anonymous`: without names of hosts, users and folders. Raises UsageError if it is no run, or too large."""
    whole, folder = read(run), folder_of(run).resolve()
    texts = _texts(folder, extra)
    hidden = _redaction(folder, whole, texts, anonymous=anonymous)
    shown = Whole._make(map(hidden.of, whole))
    name = _safe(hidden.text(readable(folder.name))) or "run"
    packed, left_out = {FILE: _records(shown)}, []
    if (folder / PAGE_FILE).is_file():
        try:
            packed[PAGE_FILE] = _page(shown, Source(name, sha256(packed[FILE]).hexdigest()))
        except ModuleNotFoundError as error:
            left_out.append(f"{PAGE_FILE}: {error.name} is not installed")
    for path, data in texts.items():
        place = hidden.text(path)
        if why := _add(packed, place, data, hidden):
            left_out.append(f"{'a file' if hidden.still_names(place) else place}: {why}")
    if why := _add_signature(packed, folder):
        left_out.append(why)
    told = (one_line(readable(line)) for line in _versions(shown.header, hidden, left_out))
    packed[VERSIONS] = "".join(f"{line}\n" for line in told).encode()
    return _compressed(packed, name, int(shown.header.created_unix_s))


def signed_forms(run: Path) -> list[dict[str, bytes]]:
    """Return the files that a signature binds as archives of this run have them, with names and without."""
    whole, folder = read(run), folder_of(run).resolve()
    texts = _texts(folder)
    forms = []
    for anonymous in (False, True):
        hidden = _redaction(folder, whole, texts, anonymous=anonymous)
        packed = {FILE: _records(Whole._make(map(hidden.of, whole)))}
        for name in texts.keys() & {*signature.BOUND}:
            _add(packed, name, texts[name], hidden)
        forms.append(packed)
    return forms


def _add_signature(packed: dict[str, bytes], folder: Path) -> str:
    """Add the signature of the run if it holds for the packed files; return why it is not added, else ""."""
    found = {name: folder / name for name in (signature.STATEMENT, signature.SIGNATURE)}
    if not all(map(_is_own_file, found.values())):
        return ""
    own = {name: files.read(path) for name, path in found.items()}
    bound = {name: packed[name] for name in signature.BOUND if name in packed}
    if not signature.is_bound(own[signature.STATEMENT], bound):
        return "the signature: the packed records are not the signed ones"
    packed.update(own)
    return ""


def _records(shown: Whole) -> bytes:
    verdict = () if shown.certificate is None else (shown.certificate,)
    header = replace(shown.header, schema=SCHEMA)  # reading has upgraded the records
    lines = header, *shown.predictions, *shown.records, *shown.summaries, *verdict
    return b"".join(msgspec.json.encode(one) + b"\n" for one in lines)


def _safe(name: str) -> str:
    return _STRANGE.sub("_", name).strip(".")[:_LONGEST_FILE]


# ---------------------------------------------------------------- what is packed


def _texts(folder: Path, extra: Mapping[str, bytes] = {}) -> dict[str, bytes]:
    """Read what scaling certify wrote, and the run's logs. Links are left out: they may lead anywhere."""
    logs = folder / LOGS
    try:
        found = [] if logs.is_symlink() or not logs.is_dir() else sorted(filter(_is_own_file, logs.iterdir()))
        _check_size(sum(path.stat().st_size for path in found), len(found))
        others = {name: files.read(folder / name) for name in OTHERS if _is_own_file(folder / name)}
        of_logs = {f"{LOGS}/{_safe(readable(path.name))}": files.read(path) for path in found}
    except OSError as error:
        raise UsageError(f"{error.filename}: cannot be packed: {error.strerror}") from None
    return {**others, **extra, **of_logs}


def _is_own_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _check_size(size_bytes: int, count: int) -> None:
    if size_bytes > MOST_BYTES or count > MOST_FILES:
        raise UsageError(
            f"RUN: has {counted(count, 'file')} of {size_bytes / 2**30:.1f} GiB, an archive takes "
            f"{MOST_FILES:,} of {MOST_BYTES >> 30} GiB; delete logs that you do not send"
        )


def _redaction(folder: Path, run: Whole, packed: Mapping[str, bytes], *, anonymous: bool) -> Redaction:
    """Return what replaces the secrets that the run, its logs and this process know, and its names."""
    hosts = hosts_of(run.header, run.records) if anonymous else ()
    secrets, users = secrets_of(os.environ), owner(folder / FILE)
    for data in (files.read(folder / FILE), *packed.values()):
        text = data.decode(errors="replace")  # one at a time: an emoji makes it four times as large
        secrets |= secrets_of({}, text)
        users |= users_in(text)
    return Redaction(secrets, hosts, users if anonymous else (), anonymous=anonymous)


def _page(run: Whole, source: Source) -> bytes:
    """Draw the page from the records of the archive: that of the run may have what is left out."""
    from scaling.report.formats import html  # slow to import

    return html.render(Material.of(run, [source])).encode("utf-8", "backslashreplace")


def _add(packed: dict[str, bytes], name: str, data: bytes, hidden: Redaction) -> str:
    """Add a text without what is left out; return why it is not added, else ""."""
    if name in packed:
        return "another file has this name"
    try:
        text = hidden.text(data.decode(errors="strict" if hidden.is_anonymous else "surrogateescape"))
    except UnicodeDecodeError:
        return "not text, so names in it cannot be found"
    if hidden.still_names(f"{name}\n{text}"):
        return "names in it cannot be replaced"
    packed[name] = text.encode(errors="surrogateescape")
    return ""


def _versions(header: Header, hidden: Redaction, left_out: Sequence[str]) -> Iterator[str]:
    """Yield the lines of VERSIONS: the software of the run, and what the archive is without."""
    yield f"run: scaling {header.version}, code {header.code}, revision {header.git or 'unknown'}"
    yield f"started: {date(header.created_unix_s)}"
    yield f"launch: {counted(header.launch_size, 'rank')}, {header.mpi}"
    for host in header.hosts:
        versions = (f"{name} {version}" for name, version in sorted(host.versions.items()))
        driver = [f"driver {host.gpu_driver}"] if host.gpu_driver else []
        software = (host.os, f"Linux {host.kernel}", f"Python {host.python}", *driver, *versions)
        yield f"host {host.hostname}: {', '.join(software)}"
    yield f"packed by: scaling {__version__}"
    names = "; names of hosts, users and folders" if hidden.is_anonymous else ""
    yield f"left out: passwords, tokens and keys; arguments of other programs; traces{names}"
    yield from (f"left out: {line}" for line in left_out)


# ---------------------------------------------------------------- the file that is written


def _compressed(packed: Mapping[str, bytes], folder: str, unix_s: int) -> bytes:
    """Return files as a .tgz with their checksums, as `sha256sum -c SHA256SUMS` reads them."""
    sums = "".join(f"{sha256(data).hexdigest()}  {name}\n" for name, data in sorted(packed.items()))
    whole = {**packed, SUMS: sums.encode()}
    _check_size(sum(map(len, whole.values())), len(whole))
    buffer = io.BytesIO()
    with (
        GzipFile(fileobj=buffer, mode="wb", mtime=unix_s) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        for name, data in sorted(whole.items()):
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size, info.mtime, info.mode = len(data), unix_s, 0o644
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


# ---------------------------------------------------------------- open


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


# ---------------------------------------------------------------- the format that is read


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


def _entries(blocks: _Blocks) -> Iterator[tuple[str, tarfile.TarInfo]]:
    """Yield the names and the entries; the caller reads the content of each file before the next one. Raises for
    links, devices and all that is neither file nor folder."""
    longer = ""
    while (block := blocks.read(tarfile.BLOCKSIZE)).strip(b"\0"):
        info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        if info.type == tarfile.GNUTYPE_LONGNAME and info.size <= _LONGEST_NAME:
            longer = b"".join(blocks.content(info.size)).rstrip(b"\0").decode()
            continue
        name, longer = longer or info.name, ""
        if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE):
            kind = _KINDS.get(info.type, "neither file nor folder")
            raise _Refused(f"{name} is {kind}; an archive has only files")
        yield name, info
    blocks.end()


def _written(blocks: _Blocks, place: Path) -> Iterator[tuple[str, str]]:
    """Write the files below `place`; yield the path and the digest of each."""
    seen: set[str] = set()
    for number, (name, entry) in enumerate(_entries(blocks)):
        path = _checked(name)
        if number == MOST_FILES:
            raise _Refused(f"has more than {MOST_FILES:,} files, the limit")
        if entry.isdir():
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
    told: dict[str, str] = {}
    for number, line in enumerate((folder / SUMS).read_text(encoding="utf-8").splitlines(), 1):
        digest, _, name = line.partition(" ")
        if not name.startswith((" ", "*")):
            raise _Refused(f"{SUMS}:{number}: not a sum and a file's name")
        told[name[1:]] = digest.lower()
    for name in sorted(found.keys() | told.keys()):
        if name not in found:
            raise _Refused(f"{name} is missing, but {SUMS} names it; {_AGAIN}")
        if name not in told:
            raise _Refused(f"{name} is not in {SUMS}: somebody added it; {_AGAIN}")
        if found[name] != told[name]:
            raise _Refused(f"{name} differs from its sum in {SUMS}: damaged or edited; {_AGAIN}")
