"""Who else used the machine is one note of a row, with sizes, and one of its controls; none on a quiet machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from scaling.quiet import notes as quiet
from scaling.records.events import Window
from scaling.records.run import PointRecord, PointWarning
from scaling.records.telemetry import CpuTime, Foreign, Telemetry, ThreadTime
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


def test_a_quiet_machine_says_nothing() -> None:
    quiet = [read(one, *(cpu() for _ in one.ranks)) for one in sweep(0, 0.1, {2: 0.125})]
    assert by_size(quiet)[2].footnotes == ()


def test_a_plain_loop_alone_that_queued() -> None:
    # 3 s of which 0.15 behind somebody else
    solo, exchange = read(record(point("solo"), 0.1), cpu(queued_s=0.15)), record(point("exchange"), 0.1)
    waited = "rank 0 waited 5.0 % of the time for CPUs that other programs used"
    assert notes(solo, exchange) == (f"its solo control: foreign load on node1: {waited}",)
    # In an exchange communication threads of the run itself are in the way.
    assert notes(record(point("solo"), 0.1), read(exchange, cpu(queued_s=0.15))) == ()


def test_queueing_behind_the_own_rank_is_no_foreign_load() -> None:
    telemetry = cpu(queued_s=0.015)
    assert telemetry.cpu is not None
    awake = ThreadTime(name="python", threads=1, run_s=0.001, queued_s=0.3)
    beside = replace(telemetry, cpu=replace(telemetry.cpu, threads=(*telemetry.cpu.threads, awake)))
    assert notes(read(record(point("solo"), 0.1), beside), record(point("exchange"), 0.1)) == ()


def test_waiting_for_a_quota_is_no_foreign_load() -> None:
    telemetry = cpu(queued_s=2.2)
    assert telemetry.cpu is not None
    held_up = replace(telemetry.cpu, periods=366, throttled_periods=330, throttled_s=2.2)
    solo = read(record(point("solo"), 0.1), replace(telemetry, cpu=held_up))
    assert notes(solo, record(point("exchange"), 0.1)) == ()


def test_the_rank_that_queued_most_comes_first() -> None:
    each = read(record(point("each", 2), 0.1), cpu(queued_s=0.3), cpu(queued_s=1.5))
    (note,) = notes(each, record(point("exchange", 2), 0.1), size=2)
    assert "rank 1 waited 50.0 % of the time for CPUs that other programs used, rank 0 10.0 %" in note


def test_of_several_controls_a_ranks_worst_is_reported() -> None:
    bad, good = (read(record(point("solo"), 0.1), cpu(queued_s=queued_s)) for queued_s in (1.5, 0.06))
    loads = [quiet.of([one]) for one in (bad, good)]
    (note,) = quiet.joined(loads).notes()
    assert note == "foreign load on node1: rank 0 waited 50.0 % of the time for CPUs that other programs used"


BESIDE = "foreign load on node1: rank 0 shared its CPUs with other programs, which used {} of one"


def alone_beside(others_s: float, queued_s: float = 0.0, **changes: Any) -> list[str]:
    """The notes of a plain loop alone for 3 s, on whose CPUs others ran for so long."""
    solo = read(record(point(**{"kind": "solo", **changes}), 0.1), cpu(queued_s=queued_s, others_s=others_s))
    return list(quiet.of([solo]).notes())


def test_others_that_ran_beside_a_plain_loop_and_that_it_did_not_wait_for() -> None:
    """On the other hyperthread of its core, for half of the time and all the time."""
    assert alone_beside(1.44) == [BESIDE.format("48 %")]
    assert alone_beside(3.0) == [BESIDE.format("100 %")]
    assert alone_beside(0.03) == []  # agents wake, and ticks are coarse


def test_programs_that_a_rank_waited_for_are_reported_once() -> None:
    waited = "foreign load on node1: rank 0 waited 50.0 % of the time for CPUs that other programs used"
    assert alone_beside(1.5, queued_s=1.5) == [waited]
    # One on its own CPU, another on the other hyperthread.
    assert alone_beside(4.5, queued_s=1.5) == [
        f"{waited}; rank 0 shared its CPUs with other programs, which used 150 % of one"
    ]


@pytest.mark.parametrize(
    "changes", [{"kind": "exchange"}, {"kind": "together"}, {"device": "cuda"}, {"feed": "native"}],
    ids=["an exchange's own", "other ranks", "beside a GPU", "a feed's processes"],
)  # fmt: skip
def test_processes_that_may_be_the_runs_own_are_not_foreign(changes: dict[str, Any]) -> None:
    assert alone_beside(3.0, **changes) == []


def test_others_on_the_cpus_of_a_rank_with_many_cores() -> None:
    """What the machine itself does grows with them: of 32 cores a third of a CPU is no burner's."""
    solo = read(record(point("solo"), 0.1), cpu(others_s=0.9))
    wide = replace(solo, ranks=tuple(replace(one, threads=32) for one in solo.ranks))
    assert list(quiet.of([solo]).notes()) == [BESIDE.format("30 %")]
    assert list(quiet.of([wide]).notes()) == []


