"""A log that a child floods is cut to its beginning, and what comes after is appended."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from scaling.agent.supervisor import KEPT_BYTES, LIMIT_BYTES, LogBound, Supervisor
from tests.support.supervised import Silent


def flooded(path: Path, size_bytes: int = LIMIT_BYTES + 1) -> Path:
    """A log that begins with a line; the rest of it takes no room."""
    with path.open("wb") as log:
        log.write(b"first line\n")
        log.truncate(size_bytes)
    return path


def test_a_flooded_log_keeps_its_beginning_and_what_comes_next(tmp_path: Path) -> None:
    path = flooded(tmp_path / "log")
    bound = LogBound(str(path))
    with path.open("ab", buffering=0) as writer:
        bound.look(0.0)
        writer.write(b"last line\n")
    text = path.read_bytes()
    assert text.startswith(b"first line\n")
    assert text[KEPT_BYTES:] == b"\n[scaling: %d bytes of this log were dropped here]\nlast line\n" % (
        LIMIT_BYTES + 1 - KEPT_BYTES
    )
    assert bound.dropped_bytes == LIMIT_BYTES + 1 - KEPT_BYTES


def test_others_are_let_be(tmp_path: Path) -> None:
    for path in (flooded(tmp_path / "log", LIMIT_BYTES), tmp_path / "none", Path("/dev/null")):
        bound = LogBound(str(path))
        bound.look(0.0)
        assert bound.dropped_bytes == 0
    assert (tmp_path / "log").stat().st_size == LIMIT_BYTES


def test_it_is_looked_at_once_a_second(tmp_path: Path) -> None:
    bound = LogBound(str(tmp_path / "log"))
    bound.look(10.0)
    flooded(tmp_path / "log")
    bound.look(10.9)
    assert bound.dropped_bytes == 0
    bound.look(11.0)
    assert bound.dropped_bytes > 0


def test_the_agent_tells_how_much_was_dropped(tmp_path: Path) -> None:
    child = Silent()
    child.task = replace(child.task, log=str(tmp_path / "log"))
    one = Supervisor(child, {}, 0.0)
    one.attend(1.0)
    flooded(tmp_path / "log")
    assert one.ended().log_dropped_bytes == LIMIT_BYTES + 1 - KEPT_BYTES
