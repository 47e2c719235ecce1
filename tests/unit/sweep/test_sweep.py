"""Whole sweeps inside this process, on a virtual clock: the order of events, the arithmetic by known
answers, resume, further rounds, and that two equal strategies are not told apart."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import pytest

from scaling.agent.agent import Agent
from scaling.analysis.table import analyse
from scaling.analysis.table.burn_in import over_time
from scaling.analysis.table.rows import Row
from scaling.errors import Interrupted
from scaling.records import store
from scaling.records.burn_in import LIVE_ROUNDS, MOST_STRETCHES, PointSummary, is_kept, spacing
from scaling.records.events import Failed, Finished
from scaling.records.host import Nic
from scaling.records.run import PointRecord
from scaling.sweep import sweep as sweeping
from scaling.sweep.state import Ahead, PointState
from scaling.sweep.sweep import BurnIn, Sweep
from scaling.sweep.view.plain import View, introduction
from tests.support.inline import Launch, Run, enrol, host
from tests.support.inline_child import Clock
from tests.support.scripted_records import header


class Recorder(View):
    def __init__(self) -> None:
        self.seen: list[str] = []
        self.totals: list[int] = []

    def opened(self, header: object, total: int) -> None:
        self.seen.append(f"opened {total}")

    def began(self, state: PointState, number: int) -> None:
        self.seen.append(f"began {number} {state.point.kind} N={state.point.world_size}")

    def progress(self, state: PointState) -> None:
        phase = f"{state.phase} {state.point.kind} N={state.point.world_size}"
        if self.seen[-1] != phase:
            self.seen.append(phase)

    def finished(self, record: PointRecord, rows: Sequence[Row], number: int, total: int) -> None:
        self.seen.append(f"finished {number}/{total} {type(record.outcome).__name__}")

    def extended(self, total: int) -> None:
        self.totals.append(total)

    def note(self, text: str) -> None:
        self.seen.append(text)

    def closed(self, stream: TextIO | None = None) -> None:
        self.seen.append("closed")


def test_each_point_goes_through_its_phases_in_order(tmp_path: Path) -> None:
    view = Recorder()
    Launch(2).sweep(tmp_path, view=view, rounds=1, kinds=["exchange"], world_sizes=[2])
    assert view.seen == [
        "began 1 exchange N=2",
        "starting exchange N=2",
        "warming exchange N=2",
        "measuring exchange N=2",
        "inspecting exchange N=2",
        "finishing exchange N=2",
        "ended exchange N=2",
        "finished 1/1 Finished",
    ]


class Table(Recorder):
    def __init__(self) -> None:
        super().__init__()
        self.tables: list[Sequence[Row]] = []

    def finished(self, record: PointRecord, rows: Sequence[Row], number: int, total: int) -> None:
        self.tables.append(rows)


def test_after_each_point_the_view_is_shown_the_table_so_far(tmp_path: Path) -> None:
    half, whole = Table(), Table()
    begun = Launch(2).sweep(tmp_path, view=half, rounds=1, strategy=["fake:a"])
    found = Launch(2).sweep(tmp_path, view=whole, rounds=2, strategy=["fake:a"], resume=begun.folder)
    shown = [*half.tables, *whole.tables]
    assert shown == [analyse.rows(found.records[: count + 1]) for count in range(len(found.records))]


def test_every_round_measures_every_cell_once_in_its_own_order(tmp_path: Path) -> None:
    found = Launch(4).sweep(tmp_path, rounds=3, strategy=["fake:a", "fake:b"])
    by_round = [[r.point.cell for r in found.records if r.point.round == number] for number in range(3)]
    assert sorted(by_round[0]) == sorted(by_round[1]) == sorted(by_round[2])
    assert by_round[0] != by_round[1] != by_round[2]
    assert max(Counter(r.point.key for r in found.records).values()) == 1
    rounds = [r.point.round for r in found.records]
    assert rounds == sorted(rounds)


def test_the_order_is_the_seeds(tmp_path: Path) -> None:
    orders = [[r.point.key for r in Launch(4).sweep(tmp_path, rounds=1, seed=seed).records] for seed in (1, 1, 2)]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]


def test_strategies_of_a_framework_share_the_plain_controls(tmp_path: Path) -> None:
    found = Launch(2).sweep(tmp_path, rounds=1, strategy=["fake:a", "fake:b"])
    kinds = Counter((r.point.strategy, r.point.kind, r.point.world_size) for r in found.records)
    assert kinds == {
        ("fake:plain", "solo", 1): 1,
        ("fake:plain", "together", 2): 1,
        **{(name, "exchange", size): 1 for name in ("fake:a", "fake:b") for size in (1, 2)},
        **{(name, "comm", 2): 1 for name in ("fake:a", "fake:b")},
    }


def test_each_rank_measures_the_same_windows_of_the_same_steps(tmp_path: Path) -> None:
    found = Launch(4).sweep(tmp_path, rounds=1, windows=7, option=["step_s=0.004"])
    for record in found.records:
        shapes = {tuple((w.steps, w.samples) for w in rank.windows) for rank in record.ranks}
        assert len(shapes) == 1
        assert len(record.ranks[0].windows) == 7
        steps, samples = shapes.pop()[0]
        fed = 0 if record.point.kind == "comm" else 32 * steps
        assert samples == fed
        first, last = record.ranks[0].windows[0], record.ranks[0].windows[-1]
        assert record.ranks[0].measured_s == pytest.approx(last.end_s - first.start_s)


SCRIPT = ["step_s=0.1", "contention=0.1", "straggle=0.05", "exchange_s=0.02", "comm_s=0.5", "overhead_s=0.004"]


def test_known_answers_at_two_ranks(tmp_path: Path) -> None:
    """By hand, in seconds of a step: solo .1; together .11 and .1155 (mean .11275); exchange .1155 + .02
    + .004 = .1395; so efficiency .1 / .1395, and the loss in parts of .1395: contention .01275,
    straggling .00275, exposed .024."""
    found = Launch(2).sweep(tmp_path, rounds=3, option=SCRIPT)
    rows = {row.world_size: row for row in analyse.rows(found.records)}
    two = rows[2]
    assert two.samples_per_s is not None and two.samples_per_s.mean == pytest.approx(2 * 32 / 0.1395)
    assert two.speedup is not None and two.speedup.mean == pytest.approx(2 * 0.1 / 0.1395)
    assert two.efficiency is not None and two.efficiency.mean == pytest.approx(0.1 / 0.1395)
    assert two.efficiency.half_width == pytest.approx(0.0, abs=1e-9)
    assert two.strategy_efficiency is not None
    assert two.strategy_efficiency.mean == pytest.approx(0.104 / 0.1395)
    loss = two.breakdown
    assert loss is not None
    assert loss.contention == pytest.approx(0.01275 / 0.1395)
    assert loss.straggling == pytest.approx(0.00275 / 0.1395)
    assert loss.exposed == pytest.approx(0.024 / 0.1395)
    assert loss.unexplained == pytest.approx(0.0, abs=1e-9)
    one = rows[1]
    assert one.efficiency is not None and one.efficiency.mean == pytest.approx(0.1 / 0.104)


def test_exchange_that_comm_cannot_explain_is_unexplained(tmp_path: Path) -> None:
    """The exchange alone takes .005 s, the step grew by .02: .015 have another cause."""
    options = ["step_s=0.1", "exchange_s=0.02", "comm_s=0.005"]
    found = Launch(2).sweep(tmp_path, rounds=2, option=options)
    loss = {row.world_size: row for row in analyse.rows(found.records)}[2].breakdown
    assert loss is not None
    assert loss.exposed == pytest.approx(0.005 / 0.12)
    assert loss.unexplained == pytest.approx(0.015 / 0.12)


def test_ranks_that_share_cores_claim_no_efficiency(tmp_path: Path) -> None:
    found = Launch(4, [host(cores=2)] * 4).sweep(tmp_path, rounds=2)
    rows = {row.world_size: row for row in analyse.rows(found.records)}
    assert "OVERSUBSCRIBED" not in rows[2].flags
    assert rows[2].efficiency is not None
    assert "OVERSUBSCRIBED" in rows[4].flags
    assert rows[4].efficiency is None
    assert rows[4].breakdown is None
    assert rows[4].samples_per_s is not None


def test_pack_fills_a_node_and_spread_deals_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Agent, "_reserve", lambda *_: (29500,))  # 10.0.0.1 is not this machine's
    hosts = [host("node1", cores=2, nics=nics("10.0.0.1"))] * 2 + [
        host("node2", cores=2, nics=nics("10.0.0.2"))
    ] * 2
    for placement, expected in (("pack", ["node1", "node1"]), ("spread", ["node1", "node2"])):
        launch = Launch(4, hosts)
        found = launch.sweep(tmp_path, rounds=1, world_sizes=[2], placement=placement)
        (record,) = found.of(size=2)
        assert [rank.host for rank in record.ranks] == expected
    tasks = [task for task in launch.tasks if task.point.kind == "exchange"]
    assert {task.address for task in tasks} == {"10.0.0.1"}
    assert {task.place.interface for task in tasks} == {"eth0"}


def nics(address: str) -> tuple[Any, ...]:
    lo = Nic(name="lo", address="127.0.0.1", netmask="255.0.0.0", up=True, mtu=65536)
    return lo, Nic(name="eth0", address=address, netmask="255.255.255.0", up=True, mtu=1500)


def test_resume_measures_only_what_is_missing(tmp_path: Path) -> None:
    whole = Launch(2).sweep(tmp_path / "a", rounds=2)
    path = whole.folder / "run.jsonl"
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join(lines[:9]) + b"\n" + lines[9][:40])  # the machine died in the tenth line
    launch = Launch(2)
    resumed = launch.sweep(tmp_path / "b", resume=whole.folder, rounds=2)
    assert [r.point.key for r in resumed.records] == [r.point.key for r in whole.records]
    assert len({task.point.key for task in launch.tasks}) == len(whole.records) - 4


def test_a_failed_point_is_measured_again_on_resume(tmp_path: Path) -> None:
    ails = Launch(2).sweep(tmp_path, rounds=1, option=["fail=nan", "fail_world=2", "fail_rank=1"])
    (failed,) = ails.of(size=2)
    assert isinstance(failed.outcome, Failed)
    assert failed.outcome.cause == "nan-loss"
    launch = Launch(2)
    again = launch.sweep(
        tmp_path, resume=ails.folder, rounds=1, option=["fail=nan", "fail_world=2", "fail_rank=1"]
    )
    assert {task.point.key for task in launch.tasks} == {failed.point.key}
    assert len(again.records) == len(ails.records) + 1


def test_target_ci_adds_rounds_until_intervals_are_narrow(tmp_path: Path) -> None:
    view = Recorder()
    noisy = ["step_s=0.01", "round_noise=0.01"]
    found = Launch(2).sweep(
        tmp_path, view=view, rounds=2, target_ci="1%", max_rounds=60, option=noisy, kinds=["exchange", "solo"]
    )
    rounds = 1 + max(r.point.round for r in found.records)
    assert 3 <= rounds < 60
    assert len(view.totals) == rounds - 2
    rows = analyse.rows(found.records)
    widths = [row.efficiency.half_width for row in rows if row.efficiency]
    assert len(widths) == len(rows)
    assert all(width is not None and width <= 0.01 for width in widths)


def test_target_ci_stops_at_max_rounds(tmp_path: Path) -> None:
    found = Launch(1).sweep(
        tmp_path, rounds=2, target_ci="0.01%", max_rounds=4, option=["round_noise=0.1"], kinds=["exchange", "solo"]
    )
    assert max(r.point.round for r in found.records) == 3


def test_missing_frameworks_are_cells_and_the_sweep_goes_on(tmp_path: Path) -> None:
    launch = Launch(1)
    why = "not installed: pip install something"
    launch.enrolled = [enrol(launch.hosts[0], missing={"fake:b": why})]
    found = launch.sweep(tmp_path, rounds=1, strategy=["fake:a", "fake:b"])
    (absent,) = found.of(strategy="fake:b")
    assert isinstance(absent.outcome, Failed)
    assert absent.outcome.cause == "missing"
    assert why in absent.outcome.message
    assert isinstance(found.of(strategy="fake:a")[0].outcome, Finished)


def test_two_equal_strategies_are_not_told_apart(tmp_path: Path) -> None:
    """A/A: noise alone separates fake:a from fake:b. 95 of 100 sweeps are meant to say so (tests.bench.comparisons
    counts ten thousand); of these 100, chance leaves fewer than 88 in one of a thousand trials."""
    undecided = 0
    for seed in range(100):
        found = Launch(2).sweep(
            tmp_path / str(seed),
            seed=seed,
            strategy=["fake:a", "fake:b"],
            kinds=["exchange", "solo"],
            world_sizes=[2],
            windows=3,
            option=["step_s=0.01", "noise=0.05", "round_noise=0.02"],
        )
        (comparison,) = analyse.analyse(found.records).comparisons
        undecided += not comparison.distinguishable
    assert undecided >= 88


def test_two_different_strategies_are_told_apart(tmp_path: Path) -> None:
    found = Launch(2).sweep(
        tmp_path,
        strategy=["fake:a", "fake:b"],
        rounds=6,
        option=["step_s=0.01", "round_noise=0.01", "fake:b.exchange_s=0.002"],
        kinds=["exchange", "solo"],
        world_sizes=[2],
    )
    (comparison,) = analyse.analyse(found.records).comparisons
    assert comparison.distinguishable


# ---------------------------------------------------------------- burn-ins (`--for`)


SHORT: dict[str, Any] = {"rounds": None, "kinds": ["exchange", "solo"], "windows": 3, "option": ["step_s=0.02"]}


def burn_in(results: Path, launch: Launch, **fields: Any) -> Run:
    return launch.sweep(results, **{**SHORT, **fields})


def rounds_of(run: Path) -> int:
    return max(one.first_round + one.rounds for one in store.read(run).summaries)


@pytest.fixture
def sweeps(monkeypatch: pytest.MonkeyPatch) -> list[Sweep]:
    """The sweeps of this test."""
    made: list[Sweep] = []
    begin = Sweep.begin

    def noted(self: Sweep) -> None:
        made.append(self)
        begin(self)

    monkeypatch.setattr(sweeping.Sweep, "begin", noted)
    return made


# ---------------------------------------------------------------- when it ends


def test_rounds_are_added_until_the_time_is_over(tmp_path: Path) -> None:
    launch = Launch(2)
    begun_s = launch.clock.now_s
    found = burn_in(tmp_path, launch, **{"for": "60s"})
    rounds, took_s = rounds_of(found.folder), launch.clock.now_s - begun_s
    assert rounds > 3
    assert took_s <= 60.5
    assert took_s + took_s / rounds > 60, "another round would have fitted"


def test_a_time_shorter_than_a_round_gives_two_rounds(tmp_path: Path) -> None:
    assert rounds_of(burn_in(tmp_path, Launch(1), **{"for": "1s"}).folder) == 2


@pytest.mark.parametrize(("rounds", "now_s", "follows"), [(2, 20.0, True), (9, 90.0, True), (9, 91.0, False)])
def test_a_round_that_would_not_fit_is_not_begun(rounds: int, now_s: float, follows: bool) -> None:
    clock = Clock()
    rule = BurnIn(100.0, clock)
    clock.now_s = now_s
    assert rule((), rounds) is follows


def test_the_time_left_is_that_of_the_clock() -> None:
    clock = Clock(5.0)
    rule = BurnIn(100.0, clock, [PointSummary(cell="a", first_round=0, rounds=3, begin_s=0.0, end_s=30.0)])
    clock.now_s = 15.0
    assert (rule.elapsed_s, rule.ahead.share, rule.ahead.left_s) == (40.0, 0.4, 60.0)
    assert str(rule) == "40 s of 1 min 40 s, 3 rounds"


def test_the_log_begins_with_the_time_of_the_burn_in() -> None:
    *_, last = introduction(header(config={"for": "2h", "rounds": 2}, estimate_s=7200.0), 14)
    assert last == "14 points planned, then rounds until 2 h 0 min are over"


def test_the_log_of_a_script_says_that_its_steps_decide_how_long_it_takes() -> None:
    *_, last = introduction(header(config={"script": "train.py"}, estimate_s=44.0), 9)
    assert last == "9 points planned, about 44 s, longer if the script's start or its steps are slow"


# ---------------------------------------------------------------- what it keeps


def test_memory_and_file_of_a_long_run_are_bounded(tmp_path: Path, sweeps: list[Sweep]) -> None:
    """Hundreds of rounds: the sweep keeps evenly spaced ones, and the times of all."""
    found = burn_in(
        tmp_path, Launch(1), **{"for": "150s"}, kinds=["exchange"], option=["step_s=0.02", "noise=0.1"]
    )
    (sweep,) = sweeps
    whole = store.read(found.folder)
    rounds, cells = rounds_of(found.folder), len(sweep.plan.cells)
    assert rounds > 200
    assert len(sweep.records) <= (LIVE_ROUNDS + 1) * cells
    assert {one.point.round for one in found.records} == {*range(0, rounds, spacing(rounds))}
    assert len(whole.summaries) <= MOST_STRETCHES * cells
    lines = Counter(b'"type":"summary"' in line for line in (found.folder / store.FILE).read_bytes().splitlines())
    assert lines[True] == rounds * cells
    written = sum(is_kept(number, number + 1) for number in range(rounds))
    assert lines[False] == 1 + 2 * written * cells
    assert written < rounds / 2
    (exchange,) = (one for one in over_time(whole.records, whole.summaries) if one.kind == "exchange")
    assert exchange.whole.rounds == rounds
    assert exchange.steps == 3 * rounds, "percentiles are of all windows of all rounds"


def test_the_table_while_it_runs_is_of_the_records_in_memory(tmp_path: Path, sweeps: list[Sweep]) -> None:
    burn_in(tmp_path, Launch(1), **{"for": "30s"})
    (sweep,) = sweeps
    assert sweep._analyser.rows()[0].rounds == len({one.point.round for one in sweep.records})


def test_steps_are_timed_one_by_one_and_logs_of_later_rounds_go(tmp_path: Path) -> None:
    launch = Launch(1)
    burn_in(tmp_path, launch, **{"for": "10s"})
    assert all(task.times_steps for task in launch.tasks)
    assert {task.point.round: task.keeps_log for task in launch.tasks} == {
        task.point.round: task.point.round == 0 for task in launch.tasks
    }


class Hopeful(Recorder):
    """Keeps what is left at each phase."""

    def __init__(self) -> None:
        super().__init__()
        self.left_s: dict[str, float] = {}

    def advanced(self, ahead: Ahead) -> None:
        self.left_s.setdefault(self.seen[-1], ahead.left_s or 0.0)


def test_the_first_steps_correct_the_time_left(tmp_path: Path) -> None:
    """The model's operations say 0.1 s for a window; a step takes 3 s."""
    screen, launch = Hopeful(), Launch(1)
    begun_s = launch.clock.now_s
    launch.sweep(tmp_path, view=screen, rounds=2, windows=3, option=["step_s=3"], kinds=["exchange"])
    took_s = launch.clock.now_s - begun_s
    first, *later = screen.left_s.values()
    assert first < 0.2 * took_s and 0.4 * took_s < later[0] < took_s