def test_older_records_have_no_foreign_load() -> None:
    """They do not tell what CPUs ran."""
    solo = read(record(point("solo"), 0.1), cpu())
    older = msgspec.to_builtins(solo)
    del older["ranks"][0]["telemetry"]["cpu"]["others_s"]
    assert list(quiet.of([msgspec.convert(older, PointRecord)]).notes()) == []


def test_ranks_of_several_hosts_have_theirs() -> None:
    each = read(record(point("each", 2), 0.1), cpu(queued_s=0.3), cpu(queued_s=1.5))
    each = replace(each, ranks=(each.ranks[0], replace(each.ranks[1], host="node2")))
    (note,) = quiet.of([each]).notes()
    assert note.startswith("foreign load on node1 node2: rank 1 on node2 waited 50.0 % of the time")
    assert note.endswith(", rank 0 on node1 10.0 %")


def test_cpu_time_that_the_hypervisor_stole() -> None:
    (note,) = notes(read(record(point("exchange"), 0.1), cpu(stolen_s=0.06)))
    assert note == "foreign load on node1: rank 0 lost 2.0 % of its CPUs' time to the hypervisor"


SLOW: dict[str, Any] = {"canaries_s": [0.006, USUAL_S, USUAL_S], "again_s": [0.010]}
SIZES = "the core was 20 % slower in 1 of 3 windows; 1 repeated, 100 % slower"


def test_repeated_windows_and_slow_canaries_alone_are_slower_cores() -> None:
    (note,) = notes(read(record(point("exchange"), 0.1), **SLOW))
    assert note == f"slower cores on node1: {SIZES}"


def test_slow_canaries_on_a_shared_core_are_foreign_load() -> None:
    (note,) = notes(read(record(point("exchange"), 0.1), **SLOW, queued=True))
    assert note == f"foreign load on node1: {SIZES}; another program used the core"


def test_one_shared_canary_of_many_is_no_foreign_load() -> None:
    """It may have met one of the run's own agents."""
    slow = [read(record(point("exchange", number=number), 0.1), **SLOW) for number in range(3)]
    met = read(record(point("exchange", number=3), 0.1), canaries_s=3 * [USUAL_S], again_s=[0.010], queued=True)
    (note,) = notes(*slow, met)
    sizes = "the core was 20 % slower in 3 of 12 windows; 4 repeated, 100 % slower"
    assert note == f"slower cores on node1: {sizes}; another program used the core in 1 of these 7"
    (half,) = notes(slow[0], met, read(record(point("exchange", number=2), 0.1), **SLOW, queued=True))
    assert half.startswith("foreign load on node1: ") and half.endswith(
        "; another program used the core in 3 of these 5"
    )


def test_shared_canaries_that_were_repeated_before_any_was_slow() -> None:
    made = read(record(point("exchange"), 0.1), canaries_s=3 * [0.010], again_s=[0.010], queued=True)
    assert notes(made) == ("foreign load on node1: 1 window repeated; another program used the core",)


def test_canaries_of_ranks_that_share_a_core_queue_behind_each_other() -> None:
    made = replace(read(record(point("exchange"), 0.1), **SLOW, queued=True), oversubscribed=True)
    assert list(quiet.of([made]).notes()) == [f"slower cores on node1: {SIZES}"]


@pytest.mark.parametrize(
    ("telemetry", "seen"),
    [
        (Telemetry(foreign=(BURNER,)), "burner used 98 % of a core; {}"),
        (cpu(stolen_s=0.06), "{}; rank 0 lost 2.0 % of its CPUs' time to the hypervisor"),
        (cpu(queued_s=0.15), "{}; rank 0 waited 5.0 % of the time for CPUs that other programs used"),
        (cpu(others_s=1.5), "{}; rank 0 shared its CPUs with other programs, which used 50 % of one"),
    ],
    ids=["named", "stolen", "queued", "others"],
)  # fmt: skip
def test_slow_canaries_with_a_known_program_are_foreign_load(telemetry: Telemetry, seen: str) -> None:
    made = read(record(point("solo"), 0.1), telemetry, **SLOW)
    assert list(quiet.of([made]).notes()) == [f"foreign load on node1: {seen.format(SIZES)}"]


