"""Rates, efficiency, baselines, comparisons and joined runs, by known answers."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log, sqrt
from pathlib import Path
from statistics import fmean, variance
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.analysis.measured import step_time
from scaling.analysis.measured.controls import Controls
from scaling.analysis.statistics.intervals import Estimate
from scaling.analysis.table import analyse
from scaling.analysis.table.analyse import join, joinable, rows
from scaling.analysis.table.cell_rows import Analyser
from scaling.analysis.table.comparisons import comparable, curve_keys
from scaling.records.events import Failed
from scaling.records.host import Gpu
from scaling.records.point import Hardware, Kind, Workload
from scaling.records.run import Header, PointRecord
from scaling.records.store import settled
from tests.support.golden_rows import check_rows
from tests.support.inline import Launch
from tests.support.planted import Plan, run
from tests.support.points import changed
from tests.support.scripted_records import (
    STRONG,
    asynchronous,
    by_one_worker,
    by_size,
    close,
    failed,
    half,
    header,
    host,
    point,
    record,
    sweep,
)

# ---------------------------------------------------------------- known answers
# Step times are chosen by hand; the arithmetic stands beside each case. Golden files hold all other fields.


def at(*steps_s: float, size: int = 2, number: int = 0, kind: str = "exchange", **fields: Any) -> PointRecord:
    return record(point(kind, size, number, **fields), *steps_s)


def solo(step_s: float = 0.1, number: int = 0, **fields: Any) -> PointRecord:
    return at(step_s, size=1, number=number, kind="solo", **fields)


def spread(step_s: float, size: int, number: int) -> PointRecord:
    return record(point("exchange", size, number), step_s, hosts=("node1", "node2"))


def weak_rounds() -> list[PointRecord]:
    """Solo 0.1 s; N=2 at efficiencies 0.80, 0.82, 0.84; N=4 at 0.625; N=1 at 0.1/0.104."""
    found = (0.80, 0.82, 0.84)
    return [one for n, two in enumerate(found) for one in sweep(n, 0.1, {1: 0.104, 2: 0.1 / two, 4: 0.16})]


def turns(made: PointRecord, *ranks: int) -> PointRecord:
    return replace(made, ranks=tuple(r if r.rank in ranks else replace(r, windows=()) for r in made.ranks))


def nodes(*rounds: tuple[float | None, float | None]) -> list[PointRecord]:
    """Two ranks a node: efficiencies of N=2 on one node, and of N=4 on two, by round."""
    found = []
    for number, (inside, across) in enumerate(rounds):
        found += [solo(number=number)]
        found += [at(0.1 / inside, number=number)] if inside else []
        found += [spread(0.1 / across, 4, number)] if across else []
    return found


def warmed_up() -> list[PointRecord]:
    """Windows have losses of 2.0, 1.5 and 1.0; one round has a warm-up from 2.4 on."""
    made = at(0.1, size=1)
    first = replace(made.ranks[0].windows[0], measured=False, loss=2.4)
    warm = replace(made.ranks[0], warmup=(replace(first, loss=None), first))
    return [made, replace(made, ranks=(warm,), point=point("exchange", 1, 1))]


def of_servers(*servers: int) -> list[PointRecord]:
    one, two = servers
    return [*sweep(0, 0.1, {1: 0.104}, servers=one), *sweep(0, 0.1, {2: 0.16}, servers=two)]


LOST = [failed(one.point) if one.point.key == point("solo", number=1).key else one
        for one in (*sweep(0, 0.1, {2: 0.125}), *sweep(1, 0.1, {2: 0.2}))]  # fmt: skip
FREE = asynchronous(at(0.1, 0.2))
Values = dict[str, float | None]
KNOWN: dict[str, tuple[Sequence[PointRecord], dict[int, Values]]] = {
    # 2 ranks x 32 images / 0.125 s of the slower rank
    "the longest rank's rate": ([at(0.1, 0.125)], {2: {"samples_per_s": 512, "efficiency": None}}),
    # N=4: 4 x 0.1 / 0.16; against N=1 of the same strategy 0.104 / 0.16
    "weak rule": (
        weak_rounds(),
        {1: {"efficiency": 0.1 / 0.104, "strategy_efficiency": 1},
         2: {"efficiency": (0.80 * 0.82 * 0.84) ** (1 / 3)},
         4: {"efficiency": 0.625, "speedup": 2.5, "samples_per_s": 4 * 32 / 0.16, "strategy_efficiency": 0.65}},
    ),
    # the machine drifts by 20 % over the rounds, the ratio does not
    "efficiency inside a round": (
        [one for n, each in enumerate((0.10, 0.11, 0.12)) for one in sweep(n, each, {2: each / 0.8})],
        {2: {"efficiency": 0.8}},
    ),
    "one round": (sweep(0, 0.1, {2: 0.125}), {2: {"efficiency": 0.8}}),
    # ideal 0.1 of 0.125; against its own rank 0.25 / (2 x 0.125)
    "strong rule": (
        [solo(0.2, batch_size=64, **STRONG), at(0.25, size=1, batch_size=64, **STRONG),
         at(0.125, batch_size=32, **STRONG)],
        {2: {"efficiency": 0.8, "speedup": 1.6, "strategy_efficiency": 1}},
    ),
    # 32 / 0.1 + 32 / 0.2; waiting for each other it would be 2 x 32 / 0.2
    "ranks that wait": ([at(0.1, 0.2)], {2: {"samples_per_s": 320}}),
    "ranks that do not wait": ([solo(), FREE], {2: {"samples_per_s": 480, "speedup": 1.5, "efficiency": 0.75}}),
    # 320 images/s on one device; 32 / 0.125 + 32 / 0.2
    "strong rule of ranks that do not wait": (
        [solo(0.2, batch_size=64, **STRONG), asynchronous(at(0.125, 0.2, batch_size=32, **STRONG))],
        {2: {"samples_per_s": 416, "speedup": 1.3, "efficiency": 0.65}},
    ),
    # 4 devices x 32 images / 0.125 s
    "one worker for all": ([by_one_worker(spread(0.125, 4, 0))], {4: {"samples_per_s": 1024}}),
    "one worker that does not wait": (
        [asynchronous(by_one_worker(spread(0.125, 4, 0)))], {4: {"samples_per_s": 1024}},
    ),
    "a baseline that failed in a round": (LOST, {2: {"efficiency": 0.8}}),
    # of a round that was broken off, or goes on
    "another framework's plain loop": (
        [solo(strategy="torch:plain"), at(0.05, strategy="mxnet:dist_sync")], {2: {"efficiency": None}},
    ),
    "a strategy from outside": (
        [solo(strategy="torch:plain"), at(0.125, strategy="my.module:ring")], {2: {"efficiency": 0.8}},
    ),
    "the last record of a key": ([solo(), failed(point("exchange", 2)), at(0.125)], {2: {"efficiency": 0.8}}),
    "a last record that failed": ([solo(), at(0.125), failed(point("exchange", 2))], {2: {"efficiency": None}}),
    # two ranks a node: N=4 at 0.6, so crossing nodes leaves 0.75
    "nodes": (nodes(*[(0.8, 0.6)] * 2), {2: {"intra_node": None}, 4: {"intra_node": 0.8, "inter_node": 0.75}}),
    "nodes in one round": (nodes((0.8, 0.6)), {4: {"intra_node": None}}),
    "one node": (sweep(0, 0.1, {1: 0.1, 2: 0.125}), {1: {"intra_node": None}, 2: {"intra_node": None}}),
    # over the rounds that have both
    "nodes in some rounds": (
        nodes((0.8, 0.6), (0.9, None), (None, 0.1), (0.8, 0.6)), {4: {"intra_node": 0.8, "inter_node": 0.75}},
    ),
    "nodes without a shared round": (nodes((1.0, None), (None, 1.0)), {4: {"intra_node": None}}),
    "losses": (warmed_up(), {1: {"first_loss": 2.2, "last_loss": 1.0}}),
    # run 1 at 0.8; run 2, on a machine twice as slow, at 0.5: each against its own baseline
    "joined runs": (join([sweep(0, 0.1, {2: 0.125}), sweep(0, 0.2, {2: 0.4})]), {2: {"efficiency": sqrt(0.4)}}),
    # 1 / mean(10, 5) = 0.4 / 3 s for a step of both; the first rank is against itself
    "every seat": (
        [at(0.1, 0.2, kind="each"), at(0.125, size=1), at(0.25)],
        {1: {"efficiency": 0.8}, 2: {"efficiency": 0.4 / 3 / 0.25}},
    ),
    # global batch 64 in 0.2 s on the first seat; at 32 seats take 0.1 and 0.2: both 0.4 / 3 / 0.1 as long
    "every seat under the strong rule": (
        [solo(0.2, batch_size=64, **STRONG), at(0.1, 0.2, kind="each", batch_size=32),
         at(0.25, batch_size=32, **STRONG)],
        {2: {"efficiency": 0.2 / 2 * (0.4 / 3 / 0.1) / 0.25}},
    ),
    # the second seat is 1.5 x the first wherever both are known: 0.12, 0.132 and 0.12 of 0.2
    "a seat without a turn": (
        [at(0.1, 0.15, kind="each"), turns(at(0.11, 9.9, kind="each", number=1), 0),
         turns(at(9.9, 0.15, kind="each", number=2), 1), *(at(0.2, number=n) for n in range(3))],
        {2: {"efficiency": 0.6 * 1.1 ** (1 / 3)}},
    ),
    "the nearest each before solo": (
        [solo(0.5), at(0.1, size=4, kind="each"), at(0.12, kind="each"), at(0.2), at(0.2, size=4)],
        {2: {"efficiency": 0.6}, 4: {"efficiency": 0.5}},
    ),
    "its own rank with other servers": (of_servers(1, 2), {2: {"strategy_efficiency": 0.65}}),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_known_rows(name: str) -> None:
    records, by_world_size = KNOWN[name]
    rows = by_size(records)
    for size, values in by_world_size.items():
        found = {field: getattr(rows[size], field) for field in values}
        means = {field: one.mean if isinstance(one, Estimate) else one for field, one in found.items()}
        assert means == {field: None if one is None else close(one) for field, one in values.items()}


def test_rows_are_those_of_the_golden_file() -> None:
    check_rows("efficiency", {name: records for name, (records, _) in KNOWN.items()})


def test_intervals_are_student_s_of_logarithms() -> None:
    row = by_size(weak_rounds())[2]
    logs = [log(two) for two in (0.80, 0.82, 0.84)]
    width = 4.3026527 * sqrt(variance(logs) / 3)  # t(0.975, 2)
    assert half(row.efficiency) == close(exp(fmean(logs)) * (exp(width) - exp(-width)) / 2)
    assert half(row.speedup) == pytest.approx(2 * half(row.efficiency), abs=1e-12)


def test_baselines_list_the_plain_loops_and_a_failed_one_counts_its_rounds_once() -> None:
    """Its records are of two points, alone and seat by seat."""
    cases = {
        "two batches": [*(solo(number=n) for n in range(3)), failed(point("solo", batch_size=64))],
        "solo and each": [failed(point("solo")), failed(point("each", 2)), at(0.125)],
    }
    check_rows("baselines", cases)


def test_rows_are_sorted() -> None:
    points = [
        point("exchange", n, strategy=strategy, interconnect=network)
        for n in (4, 1)
        for strategy in ("fake:b", "fake:a")
        for network in ("ib0", "eth0")
    ]
    found = [
        (row.interconnect, row.strategy, row.world_size) for row in rows([record(one, 0.1) for one in points])
    ]
    assert found == sorted(found) and len(found) == 8


# What makes two rates comparable: each field of the work and of the hardware, and nothing that was forgotten.

OTHER: dict[str, Any] = {
    "model": "resnet50", "data": "synthetic", "batch_rule": "strong", "batch_size": 48, "precision": "bf16",
    "memory_format": "channels_last", "compile": True, "unit": "tokens", "node_devices": 2,
    "image_size": 256, "sequence_length": 64, "optimizer": "adam", "pass_": "forward",
    "feed": "native", "feed_workers": 2, "drop_caches": True,
    "script": "train.py", "samples_per_step": 8, "in_place": True,
    "device": "cuda", "profile": "p100", "shrink": 2.0, "dilate": 3.0, "cores": 8,
}  # fmt: skip


def test_every_field_has_another_value_here() -> None:
    assert set(OTHER) == {*Workload.__struct_fields__, *Hardware.__struct_fields__}


@pytest.mark.parametrize("field", OTHER)
def test_another_value_is_another_baseline(field: str) -> None:
    exchange = point("exchange", 2)
    other = changed(exchange, **{field: OTHER[field]})
    controls = Controls([record(point("solo"), 0.1)])
    assert controls.alone(exchange, exchange.reference.batch_size) is not None
    assert controls.alone(other, other.reference.batch_size) is None


@pytest.mark.parametrize("field", OTHER)
def test_another_value_is_not_compared_and_is_another_curve_and_cell(field: str) -> None:
    exchange = point("exchange", 2)
    other = changed(exchange, **{field: OTHER[field]})
    assert comparable(other) != comparable(exchange)
    assert hash(other.workload) != hash(exchange.workload) or hash(other.hardware) != hash(exchange.hardware)
    assert len(set(curve_keys([exchange, other]).values())) == 2
    assert other.key != exchange.key


# Several runs in one table.


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (header([host("node2")]), "hosts differ: node1 | node2"),
        (header(version="0.2.0"), "versions of scaling differ: 0.1.0 | 0.2.0"),
        (header(code="beef"), "revisions of its code differ: c0de | beef"),
        (header(mpi="MPICH 4"), "MPI libraries differ: Open MPI 5.0.11 | MPICH 4"),
        (header([host(cpu_model="Other CPU")]), "devices differ: cpu, Test CPU 2.0 GHz | cpu, Other CPU"),
        (header([host(versions={"torch": "2.12.0"})]), "versions of torch differ: 2.13.0 | 2.12.0"),
        (header([host(variables={"NCCL_ALGO": "Ring"})]), "values of NCCL_ALGO differ: none | Ring"),
        (
            header([host(variables={"NCCL_ALGO": "Ring"}), host(variables={})]),
            "values of NCCL_ALGO differ: none | Ring | unset",
        ),
        (header([host(python="3.12.1")]), "versions of Python differ: 3.11.7 | 3.12.1"),
    ],
)
def test_unlike_runs_say_what_differs(other: Header, reason: str) -> None:
    assert joinable([header([host(variables={})]), other]) == (reason,)


def test_variables_are_compared_where_all_runs_recorded_them() -> None:
    known = header([host(variables={"NCCL_ALGO": "Ring"})])
    like = header(created_unix_s=1.0, seed=2, git="other")
    assert joinable([header(), known]) == joinable([known, known]) == joinable([header(), like]) == ()


def test_gpus_are_distinguished_by_name() -> None:
    gpus = (Gpu(index=0, name=name, uuid="u", memory_bytes=1) for name in ("H100", "H200"))
    found = [header([host(gpus=(one,))], device="cuda") for one in gpus]
    assert joinable(found) == ("devices differ: cuda, H100 | cuda, H200",)


def test_strategies_of_different_runs_are_not_compared() -> None:
    a = [record(point("exchange", 2, n, strategy="fake:a"), 0.1) for n in range(3)]
    b = [record(point("exchange", 2, n, strategy="fake:b"), 0.2) for n in range(3)]
    (found,) = analyse.analyse(join([a, b])).comparisons
    assert found.advantage is None


# An exchange that computes less than the plain loop, whatever samples it says that it has trained on.

PLAN = Plan(size=2, rounds=3, wire_s=0.02)


def exchanging(part: float, *, updates_all: bool = True) -> list[PointRecord]:
    return [
        replace(_running(one, part), updates_all=updates_all) if one.point.kind == "exchange" else one
        for one in run(PLAN)
    ]


def _running(made: PointRecord, part: float) -> PointRecord:
    ranks = []
    for rank in made.ranks:
        cpu = rank.telemetry.cpu
        assert cpu is not None
        threads = tuple(replace(one, run_s=one.run_s * part) for one in cpu.threads)
        ranks.append(replace(rank, telemetry=replace(rank.telemetry, cpu=replace(cpu, threads=threads))))
    return replace(made, ranks=tuple(ranks))


def of_gpus(step_s: float) -> list[PointRecord]:
    steps = {"solo": (1, 0.1), "exchange": (2, step_s)}
    made = (
        at(t, size=size, number=n, kind=kind, device="cuda") for n in range(2) for kind, (size, t) in steps.items()
    )
    return [replace(one, updates_all=True) for one in made]


@pytest.mark.parametrize(
    ("records", "is_less"),
    [
        (exchanging(1.0), False), (exchanging(0.9), False), (exchanging(0.55), True),
        # ranks that update a part of the parameters may compute less
        (exchanging(0.55, updates_all=False), False),
        # elsewhere the time of a step shows it
        (of_gpus(0.09), False), (of_gpus(0.06), True),
    ],
)  # fmt: skip
def test_less_work_than_the_plain_loop_is_an_audit(records: list[PointRecord], is_less: bool) -> None:
    row = by_size(records)[2]
    assert (("AUDIT" in row.flags), row.efficiency is None) == (is_less, is_less)
    assert (
        any(note.startswith("audit: the ") and "of a step is at most " in note for note in row.footnotes)
        is is_less
    )


def test_a_running_sweep_says_it_whatever_comes_first() -> None:
    """The control that tells it may end after the exchange was compared."""
    made = exchanging(0.55)
    for order in (made, made[::-1]):
        analyser = Analyser()
        for one in order:
            analyser.add(one)
            analyser.rows()
        assert analyser.rows() == rows(order)


# What control runs say about the rows that rest on them.


def test_ranks_that_are_slow_in_turns_straggle(tmp_path: Path) -> None:
    """Seconds of two windows: rank 0 has 1 and 3, rank 1 has 3 and 1. No rank is slow on the whole (4 s
    each), but in lock-step each window would last 3 s."""
    (together,) = Launch(2).sweep(tmp_path, rounds=1).of("together", size=2)
    seconds = ((1.0, 3.0), (3.0, 1.0))
    ranks = []
    for rank, (first, second) in zip(together.ranks, seconds, strict=True):
        edges = (0.0, first, first + second)
        windows = [
            replace(window, steps=2, start_s=start, end_s=end)
            for window, start, end in zip(rank.windows[:2], edges, edges[1:], strict=False)
        ]
        ranks.append(replace(rank, windows=tuple(windows)))
    time = step_time.lock_step(replace(together, ranks=tuple(ranks)))
    assert time is not None
    assert (time.mean_s, time.step_s) == (1.0, 1.5)


def test_one_disturbed_window_without_the_exchange_does_not_count() -> None:
    made = record(point("exchange", 2), 0.16)
    ranks = [
        replace(rank, unsynced=tuple(replace(rank.windows[0], steps=2, start_s=0.0, end_s=end) for end in ends_s))
        for rank, ends_s in zip(made.ranks, ((0.20, 0.21), (0.21, 0.90)), strict=True)
    ]
    assert step_time.unsynced_s(replace(made, ranks=tuple(ranks))) == close(0.105)
    assert step_time.unsynced_s(made) is None
    assert step_time.unsynced_s(replace(failed(made.point, "crash"), ranks=tuple(ranks))) is None


def without_exchange(made: PointRecord, *by_rank: tuple[float, ...]) -> PointRecord:
    """The record of a script, with steps without exchange of these seconds."""
    ranks = tuple(
        replace(rank, unsynced=(replace(rank.windows[0], steps=len(s), start_s=0.0, end_s=sum(s), step_s=s),))
        for rank, s in zip(made.ranks, by_rank, strict=True)
    )
    point = replace(made.point, workload=replace(made.point.workload, script="train.py"))
    return replace(made, ranks=ranks, point=point)


def test_an_efficiency_without_copies_names_why_they_failed_or_what_batch_they_lack() -> None:
    both, other, lost = (
        replace(one, point=replace(one.point, workload=replace(one.point.workload, script="train.py")))
        for one in (
            record(point("exchange", 2, batch_size=50), 0.2), record(point("solo", batch_size=64), 0.2),
            failed(point("solo", batch_size=1)),
        )
    )  # fmt: skip
    (of_failed,), (of_other,) = (
        [row.footnotes for row in rows(settled([both, one])) if row.world_size == 2] for one in (lost, other)
    )
    assert any(note.endswith("at batch 50 failed: oom") for note in of_failed), of_failed
    assert any("neither as many (weak scaling) nor all ranks' (strong)" in note for note in of_other), of_other


def test_a_script_whose_ranks_are_late_in_turn_straggles() -> None:
    late = without_exchange(record(point("exchange", 2), 0.16), (0.1, 0.2, 0.1, 0.2), (0.2, 0.1, 0.2, 0.1))
    found = step_time.script_unsynced(late)
    assert found is not None and (found.first_s, found.mean_s) == (close(0.15), close(0.15))
    assert found.last_s == close(0.2)


def test_a_script_that_divides_its_batch_is_split_by_its_own_steps_without_exchange() -> None:
    # One device: 0.2 s for 32 samples, so 0.1 s each for 16. Two: 0.16 s; without exchange a mean of 0.12 s, and
    # 0.13 s for the slower of each step.
    whole = record(point("solo"), 0.2)
    both = record(point("exchange", 2, batch_rule="strong", batch_size=16), 0.16)
    both = without_exchange(both, (0.11, 0.13), (0.13, 0.11))
    whole = replace(whole, point=replace(whole.point, workload=replace(whole.point.workload, script="train.py")))
    (row,) = [row for row in rows([whole, both]) if row.world_size == 2]
    assert row.efficiency is not None and row.breakdown is not None
    assert row.efficiency.mean == close(0.1 / 0.16)
    assert row.breakdown.small_batch == close(0.02 / 0.16)
    assert row.breakdown.straggling == close(0.01 / 0.16)
    assert row.breakdown.exposed == close(0.03 / 0.16)
    assert row.breakdown.contention is None and row.breakdown.unexplained == close(0.0)


def test_controls_in_doubt_are_noted_on_the_rows_that_rest_on_them(tmp_path: Path) -> None:
    found = Launch(2).sweep(tmp_path, rounds=2)
    doubtful = [replace(one, settled=False) if one.point.kind == "together" else one for one in found.records]
    noted = {row.world_size: [note for note in row.footnotes if "control is" in note] for row in rows(doubtful)}
    assert noted == {1: [], 2: ["its together control is UNSETTLED"]}
    assert not any("control is" in note for row in rows(found.records) for note in row.footnotes)


def test_a_window_without_steps_is_no_block() -> None:
    made = record(point("solo"), 0.1, epoch=0)
    first, *others = made.ranks[0].windows
    rank = replace(made.ranks[0], windows=(replace(first, steps=0), *others))
    time = step_time.step_time(replace(made, ranks=(rank,)))
    assert time is not None and {*time.blocks} == {one.index for one in others}


@pytest.mark.parametrize("kind", ["each", "together", "comm", "feed", "held"])
def test_a_control_that_failed_is_noted_with_its_cell_cause_and_log(kind: Kind) -> None:
    """Also where the row has no efficiency, and where its split does without that control."""
    why = Failed(cause="crash(SIGKILL)", message="ended by SIGKILL", rank=1, host="node2", log="logs/7.log")
    control = replace(failed(point(kind, 2), "x"), outcome=why)
    (row,) = rows([record(point("exchange", 2), 0.16), control])
    (told,) = (note for note in row.footnotes if note.startswith("its "))
    assert told.startswith(f"its {kind} control at n2: failed: crash(SIGKILL): ended by SIGKILL")
    assert told.endswith("(rank 1 on node2; log: logs/7.log)")
