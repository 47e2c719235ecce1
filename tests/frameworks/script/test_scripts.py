"""Scripts as users write them, unchanged, on two ranks: label, unit, batch, rule, causes and faults."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from scaling.records.events import Failed, Finished
from scaling.report.facts import setting
from scaling.report.formats import screen
from scaling.report.material import Material, Place
from scaling.report.notes import shortened
from tests.support import scripts
from tests.support.matrix import cases
from tests.support.scripts import exchange, measured, row_of

EXCHANGE = {"kinds": ["exchange"]}


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_loop_is_measured_with_its_copies(tmp_path: Path) -> None:
    found = measured(tmp_path, scripts.LOOP, "--batch-size", "16")
    row = row_of(found)
    assert (row.workload.model, row.workload.unit) == ("train.py", "samples")
    assert (row.workload.batch_size, row.workload.batch_rule) == (16, "weak")
    ready = exchange(found).ranks[0].ready
    assert ready is not None and ready.parameters == 64 * 256 + 256 + 2 * (256 * 256 + 256) + 256 * 10 + 10
    assert ready.gradient_bytes == 4 * ready.parameters
    assert row.efficiency is not None and row.breakdown is not None and row.breakdown.straggling is not None
    assert not {"AUDIT", "FAILED"} & set(row.flags), row.footnotes
    assert list((found.folder / "scripts").iterdir()) == []
    material = Material(found.header, found.records)
    text = screen.render(material, Place(""), color=False, width=80)
    assert "train.py reaches" in " ".join(text.split())
    assert material.doc.last_line.startswith("scaling: script:train.py N=2 ")
    assert setting(found.header, found.records)[0] == "train.py, 16 a device (weak)"


LIBRARIES = {
    "accelerate": (scripts.ACCELERATE, 32, 32 * 64 + 64 + 64 * 4 + 4, ()),
    "transformers": (scripts.TRAINER, 8, None, ()),
    "lightning": (scripts.LIGHTNING, 16, 32 * 64 + 64 + 64 * 4 + 4, ("{devices}",)),
    "horovod": (scripts.HOROVOD, 16, 32 * 64 + 64 + 64 * 4 + 4, ()),
    "tensorflow": (scripts.KERAS, 16, None, ()),
    "jax": (scripts.JAX, 16, 0, ()),
}


@pytest.mark.parametrize("library", cases(LIBRARIES, {"accelerate"}))
def test_a_librarys_loop_is_measured(library: str, tmp_path: Path) -> None:
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    if library == "lightning" and (why := scripts.torchvision_fails()):
        pytest.skip(f"lightning's torchmetrics imports torchvision, which does not fit torch here: {why}")
    source, batch, parameters, words = LIBRARIES[library]
    found = measured(tmp_path, source, *words)
    row = row_of(found)
    assert (row.workload.unit, row.workload.batch_size, row.workload.batch_rule) == ("samples", batch, "weak")
    ready = exchange(found).ranks[0].ready
    assert ready is not None and library in ready.versions
    assert parameters is None or ready.parameters == parameters
    # Keras 3 cannot fit under MultiWorkerMirroredStrategy (TensorFlow 2.21): each rank trains its own model.
    assert ("AUDIT" in row.flags) == (library == "tensorflow"), row.footnotes


def test_accelerates_launcher_is_dropped_and_its_ranks_exchange(tmp_path: Path) -> None:
    if find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed")
    source = scripts.ACCELERATE.replace("cpu=True, ", "")
    row = row_of(measured(tmp_path, source, script="accelerate launch --cpu train.py", **EXCHANGE))
    assert not {"AUDIT", "FAILED"} & set(row.flags), row.footnotes


def edited(*changes: tuple[str, str]) -> str:
    source = scripts.LOOP
    for before, after in changes:
        assert before in source
        source = source.replace(before, after)
    return source


GROUP, WRAPPED = 'distributed.init_process_group("gloo")', "nn.parallel.DistributedDataParallel(model)"
WAYS = {
    # Dynamo alone, without a compiler.
    "compiles": edited(("batch = args", "model = torch.compile(model, backend='eager')\nbatch = args")),
    "shards": edited(
        ("import argparse", "from torch.distributed.fsdp import FullyShardedDataParallel\nimport argparse"),
        (WRAPPED, "FullyShardedDataParallel(model, device_id=torch.device('cpu'))"),
    ),
    "shards by tensors": edited(
        ("import argparse", "from torch.distributed.fsdp import fully_shard\nimport argparse"),
        (WRAPPED, "fully_shard(model, mesh=distributed.init_device_mesh('cpu', (size,)))"),
    ),
    "evaluates, and sees each batch twice": edited(
        ("4096", "320"),
        (
            "done = 0",
            "with torch.no_grad():\n    [list(DataLoader([torch.zeros(64)] * 8, 4)) for _ in range(4)]\ndone = 0",
        ),
        (
            "    for inputs, labels",
            "    for _ in DataLoader([torch.zeros(64)] * 512, 128):\n        pass\n    for inputs, labels",
        ),
        ("model(inputs), labels)", "model(inputs), labels) + 0 * model(inputs).sum()"),
    ),
    "names its port, in copies too": edited(
        ('"RANK" in os.environ and', ""),
        (GROUP, "distributed.init_process_group('gloo', 'tcp://127.0.0.1:29511', rank=rank, world_size=size)"),
    ),
    "goes to another folder": f"import os, tempfile\nos.chdir(tempfile.mkdtemp())\nopen(__file__)\n{scripts.LOOP}",
}


@pytest.mark.parametrize(
    "way",
    cases(WAYS, {"compiles", "shards", "evaluates, and sees each batch twice", "names its port, in copies too"}),
)
def test_a_way_to_write_a_loop_is_measured(way: str, tmp_path: Path) -> None:
    row = row_of(measured(tmp_path, WAYS[way], "--batch-size", "16"))
    assert row.efficiency is not None, row.footnotes
    assert (row.workload.batch_size, row.workload.batch_rule) == (16, "weak")


def test_a_script_that_needs_torchruns_variables_has_them_in_its_copies(tmp_path: Path) -> None:
    row = row_of(measured(tmp_path, f"import os\nint(os.environ['LOCAL_RANK'])\n{scripts.LOOP}"))
    assert row.efficiency is not None and any("needs torchrun's variables" in note for note in row.footnotes)


NOT_EXCHANGED = "gradients are not exchanged between steps:"


def test_a_script_that_starts_a_fixed_number_of_ranks_has_no_baseline(tmp_path: Path) -> None:
    """As Lightning with `devices=2`: without torchrun's variables it starts two ranks on the one device."""
    own = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29511"}
    source = f"import os\nfor one in {own}.items():\n    os.environ.setdefault(*one)\n{scripts.LOOP}"
    found = measured(tmp_path, source, kinds=["exchange", "each"])
    assert exchange(found).outcome == Finished()
    (outcome,) = (record.outcome for record in found.records if record.point.kind == "each")
    assert (
        isinstance(outcome, Failed)
        and "starts 2 ranks for one device: give their number by {devices}" in outcome.message
    )


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        ("no-ddp", f"{NOT_EXCHANGED} no DistributedDataParallel around the model?"),
        ("ignores", f"{NOT_EXCHANGED} it makes no process group; does the script ignore WORLD_SIZE?"),
        (
            "alone",
            f"{NOT_EXCHANGED} its process group has fewer ranks; scaling sets RANK and WORLD_SIZE, and no MPI",
        ),
        ("no-sampler", "every rank reads the same samples: no DistributedSampler?"),
    ],
)
def test_a_fault_is_found(plant: str, said: str, tmp_path: Path) -> None:
    """`alone`: each rank is a world of its own, as with mpi4py in a process that no mpirun started. Libraries that
    log for TensorBoard import TensorFlow."""
    source = edited(("done = 0", "import sys\nsys.modules['tensorflow'] = sys\ndone = 0"))
    row = row_of(measured(tmp_path, source, "--plant", plant, **EXCHANGE))
    assert "AUDIT" in row.flags and f"audit: {said}" in row.footnotes


