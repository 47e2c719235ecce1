"""The archive of a run: its files, what is left out of it, and that it opens again. An archive that anybody may
have written is one line, exit code 2, nothing outside of a folder, nothing left."""

from __future__ import annotations

import gzip
import io
import signal
import tarfile
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from weakref import WeakSet

import msgspec
import pytest
from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.records.run import SCHEMA
from scaling.records.store import read
from scaling.report import __main__ as command
from scaling.report import archive
from scaling.report.archive import LEFT_OUT, Redaction
from tests.support.report_scenes import cluster_run, default_run
from tests.support.scripted_records import host, written
from tests.support.telling_names import ALICE, COMMAND_LINES, NAMES, run

PASSWORD = "hunter2hunter2"
LOG = f"HF_TOKEN={PASSWORD}\nrank 0 on {ALICE}: using {PASSWORD}\nopen /home/alice/data/x.bin\nalice was here\n"


def content(packed: bytes) -> dict[str, bytes]:
    """Read the files of an archive, by their paths in its folder."""
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        members = tar.getmembers()
        assert all(one.isreg() and (one.uid, one.gid, one.uname, one.gname) == (0, 0, "", "") for one in members)
        assert [one.name for one in members] == sorted(one.name for one in members)
        assert len({one.name.partition("/")[0] for one in members}) == 1
        read = {one.name.partition("/")[2]: tar.extractfile(one) for one in members}
        return {name: file.read() for name, file in read.items() if file}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = written(tmp_path / "20261127-run-of-alice-laptop", run())
    (made / "logs").mkdir()
    (made / "logs" / "0001-fake-a.0.log").write_text(LOG)
    return made


# ---------------------------------------------------------------- its files


def test_it_has_the_run_and_its_sums(folder: Path) -> None:
    packed = content(archive.pack(folder, {"verdict.json": b"{}\n"}))
    assert sorted(packed) == ["SHA256SUMS", "VERSIONS", "logs/0001-fake-a.0.log", "run.jsonl", "verdict.json"]
    sums = [line.split("  ") for line in packed.pop("SHA256SUMS").decode().splitlines()]
    assert {name: digest for digest, name in sums} == {
        name: sha256(data).hexdigest() for name, data in packed.items()
    }


def test_the_same_run_gives_the_same_bytes(folder: Path) -> None:
    assert archive.pack(folder) == archive.pack(folder)


def test_its_records_are_those_of_the_run(tmp_path: Path) -> None:
    made = written(tmp_path / "run", cluster_run())
    again = tmp_path / "again"
    again.mkdir()
    (again / "run.jsonl").write_bytes(content(archive.pack(made))["run.jsonl"])
    assert read(again) == read(made)


def test_records_of_an_older_schema_are_upgraded(tmp_path: Path) -> None:
    old = Path(__file__).parents[2] / "schema" / "schema-1.jsonl"
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    (tmp_path / "old" / "run.jsonl").write_bytes(old.read_bytes())
    (tmp_path / "new" / "run.jsonl").write_bytes(content(archive.pack(tmp_path / "old"))["run.jsonl"])
    assert read(tmp_path / "new")[1] == read(tmp_path / "old")[1]


def test_versions_name_the_software(tmp_path: Path) -> None:
    made, records = default_run()
    one = replace(host("node1"), versions={"torch": "2.13.0"})
    text = content(archive.pack(written(tmp_path / "run", (replace(made, hosts=(one,)), records))))["VERSIONS"]
    assert b"host node1: " in text and b"torch 2.13.0" in text and b"code c0de" in text


def test_the_page_is_drawn_from_the_records_of_the_archive(folder: Path) -> None:
    (folder / "page.html").write_text(f"page of {ALICE}, {PASSWORD}")
    packed = content(archive.pack(folder, anonymous=True))
    page = packed["page.html"].decode()
    assert sha256(packed["run.jsonl"]).hexdigest() in page
    assert not [name for name in (*NAMES, PASSWORD) if name in page]


def test_files_of_certify_in_the_folder_are_packed(folder: Path) -> None:
    (folder / "verdict.json").write_text('{"verdict": "PASS"}')
    assert content(archive.pack(folder))["verdict.json"] == b'{"verdict": "PASS"}'
    assert content(archive.pack(folder, {"verdict.json": b"{}"}))["verdict.json"] == b"{}"


def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "private").write_text("private")
    (folder / "logs" / "0002.log").symlink_to(tmp_path / "other" / "private")
    (folder / "verdict.json").symlink_to(tmp_path / "other" / "private")
    assert sorted(content(archive.pack(folder))) == [
        "SHA256SUMS", "VERSIONS", "logs/0001-fake-a.0.log", "run.jsonl",
    ]  # fmt: skip
    (folder / "logs").rename(tmp_path / "logs")
    (folder / "logs").symlink_to(tmp_path / "other")
    assert "private" not in str(content(archive.pack(folder)))


def test_a_run_that_no_archive_takes_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MOST_FILES", 0)
    with pytest.raises(UsageError, match=r"RUN: has 1 file of 0\.0 GiB, an archive takes 0 of 2 GiB; delete"):
        archive.pack(folder)


