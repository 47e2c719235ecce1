"""Records: what a store writes and reads, links between modules, code of another version."""

from __future__ import annotations

import ast
import errno
import fcntl
import json
import os
import shutil
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from scaling.command import deliver
from scaling.errors import StoreError, UsageError
from scaling.records import store
from scaling.records.network import Place
from scaling.records.point import Hardware, Record
from scaling.records.run import SCHEMA, PointRecord
from scaling.records.store import FILE, Store, unlinked, upgraded
from tests.support.inline import Launch, Run
from tests.support.report_scenes import default_run
from tests.support.scripted_records import written

# A run on disk: what a crash and an older or newer schema do to it.

PACKAGE = Path(__file__).parents[3] / "scaling"


def positional(source: str) -> list[str]:
    if "frozen" not in source:
        return []
    classes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
    said = {one.name: {word.arg for word in one.keywords} for one in classes}
    return [name for name, words in said.items() if "frozen" in words and "kw_only" not in words]


def test_fields_are_given_by_keyword() -> None:
    assert {str(path): names for path in PACKAGE.rglob("*.py") if (names := positional(path.read_text()))} == {}
    assert positional("class Bad(Record, frozen=True):\n    a: int\n") == ["Bad"]


def test_positions_are_refused_and_fields_are_unchanged() -> None:
    with pytest.raises(TypeError):
        Hardware("cpu")  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        Hardware(device="cpu").device = "cuda"  # type: ignore[misc]
    assert issubclass(Record, msgspec.Struct)


SCHEMAS = Path(__file__).parents[2] / "schema"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Launch(1).sweep(tmp_path, rounds=1)


def file_of(run: Run) -> Path:
    return run.folder / store.FILE


def test_a_point_has_a_line_when_it_is_measured_and_another_when_it_ends(run: Run) -> None:
    assert store.load(run.folder) == store.load(file_of(run)) == (run.header, run.records)
    lines = [json.loads(line) for line in file_of(run).read_bytes().splitlines()[1:]]
    assert [line["ended"] for line in lines] == [False, True] * len(run.records)
    assert store.joined((*run.records, replace(run.records[0], ended=False)))[-1].ended is False


