"""`up`, `rate`, `run` and `down` of a lab. A lab is created whole or not at all."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import if_nametoindex

import msgspec
from msgspec.structs import replace

from scaling.errors import LaunchError, UsageError
from scaling.tools.lab import files, remote, shapes, slowdown, state, wires
from scaling.tools.lab.holder import STAY
from scaling.tools.lab.state import Holder, Lab, Run

HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# variables for default hostfiles: Open MPI 4 and 5, MPICH, Intel MPI
HOSTFILES = {
    "OMPI_MCA_orte_default_hostfile": "hostfile",
    "PRTE_MCA_prte_default_hostfile": "hostfile",
    "HYDRA_HOST_FILE": "hostfile.mpich",
    "I_MPI_HYDRA_HOST_FILE": "hostfile.mpich",
}
# Temporary folders outside, and Open MPI 5's mapping policy, which would put all ranks on node1.
OUTSIDE = ("TMPDIR", "TMP", "TEMP", "XDG_RUNTIME_DIR", "PRTE_MCA_rmaps_default_mapping_policy")
Say = Callable[[str], None]


def need_root(what: str) -> None:
    """Raise LaunchError without the right to make namespaces."""
    if os.geteuid() != 0:
        raise LaunchError(f"`{what}` needs root, for namespaces and links; call it with sudo")


def need_outside(what: str) -> None:
    """Raise LaunchError as `need_root`, and UsageError inside a node, where a lab's files differ."""
    need_root(what)
    network = Path("/proc/self/ns/net").stat().st_ino
    for lab in state.living():
        if network in lab.holder.inodes.values():
            raise UsageError(f"`{what}`: this is a node of lab {lab.name}; call it outside")


# ---------------------------------------------------------------- up


def up(wanted: Lab, say: Say) -> Lab:
    """Return the lab of this shape, creating it if needed. Raises UsageError if one of another shape has this
    name, LaunchError if this machine cannot create it."""
    need_outside("up")
    wires.library()
    with state.locked():
        lab = state.find(wanted.name)
        if lab is not None and lab.holder.program.lives:
            if different := shapes.differences(lab, wanted):
                raise UsageError(
                    f"lab {lab.name} is up with {'; '.join(different)}: "
                    f"first `python -m scaling lab down{lab.flag}`, or use another --name"
                )
            return lab
        if state.folder(wanted.name).exists():
            say(f"removing what is left of the broken lab {wanted.name}")
            _clear(wanted.name, lab)
        say(f"creating lab {wanted.name}: {len(wanted.nodes)} x {len(wanted.nics)} links")
        return _make(wanted)


def _make(wanted: Lab) -> Lab:
    folder = state.folder(wanted.name)
    try:
        for part in ("tmp", "sys"):
            (folder / part).mkdir(parents=True)
        (folder / "hosts").write_text(files.hosts(wanted.nodes, wanted.nics))
        with _holder(wanted) as holder:
            lab = replace(wanted, holder=holder)
            wires.connect(lab)
            wires.apply(lab, lab.nics)
            files.write(lab)
            state.save(lab)
    except BaseException:
        _remove(folder)
        raise
    return lab