# ---------------------------------------------------------------- what is left out


def test_secrets_and_arguments_of_others_are_left_out(folder: Path) -> None:
    packed = content(archive.pack(folder))
    assert packed["logs/0001-fake-a.0.log"].decode() == (
        LOG.replace(f"HF_TOKEN={PASSWORD}", f"HF_TOKEN={LEFT_OUT}").replace(PASSWORD, LEFT_OUT)
    )
    whole = b"".join(packed.values()).decode()
    assert PASSWORD not in whole
    assert not [words for words in ("-quiet", "python3 /home") if words in packed["run.jsonl"].decode()]
    assert "cc1plus" in whole and ALICE in whole


def test_values_of_the_environment_are_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALING_SECRET", "a secret of this test")
    (folder / "logs" / "0002.log").write_text("joined with 'a secret of this test'\n")
    assert content(archive.pack(folder))["logs/0002.log"].decode() == f"joined with '{LEFT_OUT}'\n"


def test_variables_of_records_are_left_out(tmp_path: Path) -> None:
    made, records = default_run()
    environ = {"WANDB_API_KEY": PASSWORD, "NCCL_IB_PKEY": "7", "OMP_NUM_THREADS": "1"}
    ranks = tuple(replace(rank, environ=environ) for rank in records[0].ranks)
    records[0] = replace(records[0], ranks=ranks)
    folder = written(tmp_path / "run", (replace(made, command=(f"--x={PASSWORD}",)), records))
    lines = content(archive.pack(folder))["run.jsonl"].decode()
    assert PASSWORD not in lines
    assert f'"WANDB_API_KEY":"{LEFT_OUT}"' in lines and '"NCCL_IB_PKEY":"7"' in lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("SCALING_SECRET=abc", "SCALING_SECRET=(left out)"),
        ('export AWS_SECRET_ACCESS_KEY="two words"; x', 'export AWS_SECRET_ACCESS_KEY="(left out)"; x'),
        ("environ: HF_TOKEN=hf_abcdef", "environ: HF_TOKEN=(left out)"),
        ('{"api_key": "abcdefgh", "n": 1}', '{"api_key": "(left out)", "n": 1}'),
        ("os.environ['PGPASSWORD'] = 'x y'", "os.environ['PGPASSWORD'] = '(left out)'"),
        ("https://me:pass@host/x", "https://(left out)@host/x"),
        ("Authorization: Bearer abc.def-123", "Authorization: Bearer (left out)"),
        ("-----BEGIN RSA PRIVATE KEY-----\nab\ncd\n-----END", "-----BEGIN RSA PRIVATE KEY-----(left out)-----END"),
        ("A_KEY: B_TOKEN=abc", "A_KEY: (left out)"),
        ("A_KEY=(left out)", "A_KEY=(left out)"),
        ("max_tokens=512 token=123456 key: value", "max_tokens=512 token=123456 key: value"),
        ("KeyError: 'x', NCCL_IB_PKEY=7", "KeyError: 'x', NCCL_IB_PKEY=7"),
        ("rate 12.5 images/s // a comment", "rate 12.5 images/s // a comment"),
    ],
)
def test_texts(text: str, shown: str) -> None:
    assert Redaction((), anonymous=False).text(text) == shown


def test_what_is_looked_for_anywhere_is_long_and_no_path(tmp_path: Path) -> None:
    environ = {
        "A_TOKEN": "abc",
        "B_KEY": str(tmp_path),
        "C_KEY": "x" * 5000,
        "D_TOKEN": "a\0bcdef",
        "PATH": "abcdef",
    }
    assert archive.secrets_of(environ) == {"x" * 5000, "a\0bcdef"}


# ---------------------------------------------------------------- anonymous


def test_an_anonymous_archive_names_nobody(folder: Path) -> None:
    (folder / "logs" / "0002-alice-laptop.log").write_text("alice-laptop is host 1\n")
    packed = archive.pack(folder, {"preflight.json": b'{"host": "bob-box", "user": "alice"}'}, anonymous=True)
    files = content(packed)
    texts = {name: data.decode() for name, data in files.items()}
    assert not [name for name in (*NAMES, *COMMAND_LINES) for text in (*texts, *texts.values()) if name in text]
    assert texts["preflight.json"] == '{"host": "node2", "user": "user"}'
    assert texts["logs/0002-node1"] == "node1 is host 1\n"
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        assert tar.getnames()[0].partition("/")[0] == "20261127-run-of-node1"


@pytest.mark.parametrize(
    ("log", "why"),
    [
        (b"\xff\xfe binary", "not text, so names in it cannot be found"),
        (b"ALICE-LAPTOP said", "names in it cannot be replaced"),
        (b"xalice-laptopx", "names in it cannot be replaced"),
        (b"Alice logged in", "names in it cannot be replaced"),
    ],
)
def test_a_log_that_may_name_somebody_is_left_out(folder: Path, log: bytes, why: str) -> None:
    (folder / "logs" / "0002.log").write_bytes(log)
    packed = content(archive.pack(folder, anonymous=True))
    assert "logs/0002.log" not in packed
    assert f"left out: logs/0002.log: {why}\n" in packed["VERSIONS"].decode()
    assert content(archive.pack(folder))["logs/0002.log"] == log