def test_other_sweeps_have_no_summaries(tmp_path: Path) -> None:
    launch = Launch(1)
    found = launch.sweep(tmp_path, rounds=2)
    assert store.read(found.folder).summaries == ()
    assert all(task.keeps_log and not task.times_steps for task in launch.tasks)


def test_a_failed_point_counts_also_in_a_round_that_is_not_kept(tmp_path: Path, sweeps: list[Sweep]) -> None:
    found = burn_in(tmp_path, Launch(2), **{"for": "10s"}, option=["fail=nan", "fail_world=2"])
    assert any(isinstance(one.outcome, Failed) for one in found.records)
    failures = sum(sum(one.failures.values()) for one in store.read(found.folder).summaries)
    assert sweeps[0].burn_in is not None
    assert sweeps[0].burn_in.failures == failures == rounds_of(found.folder)


# ---------------------------------------------------------------- interruption


class Interrupting(View):
    """A view that interrupts the launch when a point of this round begins."""

    def __init__(self, launch: Launch, number: int) -> None:
        self._launch, self._number = launch, number

    def began(self, state: PointState, number: int) -> None:
        if state.point.round == self._number:
            self._launch.agents[0].interrupt(signal.SIGINT)


def test_an_interrupted_burn_in_goes_on_for_the_time_that_is_left(tmp_path: Path) -> None:
    launch = Launch(1)
    with pytest.raises(Interrupted):
        burn_in(tmp_path, launch, view=Interrupting(launch, 4), **{"for": "60s"})
    (folder,) = tmp_path.iterdir()
    before = store.read(folder)
    spent_s = max(one.end_s for one in before.summaries)
    assert rounds_of(folder) == 4
    again = Launch(1)
    begun_s = again.clock.now_s
    found = burn_in(tmp_path, again, resume=folder, **{"for": "60s"})
    took_s = again.clock.now_s - begun_s
    assert min(task.point.round for task in again.tasks) == 4
    assert spent_s + took_s == pytest.approx(60, abs=2 * 60 / rounds_of(folder))
    rounds = rounds_of(folder)
    assert [one.point.round for one in found.of("solo")] == [*range(0, rounds, spacing(rounds))]
    once_more = Launch(1)
    burn_in(tmp_path, once_more, resume=folder, **{"for": "60s"})
    assert once_more.tasks == []
