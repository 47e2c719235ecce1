"""A machine with nothing but a Python, for the tests of launch/: its own clone, PATH and packages.

Stubs stand in for what would download or compute: `pip` notes how it was called, and makes an mpirun if it is
asked for one; `mpirun` prints how it was called, as JSON. PIP_LACKS names packages that pip's index does not have.
pip's Horovod has the bindings that the build was asked for; those in NOT_COMPILING fail it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
TOOLS = ("bash", "env", "sed", "dirname", "touch")
OPENMPI5 = "mpirun (Open MPI) 5.0.11"

PIP = """\
import json, os, pathlib, shutil, sys
with open(os.environ["PIP_CALLS"], "a") as calls:
    print(json.dumps([sys.prefix, *sys.argv[1:]]), file=calls)
if "--quiet" not in sys.argv:
    print("Downloading torch-2.13.0-cp311-cp311-manylinux.whl (190.2 MB)")
    print("a line that only a failure shows")
packages = pathlib.Path(__file__).parent.parent
wanted = sys.argv[-1]
mpirun = os.environ["PYPI_MPIRUN"]
if "mpi" in wanted:
    shutil.copy(mpirun, pathlib.Path(sys.prefix, "bin"))
for name in os.environ.get("PIP_LACKS", "").split():
    if name in wanted.partition("[")[2]:
        sys.exit(f"ERROR: No matching distribution found for {name}==1.2.3")