def test_the_name_of_such_a_log_is_not_told(folder: Path) -> None:
    (folder / "logs" / "0002-ALICE-LAPTOP.log").write_bytes(b"")
    packed = content(archive.pack(folder, anonymous=True))
    assert "left out: a file: names in it cannot be replaced\n" in packed["VERSIONS"].decode()
    assert len(packed) == 4


def test_a_log_that_cannot_be_read_is_a_mistake(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("scaling.files.read", denied)
    monkeypatch.setattr(archive, "read", lambda _: run())
    with pytest.raises(UsageError, match=r"0001-fake-a\.0\.log: cannot be packed: Permission denied"):
        archive.pack(folder)


def test_a_binary_log_is_packed_as_it_is(folder: Path) -> None:
    (folder / "logs" / "0002.log").write_bytes(b"\xff\xfe\x00")
    assert content(archive.pack(folder))["logs/0002.log"] == b"\xff\xfe\x00"


def test_logs_are_decoded_one_after_the_other(folder: Path) -> None:
    """A log takes up to four times its size as text, if it has a single emoji."""
    texts, most = WeakSet[str](), 0

    class Text(str): ...

    class Log(bytes):
        def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
            nonlocal most
            texts.add(text := Text(super().decode(encoding, errors)))
            most = max(most, len(texts))
            return text

    archive.pack(folder, {f"{number}.log": Log(b"step %d" % number) for number in range(9)})
    assert 0 < most <= 2


def test_the_owner_of_a_run_is_a_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert archive.owner(folder / "none") == set()
    monkeypatch.setattr("pwd.getpwuid", lambda _: SimpleNamespace(pw_name="carol"))
    assert archive.owner(folder) == {"carol"}
    (folder / "logs" / "0002.log").write_text("carol at work\n")
    assert content(archive.pack(folder, anonymous=True))["logs/0002.log"] == b"user at work\n"


# ---------------------------------------------------------------- the command


def packed_run(folder: Path, output: Path, *argv: str) -> Path:
    assert command.main([str(folder), "--format", "archive", "-o", str(output), *argv]) == 0
    return output


@pytest.mark.parametrize("name", ["run.tgz", "run.tar.gz"])
def test_the_report_opens_what_it_packed(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = packed_run(folder, folder.parent / name)
    for argv in (["--verbose"], ["--format", "csv"]):
        assert command.main([str(folder), *argv]) == 0
        whole = capsys.readouterr()
        assert command.main([str(file), *argv]) == 0
        assert capsys.readouterr() == whole


def test_the_last_screen_names_the_archive(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = packed_run(folder, folder.parent / "run.tgz")
    assert command.main([str(file)]) == 0
    shown = capsys.readouterr().out
    assert f"python -m scaling report {file} --verbose\n" in shown
    assert "--like" not in shown and "--resume" not in shown and "scaling-archive-" not in shown


def test_an_archive_can_be_made_anonymous_later(folder: Path) -> None:
    file = packed_run(folder, folder.parent / "run.tgz")
    (folder / "verdict.json").write_text("{}")
    whole = packed_run(folder, folder.parent / "whole.tgz")
    hidden = packed_run(whole, folder.parent / "hidden.tgz", "--anonymous")
    assert hidden.read_bytes() == packed_run(folder, folder.parent / "at-once.tgz", "--anonymous").read_bytes()
    assert len(content(hidden.read_bytes())) == len(content(file.read_bytes())) + 1


def test_unpacked_files_are_deleted(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "places"))
    (tmp_path / "places").mkdir()
    file = packed_run(folder, folder.parent / "run.tgz")
    with archive.unpacked([file, folder]) as folders:
        assert folders[folder] == folder and (folders[file] / "run.jsonl").exists()
        assert [path.parent for path in folders.values()] != [tmp_path / "places"] * 2
    assert not [*(tmp_path / "places").iterdir()]


def test_archives_and_folders_are_joined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [written(tmp_path / name, default_run()) for name in ("a", "b")]
    file = packed_run(runs[0], tmp_path / "a.tgz")
    assert command.main([str(file), str(runs[1]), "--format", "json"]) == 0
    assert '"2 runs in one table: a, b"' in capsys.readouterr().out


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
    monkeypatch.setattr(archive, "MOST_FILES", 10)
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
    monkeypatch.setattr(archive, "_check_sums", lambda *_: signal.raise_signal(signal.SIGTERM))
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
    monkeypatch.setattr(archive, "MOST_FILES", 9)
    assert refusal(capsys, file) == f"{file}: has more than 9 files, the limit"
    monkeypatch.setattr(archive, "MOST_FILES", 100)
    monkeypatch.setattr(archive, "MOST_BYTES", 20 * 4096)
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
    monkeypatch.setattr(archive, "_write", full)
    assert refusal(capsys, file) == f"{file}: cannot be unpacked: No space left on device"
