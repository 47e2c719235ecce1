"""Who else used the machine is one note of a row, with sizes, and one of its controls; none on a quiet machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from scaling.quiet import notes as quiet
from scaling.records.events import Window
from scaling.records.run import PointRecord, PointWarning
from scaling.records.telemetry import CpuTime, Foreign, Telemetry, ThreadTime
from tests.support.golden import check_golden
from tests.support.scripted_records import by_size, point, record, sweep

USUAL_S = 0.005
BURNER = Foreign(name="burner", run_s=0.98, over_s=1.0)
QUIET = Telemetry()


def cpu(queued_s: float = 0.0, stolen_s: float = 0.0, wall_s: float = 3.0, others_s: float = 0.0) -> Telemetry:
    main = ThreadTime(name="python", threads=1, run_s=wall_s - queued_s, queued_s=queued_s)
    found = CpuTime(
        steps=30, wall_s=wall_s, kernel_s=0.0, minor_faults=0, major_faults=0, threads=(main,), stolen_s=stolen_s,
        others_s=others_s,
    )  # fmt: skip
    return Telemetry(cpu=found)


def read(
    made: PointRecord,
    *telemetries: Telemetry,
    canaries_s: Sequence[float | None] = (USUAL_S, USUAL_S, USUAL_S),
    again_s: Sequence[float | None] = (),
    queued: bool = False,
) -> PointRecord:
    """The same with these readings beside its ranks, and these canaries before each one's windows; `queued`: what
    they took beyond the usual others had the core."""
    ranks = []
    for rank, telemetry in zip(made.ranks, telemetries or [QUIET] * len(made.ranks), strict=True):
        windows = [tried(window, s, queued) for window, s in zip(rank.windows, canaries_s, strict=True)]
        again = [tried(rank.windows[0], s, queued) for s in again_s]
        ranks.append(replace(rank, telemetry=telemetry, windows=tuple(windows), disturbed=tuple(again)))
    return replace(made, ranks=tuple(ranks))


def tried(window: Window, canary_s: float | None, queued: bool) -> Window:
    queued_s = canary_s - USUAL_S if queued and canary_s is not None else 0.0
    return replace(window, canary_s=canary_s, canary_queued_s=queued_s)


def notes(*records: PointRecord, size: int = 1) -> tuple[str, ...]:
    return tuple(note for note in by_size(records)[size].footnotes if "foreign load" in note or "slower" in note)


def of(*records: PointRecord) -> Iterable[str]:
    """The notes of one cell."""
    return quiet.of(records).notes()


# What is said of each case, by its name.
Cases = Iterator[tuple[str, Iterable[str]]]
SOLO, EXCHANGE, EACH = record(point("solo"), 0.1), record(point("exchange"), 0.1), record(point("each", 2), 0.1)
SLOW: dict[str, Any] = {"canaries_s": [0.006, USUAL_S, USUAL_S], "again_s": [0.010]}


def changed_cpu(telemetry: Telemetry, **changes: Any) -> Telemetry:
    assert telemetry.cpu is not None
    return replace(telemetry, cpu=replace(telemetry.cpu, **changes))


def waiting() -> Cases:
    """Plain loops of 3 s that waited for CPUs."""
    yield "a quiet machine", of(*(read(one, *(cpu() for _ in one.ranks)) for one in sweep(0, 0.1, {2: 0.125})))
    queued = cpu(queued_s=0.15)
    yield "a plain loop alone queued", notes(read(SOLO, queued), EXCHANGE)
    yield "an exchange queued: its own communication threads are in the way", notes(SOLO, read(EXCHANGE, queued))
    awake = ThreadTime(name="python", threads=1, run_s=0.001, queued_s=0.3)
    main = ThreadTime(name="python", threads=1, run_s=2.985, queued_s=0.015)
    yield "queued behind its own rank", of(read(SOLO, changed_cpu(cpu(), threads=(main, awake))))
    quota = {"periods": 366, "throttled_periods": 330, "throttled_s": 2.2}
    yield "waited for a quota", of(read(SOLO, changed_cpu(cpu(queued_s=2.2), **quota)))
    both = read(EACH, cpu(queued_s=0.3), cpu(queued_s=1.5))
    yield "two ranks queued", notes(both, record(point("exchange", 2), 0.1), size=2)
    apart = replace(both, ranks=(both.ranks[0], replace(both.ranks[1], host="node2")))
    yield "ranks of two hosts queued", of(apart)
    loads = [quiet.of([read(SOLO, cpu(queued_s=queued_s))]) for queued_s in (1.5, 0.06)]
    yield "of two controls the worse counts", quiet.joined(loads).notes()
    yield "the hypervisor", notes(read(EXCHANGE, cpu(stolen_s=0.06)))


def beside() -> Cases:
    """Plain loops alone for 3 s, on whose CPUs others ran; on the other hyperthread nothing waits for them."""
    for others_s in (0.03, 1.44, 3.0):  # agents wake, and ticks are coarse
        yield f"others ran for {others_s} s", of(read(SOLO, cpu(others_s=others_s)))
    yield "it waited for them", of(read(SOLO, cpu(queued_s=1.5, others_s=1.5)))
    yield "and others on the other hyperthread", of(read(SOLO, cpu(queued_s=1.5, others_s=4.5)))
    own: list[dict[str, Any]] = [
        {"kind": "exchange"},
        {"kind": "together"},
        {"device": "cuda"},
        {"feed": "native"},
    ]
    for changes in own:  # others may be the run's own
        ((name, value),) = changes.items()
        of_it = record(point(**{"kind": "solo", **changes}), 0.1)
        yield f"others where {name} is {value}", of(read(of_it, *(cpu(others_s=3.0) for _ in of_it.ranks)))
    solo = read(SOLO, cpu(others_s=0.9))
    yield "others for 0.9 s", of(solo)
    wide = replace(solo, ranks=tuple(replace(one, threads=32) for one in solo.ranks))
    yield "others for 0.9 s on 32 cores: the machine itself does that", of(wide)
    older = msgspec.to_builtins(read(SOLO, cpu()))
    del older["ranks"][0]["telemetry"]["cpu"]["others_s"]
    yield "an older record, which does not tell", of(msgspec.convert(older, PointRecord))


def canaries() -> Cases:
    yield "slow and repeated", notes(read(EXCHANGE, **SLOW))
    yield "on a shared core", notes(read(EXCHANGE, **SLOW, queued=True))
    slow = [read(record(point("exchange", number=number), 0.1), **SLOW) for number in range(3)]
    met = read(record(point("exchange", number=3), 0.1), canaries_s=3 * [USUAL_S], again_s=[0.010], queued=True)
    shared = read(record(point("exchange", number=2), 0.1), **SLOW, queued=True)
    yield "one of many shared: it may have met an agent of the run", notes(*slow, met)
    yield "half of them shared", notes(slow[0], met, shared)
    yield (
        "repeated before any was slow",
        notes(read(EXCHANGE, canaries_s=3 * [0.010], again_s=[0.010], queued=True)),
    )
    yield "ranks that share a core", of(replace(read(EXCHANGE, **SLOW, queued=True), oversubscribed=True))
    program = Telemetry(foreign=(BURNER,))
    for name, telemetry in {
        "program": program, "hypervisor": cpu(stolen_s=0.06), "wait": cpu(queued_s=0.15), "use": cpu(others_s=1.5)
    }.items():  # fmt: skip
        yield f"slow, with a known {name}", of(read(SOLO, telemetry, **SLOW))
    cells = [read(SOLO, **SLOW), read(SOLO, cpu(others_s=1.5))]
    yield "one of two controls has a known load", quiet.joined(quiet.of([one]) for one in cells).notes()
    many = read(EXCHANGE, canaries_s=3 * [USUAL_S], again_s=5 * [0.010])
    same = replace(many.ranks[0], disturbed=tuple(replace(one, index=2) for one in many.ranks[0].disturbed))
    waited = replace(many, ranks=(same, *many.ranks[1:]))
    yield "tries that waited for a burner are not usual", notes(waited)
    once = [USUAL_S, None, None]
    usual = [read(record(point("exchange", number=n), 0.1), canaries_s=once) for n in range(3)]
    last = record(point("exchange", number=3), 0.1)
    in_one_go = read(last, canaries_s=[0.006, None, None], again_s=[0.010, None, None])
    yield "windows that ran in one go", notes(*usual, in_one_go)
    yield "a little slower is noise", notes(read(EXCHANGE, canaries_s=[1.1 * USUAL_S, USUAL_S, USUAL_S]))


def programs() -> Cases:
    seen = (Foreign(name="cc1plus a.c", run_s=0.9, over_s=1.0), Foreign(name="cc1plus b.c", run_s=0.6, over_s=1.0))
    busy = read(EXCHANGE, Telemetry(foreign=seen))
    yield "two command lines, seen at the same time", of(busy)
    yield "two command lines in two rounds", of(busy, replace(busy, point=point("exchange", number=1)))
    other = Foreign(name="other", run_s=0.25, over_s=1.0)
    idle = Foreign(name="idle", run_s=0.15, over_s=1.0)
    warned = (PointWarning(kind="foreign-load", text="foreign load: of one round"),)
    rounds = (record(point("exchange", number=number), 0.1) for number in range(3))
    told = (replace(read(one, Telemetry(foreign=(BURNER, other, idle))), warnings=warned) for one in rounds)
    yield "programs of all rounds", notes(*told)
    program = Telemetry(foreign=(BURNER,))
    controls = read(EACH, program, QUIET), read(record(point("together", 2), 0.1), program, QUIET, again_s=[0.009])
    yield "controls have one note together", notes(*controls, record(point("exchange", 2), 0.1), size=2)


def test_what_is_said_of_a_load() -> None:
    cases = chain(waiting(), beside(), canaries(), programs())
    lines = [f"{name}: {'; and '.join(said) or '-'}" for name, said in cases]
    check_golden("loads.txt", "\n".join([*lines, ""]))


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("cc1plus", "cc1plus"), ("python3 train.py", "python3"), ("bash -c /home/alice/secret.sh", "bash"),
        ("/home/alice/secret.py --token 1", "secret.py"), ("-bash", "bash"), ("sshd: alice@pts/0", "sshd"),
        ("kworker/u8:2-events", "kworker"), ("ksoftirqd/0", "ksoftirqd"), ("rcu_preempt", "rcu_preempt"),
        ("irq/24-nvidia", "irq"), ("(sd-pam)", "(sd-pam)"), ("", ""), (" ", ""),
    ],
)  # fmt: skip
def test_a_program_is_its_name_alone(name: str, program: str) -> None:
    found = Foreign(name=name, run_s=1.0, over_s=1.0).program
    assert found == program
    assert Foreign(name=found, run_s=1.0, over_s=1.0).program == program


def test_an_unknown_program_has_a_word() -> None:
    used = {"node1": (Foreign(name="", run_s=0.5, over_s=1.0),)}
    load = quiet.Load(used=used, windows=2, again=1)
    assert load.programs == "another program"
    assert list(load.summary()) == ["1 of 3 windows repeated while another program used the cores"]
    assert quiet.programs_used(used.items()) == "another program used 50 % of a core"


def test_processes_of_several_hosts_are_distinguished() -> None:
    used = {"node1": [BURNER], "node2": [Foreign(name="burner", run_s=0.5, over_s=1.0)]}
    assert quiet.programs_used(used.items()) == "burner on node1 used 98 % of a core, burner on node2 50 %"
    assert quiet.programs_used([("node1", [Foreign(name="idle", run_s=0.1, over_s=1.0)])]) == ""
