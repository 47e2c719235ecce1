"""Archives that anybody may have written: one line, exit code 2, nothing outside of a folder, nothing left."""

from __future__ import annotations

import gzip
import io
import signal
import tarfile
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from scaling.records.run import SCHEMA
from scaling.report import __main__ as command
from scaling.report import archive, unpacking
from tests.support.report_scenes import default_run
from tests.support.scripted_records import written

FOLDER = "run"
Entry = tuple[str, bytes]
Changed = Callable[[tarfile.TarInfo], None]


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of temporary folders; it must be empty in the end."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield folder
    assert not [*folder.iterdir()]


@pytest.fixture
def good(tmp_path: Path) -> bytes:
    return archive.pack(written(tmp_path / FOLDER, default_run()))


def refusal(capsys: pytest.CaptureFixture[str], file: Path) -> str:
    assert command.main([str(file)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    return err.removeprefix("scaling report: error: ").rstrip()


def tarred(entries: list[Entry], change: Changed | None = None, *, sums: bool = True) -> bytes:
    """Write files by hand, the last one `change`d."""
    buffer = io.BytesIO()
    if sums:
        told = "".join(f"{sha256(data).hexdigest()}  {name.partition('/')[2]}\n" for name, data in entries)
        entries = [(f"{FOLDER}/SHA256SUMS", told.encode()), *entries]
    with tarfile.open(fileobj=buffer, mode="w:gz", format=tarfile.GNU_FORMAT) as tar:
        for number, (name, data) in enumerate(entries, 1):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            if change and number == len(entries):
                change(info)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def of_type(kind: bytes) -> Changed:
    def change(info: tarfile.TarInfo) -> None:
        info.type, info.linkname, info.size = kind, "/etc/passwd", 0

    return change


def sized(size: int, name: str = "run.jsonl") -> bytes:
    """A file that says to be of this size, and has nothing of it."""
    info = tarfile.TarInfo(f"{FOLDER}/{name}")
    info.size = size
    return gzip.compress(info.tobuf(tarfile.GNU_FORMAT))


RUN: Entry = (f"{FOLDER}/run.jsonl", b"{}\n")
TEN_GB = 10 << 30


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty"),
        (b"{}", "no archive of a run: not compressed by gzip"),
        (b"\x1f\x8b\x08", "is cut short; ask for it again"),
        (gzip.compress(b""), "is cut short; ask for it again"),
        (gzip.compress(b"no tar" * 1000), "is damaged; ask for it again"),
        (gzip.compress(bytes(10240)), "has no file"),
        (tarred([("run.jsonl", b"")], sums=False), "no archive of a run: it has no SHA256SUMS"),
        (tarred([RUN], sums=False), "no archive of a run: it has no SHA256SUMS"),
        (tarred([RUN, (f"{FOLDER}/../../x", b"")]), "run/../../x leads out of its folder"),
        (tarred([RUN, ("../x", b"")]), "../x leads out of its folder"),
        (tarred([RUN, ("/x", b"")]), "/x leads out of its folder"),
        (tarred([RUN, (f"{FOLDER}/a\nb", b"")]), "run/a b leads out of its folder"),
        (tarred([RUN, ("other/x", b"")]), "has several folders, but a run is one"),
        (tarred([RUN, RUN]), "run/run.jsonl is in it twice"),
        (tarred([RUN, (f"{FOLDER}//./run.jsonl", b"")]), "run/run.jsonl is in it twice"),
        (tarred([RUN, (f"{FOLDER}/run.jsonl/x", b"")]), "cannot be unpacked: "),
        (tarred([RUN, (FOLDER, b"")]), "cannot be unpacked: "),
        (tarred([RUN, (f"{FOLDER}/x", b"")], of_type(tarfile.SYMTYPE)), "run/x is a link; an archive has only"),
        (tarred([RUN, (f"{FOLDER}/x", b"")], of_type(tarfile.LNKTYPE)), "run/x is a link; an archive has only"),
        (tarred([RUN, (f"{FOLDER}/x", b"")], of_type(tarfile.CHRTYPE)), "run/x is a device; an archive has only"),
        (tarred([RUN, (f"{FOLDER}/x", b"")], of_type(tarfile.BLKTYPE)), "run/x is a device; an archive has only"),
        (tarred([RUN, (f"{FOLDER}/x", b"")], of_type(tarfile.FIFOTYPE)), "run/x is a pipe; an archive has only"),
        (tarred([RUN, (f"{FOLDER}/x", b"")], of_type(tarfile.XHDTYPE)), "run/x is neither file nor folder"),
        (tarred([RUN, (f"{FOLDER}/x", b"")], of_type(tarfile.GNUTYPE_SPARSE)), "run/x is neither file nor folder"),
        (tarred([RUN, (f"{FOLDER}/" + "x/" * 2000, b"")]), "has folders in folders, 2001 deep; 8 is the limit"),
        (sized(17 << 20, "SHA256SUMS"), "its SHA256SUMS is larger than 16 MiB, the limit"),
        (sized(TEN_GB), "is larger than 2 GiB unpacked, the limit"),
        (sized(100), "is cut short; ask for it again"),
        (tarred([RUN]) + gzip.compress(b"more"), "has data behind its end"),
    ],
    ids=lambda value: "archive" if isinstance(value, bytes) else None,  # gzip's bytes have the time
)  # fmt: skip
@pytest.mark.usefixtures("places")
def test_what_is_no_archive_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes, said: str
) -> None:
    file = tmp_path / "sent.tgz"
    file.write_bytes(data)
    assert refusal(capsys, file).startswith(f"{file}: {said}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sent.tgz", "temporary"]