def test_a_batch_that_the_script_divides_is_strong_scaling(tmp_path: Path) -> None:
    row = row_of(measured(tmp_path, scripts.LOOP, "--plant", "divided"))
    assert (row.workload.batch_rule, row.workload.batch_size, row.global_batch_size) == ("strong", 16, 32)
    assert row.efficiency is not None and row.breakdown is not None
    assert None not in (row.breakdown.small_batch, row.breakdown.straggling, row.breakdown.exposed)
    assert row.breakdown.contention is None and any("small batch: contention included" in n for n in row.footnotes)


def test_parameters_of_one_rank_and_a_batch_that_the_script_splits_are_no_faults(tmp_path: Path) -> None:
    found = measured(tmp_path, scripts.PARTS, **EXCHANGE)
    row, ready = row_of(found), exchange(found).ranks[0].ready
    assert not {"AUDIT", "FAILED"} & set(row.flags), row.footnotes
    assert (row.workload.batch_size, row.global_batch_size) == (16, 32)
    assert ready is not None and ready.gradient_bytes == 4 * (32 * 64 + 64 + 64 * 4 + 4)
    assert any("outside of DistributedDataParallel" in note for note in row.footnotes), row.footnotes


@pytest.mark.parametrize("plant", cases(("one-rank", "sizes", "small"), {"one-rank"}))
def test_a_planted_cause_is_the_largest_loss(plant: str, tmp_path: Path) -> None:
    """Sleeps of 50 ms in steps of some milliseconds: no load of the machine hides them. Half a second has some
    twenty of those that a rank draws."""
    row = row_of(measured(tmp_path, scripts.LOOP, "--plant", plant, rounds=2, windows=5, window_s=0.5))
    assert row.breakdown is not None
    losses = {name: getattr(row.breakdown, name) or 0.0 for name in row.breakdown.__struct_fields__}
    wanted = {"small": ("exchange_cpu", "waiting")}.get(plant, ("straggling",))
    assert max(losses, key=losses.__getitem__) in wanted, losses


