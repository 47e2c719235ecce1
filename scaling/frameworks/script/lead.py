"""The main thread of a script's process: it runs the script; the timed loop is in another thread.

At the end of each step the script's thread waits here until the loop wants the next one.
"""

from __future__ import annotations

import os
import runpy
import shlex
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, NamedTuple, NoReturn

import msgspec

from scaling.frameworks.script import command, watch
from scaling.frameworks.script.watch import ScriptError
from scaling.records.point import EXCHANGING
from scaling.records.task import COMMANDS_FD, EVENTS_FD, GIVEN_TASK, Task
from scaling.text import counted, error_line

# Variables of torchrun and of a batch system, which libraries take for a launch.
LAUNCH = ("SLURM_", "TORCHELASTIC_", "PALS_", "FLUX_")
# Set for the second start of a script that does not run without torchrun's variables.
ALONE = "SCALING_SCRIPT_ALONE"
# A script has so long to leave after its last step. Then its process ends.
LEAVE_S = 5.0
PACKAGE = f"{Path(__file__).resolve().parents[2]}/"


class End(BaseException):
    """Ends the script at the end of a step. No `except Exception` of the script swallows it."""


GO, LEAVE, DONE = object(), object(), object()


class Baton:
    """Passes control between the script's thread and the loop's. `steps` counts the script's steps."""

    def __init__(self) -> None:
        self._orders: SimpleQueue[Any] = SimpleQueue()
        self._reports: SimpleQueue[Any] = SimpleQueue()
        self.steps = 0
        self.thread = threading.main_thread().ident
        # Steps that the script does on its own, and when each step of this order ended.
        self._left = 0
        self.ends_s: list[float] = []

    # ------------------------------------------------------------ the script's thread

    def begin(self) -> bool:
        """Wait until the script shall start; return False if it shall not."""
        return self._orders.get() is GO

    def park(self) -> None:
        """End a step: report it, and wait for the next. Raises End."""
        self.steps += 1
        self.ends_s.append(time.monotonic())
        self._left -= 1
        if self._left > 0:
            return
        self.thread = threading.get_ident()
        self._reports.put(DONE)
        while (order := self._orders.get()) is not GO:
            if order is LEAVE:
                raise End
            self._reports.put(order())

    def fail(self, error: ScriptError) -> None:
        """Report that no more steps follow."""
        self._reports.put(error)

    # ------------------------------------------------------------ the loop's thread

    def step(self, patience_s: float, look: Callable[[FrameType | None], None], count: int = 1) -> None:
        """Let the script do steps. Show `look` its stack each `patience_s` seconds. Raises ScriptError."""
        self._left, self.ends_s = count, []
        self._orders.put(GO)
        while True:
            try:
                report = self._reports.get(timeout=patience_s)
            except Empty:
                look(sys._current_frames().get(self.thread or 0))
                continue
            if isinstance(report, ScriptError):
                self.fail(report)  # for the next call
                raise report
            return

    def call(self, act: Callable[[], Any]) -> Any:
        """Run a function in the script's thread, which stands at the end of a step."""

        def tried() -> Any:
            try:
                return act()
            except Exception as error:
                return error

        self._orders.put(tried)
        found = self._reports.get()
        if isinstance(found, Exception):
            raise found
        return found

    def leave(self) -> None:
        self._orders.put(LEAVE)


BATON = Baton()


# ---------------------------------------------------------------- main thread


class Start(NamedTuple):
    """The working directory and the environment before the script's own."""

    folder: Path
    environ: Mapping[str, str]


def lead(task: Task, act: Callable[[], int]) -> int:
    """Run `act`, the worker's loop, in a thread, and the script in this one; return the loop's exit code."""
    codes: list[int] = []
    over = threading.Event()

    def loop() -> None:
        codes.append(act())
        BATON.leave()
        if not over.wait(LEAVE_S):
            sys.stderr.flush()
            os._exit(codes[0])

    given = command.read(shlex.split(task.point.workload.script))
    start = Start(Path.cwd(), dict(os.environ))
    own = _prepared(task)
    thread = threading.Thread(target=loop, name="scaling", daemon=True)
    thread.start()
    if BATON.begin():
        _lead(task, given, own, start)
    over.set()
    thread.join()
    if not codes[0]:
        shutil.rmtree(own, ignore_errors=True)
    return codes[0]