@contextmanager
def _holder(wanted: Lab) -> Iterator[Holder]:
    """Start the holder. It stays if the body succeeds, and ends with an exception or with this process."""
    command = [sys.executable, "-m", "scaling.tools.lab.holder", wanted.name, *wanted.nodes]
    paths = [str(remote.CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True, env=environ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        holder = msgspec.json.decode(process.stdout.readline() or b'"the holder died"', type=Holder | str)
        if isinstance(holder, str):
            raise LaunchError(
                f"this machine refuses namespaces ({holder}): they need root with CAP_SYS_ADMIN, "
                "outside of a container or in a privileged one"
            )
        try:
            yield holder
            process.stdin.write(STAY)
            process.stdin.flush()
        except BaseException:
            state.end_program(holder.program)
            raise


# ---------------------------------------------------------------- rate, down


def change(name: str, texts: Sequence[str]) -> Lab:
    """Apply all words in order, or none if one is wrong. Raises UsageError, LaunchError."""
    with state.locked():
        lab = state.load(name)
        for text in texts:
            lab = shapes.changed(lab, text)
        wires.apply(lab, lab.nics)
        for target, _, value in (text.partition("=") for text in texts):
            for node, _, card in (link.partition(".") for link in shapes.links_of(lab, target)):
                if value in ("up", "down"):
                    with wires.inside(lab, node) as ip:
                        ip.link("set", index=if_nametoindex(card), state=value)
        state.save(lab)
        files.write(lab)
        return lab


def down(name: str, *, force: bool, say: Say) -> bool:
    """End a lab and its processes; False if there was none. Raises UsageError during a run, unless forced."""
    need_outside("down")
    with state.locked():
        if not state.folder(name).exists():
            return False
        lab = state.find(name)
        run = state.run_on(lab) if lab is not None else None
        if run is not None and not force:
            raise UsageError(f"lab {name}: a run is active ({run.told}); wait, or end it with --force")
        if run is not None:
            say(f"ending the active run ({run.told})")
        _clear(name, lab)
        return True


def _clear(name: str, lab: Lab | None) -> None:
    if lab is not None:
        run = state.run_on(lab)
        state.end(lambda: state.processes(lab))
        if run is not None:
            state.end_program(run.program)
        state.end_program(lab.holder.program)
    _remove(state.folder(name))


def _remove(folder: Path) -> None:
    """Never recursive: `tmp` and `sys` are mount points inside the nodes."""
    if not folder.exists():
        return
    for path in folder.iterdir():
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
    folder.rmdir()


# ---------------------------------------------------------------- run


def run(name: str, arguments: Sequence[str], say: Say) -> int:
    """Run mpirun in a lab; return its exit code, 128 + number after a signal. Raises UsageError, LaunchError."""
    need_outside("run")
    mpirun = files.mpirun_command(state.load(name))
    if not Path(mpirun[0]).is_file():
        raise LaunchError(
            f"{mpirun[0]} is missing: `run` needs launch/ of the repository that this package came from"
        )
    for path in lost(arguments):
        say(f"warning: {path} will be in node1's own /tmp, which ends with the lab; write to a folder that exists")
    lab, begun = _begin(name, arguments)
    command = [str(lab.folder / "agent"), "--as-is", lab.nodes[0], *mpirun, *arguments]
    try:
        return _obeying_signals(command, environment(os.environ, lab, begun, arguments))
    finally:
        state.end(lambda: state.processes_of(lab, begun))
        (lab.folder / "run.json").unlink(missing_ok=True)
        with suppress(UsageError):  # the lab may be down already
            slowdown.shape(name, 1.0)


def _begin(name: str, arguments: Sequence[str]) -> tuple[Lab, Run]:
    """Record the run. Raises UsageError if another run is active."""
    with state.locked():
        lab = state.load(name)
        if on := state.run_on(lab):
            raise UsageError(
                f"lab {name}: a run is active ({on.told}), and two slow each other down: wait for it, or use "
                "another lab (--name)"
            )
        own = state.program(os.getpid())
        mark = f"{own.pid}-{own.start_ticks}"
        begun = Run(program=own, mark=mark, since_unix_s=time.time(), command=tuple(arguments))
        state.replace_file(lab.folder / "run.json", msgspec.json.encode(begun))
        return lab, begun


def environment(base: Mapping[str, str], lab: Lab, begun: Run, arguments: Sequence[str]) -> dict[str, str]:
    environ = {key: value for key, value in base.items() if key not in OUTSIDE}
    python, path = Path(sys.executable), base.get("PATH", remote.DEFAULT_PATH)
    if sys.prefix != sys.base_prefix:
        environ["VIRTUAL_ENV"] = sys.prefix
    mpirun = shutil.which("mpirun", path=base.get("PATH"))
    prefixes = [str(place.parents[1]) for place in (Path(mpirun), Path(mpirun).resolve())] if mpirun else []
    programs = [*prefixes, *filter(None, base.get("PYTHONPATH", "").split(":"))]
    return {
        **environ,
        "PATH": path if shutil.which("python", path=path) == str(python) else f"{python.parent}:{path}",
        **{variable: str(lab.folder / file) for variable, file in HOSTFILES.items()},
        remote.NAME: lab.name,
        remote.FABRIC: str(lab.folder / "fabric.toml"),
        remote.RUN: begun.mark,
        remote.PLACES: ":".join([*folders(arguments), *programs]),
    }


def folders(arguments: Sequence[str]) -> list[str]:
    """List existing folders under /tmp that the words name, or that hold files they name."""
    paths = [path if path.is_dir() else path.parent for path in _named(arguments)]
    return sorted({str(path) for path in paths if path.is_dir() and str(path) != remote.PRIVATE})


def lost(arguments: Sequence[str]) -> list[str]:
    """List paths under /tmp that the nodes cannot share, because their folder does not exist yet."""
    unshared = (path for path in _named(arguments) if not path.is_dir())
    return [str(path) for path in unshared if str(path.parent) == remote.PRIVATE or not path.parent.is_dir()]


def _named(arguments: Sequence[str]) -> list[Path]:
    words = [part for word in arguments for part in (word, word.partition("=")[2])]
    return [Path(os.path.normpath(word)) for word in words if word.startswith(f"{remote.PRIVATE}/")]


def _obeying_signals(command: list[str], environ: Mapping[str, str]) -> int:
    """Forward each signal once, because the command's session gets none from the terminal. Signals are read from a
    pipe, because handlers do not run while a wait blocks."""
    heard, told = os.pipe()
    os.set_blocking(told, False)
    wakeup = signal.set_wakeup_fd(told)
    # nohup's ignored SIGHUP stays ignored
    hears = [one for one in HANDED_ON if one != signal.SIGHUP or signal.getsignal(one) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda _number, _frame: None) for number in (*hears, signal.SIGCHLD)}
    stdin = subprocess.DEVNULL if sys.stdin is None or sys.stdin.isatty() else None
    try:
        with subprocess.Popen(command, env=dict(environ), stdin=stdin, start_new_session=True) as process:
            while process.poll() is None:
                for number in os.read(heard, 64):
                    if number != signal.SIGCHLD:
                        process.send_signal(number)
            code = process.returncode
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        os.close(heard)
        os.close(told)
    return code if code >= 0 else 128 - code