def test_a_slow_loader_is_lost_throughput_and_no_lost_scaling(tmp_path: Path) -> None:
    row = row_of(measured(tmp_path, scripts.LOOP, "--plant", "loader"))
    assert any(note.startswith("waiting for data: one device alone waits") for note in row.footnotes)


def test_pauses_are_set_aside_and_said_with_their_line(tmp_path: Path) -> None:
    found = measured(tmp_path, scripts.LOOP, "--plant", "pause", windows=8)
    row = row_of(found)
    line = scripts.LOOP.splitlines().index("        time.sleep(1.0)") + 1
    assert any(note.startswith("pauses:") and f"train.py:{line}" in note for note in row.footnotes), row.footnotes
    windows = [window for rank in exchange(found).ranks for window in rank.windows]
    assert all(window.seconds < 1.0 for window in windows)


BAD = {
    "raises": ("x = 1\nraise ValueError('broken')\n", "train.py:2: ValueError: broken"),
    "asks": ("input()\n", "train.py:1: EOFError: EOF when reading a line"),
    "needs arguments": (
        "import argparse\np = argparse.ArgumentParser()\n"
        "p.add_argument('--data', required=True)\np.parse_args()\n",
        "train.py: error: the following arguments are required: --data",
    ),
    "exits": ("raise SystemExit\n", "train.py called exit() without a training step"),
    "ends early": (f"{scripts.LOOP}", "train.py ended after 3 steps: give it more epochs or steps"),
    "reads nothing": (scripts.LOOP, "its DataLoader gives this rank no batch: too few samples for so many ranks"),
    "spawns": (
        "import torch.multiprocessing as mp\nmp.spawn(print, nprocs=2)\n",
        "train.py:2: starts processes of its own",
    ),
    "exits hard": ("import os\nos._exit(0)\n", "train.py called exit(0) without a training step"),
}