def _lead(task: Task, given: command.Command, own: Path, start: Start) -> None:
    name, folder, end = given.target, Path.cwd(), os._exit
    os._exit = partial(_exit_reported, end, os.getpid())
    try:
        _run(task, given, own / "out", start.folder)
        failure = _early(name, "ended")
    except End:
        return
    except SystemExit as stop:
        said = _last_said(task) if stop.code not in (None, 0) else ""
        failure = _early(name, f"called exit({'' if stop.code in (None, '') else repr(stop.code)})", said)
    except BaseException as error:
        traceback.print_exc()
        failure = ScriptError(_where(error, folder, name))
    finally:
        os._exit = end
    may_need_torchruns = not BATON.steps and not watch.SEEN.starts_ranks and task.point.kind not in EXCHANGING
    if may_need_torchruns and not os.environ.get(ALONE):
        _again(task, start)
    BATON.fail(failure)


def _exit_reported(end: Callable[[int], NoReturn], process: int, status: int) -> NoReturn:
    """End the script's main thread by an exception, which is reported; end other threads' and forks' process."""
    if os.getpid() == process and threading.current_thread() is threading.main_thread():
        raise SystemExit(status)
    end(status)


def _again(task: Task, start: Start) -> NoReturn:
    """Start again with torchrun's variables, of a world of one: the script does not run without them."""
    sys.stdout.flush()
    sys.stderr.flush()
    environ = {**start.environ, ALONE: "1", GIVEN_TASK: msgspec.json.encode(task).decode()}
    os.chdir(start.folder)
    os.dup2(int(os.environ[COMMANDS_FD]), 0)
    os.set_inheritable(int(os.environ[EVENTS_FD]), True)
    os.execve(sys.executable, [sys.executable, "-m", "scaling.worker"], environ)


def _prepared(task: Task) -> Path:
    """Make this process one that torchrun or a shell would start: its variables, modules and working directory.
    Return the point's own folder."""
    exchanges, stem = task.point.kind in EXCHANGING, Path(task.log).stem
    for name in list(os.environ):
        if name.startswith(LAUNCH[:1] if exchanges else LAUNCH) or (name in command.TORCHRUN and not exchanges):
            del os.environ[name]
    if not exchanges:
        if os.environ.get(ALONE):
            os.environ.update(command.torchrun(task, alone=True))
        _show_own_gpu(task)
    for name, value in command.OFFLINE.items():
        os.environ.setdefault(name, value)
    if sys.modules.get("matplotlib", command) is None:
        del sys.modules["matplotlib"]
    # Ranks of an exchange on one host share a folder.
    folder = f"{stem.rpartition('.')[0] if exchanges else stem}-{task.hosts[task.rank]}"
    own = Path(task.log).parent.parent / "scripts" / folder
    if not task.point.workload.in_place:
        source = Path.cwd()
        _copied(source, own, is_first=task.local_rank == 0 or not exchanges)
        os.chdir(own / COPY / source.relative_to(source.anchor))
    return own


def _show_own_gpu(task: Task) -> None:
    """Show one GPU to a single rank: libraries would use all of them."""
    if task.point.hardware.device == "cuda" and not task.shown_gpu:
        shown = [one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]
        index = task.device_index
        os.environ["CUDA_VISIBLE_DEVICES"] = shown[index] if index < len(shown) else str(index)


# ---------------------------------------------------------------- copy of the working directory

# Larger files are linked. A folder with more entries, and those of tools, are linked as a whole.
SMALL_BYTES, MOST_FILES, MOST_ABOVE = 1 << 20, 2000, 4
LINKED = {".git", ".hg", ".svn", ".venv", "venv", "node_modules", "__pycache__", "results", "wandb"}
COPY, COPY_S, LOOK_S = "copy", 60.0, 0.02


def _copied(source: Path, own: Path, *, is_first: bool) -> None:
    """Copy small files of a folder, link large ones, and link the entries beside it and beside the folders above
    (`../data`, `../../data`). Other ranks wait for the first rank's copy."""
    folder = own / COPY
    if is_first:
        shutil.rmtree(own, ignore_errors=True)
        part = own / "part"
        inner = part / source.relative_to(source.anchor)
        inner.mkdir(parents=True)
        _copy(source, inner, [MOST_FILES], own)
        for above in islice(source.parents, MOST_ABOVE):
            with suppress(OSError):
                for entry in islice(os.scandir(above), MOST_FILES):
                    link = part / above.relative_to(source.anchor) / entry.name
                    if not link.exists():
                        link.symlink_to(entry.path)
        part.rename(folder)
        return
    end_s = time.monotonic() + COPY_S
    while not folder.exists():
        if time.monotonic() > end_s:
            raise ScriptError(f"no copy of {source} after {COPY_S:g} s; --in-place makes none")
        time.sleep(LOOK_S)