def test_of_several_controls_one_whose_load_is_known_is_enough() -> None:
    cells = [read(record(point("solo"), 0.1), **SLOW), read(record(point("solo"), 0.1), cpu(others_s=1.5))]
    (note,) = quiet.joined(quiet.of([one]) for one in cells).notes()
    assert note.startswith("foreign load on node1: the core was 20 % slower in 1 of 6 windows;")


def test_tries_that_waited_for_a_burner_are_not_usual() -> None:
    slow_s = 5 * [0.010]
    made = read(record(point("exchange"), 0.1), canaries_s=[USUAL_S, USUAL_S, USUAL_S], again_s=slow_s)
    same = replace(made.ranks[0], disturbed=tuple(replace(one, index=2) for one in made.ranks[0].disturbed))
    (note,) = notes(replace(made, ranks=(same, *made.ranks[1:])))
    assert note == "slower cores on node1: 5 windows repeated, 100 % slower"


def test_windows_that_ran_in_one_go_have_one_canary() -> None:
    quiet = [read(record(point("exchange", number=n), 0.1), canaries_s=[USUAL_S, None, None]) for n in range(3)]
    made = read(
        record(point("exchange", number=3), 0.1), canaries_s=[0.006, None, None], again_s=[0.010, None, None]
    )
    (note,) = notes(*quiet, made)
    assert note == ("slower cores on node1: the core was 20 % slower in 3 of 12 windows; 3 repeated, 100 % slower")


def test_a_canary_a_little_slower_is_noise() -> None:
    assert notes(read(record(point("exchange"), 0.1), canaries_s=[1.1 * USUAL_S, USUAL_S, USUAL_S])) == ()


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


def test_command_lines_of_one_program_are_added_up() -> None:
    """One rank saw them at the same time; two rounds did not."""
    seen = (Foreign(name="cc1plus a.c", run_s=0.9, over_s=1.0), Foreign(name="cc1plus b.c", run_s=0.6, over_s=1.0))
    busy = read(record(point("exchange"), 0.1), Telemetry(foreign=seen))
    for made in ([busy], [busy, replace(busy, point=point("exchange", number=1))]):
        assert list(quiet.of(made).notes()) == ["foreign load on node1: cc1plus used 150 % of a core"]


def test_an_unknown_program_has_a_word() -> None:
    used = {"node1": (Foreign(name="", run_s=0.5, over_s=1.0),)}
    load = quiet.Load(used=used, windows=2, again=1)
    assert load.programs == "another program"
    assert list(load.summary()) == ["1 of 3 windows repeated while another program used the cores"]
    assert quiet.programs_used(used.items()) == "another program used 50 % of a core"


def test_programs_of_all_rounds_are_in_one_note() -> None:
    other = Foreign(name="other", run_s=0.25, over_s=1.0)
    idle = Foreign(name="idle", run_s=0.15, over_s=1.0)
    warned = (PointWarning(kind="foreign-load", text="foreign load: of one round"),)
    rounds = [
        replace(read(one, Telemetry(foreign=(BURNER, other, idle))), warnings=warned)
        for one in (record(point("exchange", number=number), 0.1) for number in range(3))
    ]
    assert notes(*rounds) == ("foreign load on node1: burner used 98 % of a core, other 25 %",)


def test_the_controls_have_one_note_together() -> None:
    busy = Telemetry(foreign=(BURNER,))
    each = read(record(point("each", 2), 0.1), busy, QUIET)
    together = read(record(point("together", 2), 0.1), busy, QUIET, again_s=[0.009])
    said = notes(each, together, record(point("exchange", 2), 0.1), size=2)
    assert said == (
        "its each and together controls: foreign load on node1: burner used 98 % of a core; 2 windows "
        "repeated, 80 % slower",
    )


def test_processes_of_several_hosts_are_distinguished() -> None:
    used = {"node1": [BURNER], "node2": [Foreign(name="burner", run_s=0.5, over_s=1.0)]}
    assert quiet.programs_used(used.items()) == "burner on node1 used 98 % of a core, burner on node2 50 %"
    assert quiet.programs_used([("node1", [Foreign(name="idle", run_s=0.1, over_s=1.0)])]) == ""
