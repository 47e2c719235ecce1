"""Two sides -> verdicts: each of them, and that both sides swapped mirror them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.analysis.table.analyse import rows
from scaling.records.run import PointRecord
from scaling.tools.compare import verdicts
from scaling.tools.compare.found import METRICS, Cell, Name
from scaling.tools.compare.verdicts import Rule
from tests.bench.simulated_gates import Gate, moved, pool
from tests.support.compared_runs import SOLO_S, Rows, is_red, launch, share_red, side, without_noise
from tests.support.points import changed
from tests.support.scripted_records import carried, close, failed, point, record, sweep

PAIRS = 200


@pytest.fixture(scope="module")
def bases() -> list[list[Rows]]:
    return [side(seed) for seed in range(PAIRS)]


def test_equal_launches_are_red_in_at_most_5_of_100_pairs(bases: list[list[Rows]]) -> None:
    """Also with no loss that does not count, where the tests alone decide."""
    found = [is_red(base, side(1000 + seed)) for seed, base in enumerate(bases)]
    assert sum(found) <= 0.05 * PAIRS


def test_a_planted_loss_of_5_percent_is_found_in_95_of_100_pairs(bases: list[list[Rows]]) -> None:
    found = [is_red(base, side(1000 + seed, lost=0.05), 0.02) for seed, base in enumerate(bases)]
    assert sum(found) >= 0.95 * PAIRS


def test_three_runs_a_side_rarely_call_equal_launches_different() -> None:
    """Their rounds alone would call most of them slower: python -m tests.bench.gates prints it."""
    assert share_red(PAIRS, 0.0, runs=3, rounds=1, launch_sd=0.01) <= 5


def test_a_loss_of_5_percent_is_found_by_three_runs_a_side_that_differ_by_1_percent_by_themselves() -> None:
    """Each cell by its own noise alone: in 90 of 100. Of five rounds' 1 % there is 0.45 % left."""
    assert share_red(PAIRS // 2, 0.02, lost=0.05, runs=3, rounds=1, sd=0.0045, launch_sd=0.01) >= 95


MIRRORED = {"slower": "faster", "faster": "slower", "missing": "new", "new": "missing"}


def rule(metric: Name = "efficiency", **changes: Any) -> Rule:
    """By rounds, with a loss of 2 %."""
    return Rule(METRICS[metric], 0.02, "rounds")._replace(**changes)


def by_size(base: Sequence[PointRecord], new: Sequence[PointRecord], of: Rule | None = None) -> dict[int, Cell]:
    found = verdicts.cells([rows(base)], [rows(new)], of or rule())
    return {cell.world_size: cell for cell in found if cell.strategy == "fake:a"}


def noisy(seed: int, lost: float = 0.0, **changes: Any) -> list[PointRecord]:
    """A launch with 0.3 % of noise."""
    return launch(Random(seed), sd=0.003, lost=lost, **changes)[1]


def test_a_loss_is_found_and_the_rest_is_the_same() -> None:
    found = by_size(noisy(1), noisy(2, lost=0.05))
    assert {n: cell.verdict for n, cell in found.items()} == {1: "same", 2: "slower", 4: "slower"}
    change = found[4].change
    assert change and change.low and change.high and change.low < -0.05 < change.high < -0.02
    assert found[4].base and found[4].base.n == 5


def test_swapped_sides_give_mirrored_verdicts() -> None:
    for seed in range(20):
        one, other = noisy(seed), noisy(100 + seed, lost=0.02)
        there, back = by_size(one, other), by_size(other, one)
        assert {n: MIRRORED.get(cell.verdict, cell.verdict) for n, cell in there.items()} == {
            n: cell.verdict for n, cell in back.items()
        }


def test_too_much_noise_is_undecided_and_names_the_runs_needed() -> None:
    found = by_size(launch(Random(1), sd=0.05)[1], launch(Random(2), sd=0.05)[1])[2]
    assert found.verdict == "cannot tell"
    assert found.needed and found.needed > 5
    assert found.reason == f"about {found.needed} runs a side would decide"


def test_one_round_is_undecided() -> None:
    found = by_size(without_noise(1)[1], without_noise(1, lost=0.2)[1])[4]
    assert (found.verdict, found.reason) == ("cannot tell", "a single round on one side has no interval")
    assert found.change and (found.change.mean, found.change.low) == (close(-0.2), None)


@pytest.mark.parametrize(("fail_above", "verdict"), [(0.02, "same"), (0.01, "slower"), (0.0, "slower")])
def test_a_loss_below_the_one_that_counts_is_no_regression(fail_above: float, verdict: str) -> None:
    base, new = ([rows(without_noise(lost=lost)[1])] * 3 for lost in (0.0, 0.015))
    found = verdicts.cells(base, new, rule(fail_above=fail_above, unit="runs"))
    assert {cell.verdict for cell in found if cell.world_size == 4} == {verdict}


@pytest.mark.parametrize("metric", ["efficiency", "speedup", "samples_per_s"])
def test_metrics_of_speed_agree_where_the_baseline_is_the_same(metric: Name) -> None:
    found = by_size(without_noise()[1], without_noise(lost=0.05)[1], rule(metric))[4]
    assert found.verdict == "slower" and found.change and found.change.mean == close(-0.05)
    assert found.unit == {"efficiency": "%", "speedup": "", "samples_per_s": "images/s"}[metric]


def test_of_exposed_communication_more_is_worse() -> None:
    one, other = ([r for n in range(3) for r in sweep(n, 0.1, {2: step_s})] for step_s in (0.107, 0.12))
    found = by_size(one, other, rule("exposed"))[2]
    assert found.verdict == "worse"
    assert found.change and found.change.mean > 0.02
    assert by_size(other, one, rule("exposed"))[2].verdict == "better"


# ---------------------------------------------------------------- runs as the unit


def test_runs_are_the_unit_where_there_are_enough() -> None:
    """Launches that differ by 2 % of their own: rounds would call that a difference."""
    base, new = (side(seed, runs=3, sd=0.001, launch_sd=0.02) for seed in (1, 2))
    found = verdicts.cells(base, new, rule(unit="runs"))
    assert {cell.verdict for cell in found} <= {"same", "cannot tell"}
    assert [cell.base and cell.base.n for cell in found] == [3] * 6
    assert "rounds" not in " ".join(cell.reason for cell in found)


def test_a_cell_of_one_run_alone_has_no_interval() -> None:
    whole, part = rows(noisy(1)), tuple(row for row in rows(noisy(2)) if row.world_size < 4)
    found = verdicts.cells([whole, whole, whole], [part, part, whole], rule(unit="runs"))
    (four,) = [cell for cell in found if (cell.strategy, cell.world_size) == ("fake:a", 4)]
    assert (four.verdict, four.reason) == ("cannot tell", "a single run on one side has no interval")


# ---------------------------------------------------------------- rounds of one launch, and how launches differ


@pytest.fixture(scope="module")
def analysed() -> dict[int, list[Rows]]:
    return {6: pool(6, 30), 40: pool(40, 16)}


@pytest.mark.parametrize("launch_sd", [0.0, 0.005])
@pytest.mark.parametrize("cells", [6, 40])
def test_one_launch_a_side_is_red_on_nothing_in_at_most_5_percent(
    analysed: dict[int, list[Rows]], cells: int, launch_sd: float
) -> None:
    """Of launches that differ by half a percent from day to day, over all cells of the table together."""
    assert Gate(analysed[cells], launch_sd).share_red(PAIRS // 2, 0.0) <= 5


def test_cells_that_scatter_more_than_assumed_widen_the_intervals(analysed: dict[int, list[Rows]]) -> None:
    """Launches that differ by 1 % made 89 % of such comparisons red."""
    gate = Gate(analysed[40], 0.01)
    found = [gate.cells(seed, 0.0) for seed in range(PAIRS // 2)]
    assert sum(any(cell.is_lost for cell in cells) for cells in found) <= 0.2 * len(found)
    assert any((cells[0].launch_sd or 0.0) > 0.007 for cells in found)
    assert all(cell.launch_sd_is_assumed for cell in found[0])


@pytest.mark.parametrize("launch_sd", [0.0, 0.005, 0.01])
@pytest.mark.parametrize("uneven", [1.0, 3.0])
def test_older_runs_of_one_code_show_how_launches_differ(
    analysed: dict[int, list[Rows]], launch_sd: float, uneven: float
) -> None:
    gate = Gate(analysed[6], launch_sd, older=9, uneven=uneven)
    assert gate.share_red(PAIRS, 0.0) <= 5
    assert not any(cell.launch_sd_is_assumed for cell in gate.cells(1, 0.0))


def test_quiet_older_runs_find_smaller_losses_than_the_assumption() -> None:
    quiet = pool(6, 12, sd=0.001)
    assumed, learnt = (Gate(quiet, 0.0, older=older).power(20, 0.0)[0] for older in (0, 9))
    assert learnt < assumed / 2


@pytest.mark.parametrize(("cells", "runs"), [(6, 1), (6, 3), (40, 1)])
def test_a_loss_of_the_said_size_is_found_in_80_percent(
    analysed: dict[int, list[Rows]], cells: int, runs: int
) -> None:
    _, found = Gate(analysed[cells], 0.005, runs).power(PAIRS // 2, 0.02)
    assert 68 <= found <= 95


def test_a_change_of_many_cells_does_not_hide_itself(analysed: dict[int, list[Rows]]) -> None:
    """Half of the cells lose, or all of them gain."""
    base, new = analysed[40][:2]
    half = tuple(moved(row, 0.9 if at % 2 else 1.0) for at, row in enumerate(new))
    assert sum(cell.is_lost for cell in verdicts.cells([base], [half], rule())) == 20
    better = verdicts.cells([base], [tuple(moved(row, 1.1) for row in new)], rule())
    assert {cell.verdict for cell in better} == {"faster"}


# ---------------------------------------------------------------- without a test


def of(n: int, change: Callable[[PointRecord], PointRecord], records: Sequence[PointRecord]) -> list[PointRecord]:
    which = ("fake:a", "exchange", n)
    points = ((one, one.point) for one in records)
    return [change(one) if (at.strategy, at.kind, at.world_size) == which else one for one, at in points]


def broken(records: Sequence[PointRecord]) -> list[PointRecord]:
    return of(2, lambda one: failed(one.point), records)


def crowded(records: Sequence[PointRecord]) -> list[PointRecord]:
    return of(2, lambda one: replace(one, oversubscribed=True), records)


def by_another_card(records: Sequence[PointRecord], card: str = "eth1") -> list[PointRecord]:
    return of(2, lambda one: carried(record(one.point, 0.103, hosts=("node1", "node2")), card), records)


def superlinear(records: Sequence[PointRecord]) -> list[PointRecord]:
    """Its plain loop took twice as long: the base is wrong, not the exchange better."""
    return [record(one.point, 2 * SOLO_S) if one.point.kind == "solo" else one for one in records]


FINE = noisy(1, interconnect="ib0")
ALONE = [one for one in FINE if one.point.kind != "solo"]  # the exchange without its plain loop


@pytest.mark.parametrize(
    ("base", "new", "verdict", "is_lost"),
    [
        (FINE, broken(FINE), "newly failed", True),
        (broken(FINE), broken(FINE), "failed before and after", False),
        (broken(FINE), FINE, "mended", False),
        (FINE, crowded(FINE), "newly oversubscribed", True),
        (crowded(FINE), crowded(FINE), "cannot tell", False),
        (crowded(FINE), FINE, "mended", False),
        (crowded(FINE), broken(FINE), "newly failed", True),
        (by_another_card(FINE, "ib0"), by_another_card(FINE), "newly mislabelled", True),
        (by_another_card(FINE), by_another_card(FINE), "same", False),
        (FINE, ALONE, "newly unknown", True),
        (FINE, superlinear(FINE), "newly unknown", True),
        (superlinear(FINE), FINE, "cannot tell", False),
    ],
)
def test_what_no_test_is_needed_for(
    base: list[PointRecord], new: list[PointRecord], verdict: str, is_lost: bool
) -> None:
    found = by_size(base, new)[2]
    assert (found.verdict, found.is_lost) == (verdict, is_lost)


@pytest.mark.parametrize(
    ("metric", "base", "reason"),
    [
        ("efficiency", crowded(FINE), "claims no efficiency here: ranks share cores or a GPU (OVERSUBSCRIBED)"),
        ("speedup", ALONE, "claims no speedup here: its plain loop is missing"),
        ("j_per_sample", crowded(FINE), "has no energy here"),
        ("cost", FINE, "has no cost of 1e6 samples here"),
    ],
)
def test_the_reason_why_a_value_is_missing_is_of_its_metric(
    metric: Name, base: list[PointRecord], reason: str
) -> None:
    reason = f"the base {reason}"
    assert by_size(base, base, rule(metric))[2].reason == reason


@pytest.mark.parametrize(
    ("bad", "lost", "breaks", "verdict", "left_out"),
    [
        (broken, 0.1, 0, "slower", "FAILED in 1 of 3 base runs"),
        (crowded, 0.1, 0, "slower", "OVERSUBSCRIBED in 1 of 3 base runs"),
        (broken, 0.0, 0, "same", "FAILED in 1 of 3 base runs"),
        (broken, 0.1, 1, "slower", "FAILED in 1 of 3 new runs"),
        (broken, 0.0, 3, "newly failed", "FAILED in 1 of 3 base runs"),
        (crowded, 0.0, 1, "newly failed", "OVERSUBSCRIBED in 1 of 3 base runs"),
    ],
)
def test_a_launch_that_lost_a_cell_hides_no_loss_of_the_others(
    bad: Callable[[Sequence[PointRecord]], list[PointRecord]],
    lost: float,
    breaks: int,
    verdict: str,
    left_out: str,
) -> None:
    good, after = [noisy(seed) for seed in range(3)], [noisy(seed, lost) for seed in range(5, 8)]
    base = [rows(bad(good[0])), *map(rows, good[1:])]
    new = [*(rows(broken(one)) for one in after[:breaks]), *map(rows, after[breaks:])]
    found = verdicts.cells(base, new, rule(unit="runs"))
    (cell,) = [cell for cell in found if (cell.strategy, cell.world_size) == ("fake:a", 2)]
    assert cell.verdict == verdict
    assert left_out in cell.reason


def test_failed_rounds_are_reported_with_the_verdict() -> None:
    flaky = of(2, lambda one: failed(one.point) if one.point.round in (1, 3) else one, FINE)
    found = by_size(FINE, flaky)
    assert "2 of 5 new rounds failed" in found[2].reason and not found[4].reason
    assert "2 of 5 base rounds failed" in by_size(flaky, FINE)[2].reason
    assert by_size(FINE, broken(FINE))[2].reason == "oom: out of memory"


def test_missing_and_new_cells() -> None:
    small = [one for one in FINE if one.point.world_size < 4]
    assert [by_size(*sides)[4].verdict for sides in ((FINE, small), (small, FINE))] == ["missing", "new"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"batch_size": 64}, "batch_size 32 | 64"),
        ({"model": "resnet50"}, "model digits-cnn | resnet50"),
        ({"precision": "bf16"}, "precision fp32 | bf16"),
        ({"device": "cuda"}, "device cpu | cuda"),
        ({"placement": "spread"}, "placement pack | spread"),
        ({"precision": "bf16", "compile": True}, "precision fp32 | bf16; compile False | True"),
    ],
)
def test_cells_that_were_not_measured_alike_name_the_field(changes: dict[str, Any], reason: str) -> None:
    other = without_noise(lost=0.05, **changes)[1]
    found = by_size(without_noise()[1], other)[4]
    assert (found.verdict, found.reason) == ("not comparable", reason)
    assert found.change is None
    assert by_size(without_noise()[1], other, rule(although_different=True))[4].verdict == "slower"


def test_images_are_never_compared_with_tokens() -> None:
    other = without_noise(unit="tokens", model="gpt")[1]
    for metric, verdict in (("samples_per_s", "not comparable"), ("efficiency", "same")):
        of_metric = rule(metric, although_different=True)  # type: ignore[arg-type]
        assert by_size(without_noise()[1], other, of_metric)[4].verdict == verdict


def test_what_sets_the_launches_apart_holds_for_all_cells() -> None:
    found = by_size(FINE, FINE, rule(apart=("versions of torch 2.12 | 2.13",)))
    assert {cell.reason for cell in found.values()} == {"versions of torch 2.12 | 2.13"}


@pytest.mark.parametrize(
    ("strategy", "package", "refused"),
    [
        ("torch:gloo", "jax", False),
        ("torch:gloo", "horovod", False),
        ("torch:gloo", "torch", True),
        ("torch:gloo", "numpy", True),
        ("torch:horovod", "horovod", True),
        ("jax:psum", "jaxlib", True),
        ("own.package:ring", "jax", True),
    ],
)
def test_packages_of_other_frameworks_do_not_set_cells_apart(strategy: str, package: str, refused: bool) -> None:
    names = {"fake:plain": f"{strategy.partition(':')[0]}:plain"}
    points = ((one, one.point) for one in without_noise()[1])
    records = [replace(one, point=changed(at, strategy=names.get(at.strategy, strategy))) for one, at in points]
    cells = verdicts.cells([rows(records)], [rows(records)], rule(apart=(f"versions of {package} 0.6.2 | 0.6.3",)))
    assert {cell.verdict for cell in cells} == {"not comparable" if refused else "same"}


def test_cells_with_equal_names_are_matched_by_their_settings() -> None:
    """Two batch sizes in one sweep, in any order."""
    small, large = without_noise()[1], without_noise(batch_size=64, lost=0.05)[1]
    base, new = rows([*small, *large]), rows([*large, *small])
    found = verdicts.cells([base], [new], rule())
    assert [cell.change and cell.change.mean for cell in found] == [0.0] * 12


def test_means_are_of_several_cells_of_one_model() -> None:
    base, new = without_noise()[1], without_noise(lost=0.05)[1]
    (mean,) = verdicts.means(verdicts.cells([rows(base)], [rows(new)], rule()))
    assert (mean.model, mean.cells) == ("digits-cnn", 6)
    assert mean.change == close(0.95 ** (4 / 6) - 1)
    one = rows([record(point("exchange", 2), 0.1)])
    assert verdicts.means(verdicts.cells([one], [one], rule("samples_per_s"))) == ()