def _copy(source: Path, target: Path, left: list[int], own: Path) -> None:
    for entry in sorted(os.scandir(source), key=lambda one: one.name):
        path = Path(entry.path)
        if own.is_relative_to(path) or entry.name in LINKED or (path / "pyvenv.cfg").exists():
            (target / entry.name).symlink_to(path)
        elif entry.is_dir(follow_symlinks=False) and left[0] > 0:
            (target / entry.name).mkdir()
            with suppress(PermissionError):
                _copy(path, target / entry.name, left, own)
        elif entry.is_file() and entry.stat().st_size <= SMALL_BYTES and left[0] > 0:
            left[0] -= 1
            with suppress(OSError):
                shutil.copy2(path, target / entry.name)
        else:
            (target / entry.name).symlink_to(path)


# ---------------------------------------------------------------- running the script


def _run(task: Task, given: command.Command, out: Path, source: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    exchanges = task.point.kind in EXCHANGING
    sizes = (task.point.world_size, task.local_world_size, len(set(task.hosts))) if exchanges else (1, 1, 1)
    places = (task.rank, task.local_rank) if exchanges else (0, 0)
    arguments = given.filled(dict(zip(command.PLACEHOLDERS, (*sizes, *places, out), strict=True)))
    port = task.ports[1] if exchanges else task.rank_ports[task.rank]
    watch.install(BATON.park, sizes[0], port)
    path = source / given.target
    if path.is_relative_to(source):  # the copy, also of a script that is named by its whole path
        path = Path.cwd() / path.relative_to(source)
    sys.path.insert(0, str(Path.cwd() if given.is_module else path.parent))
    sys.argv = [str(path) if Path(given.target).is_absolute() else given.target, *arguments]
    if given.is_module:
        runpy.run_module(given.target, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(str(path), run_name="__main__")


def _early(name: str, how: str, said: str = "") -> ScriptError:
    if said:
        return ScriptError(f"{name}: {how}: {said}")
    if watch.SEEN.empty and not watch.SEEN.gave:
        return ScriptError(f"{name}: {watch.NO_BATCH}")
    if steps := max(BATON.steps, watch.SEEN.events):
        return ScriptError(f"{name} {how} after {counted(steps, 'step')}: give it more epochs or steps")
    return ScriptError(f"{name} {how} without a training step: {NO_STEP}")


NO_STEP = "add `scaling.step(samples=N)` to its loop (import scaling); no torch optimizer and no Keras fit stepped"


def _last_said(task: Task) -> str:
    """Return the last line that the script printed, such as argparse's error."""
    sys.stdout.flush()
    sys.stderr.flush()
    with suppress(OSError):
        lines = Path(task.log).read_bytes()[-4000:].decode(errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
    return ""


def _where(error: BaseException, folder: Path, name: str) -> str:
    """Return `train.py:12: ValueError: text`, by the innermost line of the user's own code."""
    text = str(error) if isinstance(error, ScriptError) else error_line(error)
    if isinstance(error, SyntaxError) and error.filename:
        return f"{shown(error.filename, folder)}:{error.lineno}: {text}"
    own = [one for one in traceback.extract_tb(error.__traceback__) if is_own(one.filename)]
    return f"{shown(own[-1].filename, folder)}:{own[-1].lineno}: {text}" if own else f"{name}: {text}"


def is_own(file: str) -> bool:
    """Return whether a file is the user's: no library, none of this package or of Python."""
    is_library = any(f"/{name}/" in file for name in ("site-packages", "dist-packages", f"lib/python{_VERSION}"))
    return not (is_library or file.startswith(("<", PACKAGE)) or "__autograph_generated_file" in file)


_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


def shown(file: str, folder: Path) -> str:
    """Return a file's path as the user knows it, not in the point's copy."""
    path = Path(file)
    if path.is_absolute() and path.is_relative_to(folder):
        path = path.relative_to(folder)
    return str(path)
