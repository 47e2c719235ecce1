"""What an agent asks of strategies. They may be anybody's: what they raise costs their points alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from scaling import frameworks
from scaling.agent import interpreters
from scaling.errors import ScalingError
from scaling.hosts import gpus
from scaling.records.host import Interpreter
from scaling.records.point import Device
from scaling.records.task import Task


class Lacking(NamedTuple):
    """By strategy, why it cannot run on this host at all, and why not on its GPUs; nothing of those that can. Of
    those that can and listen at the address of the host's name whatever network is asked for, that address."""

    anywhere: dict[str, str]
    on_cuda: dict[str, str]
    name_addresses: dict[str, str]


def lacking(names: Iterable[str]) -> Lacking:
    """What strategies lack on this host, each in its children's interpreter; of GPUs only where there are any."""
    return examine(names)[0]


def examine(names: Iterable[str]) -> tuple[Lacking, tuple[Interpreter, ...]]:
    """What strategies lack on this host, and the interpreters beside this one that were asked."""
    names = tuple(names)
    questions = interpreters.ask(names)
    elsewhere = {name for question in questions for name in question.names}
    found = lacking_here(name for name in names if name not in elsewhere)
    for question in questions:
        answer = question.answer()
        found.anywhere.update(answer.missing)
        found.on_cuda.update(answer.missing_on_cuda)
        found.name_addresses.update(answer.name_addresses)
    return found, tuple(question.interpreter() for question in questions)


def lacking_here(names: Iterable[str]) -> Lacking:
    """What strategies lack in this interpreter; of GPUs only where there are any."""
    names = tuple(names)
    has_gpus = bool(gpus.gather_gpus().gpus)
    return Lacking(
        anywhere=_told((name, _first_device(name)) for name in names),
        on_cuda=_told((name, "cuda") for name in names if has_gpus and "cuda" in _devices(name)),
        name_addresses={name: address for name in names if (address := _name_address(name)) is not None},
    )


def _name_address(name: str) -> str | None:
    try:
        return frameworks.load(name).name_address(name)
    except Exception:  # anybody's code; `missing` says why it cannot be asked
        return None


def _told(asked: Iterable[tuple[str, Device]]) -> dict[str, str]:
    reasons = {name: _missing(name, device) for name, device in asked}
    return {name: reason for name, reason in reasons.items() if reason}


def _first_device(name: str) -> Device:
    return next(iter(_devices(name)), "cpu")


def _devices(name: str) -> tuple[Device, ...]:
    """Nothing of one that cannot be asked: `missing` says why."""
    try:
        return frameworks.load(name).devices(name)
    except ScalingError:
        return ()


def _missing(name: str, device: Device) -> str | None:
    try:
        return frameworks.missing(name, device)
    except ScalingError as error:
        return str(error)


def environ(task: Task) -> dict[str, str]:
    """What the strategy asks of a child's environment. Raises ScalingError."""
    return frameworks.load(task.point.strategy).environ(task, task.announced)
