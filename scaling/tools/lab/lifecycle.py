"""`up` and `down`: a lab is made whole or not at all, and leaves nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from scaling.errors import LaunchError, UsageError
from scaling.tools.lab import files, processes, shapes, shaping, state, wires
from scaling.tools.lab.holder import STAY, Opened
from scaling.tools.lab.shapes import Shape
from scaling.tools.lab.state import Holder, Lab

Say = Callable[[str], None]


def need_root(what: str) -> None:
    """Raises LaunchError for who may not make namespaces."""
    if os.geteuid() != 0:
        raise LaunchError(f"`{what}` needs root, for namespaces and links; call it with sudo")


def need_outside(what: str) -> None:
    """Raises UsageError inside a node, where the files of a lab look otherwise."""
    network = Path("/proc/self/ns/net").stat().st_ino
    for lab in state.living():
        if network in lab.holder.inodes.values():
            raise UsageError(f"`{what}`: this is a node of lab {lab.name}; call it outside")


def up(wanted: Shape, say: Say, *, changing: Collection[str] = ()) -> Lab:
    """The lab of this shape, made unless it is up already. Raises UsageError when one of another shape is up by
    that name, but for the rates of cards that are `changing`; LaunchError when this machine makes none."""
    need_root("up")
    need_outside("up")
    wires.library()
    with state.locked():
        lab = state.find(wanted.name)
        if lab is not None and lab.holder.program.lives:
            _must_be_alike(lab, wanted, changing)
            return lab
        if state.folder(wanted.name).exists():
            say(f"clearing away what is left of a broken lab {wanted.name}")
            _clear(wanted.name, lab)
        say(f"making lab {wanted.name}: {wanted.nodes} x {len(wanted.nics)} links")
        return _make(wanted)


def _must_be_alike(lab: Lab, wanted: Shape, changing: Collection[str]) -> None:
    if different := shapes.differences(lab, wanted, changing):
        name = f" --name {lab.name}" if lab.name != "lab" else ""
        raise UsageError(
            f"lab {lab.name} is up with {'; '.join(different)}: first `python -m scaling lab down{name}`, "
            "or take another --name"
        )


def _make(wanted: Shape) -> Lab:
    folder = state.folder(wanted.name)
    try:
        for part in ("tmp", "sys"):
            (folder / part).mkdir(parents=True)
        (folder / "hosts").write_text(files.hosts(wanted.node_names, wanted.nics))
        with _holder(wanted) as holder:
            lab = wanted.lab(holder)
            wires.connect(lab)
            shaping.apply(lab, lab.nics)
            files.write(lab)
            state.save(lab)
    except BaseException:
        _remove(folder)
        raise
    return lab


@contextmanager
def _holder(wanted: Shape) -> Iterator[Holder]:
    """Start the process that keeps the namespaces. Told at the end to stay, it does so; it ends with an exception
    here, or when this process does."""
    command = [sys.executable, "-m", "scaling.tools.lab.holder", wanted.name, *wanted.node_names]
    paths = [str(files.CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True, env=environ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        answer = process.stdout.readline()
        opened = msgspec.json.decode(answer, type=Opened) if answer else Opened(error="the holder died")
        if opened.error:
            raise LaunchError(
                f"this machine makes no namespaces for us ({opened.error}): it takes root with CAP_SYS_ADMIN, "
                "outside of a container or in a privileged one"
            )
        program = state.program(opened.pid)
        try:
            yield Holder(program=program, namespaces=opened.namespaces, inodes=opened.inodes)
            process.stdin.write(STAY)
            process.stdin.flush()
        except BaseException:
            processes.end_program(program)
            raise


def down(name: str, *, force: bool, say: Say) -> bool:
    """End a lab and all that lives in it; whether there was one. Raises UsageError while a run is on, unless
    forced."""
    need_root("down")
    need_outside("down")
    with state.locked():
        if not state.folder(name).exists():
            return False
        lab = state.find(name)
        run = processes.run_on(lab) if lab is not None else None
        if run is not None and not force:
            raise UsageError(f"lab {name}: a run is on ({run.told}); wait, or end it with --force")
        if run is not None:
            say(f"ending the run that is on ({run.told})")
        _clear(name, lab)
        return True


def _clear(name: str, lab: Lab | None) -> None:
    """End all processes of a lab, the holder last, and remove its files."""
    if lab is not None:
        run = processes.run_on(lab)
        processes.end(lambda: processes.living(lab))
        if run is not None:
            processes.end_program(run.program)
        processes.end_program(lab.holder.program)
    _remove(state.folder(name))


def _remove(folder: Path) -> None:
    """Never what is below a folder in it: `tmp` and `sys` are mount points inside the nodes."""
    if not folder.exists():
        return
    for path in folder.iterdir():
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
    folder.rmdir()
