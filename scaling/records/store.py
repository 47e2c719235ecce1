"""Read and write `run.jsonl`: a header, then Predictions, PointRecords, PointSummaries and a Certificate.

A point has a line when its measured windows are in, and another at its end, which replaces the first for readers.
Each line is appended and fsynced. A partly written line is removed; a truncated last line (the machine died) is
ignored. If the folder is removed or moved, the run is written anew.

A burn-in (--for) has a summary of every point, and records of evenly spaced rounds. Readers read line by line and
keep at most as many rounds (`burn_in.py`).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from errno import ELOOP
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from scaling import files
from scaling.errors import StoreError, UsageError
from scaling.records import crossing
from scaling.records.burn_in import PointSummary, Stretches, asked_s, is_kept, spacing
from scaling.records.events import Failed, Finished
from scaling.records.point import SERVER, BatchRule, Hardware, Workload
from scaling.records.run import SCHEMA, Certificate, Header, PointRecord, Prediction, WarningKind

# ---------------------------------------------------------------- migrations


Plain = dict[str, Any]
# Words of schema 1's warnings, by kind.
_KINDS: dict[str, WarningKind] = {
    "settled": "unsettled",
    "throttled": "throttled",
    "busy while they emulated": "busy-cpus",
    "of the promised": "lost-cpus",
    "no node was left": "shared-servers",
}


def upgraded(point_record: Plain, schema: int) -> Plain:
    """Convert a point record of `schema` to plain data of the current schema."""
    return _from_1(point_record) if schema < 2 else point_record


def with_gpus(record: PointRecord, header: Header) -> PointRecord:
    """Fill in the GPUs of a record without them: rank k of a host has the host's GPU k. Hosts may share a GPU."""
    if record.gpus or record.point.hardware.device != "cuda":
        return record
    uuids = {host.hostname: iter([gpu.uuid for gpu in host.gpus]) for host in header.hosts}
    gpus = tuple(next(uuids.get(name, iter(())), "") for name in record.hosts)
    if not all(gpus):
        return record
    shared = record.point.kind != "each" and len(set(gpus)) < len(gpus)
    return replace(record, gpus=gpus, oversubscribed=record.oversubscribed or shared)


def _from_1(record: Plain) -> Plain:
    point = dict(record["point"])
    work = {name: point.pop(name) for name in Workload.__struct_fields__ if name in point}
    hardware = {name: point.pop(name) for name in Hardware.__struct_fields__ if name in point}
    return {
        **record,
        "point": {**point, "workload": work, "hardware": hardware},
        "ranks": [_with_crossing(_with_place(rank, "lo"), record) for rank in record["ranks"]],
        "helpers": [_with_place(helper, "") for helper in record.get("helpers", ())],
        "warnings": [
            {"kind": next((kind for words, kind in _KINDS.items() if words in text), "other"), "text": text}
            for text in record.get("warnings", ())
        ],
    }


def _with_place(child: Plain, default: str) -> Plain:
    place = {"address": "", "interface": child.get("interface", default), "hca": child.get("hca", "")}
    return {**{key: value for key, value in child.items() if key not in place}, "place": place}


def _with_crossing(rank: Plain, record: Plain) -> Plain:
    """The option `compression` was then the only one that made gradients smaller."""
    compression = record["point"].get("options", {}).get("compression", "none")
    if rank.get("ready") is None or not record.get("synchronous", True) or compression != "none":
        return rank
    servers = [helper["host"] for helper in record.get("helpers", ()) if helper["name"].startswith(SERVER)]
    gradient_bytes, hosts = rank["ready"]["gradient_bytes"], record.get("hosts", ())
    bounds = crossing.bytes_per_step(record.get("pattern", ""), gradient_bytes, hosts, servers)
    return {**rank, "ready": {**rank["ready"], "crossing_bytes_per_step": bounds}}


FILE = "run.jsonl"
_HEADER = msgspec.json.Decoder(Header)
Line = PointRecord | Prediction | PointSummary | Certificate
_LINE: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)
# Errors of a damaged line, from its decoder or a migration.
_DAMAGE = (msgspec.MsgspecError, KeyError, TypeError, ValueError, AttributeError, RecursionError)


def folder_of(run: Path) -> Path:
    """Return the run's folder, given the folder or its file."""
    return run.parent if run.name == FILE else run