@pytest.mark.usefixtures("places")
def test_folders_count_as_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacking, "MOST_FILES", 10)
    file = tmp_path / "sent.tgz"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", format=tarfile.GNU_FORMAT) as tar:
        for number in range(11):
            folder = tarfile.TarInfo(f"{FOLDER}/{number}")
            folder.type = tarfile.DIRTYPE
            tar.addfile(folder)
    file.write_bytes(buffer.getvalue())
    assert refusal(capsys, file) == f"{file}: has more than 10 files, the limit"


@pytest.mark.usefixtures("places")
def test_term_leaves_nothing(tmp_path: Path, good: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "sent.tgz"
    file.write_bytes(good)
    monkeypatch.setattr(unpacking, "_check_sums", lambda *_: signal.raise_signal(signal.SIGTERM))
    assert command.main([str(file)]) == 143
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.usefixtures("places")
def test_any_part_of_an_archive_is_cut_short(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], good: bytes
) -> None:
    file = tmp_path / "sent.tgz"
    for length in (1, 11, len(good) // 2, len(good) - 9, len(good) - 1):
        file.write_bytes(good[:length])
        said = refusal(capsys, file).removeprefix(f"{file}: ")
        assert said == "is cut short; ask for it again" or (length == 1 and said.startswith("no archive of a run"))


@pytest.mark.usefixtures("places")
def test_a_changed_byte_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str], good: bytes) -> None:
    file = tmp_path / "sent.tgz"
    for place in (len(good) // 3, len(good) // 2, len(good) - 8):
        file.write_bytes(good[:place] + bytes([good[place] ^ 0xFF]) + good[place + 1 :])
        assert refusal(capsys, file).startswith(f"{file}: ")


# ---------------------------------------------------------------- checksums


def repacked(good: bytes, *changes: tuple[str, bytes | None]) -> bytes:
    """The same archive with other contents; None removes a file."""
    with tarfile.open(fileobj=io.BytesIO(good)) as tar:
        found = {one.name: tar.extractfile(one) for one in tar.getmembers()}
        files: dict[str, bytes | None] = {name: file.read() for name, file in found.items() if file}
    files |= {f"{FOLDER}/{name}": data for name, data in changes}
    return tarred([(name, data) for name, data in files.items() if data is not None], sums=False)


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        (
            "run.jsonl",
            b"{}\n",
            "run.jsonl differs from its sum in SHA256SUMS: damaged or edited; ask for it again",
        ),
        ("run.jsonl", None, "run.jsonl is missing, but SHA256SUMS names it; ask for it again"),
        ("more", b"", "more is not in SHA256SUMS: somebody added it; ask for it again"),
        ("SHA256SUMS", None, "no archive of a run: it has no SHA256SUMS"),
        ("SHA256SUMS", b"", "VERSIONS is not in SHA256SUMS: somebody added it; ask for it again"),
        ("SHA256SUMS", b"# sums\n", "SHA256SUMS:1: not a sum and a file's name"),
        ("SHA256SUMS", b"\xff", "is damaged; ask for it again"),
    ],
)
@pytest.mark.usefixtures("places")
def test_sums_are_checked_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], good: bytes, name: str, data: bytes | None, said: str
) -> None:
    file = tmp_path / "sent.tgz"
    file.write_bytes(repacked(good, (name, data)))
    assert refusal(capsys, file) == f"{file}: {said}"


