"""Predictions of a run by a process of their own: `scaling.predict` reads runs and has no part in measuring."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from scaling.agent.environment import outside_of_mpi
from scaling.records.prediction import Prediction, Question

# A prediction takes a second or two; a file system that hangs is not waited for.
PATIENCE_S = 120.0
_ANSWERS = msgspec.json.Decoder(tuple[Prediction, ...])


class Asking:
    """`python -m scaling.predict.register RUN` at work; what goes in and comes out are files, which never fill."""

    def __init__(self, run: Path, asked: Sequence[Question]) -> None:
        self._asked = asked
        self._end_s = time.monotonic() + PATIENCE_S
        self._folder = TemporaryDirectory(prefix="scaling-predict-")
        given, self._out, self._err = (Path(self._folder.name, name) for name in ("given", "out", "err"))
        given.write_bytes(msgspec.json.encode(list(asked)))
        with given.open("rb") as stdin, self._out.open("wb") as stdout, self._err.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "scaling.predict.register", str(run)],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env=outside_of_mpi(os.environ),
                start_new_session=True,
            )

    def answers(self) -> tuple[Prediction, ...] | None:
        """One for each question; refusals that say why where the process failed; None while it runs."""
        code = self._process.poll()
        if code is None:
            late = time.monotonic() > self._end_s
            return self._refused(f"no answer within {PATIENCE_S:g} s") if late else None
        try:
            found = _ANSWERS.decode(self._out.read_bytes()) if code == 0 else ()
        except msgspec.MsgspecError as error:
            return self._refused(f"no prediction came back: {error}")
        return found if len(found) == len(self._asked) else self._refused(self._last_line(code))

    def _last_line(self, code: int) -> str:
        lines = self._err.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"scaling.predict.register ended with exit code {code}"

    def _refused(self, why: str) -> tuple[Prediction, ...]:
        now = time.time()
        return tuple(
            Prediction(point=one.point, nodes=one.nodes, registered_unix_s=now, refused=why) for one in self._asked
        )

    def stop(self) -> None:
        """End the process, if it still runs, and drop what it said."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()