def load(run: Path) -> tuple[Header, tuple[PointRecord, ...]]:
    """Read a run (its folder or its file).
    Raises UsageError if it is not a run, is damaged before its last line, or has a newer schema."""
    whole = read(run)
    return whole.header, whole.records


class Whole(NamedTuple):
    """All that a run's file holds. `records` of a burn-in are of evenly spaced rounds. `certificate`: the newest
    verdict; None without one."""

    header: Header
    records: tuple[PointRecord, ...]
    predictions: tuple[Prediction, ...] = ()
    summaries: tuple[PointSummary, ...] = ()
    certificate: Certificate | None = None


def read(run: Path) -> Whole:
    """Read all of a run; raises as `load`."""
    path = folder_of(run) / FILE
    try:
        with files.loading(path):
            files.check(path)
            with path.open("rb") as file:
                return _whole(path, (line[:-1] for line in file if line.endswith(b"\n")))
    except OSError as error:
        raise UsageError(f"{run}: not a run: {_meant(run) or f'{path}: {error.strerror}'}") from None


def _meant(run: Path) -> str:
    """Return the run that a path may mean which is none itself; "" without one."""
    with suppress(OSError):  # a name that is too long, a folder of another user
        if newest := max(run.glob(f"*/{FILE}"), default=None):
            return f"its newest one is {newest.parent}; python -m scaling history {run} lists all"
        if (run.parent / FILE).is_file():
            return f"give its folder: {run.parent}"
    return ""


def _whole(path: Path, lines: Iterator[bytes]) -> Whole:
    first = next(lines, None)
    if first is None:
        raise UsageError(f"{path}: not a run: it has no header line")
    header = _read_header(path, first)
    records: list[PointRecord] = []
    predictions: list[Prediction] = []
    certificate: Certificate | None = None
    stretches, rounds = Stretches(), 1
    for number, text in enumerate(lines, 2):
        try:
            if header.schema == SCHEMA:
                line = _LINE.decode(text)
            else:
                line = msgspec.convert(upgraded(msgspec.json.decode(text), header.schema), PointRecord)
            before, rounds = rounds, max(rounds, _rounds(line))
            match line:
                case PointRecord():
                    records.append(with_gpus(line, header))
                case PointSummary():
                    stretches.add(line)
                case Prediction():
                    predictions.append(line)
                case Certificate():
                    certificate = line
        except _DAMAGE as error:
            raise UsageError(f"{path}:{number}: not a point record: {_reason(error)}") from None
        if spacing(rounds) > spacing(before):
            records = thinned(header, records, rounds)
    kept = joined(thinned(header, records, rounds))
    return Whole(header, kept, tuple(predictions), stretches.all(), certificate)


def _rounds(line: Line) -> int:
    """Return how many rounds a run with this line has at least."""
    if isinstance(line, PointRecord):
        return line.point.round + 1
    return line.first_round + line.rounds if isinstance(line, PointSummary) else 1


def thinned(header: Header, records: Iterable[PointRecord], rounds: int) -> list[PointRecord]:
    """Return the records that a burn-in of so many rounds keeps; all records of other runs."""
    if not asked_s(header.config):
        return list(records)
    return [record for record in records if is_kept(record.point.round, rounds)]


def joined(lines: Sequence[PointRecord]) -> tuple[PointRecord, ...]:
    """Drop the record of a point's measured windows if the record of its end follows."""
    newest = {line.point.key: line for line in lines}
    return settled([line for line in lines if line.ended or newest[line.point.key] is line])


# ---------------------------------------------------------------- batches of scripts
# A script decides its batch. Records keep their windows' samples, of which the batch and its rule follow.

# Batches that differ by less are equal: the last batch of an epoch may be smaller.
ALIKE = 0.1
ALONE = ("solo", "each", "together")


def settled(records: Sequence[PointRecord]) -> tuple[PointRecord, ...]:
    """Return the records of scripts with their batch, rule and unit; others unchanged.

    The rule is weak if a rank's step has as many samples as on one device, strong if all ranks' steps have. A
    batch that is neither remains, and has no baseline. A record without steps has the batch of the others."""
    alone, every = dict[str, list[float]](), dict[str, list[float]]()
    for one in records:
        if (script := one.point.workload.script) and (found := _samples_of_step(one)):
            every.setdefault(script, []).append(found)
            if one.point.kind in ALONE:
                alone.setdefault(script, []).append(found)
    bases = {script: median(alone.get(script, found)) for script, found in every.items()}
    return tuple(
        _with_batch(one, bases.get(script)) if (script := one.point.workload.script) else one for one in records
    )


