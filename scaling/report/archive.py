"""Pack a run into one file to send: its records, page and logs, with the versions of software and checksums.

`unpacking.py` opens the file again.
"""

from __future__ import annotations

import io
import os
import pwd
import re
import tarfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from gzip import GzipFile
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec.structs import replace

from scaling import __version__, files
from scaling.command import deliver
from scaling.errors import UsageError
from scaling.records.host import SECRET, USERINFO
from scaling.records.run import SCHEMA, Header
from scaling.records.store import FILE, Whole, folder_of, read
from scaling.records.telemetry import Foreign
from scaling.report import signature
from scaling.report.anonymous import Disguise, hosts_of
from scaling.report.material import PAGE_FILE, Material, Source
from scaling.report.unpacking import MOST_BYTES, MOST_FILES, SUMS
from scaling.text import counted, date, one_line, readable

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
        begin = _BEGIN.search(text[max(found.start() - 80, 0) : found.start()])
        if _is_secret(f"{begin[0] if begin else ''}{found['end']}", found["value"]):
            yield found


def _is_secret(name: str, value: str) -> bool:
    if LEFT_OUT.startswith(value):
        return False
    return _is_variable(name) or bool(_is_long(value) and not value.isdigit() and _SAYS.fullmatch(name))


def _without_values(text: str) -> str:
    parts, end = [], 0
    for found in _assigned(text):
        if found.start("value") >= end:
            parts += [text[end : found.start("value")], LEFT_OUT]
            end = found.end("value")
    return "".join((*parts, text[end:]))


# ---------------------------------------------------------------- what is known of secrets and users


def secrets_in(text: str) -> Iterator[str]:
    """Yield the secrets that a text assigns to names."""
    return filter(_is_worth_a_search, (found["value"] for found in _assigned(text)))


def secrets_of(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the secrets of an environment."""
    return filter(_is_worth_a_search, (value for name, value in environ.items() if SECRET.search(name)))


def _is_long(value: str) -> bool:
    return len(value) >= LEAST_CHARACTERS


def _is_worth_a_search(value: str) -> bool:
    """Return whether a value may be looked for anywhere. The path of a file that has a secret is none."""
    try:
        return _is_long(value) and not Path(value).exists()
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


VERSIONS, LOGS = "VERSIONS", "logs"
# What scaling certify may have written into the run's folder.
OTHERS = ("junit.xml", "preflight.json", "verdict.json")
NOTHING: Mapping[str, bytes] = MappingProxyType({})
_STRANGE = re.compile(r"[^A-Za-z0-9._+=-]+")
_LONGEST_NAME = 200


def write(
    run: Path,
    output: Path | None,
    extra: Mapping[str, bytes] = NOTHING,
    *,
    anonymous: bool = False,
    flag: str = "--output",
) -> None:
    """Write the archive of a run with `extra` files, or print it. Raises UsageError, naming the `flag` if the file
    cannot be written."""
    deliver(pack(run, extra, anonymous=anonymous), output, flag)


def pack(run: Path, extra: Mapping[str, bytes] = NOTHING, *, anonymous: bool = False) -> bytes:
    """Return the archive of a run, a .tgz with one folder. The same run gives the same bytes.
    `anonymous`: without names of hosts, users and folders. Raises UsageError if it is no run, or too large."""
    whole, folder = read(run), folder_of(run).resolve()
    try:
        texts = {**_others(folder), **extra, **_logs(folder)}
    except OSError as error:
        raise UsageError(f"{error.filename}: cannot be packed: {error.strerror}") from None
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
    texts = {**_others(folder), **_logs(folder)}
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
    return _STRANGE.sub("_", name).strip(".")[:_LONGEST_NAME]


# ---------------------------------------------------------------- what is packed


def _others(folder: Path) -> dict[str, bytes]:
    return {name: files.read(folder / name) for name in OTHERS if _is_own_file(folder / name)}


def _logs(folder: Path) -> dict[str, bytes]:
    """Read the run's logs. Links are left out: they may lead anywhere."""
    logs = folder / LOGS
    if logs.is_symlink() or not logs.is_dir():
        return {}
    found = sorted(filter(_is_own_file, logs.iterdir()))
    _check_size(sum(path.stat().st_size for path in found), len(found))
    return {f"{LOGS}/{_safe(readable(path.name))}": files.read(path) for path in found}


def _is_own_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _check_size(size_bytes: int, count: int) -> None:
    if size_bytes > MOST_BYTES or count > MOST_FILES:
        raise UsageError(
            f"RUN: has {counted(count, 'file')} of {size_bytes / 2**30:.1f} GiB, an archive takes "
            f"{MOST_FILES:,} of {MOST_BYTES >> 30} GiB; delete logs that you do not send"
        )


def _redaction(folder: Path, run: Whole, texts: Mapping[str, bytes], *, anonymous: bool) -> Redaction:
    """Return what replaces the secrets that the run, its logs and this process know, and its names."""
    secrets, users = {*secrets_of(os.environ)}, owner(folder / FILE)
    for data in (files.read(folder / FILE), *texts.values()):
        text = data.decode(errors="replace")
        secrets.update(secrets_in(text))
        users |= users_in(text)
    if not anonymous:
        return Redaction(secrets, anonymous=False)
    return Redaction(secrets, hosts_of(run.header, run.records), users, anonymous=True)


def _page(run: Whole, source: Source) -> bytes:
    """Draw the page from the records of the archive: that of the run may have what is left out."""
    from scaling.report.formats.html import page  # slow to import

    material = Material(
        run.header,
        run.records,
        sources=[source],
        predictions=run.predictions,
        certificate=run.certificate,
        summaries=run.summaries,
    )
    return page.render(material).encode("utf-8", "backslashreplace")


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


# ---------------------------------------------------------------- the file


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