def summed(*entries: Entry) -> bytes:
    return tarred([(f"{FOLDER}/{name}", data) for name, data in entries])


@pytest.mark.usefixtures("places")
def test_a_run_that_is_wrong_is_named_by_the_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, (made, _) = tmp_path / "sent.tgz", default_run()
    newer = msgspec.json.encode(replace(made, schema=SCHEMA + 1)) + b"\n"
    for entry, said in (
        (RUN, "1: not a run's header"),
        (("run/run.jsonl", newer), f"1: schema {SCHEMA + 1}, this"),
    ):
        file.write_bytes(tarred([entry]))
        assert refusal(capsys, file).startswith(f"{file}/run/run.jsonl:{said}")
    file.write_bytes(tarred([("run/other", b"")]))
    assert refusal(capsys, file).startswith(f"{file}/run: not a run: {file}/run/run.jsonl: No such file")


# ---------------------------------------------------------------- limits


@pytest.mark.usefixtures("places")
def test_small_files_fill_no_disk_either(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "sent.tgz"
    file.write_bytes(summed(*((f"{number}", bytes(4096)) for number in range(20))))
    monkeypatch.setattr(unpacking, "MOST_FILES", 9)
    assert refusal(capsys, file) == f"{file}: has more than 9 files, the limit"
    monkeypatch.setattr(unpacking, "MOST_FILES", 100)
    monkeypatch.setattr(unpacking, "MOST_BYTES", 20 * 4096)
    assert "is larger than 0 GiB unpacked" in refusal(capsys, file)


@pytest.mark.usefixtures("places")
def test_a_name_has_a_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a header of its own it would otherwise be read into memory, whatever its size."""
    file = tmp_path / "sent.tgz"
    file.write_bytes(tarred([RUN, (f"{FOLDER}/{'x' * 5000}", b"")]))
    assert refusal(capsys, file).startswith(f"{file}: ././@LongLink is neither file nor folder")


# ---------------------------------------------------------------- what is well


@pytest.mark.usefixtures("places")
def test_what_other_tars_write_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str], good: bytes) -> None:
    """Folders have entries of their own, names begin with ./, and a long name comes before its file."""
    file, long = tmp_path / "sent.tgz", f"logs/{'x' * 150}.log"
    folder = tarfile.TarInfo(f"./{FOLDER}")
    folder.type = tarfile.DIRTYPE
    with tarfile.open(fileobj=io.BytesIO(good)) as tar:
        found = {one.name.partition("/")[2]: tar.extractfile(one) for one in tar.getmembers()}
        files = {name: opened.read() for name, opened in found.items() if opened}
    files[long] = b"a log"
    files["SHA256SUMS"] += f"{sha256(b'a log').hexdigest().upper()} *{long}\n".encode()
    with tarfile.open(file, "w:gz", format=tarfile.GNU_FORMAT) as tar:
        tar.addfile(folder)
        for name, data in files.items():
            info = tarfile.TarInfo(f"./{FOLDER}/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    assert command.main([str(file)]) == 0
    assert "python -m scaling report" in capsys.readouterr().out


@pytest.mark.usefixtures("places")
def test_a_folder_may_have_the_name_of_an_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path / "run.tgz", default_run())
    assert command.main([str(folder)]) == 0
    assert f"--like {folder}" in capsys.readouterr().out
    (tmp_path / "empty.tgz").mkdir()
    assert refusal(capsys, tmp_path / "empty.tgz").startswith(f"{tmp_path}/empty.tgz: not a run: ")


@pytest.mark.usefixtures("places")
def test_a_missing_archive_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "none.tgz"
    assert refusal(capsys, file) == f"{file}: cannot be unpacked: No such file or directory"


@pytest.mark.usefixtures("places")
def test_a_full_disk_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, good: bytes
) -> None:
    def full(*_: object) -> str:
        raise OSError(28, "No space left on device")

    file = tmp_path / "sent.tgz"
    file.write_bytes(good)
    monkeypatch.setattr(unpacking, "_write", full)
    assert refusal(capsys, file) == f"{file}: cannot be unpacked: No space left on device"