def _samples_of_step(record: PointRecord) -> float:
    windows = [window for rank in record.ranks for window in (*rank.windows, *rank.warmup)]
    steps = sum(window.steps for window in windows)
    return sum(window.samples for window in windows) / steps if steps else 0.0


def _with_batch(record: PointRecord, base: float | None) -> PointRecord:
    point, own = record.point, _samples_of_step(record)
    own = own or (base or 0.0 if isinstance(record.outcome, Failed) else 0.0)
    rule: BatchRule = "weak"
    if base is None or not own:
        return replace(record, point=replace(point, workload=replace(point.workload, unit="steps")))
    if abs(own - base) <= ALIKE * base:
        own = base
    elif abs(own * point.world_size - base) <= ALIKE * base:
        own, rule = base / point.world_size, "strong"
    work = replace(point.workload, batch_size=max(1, round(own)), batch_rule=rule)
    return replace(record, point=replace(point, workload=work))


def load_measured(run: Path) -> tuple[Header, tuple[PointRecord, ...]]:
    """Read a run that was measured here. Raises UsageError also for imported logs."""
    header, records = load(run)
    if header.is_import:
        raise UsageError(f"{run}: is IMPORTED from logs of other tools: it has no measured points")
    return header, records


def _read_header(path: Path, line: bytes) -> Header:
    try:
        schema = msgspec.json.decode(line)["schema"]
        if isinstance(schema, int) and 1 <= schema <= SCHEMA:
            return _HEADER.decode(line)
    except _DAMAGE as error:
        raise UsageError(f"{path}:1: not a run's header: {_reason(error)}") from None
    raise UsageError(f"{path}:1: schema {schema}, this version reads up to {SCHEMA}: pip install -U scaling-bench")


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return f"it lacks {error}" if isinstance(error, KeyError) else str(error)


def unlinked(path: Path) -> Path:
    """Remove a symbolic link at this path, since a folder's author chose its target; return the path."""
    if path.is_symlink():
        path.unlink(missing_ok=True)
    return path


def is_being_written(run: Path) -> bool:
    """Return whether a sweep on this machine holds the lock of the run's file."""
    path = folder_of(run) / FILE
    try:
        files.check(path)
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def done_keys(records: Iterable[PointRecord]) -> set[str]:
    """Return the keys of the measured points; failed points are measured again."""
    return {record.point.key for record in records if isinstance(record.outcome, Finished)}


# A run without --for has some MB.
MOST_COPY_BYTES, CHUNK_BYTES = 64 << 20, 16 << 20


