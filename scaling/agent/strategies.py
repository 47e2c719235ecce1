"""What an agent asks strategies, in its own interpreter and in others.

A strategy may raise anything: that costs only its own points.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec

import msgspec
from msgspec.structs import replace

from scaling import frameworks
from scaling.agent import environment
from scaling.errors import ScalingError
from scaling.hosts import gpus, info
from scaling.records.host import Installed, Interpreter
from scaling.records.point import Device
from scaling.records.task import Task


def lacking(names: Iterable[str]) -> Installed:
    """Return what strategies lack here, each in its children's interpreter; on GPUs only if there are any."""
    return examine(names)[0]


def examine(names: Iterable[str]) -> tuple[Installed, tuple[Interpreter, ...]]:
    """Return what strategies lack on this host, and the other interpreters that were asked."""
    names = tuple(names)
    questions = environment.ask_interpreters(names)
    elsewhere = {name for question in questions for name in question.names}
    found = lacking_here(name for name in names if name not in elsewhere)
    interpreters = []
    for question in questions:
        answer, interpreter = question.answer()
        found.missing.update(answer.missing)
        found.missing_on_cuda.update(answer.missing_on_cuda)
        found.name_addresses.update(answer.name_addresses)
        interpreters.append(interpreter)
    return found, tuple(interpreters)


def lacking_here(names: Iterable[str]) -> Installed:
    """Return what strategies lack in this interpreter; on GPUs only if there are any."""
    names = tuple(names)
    has_gpus = bool(gpus.gather_gpus().gpus)
    return Installed(
        missing=_told((name, next(iter(_devices(name)), "cpu")) for name in names),
        missing_on_cuda=_told((name, "cuda") for name in names if has_gpus and "cuda" in _devices(name)),
        name_addresses={name: address for name in names if (address := _name_address(name)) is not None},
    )


def _name_address(name: str) -> str | None:
    try:
        return frameworks.load(name).name_address(name)
    except Exception:  # any exception of a strategy; `missing` reports it
        return None


def _told(asked: Iterable[tuple[str, Device]]) -> dict[str, str]:
    reasons = {name: _missing(name, device) for name, device in asked}
    return {name: reason for name, reason in reasons.items() if reason}


def _devices(name: str) -> tuple[Device, ...]:
    try:
        return frameworks.load(name).devices(name)
    except ScalingError:
        return ()


def _missing(name: str, device: Device) -> str | None:
    try:
        return frameworks.load(name).missing(name, device)
    except ScalingError as error:
        return str(error)


def environ(task: Task) -> dict[str, str]:
    """Return the variables that the strategy sets for a child. Raises ScalingError."""
    return frameworks.load(task.point.strategy).environ(task, task.announced)


# ---------------------------------------------------------------- the answer of another interpreter
# What an interpreter has installed for a framework; no framework is imported.
#
# python -m scaling.agent.strategies FRAMEWORK STRATEGY...      (started by an agent that runs in another one)

NEEDED = ("numpy", "psutil", "pynvml")


def main(arguments: Sequence[str]) -> int:
    """Print an `Installed` as JSON and return 0; print a line and return 1 if no worker can run here."""
    name, *names = arguments
    framework = frameworks.FRAMEWORKS[name]
    if absent := [name for name in NEEDED if find_spec(name) is None]:
        sys.stderr.write(f"No module named {absent[0]!r}\n")
        return 1
    answer = replace(
        lacking_here(names),
        python=platform.python_version(),
        versions=info.versions(framework.distributions),
        cuda=framework.built_for_cuda(),
        compile_lacks=framework.compiler_lacks(os.environ),
    )
    sys.stdout.write(msgspec.json.encode(answer).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