def test_a_truncated_last_line_is_dropped_and_cut_off_on_resume(run: Run) -> None:
    whole = file_of(run).read_bytes()
    file_of(run).write_bytes(whole[:-20])
    *before, last = store.load(run.folder)[1]
    assert tuple(before) == run.records[:-1]
    assert (last.point, last.ended) == (run.records[-1].point, False)
    with store.Store.resume(run.folder) as opened:
        opened.append(run.records[-1])
    assert file_of(run).read_bytes() == whole


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def test_a_file_system_without_locks_takes_runs_all_the_same(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENOSYS is what Lustre says where it is mounted without `flock`."""

    def flock(fd: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    run = Launch(1).sweep(tmp_path, rounds=1)
    assert run.records
    assert not store.is_being_written(run.folder)
    with store.Store.resume(run.folder) as opened:
        opened.append(run.records[0])
    assert len(store.load(run.folder)[1]) == len(run.records) + 1


def test_a_folder_whose_path_is_not_utf8_is_refused(tmp_path: Path, run: Run) -> None:
    results = tmp_path / os.fsdecode(b"caf\xe9")
    with pytest.raises(UsageError, match=r"--results .*caf\\udce9' is not UTF-8; give --results"):
        Launch(1).sweep(results, rounds=1)
    assert not results.exists()
    shutil.copytree(run.folder, results)
    with pytest.raises(UsageError, match=r"--resume .*is not UTF-8"):
        store.Store.resume(results)


@pytest.mark.parametrize("failing", ["lseek", "write", "fsync"])
def test_a_file_that_is_gone_stale_is_one_line(failing: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a file server that was set up anew: then it cannot be cut off either."""

    def stale(*_: object) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with store.Store.resume(run.folder) as opened:
        for name in (failing, "ftruncate"):
            monkeypatch.setattr(os, name, stale)
        with pytest.raises(StoreError, match="Stale file handle; the points before are kept"):
            opened.append(run.records[0])


@pytest.mark.parametrize("resumed", [True, False])
def test_a_file_that_another_host_removed_is_written_anew(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, *, resumed: bool
) -> None:
    """A file server keeps no open file for a client if another client removes it: its descriptor is stale."""

    def stale(*_: object) -> bytes:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    whole = file_of(run).read_bytes()
    now = datetime.fromtimestamp(0, timezone.utc)
    with Store.resume(run.folder) if resumed else Store.create(tmp_path / "new", "x", now, run.header) as opened:
        for record in run.records:
            opened.append(record)
        shutil.rmtree(opened.folder)
        monkeypatch.setattr(os, "pread", stale)
        assert "was removed or moved: the run was written anew" in opened.append(run.records[0])
        again = [msgspec.json.encode(record) for record in (*run.records, run.records[0])]
        before = whole if resumed else whole.partition(b"\n")[0] + b"\n"
        assert opened.path.read_bytes() == before + b"".join(line + b"\n" for line in again)


def test_damage_in_the_middle_and_a_newer_schema_are_named_by_line(run: Run) -> None:
    header, first, *rest = file_of(run).read_bytes().split(b"\n")
    file_of(run).write_bytes(b"\n".join([header, first[:30], *rest]))
    with pytest.raises(UsageError, match=r"run\.jsonl:2: not a point record"):
        store.load(run.folder)
    newer = json.dumps({**json.loads(header), "schema": SCHEMA + 1}).encode()
    file_of(run).write_bytes(b"\n".join([newer, first, *rest]))
    said = rf"schema {SCHEMA + 1}, this version reads up to {SCHEMA}: pip install -U scaling-bench"
    with pytest.raises(UsageError, match=said):
        store.load(run.folder)


@pytest.mark.parametrize("text", ["", "\n", "{}\n", "no json\n", '{"schema": "one"}\n'])
def test_what_is_no_run_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / store.FILE).write_text(text)
    with pytest.raises(UsageError, match=r"run\.jsonl"):
        store.load(tmp_path)


def test_every_older_schema_is_still_read() -> None:
    fixtures = sorted(SCHEMAS.glob("schema-*.jsonl"))
    assert [path.stem for path in fixtures] == [f"schema-{number}" for number in range(1, SCHEMA + 1)]
    for path in fixtures:
        folder = path.parent / path.stem
        folder.mkdir(exist_ok=True)
        try:
            shutil.copy(path, folder / store.FILE)
            header, records = store.load(folder)
        finally:
            shutil.rmtree(folder)
        assert header.launch_size == 2
        alone = "each" if header.schema > 2 else "solo"
        assert {record.point.kind for record in records} == {"exchange", alone, "together", "comm"}
        assert all(rank.windows for record in records for rank in record.ranks)


def test_points_that_took_turns_are_read_with_their_blocks() -> None:
    """Of a real run of two ranks in which some windows were disturbed."""
    lines = (SCHEMAS / "schema-3.jsonl").read_bytes().splitlines()[1:]
    records = [msgspec.json.decode(line, type=PointRecord) for line in lines]
    ranks = [rank for record in records for rank in record.ranks]
    assert {record.epoch for record in records} == {0}
    assert all([window.index for window in rank.windows] == [0, 1, 2] for rank in ranks)
    assert all(window.canary_s is not None for rank in ranks for window in (*rank.windows, *rank.disturbed))
    assert all(rank.telemetry.cpu is not None for rank in ranks)
    assert any(rank.disturbed for rank in ranks)
    (two,) = (record for record in records if record.point.kind == "exchange" and record.point.world_size == 2)
    assert all(rank.unsynced for rank in two.ranks)


def test_two_runs_never_share_a_folder(tmp_path: Path) -> None:
    first, second = (Launch(1).sweep(tmp_path, rounds=1).folder for _ in range(2))
    assert first != second


def of_schema_1() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((SCHEMAS / "schema-1.jsonl").read_bytes().splitlines()[1])
    return found


