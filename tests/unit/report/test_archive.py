"""The archive of a run: its files, what is left out of it, and that it opens again."""

from __future__ import annotations

import io
import tarfile
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.records.store import read
from scaling.report import __main__ as command
from scaling.report import archive, unpacking
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
    assert [*archive.secrets_of(environ)] == ["x" * 5000, "a\0bcdef"]


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
    with unpacking.unpacked([file, folder]) as folders:
        assert folders[folder] == folder and (folders[file] / "run.jsonl").exists()
        assert [path.parent for path in folders.values()] != [tmp_path / "places"] * 2
    assert not [*(tmp_path / "places").iterdir()]


def test_archives_and_folders_are_joined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [written(tmp_path / name, default_run()) for name in ("a", "b")]
    file = packed_run(runs[0], tmp_path / "a.tgz")
    assert command.main([str(file), str(runs[1]), "--format", "json"]) == 0
    assert '"2 runs in one table: a, b"' in capsys.readouterr().out
