"""Two programs alive on the same CPUs take turns: while one does a block of steps, all processes of the other are
stopped. However this process ends, none of theirs is left, stopped or running.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol, TypeVar

from tests.bench import paired
from tests.bench.paired import Answer, Side, Start

LIMIT_S, LOOK_MS, STOPS_S = 300.0, 1000, 0.0005
# Before the blocks that count: the first steps, some to see how many make a block, and blocks of both.
FIRST_STEPS, TRIAL_STEPS, WARMUP_BLOCKS = 10, 5, 2
LOG_TAIL = 3000
# Whoever is killed itself cannot kill what it has stopped, and what is stopped does not see its pipes end.
GUARD = 'groups=; while read -r pid; do groups="$groups -$pid"; done; [ -z "$groups" ] || kill -s KILL -- $groups'

Told = TypeVar("Told")


class Guard:
    """A process that outlives this one if that is killed, to kill the groups that it was told."""

    def __enter__(self) -> Guard:
        self._shell = subprocess.Popen(["sh", "-c", GUARD], stdin=subprocess.PIPE, start_new_session=True)
        return self

    def watch(self, group: int) -> None:
        """A process group that is to end with this process."""
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"{group}\n".encode())
        self._shell.stdin.flush()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            # All that it watched has ended and was waited for: the numbers may be others' by now.
            self._shell.kill()
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        self._shell.wait()


class Member(Protocol):
    """A process of a program, leader of its own group. Only those that `measure` are told blocks of steps."""

    name: str
    measures: bool

    @property
    def pid(self) -> int: ...
    @property
    def fd(self) -> int:
        """Readable once it may have told something."""
        ...

    def tell(self, steps: int) -> None:
        """One step that does not count, then so many that do."""
        ...

    def answer(self) -> Answer | None: ...

    def ended(self) -> bool: ...
    def log_tail(self) -> str: ...
    def kill(self) -> None:
        """Its whole group, and wait for it."""
        ...


One = TypeVar("One", bound=Member)


class Program:
    """Its processes. Of an asynchronous one the ranks do not wait for each other."""

    def __init__(self, name: str, guard: Guard, *, asynchronous: bool) -> None:
        self.name = name
        self.asynchronous = asynchronous
        self.members: list[Member] = []
        self._guard = guard

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self._signal(signal.SIGKILL)
        for member in self.members:
            member.kill()

    def add(self, member: One) -> One:
        """A process that has just been started."""
        self.members.append(member)
        self._guard.watch(member.pid)
        return member

    def turn(self, steps: int) -> list[Answer]:
        """Go on with one block, and stop again."""
        self.go_on()
        answers = self.block(steps)
        self.pause()
        return answers

    def block(self, steps: int) -> list[Answer]:
        """So many steps; the first ones last until the program is up."""
        measuring = [member for member in self.members if member.measures]
        for member in measuring:
            member.tell(steps)
        return self.wait_for(measuring, lambda member: member.answer())

    def go_on(self) -> None:
        """Let all processes run again."""
        self._signal(signal.SIGCONT)

    def pause(self) -> None:
        """Stop all processes, and wait until each thread of them has stopped."""
        self._signal(signal.SIGSTOP)
        for member in self.members:
            if not member.ended():
                _await_stop(member)

    def rate(self, answers: Sequence[Answer]) -> float:
        """Samples per second of all ranks."""
        return paired.samples_per_s(answers, asynchronous=self.asynchronous)

    def wait_for(self, members: Sequence[One], ask: Callable[[One], Told | None]) -> list[Told]:
        """What each of them tells; RuntimeError with the logs where a process ends, or after some minutes."""
        told: dict[str, Told] = {}
        deadline_s = time.monotonic() + LIMIT_S
        while len(told) < len(members):
            for member in members:
                if member.name not in told and (said := ask(member)) is not None:
                    told[member.name] = said
            self._check(deadline_s)
            poller = select.poll()
            for member in members:
                if member.name not in told:
                    poller.register(member.fd, select.POLLIN)
            if len(told) < len(members):
                poller.poll(LOOK_MS)
        return [told[member.name] for member in members]

    def _check(self, deadline_s: float) -> None:
        gone = [member.name for member in self.members if member.ended()]
        if not gone and time.monotonic() < deadline_s:
            return
        why = f"{', '.join(gone)} ended" if gone else f"no answer within {LIMIT_S:g} s"
        logs = "\n".join(f"---- {member.name}\n{member.log_tail()}" for member in self.members)
        raise RuntimeError(f"{self.name}: {why}\n{logs}")

    def _signal(self, number: int) -> None:
        for member in self.members:
            if not member.ended():
                os.killpg(member.pid, number)


def _await_stop(member: Member) -> None:
    """Until no thread of a stopped process runs any more; waitid does not know a fork server's children."""
    deadline_s = time.monotonic() + LIMIT_S
    while not member.ended() and any(_runs(stat) for stat in Path(f"/proc/{member.pid}/task").glob("*/stat")):
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"{member.name} is not stopped within {LIMIT_S:g} s")
        time.sleep(STOPS_S)


def _runs(stat: Path) -> bool:
    """Whether a thread is neither stopped nor over (proc_pid_stat(5))."""
    try:
        return stat.read_text().rpartition(")")[2].split()[0] not in "TZX"
    except OSError:
        return False


Opened = Callable[[Path, Guard], AbstractContextManager[Program]]


def start(programs: Mapping[Side, Opened], *, pairs: int, seed: str) -> Start:
    """Start both, let them take turns, end them. `programs` opens each, its logs in a folder."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        guard = stack.enter_context(Guard())
        running: dict[Side, Program] = {}
        # Whoever starts first, by chance. It is not stopped while the other starts: TensorFlow's coordination
        # service takes a worker for dead that has been silent for 10 s.
        for side in paired.order(1, f"{seed} start")[0]:
            running[side] = stack.enter_context(programs[side](folder, guard))
            running[side].block(FIRST_STEPS)
        for program in running.values():
            program.pause()
        trial_s = [each.seconds / TRIAL_STEPS for one in running.values() for each in one.turn(TRIAL_STEPS)]
        return _measured(running, paired.steps_per_block(trial_s), pairs, seed)


def _measured(running: Mapping[Side, Program], steps: int, pairs: int, seed: str) -> Start:
    answers: dict[Side, list[Answer]] = {}
    rates: dict[Side, list[float]] = {side: [] for side in running}
    for turns in paired.order(WARMUP_BLOCKS + pairs, seed):
        for side in turns:
            answers[side] = running[side].turn(steps)
            rates[side].append(running[side].rate(answers[side]))
    for side, program in running.items():
        if not paired.learnt(answers[side], asynchronous=program.asynchronous):
            raise RuntimeError(f"{program.name}: it has learnt nothing, {answers[side]}")
    return Start(steps, rates["subject"][WARMUP_BLOCKS:], rates["reference"][WARMUP_BLOCKS:])


def say(text: str) -> None:
    print(text, flush=True)
