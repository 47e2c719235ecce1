"""A child's log is kept to a bound, so that one that floods it does not fill the disk under the run's file."""

from __future__ import annotations

from pathlib import Path

LIMIT_BYTES, KEPT_BYTES = 64 << 20, 1 << 20
EVERY_S = 1.0


class LogBound:
    """Looks at a log now and then: one beyond the limit is cut to its beginning, and what comes is appended."""

    def __init__(self, path: str) -> None:
        self.dropped_bytes = 0
        self._path = Path(path)
        self._next_s = 0.0

    def look(self, now_s: float) -> None:
        """Cut the log where it is too long, once a second at most."""
        if now_s >= self._next_s:
            self._next_s = now_s + EVERY_S
            self.cut()

    def cut(self) -> None:
        """Cut the log where it is too long. Its writers append, wherever its end is."""
        try:
            size_bytes = self._path.stat().st_size
            if size_bytes <= LIMIT_BYTES or not self._path.is_file():
                return
            with self._path.open("ab") as log:
                log.truncate(KEPT_BYTES)
                self.dropped_bytes += size_bytes - KEPT_BYTES
                log.write(f"\n[scaling: {self.dropped_bytes} bytes of this log were dropped here]\n".encode())
        except OSError:  # no log, or a full disk: the child's affair
            return