@pytest.mark.parametrize("how", cases(BAD, {"raises", "needs arguments", "ends early"}))
def test_a_script_that_cannot_be_measured_costs_its_cell_one_line(how: str, tmp_path: Path) -> None:
    source, said = BAD[how]
    words = {"ends early": ["--steps", "3"], "reads nothing": ["--batch-size", "5000"]}.get(how, [])
    found = measured(tmp_path, source, *words, **EXCHANGE)
    outcome = exchange(found).outcome
    assert isinstance(outcome, Failed) and said in outcome.message, outcome
    assert setting(found.header, found.records)[0] == "train.py"


def test_a_script_that_fails_in_all_points_is_not_started_for_other_rounds(tmp_path: Path) -> None:
    found = measured(tmp_path, "raise ValueError\n", **{**EXCHANGE, "rounds": 3})
    assert [record.point.round for record in found.records] == [0]


@pytest.mark.matrix
def test_a_copy_of_a_loop_over_several_workers_is_a_cluster_of_one(tmp_path: Path) -> None:
    if find_spec("tensorflow") is None:
        pytest.skip("tensorflow is not installed")
    row = row_of(measured(tmp_path, scripts.MIRRORED))
    assert (row.workload.batch_size, row.workload.batch_rule) == (16, "weak")


SILENT = {
    "sleeps": ("import time\nwhile True:\n    time.sleep(0.1)", "add `scaling.step(samples=N)` to its loop", ":3"),
    "starts a process": (
        "import multiprocessing, time\n"
        "child = multiprocessing.Process(target=time.sleep, args=[60])\nchild.start()\nchild.join()",
        "starts processes of its own: call the function directly",
        ":4",
    ),
}


@pytest.mark.parametrize("how", SILENT)
def test_a_script_that_makes_no_step_says_what_to_do_and_where_it_is(how: str, tmp_path: Path) -> None:
    source, what, line = SILENT[how]
    found = measured(tmp_path, source, startup_timeout_s=8, **EXCHANGE)
    outcome = exchange(found).outcome
    assert isinstance(outcome, Failed) and outcome.message.startswith(f"no step within 3 s: {what}")
    assert f"train.py{line}" in outcome.message
    assert what in shortened(f"train.py N=2: error: {outcome.message}")


def test_a_script_finds_what_stands_beside_its_folder_and_those_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "images").write_text("x")
    folder = tmp_path / "code" / "deep"
    folder.mkdir(parents=True)
    (tmp_path / "code" / "labels").write_text("x")
    monkeypatch.chdir(folder)
    reads = ("'../labels'", "'../../data/images'", "'../deep/train.py'", "__file__ + '/../../../data/images'")
    source = "import os\n" + "".join(f"open(os.path.normpath({each})).read()\n" for each in reads) + scripts.LOOP
    assert row_of(measured(folder, source, **EXCHANGE)).samples_per_s is not None


def test_a_script_writes_into_a_copy_of_its_folder(tmp_path: Path) -> None:
    source = (
        "import os, signal\nopen('written.txt', 'w').write('x')\nsignal.alarm(0)\n"
        f"open(os.path.join(os.path.dirname(__file__), 'log.txt'), 'w').write('x')\n{scripts.LOOP}"
    )
    row_of(measured(tmp_path, source, script=str(tmp_path / "train.py"), **EXCHANGE))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["results", "train.py"]
    row_of(measured(tmp_path, source, in_place=True, **EXCHANGE))
    assert (tmp_path / "written.txt").exists()