def test_records_of_schema_1_have_their_work_hardware_place_and_kinds_of_warnings() -> None:
    texts = {
        "never settled: the warm-up hit its ceiling with windows still drifting": "unsettled",
        "CPUs were over 80 % busy while they emulated: times are too long": "busy-cpus",
        "no node was left for dedicated servers: they shared the training nodes": "shared-servers",
        "rank 0 on a was throttled: hw thermal": "throttled",
        "rank 0 on a had 1 CPUs instead of the promised 2": "lost-cpus",
        "something else": "other",
    }
    plain = of_schema_1()
    record = msgspec.convert(upgraded({**plain, "warnings": [*texts]}, 1), PointRecord)
    for part in (record.point.workload, record.point.hardware):
        kept = {name: value for name, value in msgspec.to_builtins(part).items() if name in plain["point"]}
        assert kept == {name: plain["point"][name] for name in kept}
    assert record.point.workload.unit == "images"
    assert {rank.place for rank in record.ranks} == {Place(address="", interface="lo")}
    assert {warning.text: warning.kind for warning in record.warnings} == texts


@pytest.mark.parametrize(
    ("changes", "options", "crossing"),
    [
        ({"pattern": "ring"}, {}, (2 * 4000, 2 * 4000)),
        ({"pattern": "ring"}, {"compression": "none"}, (2 * 4000, 2 * 4000)),
        ({"pattern": "ring"}, {"compression": "fp16"}, None),
        ({"pattern": "ring", "synchronous": False}, {}, None),
        ({"pattern": "servers"}, {}, (2 * 4000, 2 * 4000)),
        ({}, {}, None),
    ],
)
def test_records_of_schema_1_say_what_had_to_cross_nodes(
    changes: dict[str, Any], options: dict[str, str], crossing: tuple[float, float] | None
) -> None:
    plain = of_schema_1()
    plain["point"]["options"] = options
    (rank,) = plain["ranks"][:1]
    rank["ready"]["gradient_bytes"] = 4000
    server = {"name": "server-0", "launch_rank": 0, "host": "a", "outcome": {"type": "finished"}}
    old = {**plain, "hosts": ["a", "b"], "ranks": [rank, rank], "helpers": [server], **changes}
    record = msgspec.convert(upgraded(old, 1), PointRecord)
    assert {one.ready.crossing_bytes_per_step for one in record.ranks if one.ready} == {crossing}


# What a run writes into its folder goes through no link that somebody else has put there.


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text("untouched")
    return path


def test_a_page_replaces_a_link_in_the_folder_of_a_run(tmp_path: Path, victim: Path) -> None:
    run = written(tmp_path / "run", default_run())
    page = run / "page.html"
    page.symlink_to(victim)
    deliver("a page", page)
    assert (page.is_symlink(), page.read_text(), victim.read_text()) == (False, "a page", "untouched")


def test_a_link_of_the_user_s_own_is_followed(tmp_path: Path, victim: Path) -> None:
    link = tmp_path / "latest.txt"
    link.symlink_to(victim)
    deliver("a table", link)
    assert link.is_symlink() and victim.read_text() == "a table"


@pytest.mark.parametrize("is_folder", [True, False])
def test_logs_and_traces_go_through_no_link(tmp_path: Path, is_folder: bool) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    planted = tmp_path / ("logs" if is_folder else "0001-a.0.log")
    planted.symlink_to(elsewhere if is_folder else elsewhere / "file")
    assert unlinked(planted) == planted and not planted.is_symlink()
    assert list(elsewhere.iterdir()) == []
    assert unlinked(elsewhere).is_dir()


def test_a_run_s_own_file_is_no_link(tmp_path: Path) -> None:
    other = written(tmp_path / "other", default_run())
    run = tmp_path / "run"
    run.mkdir()
    (run / FILE).symlink_to(other / FILE)
    with pytest.raises(UsageError, match=r"run\.jsonl: cannot be written: is a symbolic link"):
        Store.resume(run)