class Store:
    """The open file of the running sweep, locked against a second writer if the file system has locks.

    A copy in memory replaces a removed file: a file server keeps no file that another host removes. A larger file
    is read from its open descriptor."""

    def __init__(self, folder: Path, fd: int) -> None:
        self.folder, self._fd = folder, fd
        self._copy: bytearray | None = bytearray()

    @property
    def path(self) -> Path:
        """The run's file."""
        return self.folder / FILE

    @classmethod
    def create(cls, results: Path, name: str, now: datetime, header: Header) -> Store:
        """Make a new run folder and write the header. Raises UsageError on failure."""
        _check_encoding(results, f"--results {results}")
        folder = _fresh(results, f"{now:%Y%m%d-%H%M%S}-{name}")
        store = cls(folder, _open(folder / FILE, os.O_CREAT | os.O_EXCL))
        try:
            store._write(header)
        except StoreError as error:
            store.close()
            store.path.unlink()
            folder.rmdir()
            reason = error.__cause__.strerror if isinstance(error.__cause__, OSError) else error
            raise UsageError(f"--results {results}: cannot write {store.path}: {reason}") from None
        return store

    @classmethod
    def resume(cls, run: Path) -> Store:
        """Open a run to continue it; cut off a truncated last line.
        Raises UsageError if it cannot be written or another run writes into it."""
        folder = folder_of(run)
        _check_encoding(folder, f"--resume {run}")
        store = cls(folder, _open(folder / FILE, os.O_NOFOLLOW))
        with open(store._fd, "rb", closefd=False) as file:
            end = sum(len(line) for line in file if line.endswith(b"\n"))
            file.seek(0)
            store._copy = bytearray(file.read(end)) if end <= MOST_COPY_BYTES else None
        os.ftruncate(store._fd, end)
        return store

    def append(self, record: Line) -> str:
        """Write one record and fsync; return the message of `secure`.
        Raises StoreError, for example on a full disk; the file then ends as before."""
        said = self.secure()
        self._write(record)
        return said

    def secure(self) -> str:
        """Write the whole run to a new folder if its folder was removed or moved.
        Returns a message about it, else "". Raises StoreError if no new folder can be made."""
        with suppress(OSError):
            if os.path.samestat(self.path.stat(), os.fstat(self._fd)):
                return ""
        lost, old, at = self.folder, self._fd, 0
        try:
            folder = _fresh(lost.parent, lost.name)
            self._fd = _open(folder / FILE, os.O_CREAT | os.O_EXCL)
            self.folder = folder
            while chunk := os.pread(old, CHUNK_BYTES, at) if self._copy is None else bytes(self._copy[at:]):
                self._append(chunk)
                at += len(chunk)
        except (UsageError, OSError) as error:
            raise StoreError(f"{lost}: was removed or moved and cannot be written anew: {error}") from None
        finally:
            if self._fd != old:
                os.close(old)
        return f"{lost} was removed or moved: the run was written anew to {folder}"

    def _write(self, record: msgspec.Struct) -> None:
        data = msgspec.json.encode(record) + b"\n"
        self._append(data)
        if self._copy is not None:
            self._copy += data
            self._copy = self._copy if len(self._copy) <= MOST_COPY_BYTES else None

    def _append(self, data: bytes) -> None:
        end = None
        try:
            end = os.lseek(self._fd, 0, os.SEEK_END)
            while data:
                data = data[os.write(self._fd, data) :]
            os.fsync(self._fd)
        except OSError as error:
            if end is not None:
                with suppress(OSError):  # the file is gone; readers ignore an incomplete line
                    os.ftruncate(self._fd, end)
            kept = f"the points before are kept: free some space, then --resume {self.folder}"
            raise StoreError(f"{self.path}: {error.strerror}; {kept}") from error

    def close(self) -> None:
        """Release the file; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def create_import(folder: Path, header: Header) -> None:
    """Make the run folder of an import, completely or not at all. Raises UsageError on failure."""
    part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        part.mkdir(parents=True)
        try:
            (part / FILE).write_bytes(msgspec.json.encode(header) + b"\n")
            part.rename(folder)
        finally:
            if part.exists():
                (part / FILE).unlink(missing_ok=True)
                part.rmdir()
    except OSError as error:
        raise UsageError(f"--output {folder}: cannot be written: {error.strerror}") from None


def _check_encoding(folder: Path, given: str) -> None:
    """Raise UsageError if the path is not UTF-8, which messages between ranks need."""
    try:
        str(folder.resolve()).encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"{given}: {str(folder.resolve())!a} is not UTF-8; give --results a folder whose path is"
        ) from None


def _fresh(results: Path, name: str) -> Path:
    """Make a new folder; two runs never share one."""
    for suffix in ("", *(f"-{number}" for number in range(2, 100))):
        folder = results / f"{name}{suffix}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if results.exists() and not results.is_dir():
                raise UsageError(f"--results {results}: is a file, not a folder") from None
            continue
        except OSError as error:
            raise UsageError(f"--results {results}: cannot make {folder}: {error.strerror}") from None
        return folder
    raise UsageError(f"--results {results}: 99 runs named {name} exist already")


def _open(path: Path, flags: int) -> int:
    try:
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | flags, 0o644)
    except OSError as error:
        why = "is a symbolic link; give the folder that it leads to" if error.errno == ELOOP else error.strerror
        raise UsageError(f"{path}: cannot be written: {why}") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise UsageError(f"{path.parent}: another run is writing into it") from None
    except OSError:
        pass  # a file system without locks, as Lustre without its mount option `flock` (mount.lustre(8): ENOSYS)
    return fd
