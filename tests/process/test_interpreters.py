"""Workers in an environment of their framework's own: real ones, and agents that run in another."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from contextlib import closing
from pathlib import Path

import pytest

from scaling import frameworks
from scaling.agent import environment
from scaling.agent.child import Starter
from scaling.records import store
from scaling.records.host import HostInfo
from tests.support import forked
from tests.support.started import ran, run_of


class Environment:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        (self.packages / "beside.pth").write_text(f"{sysconfig.get_path('purelib')}\n")

    @property
    def python(self) -> Path:
        return self.folder / "bin/python"

    @property
    def packages(self) -> Path:
        (found,) = self.folder.glob("lib/python3*/site-packages")
        return found

    def install(self, name: str, version: str, code: str = "") -> None:
        """Put a package there as pip leaves it; whoever imports it runs `code`."""
        (self.packages / name).mkdir()
        (self.packages / name / "__init__.py").write_text(code)
        metadata = self.packages / f"{name}-{version}.dist-info/METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


ROOT = Path(__file__).resolve().parents[2]
# The fake strategy, but that its workers say in which Python they run.
PLANTED = """
import sys
from scaling.frameworks.fake import strategy

class Planted(strategy.Fake):
    names = ("planted.strategy:plain",)
    trainer = "planted.strategy"

def connect(task):
    made = strategy.connect(task)
    made.device_name = sys.executable
    return made
"""


class Launch:
    """An agent's environment, and a folder in which it finds the planted strategy."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.own = Environment(folder / "env")
        (folder / "planted").mkdir()
        (folder / "planted/__init__.py").touch()
        (folder / "planted/strategy.py").write_text(PLANTED)

    def run(self, *argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(ROOT), str(self.folder)])
        return ran(*argv, cwd=self.folder, python=self.own.python, PYTHONPATH=path, **environ)

    def workers(self, *argv: str, **environ: str) -> set[str]:
        quick = ("--rounds", "1", "--windows", "3", "--window-s", "0.01", "--option", "step_s=0.001")
        only = ("--strategy", "planted.strategy:plain", "--kinds", "exchange")
        done = self.run(*only, *quick, *argv, **environ)
        assert done.returncode == 0, done.stdout + done.stderr
        ready = [rank.ready for record in store.load(run_of(self.folder))[1] for rank in record.ranks]
        assert all(ready)
        return {one.device_name for one in ready if one is not None}


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    return Launch(tmp_path)


def test_without_another_environment_workers_run_in_the_agents(launch: Launch) -> None:
    assert launch.workers() == {str(launch.own.python)}


def test_workers_run_in_the_environment_beside_the_agents(launch: Launch) -> None:
    other = Environment(launch.folder / "env-fake")
    assert launch.workers() == {str(other.python)}


def test_a_variable_names_the_interpreter_of_a_framework(launch: Launch) -> None:
    Environment(launch.folder / "env-fake")
    other = Environment(launch.folder / "elsewhere")
    assert launch.workers(SCALING_PYTHON_FAKE=str(other.python)) == {str(other.python)}


def test_what_is_missing_and_versions_are_those_of_the_frameworks_environment(launch: Launch) -> None:
    other = Environment(launch.folder / "env-tensorflow")
    other.install("tensorflow", "99.1", "raise SystemExit('imported')")
    other.install("horovod", "98.1")
    done = launch.run("--list")
    assert done.returncode == 0, done.stderr
    assert "\n  tensorflow:ring         ready  (listens" in done.stdout
    lacking = "horovod is built without tensorflow: ./launch/install horovod"
    assert f"  tensorflow:horovod      {lacking} (in {other.python})" in done.stdout
    assert f"  tensorflow:...          {other.python}: Python 3." in done.stdout
    assert ", tensorflow 99.1, " in done.stdout


@pytest.mark.parametrize(
    ("python", "why"),
    [
        ("/nowhere/python", "does not start (No such file or directory)"),
        ("/bin/true", "cannot run workers: it says nothing"),
        ("/etc", "does not start (Permission denied)"),
    ],
)
def test_an_interpreter_that_does_not_work_is_named_in_one_line(launch: Launch, python: str, why: str) -> None:
    done = launch.run("--strategy", "tensorflow:ring", SCALING_PYTHON_TENSORFLOW=python)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert f"--strategy tensorflow:ring: SCALING_PYTHON_TENSORFLOW={python} {why}; name a Python with" in line


def test_an_environment_without_what_workers_need_says_so(launch: Launch) -> None:
    other = Environment(launch.folder / "env-mxnet")
    (other.packages / "beside.pth").unlink()
    done = launch.run("--strategy", "mxnet:local")
    assert done.returncode == 2
    assert f"{other.python} cannot run workers: " in done.stderr
    assert "; ./launch/install mxnet, or remove " in done.stderr


def test_a_run_keeps_which_interpreters_its_host_had_and_their_versions(launch: Launch) -> None:
    other = Environment(launch.folder / "env-tensorflow")
    other.install("tensorflow", "99.1")
    assert launch.workers() == {str(launch.own.python)}
    host: HostInfo = store.load(run_of(launch.folder))[0].hosts[0]
    (found,) = host.interpreters
    assert (found.framework, found.path, found.python) == ("tensorflow", str(other.python), host.python)
    assert found.versions["tensorflow"] == host.versions["tensorflow"] == "99.1"


def test_the_preflight_looks_at_torch_where_its_workers_run(tmp_path: Path) -> None:
    other = Environment(tmp_path / "other")
    other.install("torch", "2.13.0", "raise SystemExit('imported')")
    (other.packages / "torch/version.py").write_text("cuda: str | None = '12.6'\n")
    environ = {**forked.beside(tmp_path), "SCALING_PYTHON_TORCH": str(other.python)}
    (question,) = environment.ask_interpreters(["torch:plain", "fake:plain"], environ)
    _, found = question.answer()
    assert (found.versions["torch"], found.cuda) == ("2.13.0", "12.6")


def test_what_torch_compile_lacks_is_told_by_torchs_own_interpreter(tmp_path: Path) -> None:
    """It has headers of its own; the compilers are taken away here, which shows that it was asked."""
    other = Environment(tmp_path / "other")
    base = {**forked.beside(tmp_path), "PATH": str(tmp_path), "CC": "", "CXX": ""}
    names = ["torch:plain", "fake:plain"]
    environ = {f"SCALING_PYTHON_{one}": str(other.python) for one in ("TORCH", "FAKE")}
    found = {
        found.framework: found
        for _, found in (one.answer() for one in environment.ask_interpreters(names, {**base, **environ}))
    }
    assert found["torch"].compile_lacks.startswith("C compiler and C++ compiler")
    assert found["fake"].compile_lacks == ""


# ---------------------------------------------------------------- fork servers


@pytest.mark.usefixtures("preload", "adopting")
@pytest.mark.parametrize("way", ["fresh", "forked"])
def test_a_fork_server_runs_in_the_frameworks_interpreter(tmp_path: Path, way: str) -> None:
    other = Environment(tmp_path / "other")
    base = {**forked.beside(tmp_path), "SCALING_PYTHON_FAKE": str(other.python)}
    with closing(Starter(base)) as starter:
        child = forked.started(starter, forked.task_of(tmp_path), way, base)
        command = Path(f"/proc/{child.pid}/cmdline").read_bytes()
        assert forked.well(child)
    assert command.startswith(os.fsencode(other.python))


def test_strategies_of_a_framework_share_its_interpreter() -> None:
    assert frameworks.running("torch:gloo").name == frameworks.running("torch:plain").name == "torch"
    assert frameworks.running("fake:anything").name == "fake"
