"""The last screen of a run: golden files, widths, and what its lines say."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree as ET

import pytest
from msgspec.structs import replace

from scaling.analysis.table import catalogue
from scaling.plan import config, validation
from scaling.records import store
from scaling.records.events import Failed
from scaling.records.run import Emulation, Header, PointRecord, PointWarning
from scaling.records.telemetry import Foreign
from scaling.report import answer as answers
from scaling.report import facts
from scaling.report.answer import answer
from scaling.report.formats import screen, terminal
from scaling.report.material import Material, Place
from tests.support.documents import under
from tests.support.golden import check_golden
from tests.support.gpu_records import gpus_run
from tests.support.report_scenes import SCENES, Run, default_run
from tests.support.scripted_records import (
    asynchronous,
    carried,
    failed,
    header,
    host,
    point,
    record,
    sweep,
)
from tests.support.training_records import training_record

RECORDED = Path(__file__).parents[2] / "recorded"


def one_rank() -> Run:
    """Started without mpirun on a host of two cores."""
    records = [one for number in range(4) for one in sweep(number, 0.1, {1: 0.102 + 0.0002 * number})]
    return header([host(cores=((0,), (1,)))], launch_size=1), records


def crowded() -> Run:
    """Two ranks while a compiler uses their cores: windows are repeated, rounds differ by a third."""
    records = []
    for number, factor in enumerate((1.0, 1.5, 1.1)):
        records += sweep(number, 0.1, {1: 0.103, 2: 0.11 * factor})
    return header(launch_size=2), [_disturbed(one) if one.point.kind == "exchange" else one for one in records]


def _disturbed(one: PointRecord, *, repeats: bool = True) -> PointRecord:
    burner = (Foreign(name="cc1plus", run_s=2.0, over_s=3.0),)
    found = [replace(rank, telemetry=replace(rank.telemetry, foreign=burner)) for rank in one.ranks]
    ranks = (replace(rank, disturbed=rank.windows[:1]) if repeats else rank for rank in found)
    return replace(one, ranks=tuple(ranks))


def two_networks() -> Run:
    """Four emulated nodes over two networks whose counters verify the names."""
    emulated = {"device": "emulated", "profile": "p100"}
    names = [f"node{index}" for index in range(1, 5)]
    records = []
    for number, drift in enumerate((0.999, 1.0, 1.002)):
        records.append(record(point("solo", 1, number, **emulated), 0.1 * drift))
        for network, slow in (("ib0", 1.0), ("eth0", 1.38)):
            for n, step_s in ((2, 0.105), (4, 0.11)):
                at = point("exchange", n, number, interconnect=network, **emulated)
                made = record(at, step_s * (slow if n == 4 else 1.1) * drift, hosts=names[:n])
                records.append(carried(made, network))
    config = {**header().config, "device": "emulated:p100"}
    return header([host(name) for name in names], launch_size=4, device="emulated", config=config), records


def h200() -> Run:
    with TemporaryDirectory() as folder:
        shutil.copy(RECORDED / "h200-default.jsonl", Path(folder) / store.FILE)
        made, records = store.load(Path(folder))
    return made, list(records)


SCREENS = {
    "one-rank": one_rank,
    "quiet": default_run,
    "crowded": crowded,
    "exchanges": SCENES["frameworks"],
    "networks": two_networks,
    "h200": h200,
    "gpus": gpus_run,
    "one-round": SCENES["one_round"],
    "failures": SCENES["cluster"],
    "nothing": SCENES["nothing"],
}
PLACE = Place("results/20261126-031800-sweep", "results/20261126-031800-sweep/page.html")


def drawn(run: Run, width: int = 80) -> str:
    return screen.render(Material(*run), PLACE, width=width, color=False)


@pytest.mark.parametrize("name", SCREENS)
def test_screen(name: str) -> None:
    run = SCREENS[name]()
    check_golden(f"screen-{name}.txt", f"{drawn(run)}{Material(*run).doc.last_line}\n")


def test_a_script_whose_samples_are_unknown_has_no_batch() -> None:
    records = [record(point("exchange", 2, 0, model="train.py", unit="steps", batch_size=1), 0.1)]
    assert facts.setting(header(launch_size=2), records)[0] == "train.py, fp32"
    assert "batch     unknown: steps are counted" in terminal.render(header(launch_size=2), records, color=False)


NUMBER = re.compile(r"^\s*(±|%)|±$")


@pytest.mark.parametrize("name", SCREENS)
@pytest.mark.parametrize("width", [60, 70, 79, 80, 81, 100, 120, 160, 250])
def test_no_line_is_wider_and_none_breaks_a_number(name: str, width: int) -> None:
    lines = drawn(SCREENS[name](), width).splitlines()
    for line in lines[:-3]:  # the commands and paths of the footer are never cut
        assert len(line) <= width, line
        assert line == line.rstrip() and not NUMBER.search(line)


# ---------------------------------------------------------------- try


def tries(records: Sequence[PointRecord], of: Header | None = None) -> list[str]:
    return under("try", answer(Material(of or header(launch_size=2), records)).lines)


@pytest.mark.parametrize("cause", [cause.key for cause in catalogue.CAUSES])
def test_every_cause_has_a_change_for_every_row(cause: str) -> None:
    assert answers.BY_CAUSE[cause][-1].suits(Material(*default_run()).rows[-1])
    for run in (default_run(), gpus_run(), two_networks()):
        for row in Material(*run).rows:
            assert answers.of_cause(row, cause)


@pytest.mark.parametrize("cause", [cause.key for cause in catalogue.CAUSES if cause.key != "servers"])
def test_no_flag_to_try_is_refused_for_scripts(cause: str) -> None:
    row = Material(*default_run()).rows[-1]
    text = answers.of_cause(replace(row, workload=replace(row.workload, script="train.py")), cause)
    given = {one.replace("-", "_") for one in re.findall(r"--([a-z-]+)", text)}
    validation.check_given(config.build({"script": "train.py"}, source="test"), given)


def test_every_mark_has_an_entry() -> None:
    assert set(answers.BY_MARK) == {mark.name for mark in catalogue.MARKS}


@pytest.mark.parametrize(
    ("cause", "note", "said"),
    [
        ("straggling", "slow rank: rank 3 on node2 takes 20.0 % longer", "the core or GPU of rank 3 on node2: "),
        ("exposed", "slow link: node2; node1 to node2 carried 1 Mb/s", "cable, port and driver of node2: "),
        ("exposed", "slow rank: rank 3 on node2 takes 20.0 % longer", "--batch-size 64"),
    ],
)
def test_a_note_that_explains_a_cause_has_the_better_advice(cause: str, note: str, said: str) -> None:
    row = replace(Material(*default_run()).rows[-1], footnotes=(note,))
    losses = [column for column in catalogue.CAUSES if column.key == cause]
    (text,) = answers.tries(row, losses, "", header(launch_size=2), ())
    assert text.startswith(said)


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        ("busy", "nvidia-smi -c DEFAULT, or end the process on that GPU"),
        ("oom", "a smaller --batch-size"),
        ("error", "the row's note and log say why; then --resume"),
    ],
)
def test_what_a_second_try_would_repeat_has_another_advice(cause: str, said: str) -> None:
    failed = Failed(cause=cause, message="CUDA-capable device(s) is/are busy or unavailable")
    row = replace(Material(*default_run()).rows[-1], flags=("FAILED",), failed=failed)
    assert answers.tries(row, (), "", header(launch_size=2), ())[0].startswith(said)


def test_the_rounds_that_a_noisy_row_needs_grow_with_the_square_of_its_interval() -> None:
    records = [one for n, s in enumerate((0.12, 0.16, 0.11)) for one in sweep(n, 0.1, {2: s})]
    row = Material(header(), records).rows[-1]
    rate = row.samples_per_s
    assert row.efficiency is not None and rate is not None and rate.half_width is not None
    wanted = 3 * (rate.half_width / (0.1 * rate.mean)) ** 2
    assert answers.rounds_needed(row) == min(30, max(5, int(wanted) + 1))
    assert any(text.startswith(f"--rounds {answers.rounds_needed(row)} ") for text in tries(records))


def test_a_flag_suits_its_row() -> None:
    """A batch per device can grow under the weak rule only; the strong rule has another flag."""
    weak = [one for n in range(3) for one in sweep(n, 0.1, {2: 0.14 + n / 1000})]
    assert tries(weak)[-1] == "--batch-size 64 (fewer exchanges per sample)"
    assert answers.of_note("a planet is in the way") == answers.NOTHING


# ---------------------------------------------------------------- faster


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0.1, "(ib0|eth0) is tied with (ib0|eth0) at N=2"),
        (1.0, r"(ib0|eth0) is not separated from (ib0|eth0) \(detects [\d.]+ %\) at N=2"),
    ],
)
def test_networks_are_tied_only_if_their_difference_is_known_to_be_small(size: float, expected: str) -> None:
    records = []
    for number, drift in enumerate((-0.01, 0.0, 0.02)):
        records.append(record(point("solo", 1, number), 0.1))
        for network in ("ib0", "eth0"):
            at = point("exchange", 2, number, interconnect=network)
            noise = 1 + size * (drift if network == "ib0" else 0.005 - drift)
            records.append(carried(record(at, 0.11 * noise, hosts=("a", "b")), network))
    (said,) = under("faster", answer(Material(header(), records)).lines)
    assert re.fullmatch(expected, said)


def test_one_round_proves_nothing() -> None:
    made = [record(point("solo"), 0.1)]
    made += [record(point(world_size=2, strategy=name), s) for name, s in (("fake:a", 0.1), ("fake:b", 0.2))]
    assert under("faster", answer(Material(header(), made)).lines) == [
        "fake:a is not proven to be faster than fake:b at N=2"
    ]


def test_asynchronous_rows_are_compared_among_themselves() -> None:
    made = []
    for number in range(3):
        made += [record(point("solo", 1, number), 0.1), record(point("exchange", 2, number), 0.11)]
        for name, step_s in (("fake:b", 0.12), ("fake:c", 0.2)):
            made.append(asynchronous(record(point("exchange", 2, number, strategy=name), step_s + number / 1000)))
    (said,) = under("faster", answer(Material(header(), made)).lines)
    assert said.startswith("asynchronous: fake:b is ") and said.endswith(" faster than fake:c at N=2")


# ---------------------------------------------------------------- trust, failures, footer


def test_a_repeated_window_is_counted_in_trust() -> None:
    made = [one for number in range(3) for one in sweep(number, 0.1, {2: 0.11})]
    assert under("trust", answer(Material(header(), made)).lines) == ["3 rounds"]
    made = [_disturbed(one) if one.point.kind == "exchange" else one for one in made]
    (said,) = under("trust", answer(Material(header(), made)).lines)
    assert re.search(r"\d of \d+ windows repeated while cc1plus used the cores", said)


def test_the_cause_of_a_failure_is_on_the_screen() -> None:
    made = [*sweep(0, 0.1, {1: 0.11}), failed(point(world_size=2), "missing", "horovod is not installed")]
    found = drawn((header(), made), 120)
    assert found.startswith(
        "FAILED: fake:a failed on 2 devices: missing. The largest measured row: 1 device, fake:a, "
    )
    assert "  failed   fake:a N=2: missing: horovod is not installed (rank 1 on node1; log:" in found


def test_a_killed_worker_of_a_control_run_is_on_the_screen() -> None:
    made = [one for number in range(3) for one in sweep(number, 0.1, {2: 0.11})]
    killed = point("together", 2, 1)
    made = [failed(killed, "crash(SIGKILL)", "") if one.point.key == killed.key else one for one in made]
    material = Material(header(), made)
    text = screen.render(material, PLACE._replace(lacks=material.lacks), width=200, color=False)
    assert "  failed   fake:plain together N=2 round 2: crash(SIGKILL) (rank 1 on node1; log:" in text
    assert "; 1 of 12 points failed" in text and "--resume" in text


SLOW = "slow rank: rank 3 on node2 (CPU 3) takes 20.0 % longer than the others when alone; the others wait"


@pytest.mark.parametrize(
    ("note", "said", "lost"),
    [
        (SLOW, "the core or GPU of rank 3 on node2 (CPU 3): it is slow", "slow rank: rank 3 on node2 (CPU 3)"),
        (
            "slow link: node2; node1 to node2 carried 1 Mb/s",
            "cable, port and driver of node2: ",
            "slow link: node2",
        ),
        ("contention: rank 1 on node1 loses 9.0 % more", "rank 1 on node1: it shares its core", ""),
    ],
)
def test_a_slow_place_in_a_note_of_any_row_is_on_the_screen(note: str, said: str, lost: str) -> None:
    material = Material(*default_run())
    rows = tuple(replace(row, footnotes=(note,) if row.world_size == 1 else ()) for row in material.rows)
    material.__dict__["analysis"] = replace(material.analysis, rows=rows)
    found = answer(material).lines
    assert under("try", found)[0].startswith(said) and under("lost", found)[0].endswith(lost)


def test_trust_has_what_the_tables_warn_of() -> None:
    busy = (PointWarning(kind="busy-cpus", text="busy"),)
    made = [
        replace(_disturbed(one, repeats=False), warnings=busy)
        for number in range(3)
        for one in sweep(number, 0.1, {2: 0.11})
    ]
    (trust,) = under("trust", answer(Material(header(), made)).lines)
    assert "CPUs over 80 % busy while they emulated in 12 of 12 points" in trust
    assert "foreign load on node1: cc1plus" in trust
    material = Material(*two_networks())
    unknown = Emulation(samples_per_s=100.0, error_fraction=None)
    rows = tuple(replace(row, emulation=unknown) for row in material.rows)
    material.__dict__["analysis"] = replace(material.analysis, rows=rows)
    assert "the emulator's own error is unknown in 4 of 4 rows" in under("trust", answer(material).lines)[0]


def test_a_run_that_lacks_points_is_resumed_and_another_one_repeated() -> None:
    whole = Material(*default_run())
    assert "--like" in screen.render(whole, PLACE, width=80, color=False)
    broken = PLACE._replace(lacks=True, event="interrupted after 5 of 15 points; these are kept")
    text = screen.render(whole, broken, width=80, color=False)
    assert text.startswith("interrupted after 5 of 15 points; these are kept\n")
    assert f"resume   mpirun -np 2 python -m scaling.run --resume {PLACE.run}\n" in text


AGAIN, SRUN = "python -m scaling.run --like RUN", "srun --mpi"


@pytest.mark.parametrize(
    ("started", "mpi", "command"),
    [
        ("by scaling itself (--ranks N)", "ZeroMQ 4.3.5", "python -m scaling.run --ranks 2 --like RUN"),
        (
            "by torchrun (RANK, WORLD_SIZE)",
            "ZeroMQ 4.3.5",
            "torchrun --nproc-per-node 2 -m scaling.run --like RUN",
        ),
        ("by srun (SLURM_PROCID, SLURM_STEP_NUM_TASKS)", "ZeroMQ 4.3.5", f"{SRUN}=none -n 2 {AGAIN}"),
        ("by srun (SLURM_PROCID, SLURM_STEP_NUM_TASKS)", "Open MPI v5.0.11", f"{SRUN}=pmix -n 2 {AGAIN}"),
        ("by hand (--rank, --ranks)", "ZeroMQ 4.3.5", f"{AGAIN}  # 2 ranks, started as before"),
        ("by mpirun (OMPI_COMM_WORLD_RANK)", "Open MPI v5.0.11", f"mpirun -np 2 {AGAIN}"),
        (
            "by mpirun (OMPI_COMM_WORLD_RANK), in lab a b",
            "Open MPI v5.0.11",
            f"python -m scaling lab run --name 'a b' -- -np 2 {AGAIN}",
        ),
    ],
)
def test_what_to_paste_keeps_the_launcher(started: str, mpi: str, command: str) -> None:
    made, _ = default_run()
    assert facts.command(replace(made, started=started, mpi=mpi), "--like RUN", "scaling.run") == command


def test_a_broken_off_round_lacks_points() -> None:
    made, records = default_run()
    assert not Material(made, records).lacks
    last = point("exchange", 2, 2).key
    assert Material(made, [one for one in records if one.point.key != last]).lacks


def test_a_whole_run_of_trainings_lacks_nothing() -> None:
    whole = [training_record(top1=(0.5, 0.9), seed=seed, rate=rate) for seed in (0, 1) for rate in (0.1, 0.2)]
    assert not Material(header(), whole).lacks
    assert not Material(header(), whole[:1]).lacks
    assert Material(header(), whole[1:]).lacks
    assert Material(header(), [*whole[1:], training_record(top1=(0.5,), failed="crash")]).lacks
    assert Material(header(), []).lacks


def test_a_run_of_trainings_has_its_best_accuracy_as_the_answer() -> None:
    found = answer(Material(header(), [training_record(top1=(0.5, 0.9))]))
    assert found.sentence.startswith("fake:a on ") and " reaches 90.0 % top-1 after 2 epochs, " in found.sentence


@pytest.mark.parametrize("certified", [False, True])
def test_words_of_a_foreign_record_are_quoted(certified: bool) -> None:
    """`again` is there to be pasted, and anybody may have written the record."""
    foreign = header(program="scaling; touch x", command=("--name", "$(touch y)"))
    text = facts.command(foreign, shlex.join(foreign.command), "" if certified else "scaling.run")
    words = shlex.split(text.removesuffix("  # 2 ranks, started as before"))
    assert words[-2:] == ["--name", "$(touch y)"]
    assert ("scaling; touch x" in words) == certified and ";" not in text.replace("'scaling; touch x'", "")


def test_the_picture_of_a_screen_loads_nothing_and_has_all_its_words() -> None:
    made, records = default_run()
    material = Material(replace(made, hosts=(host("<script>"),)), records)
    text = screen.picture(material, Place("RUN"), theme="light")
    root = ET.fromstring(text)
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "") and "<script" not in text
    drawn = {"".join(one.itertext()).replace("\N{NO-BREAK SPACE}", " ").strip() for one in root.iter() if one.text}
    shown = screen.render(material, Place("RUN"), width=88, color=False)
    words = {word for word in shown.split() if set(word).isdisjoint("─█▏▎▍▌▋▊▉")}
    assert words <= set(" ".join(drawn).split())
    assert screen.picture(material, Place("RUN"), theme="dark") != text
