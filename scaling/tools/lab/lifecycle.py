"""`up`, `status`, `rate`, `run` and `down` of a lab, and its files. A lab is created whole or not at all."""

from __future__ import annotations

import os
import shlex
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
from scaling.text import counted
from scaling.tools.lab import remote, shapes, slowdown, state, wires
from scaling.tools.lab.holder import STAY
from scaling.tools.lab.state import Holder, Lab, Nic, Run

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
        (folder / "hosts").write_text(hosts(wanted.nodes, wanted.nics))
        with _holder(wanted) as holder:
            lab = replace(wanted, holder=holder)
            wires.connect(lab)
            wires.apply(lab, lab.nics)
            write_files(lab)
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


# ---------------------------------------------------------------- files
#
# Hosts, hostfiles, networks, and the agent for mpirun.

# names for --interconnect, by the card's name
FAMILIES = {"ib": "ib", "eth": "ethernet"}


def write_files(lab: Lab) -> None:
    agent = lab.folder / "agent"
    for name, slots in (("hostfile", " slots="), ("hostfile.mpich", ":")):
        state.replace_file(
            lab.folder / name, "".join(f"{node}{slots}{lab.slots}\n" for node in lab.nodes).encode()
        )
    state.replace_file(lab.folder / "fabric.toml", fabric(lab).encode())
    state.replace_file(agent, agent_script(lab.name, sys.executable).encode())
    agent.chmod(0o755)


def hosts(nodes: tuple[str, ...], nics: tuple[Nic, ...]) -> str:
    """Write /etc/hosts: a node's name is its address on the last network, `node1-ib0` another address."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    for number, node in enumerate(nodes, 1):
        for nic in reversed(nics):
            plain = f"{node} " if nic is nics[-1] else ""
            lines.append(f"{nic.address(number)} {plain}{node}-{nic.name}")
    return "\n".join(lines) + "\n"


def fabric(lab: Lab) -> str:
    """Declare the networks: `ib` is the first ibN, `ethernet` the first ethN, others have their card's name."""
    named: dict[str, Nic] = {}
    for nic in lab.nics:
        family = FAMILIES.get(nic.name.rstrip("0123456789"), nic.name)
        named[nic.name if family in named else family] = nic
    lines = [f"# The networks of lab {lab.name}."]
    for name, nic in named.items():
        rate_gbit = f"{nic.rate_bits_per_s / 1e9:.10f}".rstrip("0").rstrip(".")
        lines += ["", f"[{name}]", f'interface = "{nic.name}"', f'subnet = "{nic.subnet}"']
        lines += [f"rate_gbit = {rate_gbit}"]
    return "\n".join(lines) + "\n"


def agent_script(name: str, python: str) -> str:
    """Write the executable that mpirun calls as `agent HOST WORDS...` (remote.py)."""
    code = f"import sys; sys.path.insert(0, {str(remote.CHECKOUT)!r}); from scaling.tools.lab import remote; "
    code += "remote.main(sys.argv[1:])"
    return (
        "#!/bin/sh\n"
        f"# HOST WORDS...: run a command on a node of lab {name}, as ssh would.\n"
        f"SCALING_LAB={name} SCALING_FABRIC={state.folder(name)}/fabric.toml\n"
        "export SCALING_LAB SCALING_FABRIC\n"
        f'exec {shlex.quote(python)} -I -c {shlex.quote(code)} "$@"\n'
    )


def mpirun_command(lab: Lab) -> list[str]:
    agent = str(lab.folder / "agent")
    return [str(remote.CHECKOUT / "launch" / "mpirun"), "--agent", agent, "--interface", lab.nics[-1].name]


# ---------------------------------------------------------------- status


def described(lab: Lab) -> list[str]:
    nodes = " to ".join(dict.fromkeys((lab.nodes[0], lab.nodes[-1])))
    lines = [f"lab {lab.name}: {nodes}, {counted(lab.slots, 'slot')} each"]
    for nic in lab.nics:
        is_declared = nic.shaped_bits_per_s == nic.rate_bits_per_s
        now = "" if is_declared else f", shaped to {shapes.show_rate(nic.shaped_bits_per_s)} now"
        lines.append(f"  {nic.name:<6} {nic.subnet:<18} {shapes.show_rate(nic.rate_bits_per_s)}{now}")
        for node in lab.nodes:
            link = f"{node}.{nic.name}"
            if link in lab.links:
                rate = shapes.show_rate(lab.link_bits_per_s(node, nic))
                lines.append(f"  {link} {rate} ({100 * lab.links[link]:g}%)")
            if link in lab.down:
                lines.append(f"  {link} down")
    return lines


def how_to_use(lab: Lab) -> list[str]:
    ranks = len(lab.nodes) * lab.slots
    return [
        f"hostfile {lab.folder / 'hostfile'} (MPICH: hostfile.mpich), networks {lab.folder / 'fabric.toml'}",
        f"inside {lab.nodes[0]}: {' '.join(mpirun_command(lab))} --hostfile {lab.folder / 'hostfile'} -np {ranks} "
        "python -m scaling.run",
        f"from here: python -m scaling lab run{lab.flag} -- -np {ranks} python -m scaling.run",
    ]


def status(name: str) -> list[str]:
    """Describe the lab, or what is left of a broken one."""
    try:
        lab = state.find(name)
    except LaunchError as error:
        return [f"lab {name}: {error}"]
    if lab is None:
        return [f"lab {name}: incomplete; `up` creates it again, `down --name {name}` removes it"]
    holder = lab.holder.program
    if not holder.lives:
        return [f"lab {name}: broken, its holder {holder.pid} is gone; `up` creates it again, `down` removes it"]
    addresses = [
        f"  {node:<7} " + "  ".join(f"{nic.name} {nic.address(number)}" for nic in lab.nics)
        for number, node in enumerate(lab.nodes, 1)
    ]
    runs = "no run is active"
    if on := state.run_on(lab):
        runs = f"a run is active since {time.strftime('%H:%M:%S', time.localtime(on.since_unix_s))}, {on.told}"
    return [*described(lab), *addresses, f"  holder {holder.pid} is alive; {runs}"]


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
        write_files(lab)
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
    mpirun = mpirun_command(state.load(name))
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
