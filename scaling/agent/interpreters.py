"""The Python that runs a framework's children, and what is installed there.

Frameworks whose CUDA libraries overwrite each other's need environments of their own (./launch/install).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from scaling import frameworks
from scaling.agent.environment import outside_of_mpi
from scaling.frameworks import variables
from scaling.hosts import info
from scaling.records.host import HostInfo, Installed, Interpreter

# SCALING_PYTHON_TENSORFLOW=/path/to/python precedes the interpreter next to the agent's.
VARIABLE = "SCALING_PYTHON_"
# Less than the time that ranks have to enrol; a cluster's file system may be slow at first.
ANSWER_S = 45.0


def of(framework: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the Python of a framework's children: the named one, the one next to the agent's, or the agent's."""
    if named := environ.get(VARIABLE + framework.upper()):
        return named
    beside = Path(f"{sys.prefix}-{framework}", "bin/python")
    return str(beside) if framework and beside.exists() else sys.executable


def framework_of(strategy: str) -> str:
    """Return the framework that a strategy's children run in; "" if it is none of this package's."""
    return frameworks.named(frameworks.load(strategy).baseline).name


class Question:
    """A question to another interpreter: what does it have for a framework? Several are asked at once."""

    def __init__(self, framework: str, names: Sequence[str], environ: Mapping[str, str] = os.environ) -> None:
        self.names = tuple(names)
        self._framework, self._path = framework, of(framework, environ)
        self._is_named = bool(environ.get(VARIABLE + framework.upper()))
        self._process: subprocess.Popen[str] | None = None
        self._answer: Installed | None = None
        own = {key: value for key, value in outside_of_mpi(environ).items() if not key.startswith(VARIABLE)}
        try:
            self._process = subprocess.Popen(
                [self._path, "-m", "scaling.agent.installed", framework, *names],
                env=own, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
        except OSError as error:
            self._why = f"does not start ({error.strerror or error})"

    def answer(self) -> Installed:
        """Return what it has. If it does not work, all these strategies are missing."""
        if self._answer is None:
            found = self._installed()
            self._answer = found or Installed(missing=dict.fromkeys(self.names, self._told()))
            if found:
                self._answer = replace(
                    found, missing=self._placed(found.missing), missing_on_cuda=self._placed(found.missing_on_cuda)
                )
        return self._answer

    def interpreter(self) -> Interpreter:
        found = self.answer()
        return Interpreter(
            framework=self._framework,
            path=self._path,
            python=found.python,
            versions=found.versions,
            cuda=found.cuda,
            compile_lacks=found.compile_lacks,
        )

    def _placed(self, missing: Mapping[str, str]) -> dict[str, str]:
        where = self._path if not self._is_named else f"{VARIABLE}{self._framework.upper()}={self._path}"
        return {name: f"{why} (in {where})" for name, why in missing.items()}

    def _installed(self) -> Installed | None:
        if self._process is None:
            return None
        try:
            output, errors = self._process.communicate(timeout=ANSWER_S)
            return msgspec.json.decode(output, type=Installed)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            self._why = f"does not answer within {ANSWER_S:g} s"
        except msgspec.DecodeError:
            self._why = f"cannot run workers: {(errors.strip().splitlines() or ['it says nothing'])[-1][:200]}"
        return None

    def _told(self) -> str:
        root = Path(__file__).resolve().parents[2]
        if self._is_named:
            name = VARIABLE + self._framework.upper()
            mend = f"name a Python with {self._framework} and with scaling (pip install {root}), or unset {name}"
            return f"{name}={self._path} {self._why}; {mend}"
        environment = Path(self._path).parent.parent
        return f"{self._path} {self._why}; ./launch/install {self._framework}, or remove {environment}"


def ask(names: Iterable[str], environ: Mapping[str, str] = os.environ) -> list[Question]:
    """Start a question for each framework of these strategies that does not run in the agent's interpreter."""
    parted: dict[str, list[str]] = {}
    for name in names:
        parted.setdefault(_framework_of(name), []).append(name)
    return [Question(one, parted[one], environ) for one in parted if of(one, environ) != sys.executable]


def _framework_of(strategy: str) -> str:
    try:
        return framework_of(strategy)
    except Exception:  # any exception of a strategy; `missing` reports it
        return ""


# ---------------------------------------------------------------- description of a host


def host_with(found: Sequence[Interpreter], environ: Mapping[str, str] = os.environ) -> HostInfo:
    """Describe this host as its workers meet it, with these interpreters besides the agent's own."""
    every = frameworks.FRAMEWORKS.values()
    own = replace(
        info.gather(frameworks.distributions()),
        compile_lacks=next(filter(None, (one.compiler_lacks(environ) for one in every)), ""),
        variables=variables.recorded(environ),
        changed_variables=variables.changed(environ),
    )
    return on(own, found)


def on(host: HostInfo, found: Sequence[Interpreter]) -> HostInfo:
    """Return the host with these interpreters. A package gets its framework's name, as `horovod (tensorflow)`, if
    its version differs from the agent's, or if the agent's frameworks lack it."""
    elsewhere = {one.framework for one in found}
    every = frameworks.FRAMEWORKS.values()
    here = {package for one in every if one.name not in elsewhere for package in one.distributions}
    moved = {package for one in every if one.name in elsewhere for package in one.distributions} - here
    versions = {package: version for package, version in host.versions.items() if package not in moved}
    for one in found:
        python = {"Python": one.python} if one.python not in ("", host.python) else {}
        for package, version in {**one.versions, **python}.items():
            known = versions.setdefault(package, version) if package in moved else versions.get(package)
            if known != version:
                versions[f"{package} ({one.framework})"] = version
    compiling = (one for one in found if frameworks.named(one.framework).compiler)
    lacks = next((one.compile_lacks for one in compiling), host.compile_lacks)
    return replace(host, versions=versions, interpreters=tuple(found), compile_lacks=lacks)