if sys.argv[1] == "wheel":
    keep = ("HOROVOD", "MAKEFLAGS", "CMAKE", "PYTHONPATH", "PATH")
    environ = {name: value for name, value in os.environ.items() if name.startswith(keep)}
    bindings = [name for name in ("pytorch", "tensorflow", "mxnet") if f"HOROVOD_WITH_{name.upper()}" in environ]
    print("[  3%] Building CXX object", "[ 47%] Building CXX object", "[ 48%] Building CXX object", sep="\\n")
    if broken := [name for name in bindings if name in os.environ.get("NOT_COMPILING", "")]:
        for name in broken:
            print(f"/a/{name}.cc:1:2: error: '{name}' has changed")
            print(f"gmake[2]: *** [horovod/{name}/CMakeFiles/{name}.dir/build.make:76: a.o] Error 1")
        sys.exit(1)
    folder = pathlib.Path(sys.argv[sys.argv.index("--wheel-dir") + 1])
    (folder / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl").write_text(json.dumps([bindings, environ]))
elif wanted.endswith(".whl"):
    for name in json.loads(pathlib.Path(wanted).read_text())[0]:
        binding = packages / "horovod" / name.replace("py", "")
        binding.mkdir(parents=True, exist_ok=True)
        (binding / "__init__.py").write_text("gloo_built = lambda: True\\nmpi_built = nccl_built = lambda: 0\\n")
    (packages / "horovod-0.28.1.dist-info").mkdir(exist_ok=True)
    (packages / "horovod-0.28.1.dist-info/METADATA").write_text("Name: horovod\\nVersion: 0.28.1\\n")
sys.exit(int(os.environ.get("PIP_EXIT", "0")))
"""
FRAMEWORK = """\
__version__ = {version!r}
class version: cuda = None
class test: is_built_with_cuda = staticmethod(lambda: False)
class runtime:
    class Features: is_enabled = lambda self, name: False
"""
MPIRUN = """\
#!{python} -I
import json, os, sys
if sys.argv[1:] == ["--version"]:
    print({version!r})
    sys.exit({exit_code})
print(json.dumps(dict(argv=sys.argv, environ=dict(os.environ), pid=os.getpid())))
sys.exit(7 if "--fail" in sys.argv else 0)
"""
# Not in bash: of a signal that comes while it reads a process substitution, bash 5.2 may lose the trap. One that
# comes early waits here.
WAITING_MPIRUN = """\
#!{python} -I
import signal, sys
if sys.argv[1:] == ["--version"]:
    sys.exit(print({version!r}))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
print("up", flush=True)
signal.sigwait([signal.SIGUSR1])
sys.exit(print("got USR1") or 1)
"""


class Machine:
    """A clone in `root` and all that `./launch/...` can see."""

    def __init__(self, folder: Path) -> None:
        self.root, self.bin, self.packages = folder / "clone", folder / "bin", folder / "packages"
        self.calls = folder / "pip_calls"
        self.environ = {
            "PATH": str(self.bin),
            "HOME": str(folder),
            "PYTHONPATH": str(self.packages),
            # A framework that is replaced within a second by one as long would be taken from its old bytecode.
            "PYTHONDONTWRITEBYTECODE": "1",
            "PIP_CALLS": str(self.calls),
            "PYPI_MPIRUN": str(folder / "pypi" / "mpirun"),
        }
        for name in ("launch", ".ci"):
            shutil.copytree(REPOSITORY / name, self.root / name)
        for name in ("setup.cfg", "pyproject.toml"):
            shutil.copy(REPOSITORY / name, self.root)
        for tool in TOOLS:
            self.script(tool, f'#!/bin/sh\nexec {shutil.which(tool)} "$@"\n')
        self.script("python3", f'#!/bin/sh\nexec {Path(sys.executable).resolve()} "$@"\n')
        self.mpirun(OPENMPI5, at=folder / "pypi")
        self.module("pip", PIP)
        self.module("ensurepip", 'raise SystemExit("not in a Debian Python")')
        self.pip_version("99.0")

    def script(self, name: str, text: str, at: Path | None = None) -> Path:
        """Put an executable into the folder `at`, on PATH by default."""
        path = (at or self.bin) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def mpirun(self, version: str, at: Path | None = None, exit_code: int = 0) -> Path:
        """Put an mpirun there that says `version` of itself."""
        text = MPIRUN.format(python=sys.executable, version=version, exit_code=exit_code)
        return self.script("mpirun", text, at)

    def waiting_mpirun(self) -> None:
        """Put an mpirun on PATH that says "up", and ends once it was sent USR1."""
        self.script("mpirun", WAITING_MPIRUN.format(python=sys.executable, version=OPENMPI5))

    def module(self, name: str, main: str) -> None:
        """Put a package on this machine's Python path that runs `main` as `python -m name`."""
        folder = self.packages / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").touch()
        (folder / "__main__.py").write_text(main)

    def pip_version(self, version: str) -> None:
        """Let pip say that it is of this version."""
        self.distribution("pip", version)

    def distribution(self, name: str, version: str) -> None:
        """Put a package's metadata on this machine's Python path, under the name that its wheel has."""
        metadata = self.packages / f"{name}-0.dist-info" / "METADATA"
        metadata.parent.mkdir(exist_ok=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    def owns(self, name: str, files: Sequence[str]) -> None:
        """Give a package these files. From Python 3.12 on, importlib.metadata lists only those that exist."""
        for file in files:
            path = self.packages / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        (self.packages / f"{name}-0.dist-info/RECORD").write_text("".join(f"{file},,\n" for file in files))

    def framework(self, name: str, version: str, distribution: str = "") -> None:
        """Install a framework that imports at once and has no CUDA."""
        self.distribution(distribution or name, version)
        (self.packages / f"{name}.py").write_text(FRAMEWORK.format(version=version))

    def for_horovod(self) -> Machine:
        """This machine with the frameworks in place, and with a compiler that nothing calls."""
        self.framework("torch", "2.13.0")
        self.framework("tensorflow", "2.21.0", "tensorflow_cpu")
        self.framework("mxnet", "1.9.1")
        self.framework("jax", "0.6.2")
        self.module("numpy", "")
        for tool in ("c++", "make"):
            self.script(tool, "#!/bin/sh\nexit 1\n")
        return self

    def run(self, command: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the clone, from another folder."""
        return subprocess.run(
            [self.root / command, *arguments], capture_output=True, text=True, check=False, cwd=self.bin,
            env=self.environ | environ, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def measuring(self) -> Machine:
        """This machine with a scaling.run that prints how it was called."""
        self.module("scaling/run", "import json, sys; print(json.dumps([sys.executable, *sys.orig_argv[1:]]))")
        return self

    def launched(self, *arguments: str, **environ: str) -> list[str]:
        """Run ./launch/local and return how it called Python."""
        done = self.measuring().run("launch/local", *arguments, **environ)
        assert done.returncode == 0, done.stderr
        call: list[str] = json.loads(done.stdout)
        return call

    def prepared(self) -> Machine:
        """This machine after a first start, with pip's calls forgotten."""
        self.launched()
        self.calls.unlink()
        return self

    @property
    def pip_calls(self) -> list[list[str]]:
        """The arguments of every call of pip so far."""
        return [arguments for _, arguments in self.pip_calls_by_environment]

    @property
    def pip_calls_by_environment(self) -> list[tuple[str, list[str]]]:
        """The name of the environment and the arguments of every call of pip so far."""
        lines = self.calls.read_text().splitlines() if self.calls.exists() else ()
        calls = [json.loads(line) for line in lines]
        return [(Path(prefix).name, arguments) for prefix, *arguments in calls]

    def installs(self) -> list[tuple[str, str]]:
        """Which extras pip was asked for, by the name of the environment, since this was last called."""
        calls = self.pip_calls_by_environment
        self.calls.unlink(missing_ok=True)
        found = [(name, re.search(r"\[(.*)\]$", arguments[-1])) for name, arguments in calls]
        return [(name, extras[1]) for name, extras in found if extras]

    def indexes(self) -> set[str]:
        """The indexes beside pip's own that were named."""
        option = "--extra-index-url"
        return {call[call.index(option) + 1] for call in self.pip_calls if option in call}

    def gpus(self, *capabilities: str, driver: str = "580.65.06") -> None:
        """Let nvidia-smi tell of GPUs with these compute capabilities."""
        lines = "".join(f"echo '{capability}, {driver}'\n" for capability in capabilities)
        listed = "".join(f"echo 'GPU {index}: NVIDIA'\n" for index in range(len(capabilities)))
        self.script("nvidia-smi", f"#!/bin/sh\nif [ $1 = -L ]; then\n{listed}else\n{lines}fi\n")


def usable_cores() -> int:
    """The answer of lscpu, against which the launcher's is held."""
    allowed = {str(cpu) for cpu in os.sched_getaffinity(0)}
    listed = subprocess.run(["lscpu", "--parse=CPU,CORE,SOCKET"], capture_output=True, text=True, check=True)
    rows = (line.split(",") for line in listed.stdout.splitlines() if not line.startswith("#"))
    return len({(core, socket) for cpu, core, socket in rows if cpu in allowed})
