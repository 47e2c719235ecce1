"""A script's command, its steps by its optimizers, and the batch that follows from its samples."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.frameworks.script import command, lead, watch
from scaling.frameworks.script.watch import REPEATS, REPLACED, Cycle, Seen, first_tensor
from scaling.records.task import Task
from tests.support.points import TASK, make_point, placed


@pytest.mark.parametrize(
    ("given_", "target", "is_module", "arguments", "dropped"),
    [
        ("train.py --lr 0.1", "train.py", False, ("--lr", "0.1"), ""),
        ("-m package.train --lr 0.1", "package.train", True, ("--lr", "0.1"), ""),
        ("python3.11 -u train.py -u", "train.py", False, ("-u",), "python3.11 -u"),
        ("python -m train --x", "train", True, ("--x",), "python"),
        ("torchrun --nproc-per-node 8 train.py", "train.py", False, (), "torchrun --nproc-per-node 8"),
        ("torchrun --standalone --nproc_per_node=8 train.py --a b", "train.py", False, ("--a", "b"), "torchrun"),
        ("python -m torch.distributed.run --nnodes 2 train.py", "train.py", False, (), "torch.distributed.run"),
        ("accelerate launch --multi_gpu --num_processes 2 train.py", "train.py", False, (), "accelerate launch"),
        ("deepspeed --num_gpus=4 train.py --deepspeed c.json", "train.py", False, ("--deepspeed", "c.json"), "d"),
        ("torchrun --nproc-per-node 2 -m package.train --x", "package.train", True, ("--x",), "torchrun"),
        ("python -W ignore -X dev train.py", "train.py", False, (), "python -W ignore -X dev"),
        ("python -m torch.distributed.launch --use_env train.py", "train.py", False, (), "--use_env"),
    ],
)  # fmt: skip
def test_a_launcher_in_front_is_dropped(
    given_: str, target: str, is_module: bool, arguments: tuple[str, ...], dropped: str
) -> None:
    found = command.read(given_.split())
    assert (found.target, found.is_module, found.arguments) == (target, is_module, arguments)
    assert (dropped in found.notes[0]) if dropped else not found.notes
    assert any("ACCELERATE_MIXED_PRECISION" in note for note in found.notes) == ("accelerate" in dropped)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "no script follows"),
        ("python", "no script follows"),
        ("bash train.sh", "-- bash: neither a Python script nor a known launcher"),
        ("python -c pass", "-- python -c: write the code into a file"),
        ("accelerate test", "-- accelerate test: only accelerate launch starts a training"),
        ("torchrun --no-python train", "only Python scripts are measured"),
        ("pytest", "if pytest is a training in Python, -- /.*/pytest ARGS"),
    ],
)
def test_what_is_no_script_is_refused_with_what_to_do(words: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        command.read(words.split())


def test_a_script_is_read_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("x = 1\ndef f(:\n")
    with pytest.raises(UsageError, match=r"broken\.py:2: SyntaxError: invalid syntax"):
        command.parsed("broken.py")
    with pytest.raises(UsageError, match=r"-- lost\.py: No such file or directory; paths are relative to"):
        command.parsed("lost.py")
    with pytest.raises(UsageError, match="a folder; name its script"):
        command.parsed(".")
    (tmp_path / "run").write_text("#!/bin/sh\nexec python train.py\n")
    with pytest.raises(UsageError, match="-- run: no Python; write the command that it starts"):
        command.parsed("run")
    (tmp_path / "train.ipynb").write_text("{}")
    with pytest.raises(UsageError, match="a notebook; make a script of it"):
        command.parsed("train.ipynb")


def test_settings_of_accelerate_are_named_as_variables() -> None:
    found = command.read(["accelerate", "launch", "--mixed_precision", "bf16", "train.py"])
    assert "ACCELERATE_MIXED_PRECISION" in found.notes[0]


def test_placeholders_are_replaced_and_other_braces_are_left() -> None:
    found = command.read(["train.py", "--devices={devices}", "--format={name}", "{out}/x"])
    assert found.filled({"devices": 8, "out": "/tmp/o"}) == ("--devices=8", "--format={name}", "/tmp/o/x")


def test_a_label_fits_into_a_strategys_name() -> None:
    assert command.plain_name("my train@2.py") == "my-train-2.py"
    assert command.read(["folder/train.py"]).label == "train.py"


# ---------------------------------------------------------------- environment


def task(folder: Path, script: str) -> Task:
    point = make_point(strategy="script:train", kind="exchange", world_size=2, model="script", data="own",
                       device="cpu", batch_rule="weak", batch_size=1, round=0, script=script)  # fmt: skip
    given = replace(
        TASK, point=point, rank=1, hosts=("node1",) * 2, rank_ports=(11, 12), ports=(1, 2), log=str(folder)
    )
    return placed(given, ["10.0.0.1", "10.0.0.2"], "eth0")


@pytest.mark.parametrize("script", ["train.py", "-m train", "main.py", "-m folder.main", "-m folder"])
def test_a_library_is_named_by_the_script_or_by_a_file_that_it_imports(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "train.py").write_text("import horovod.torch as hvd\nimport tensorflow\n")
    (tmp_path / "main.py").write_text("def main():\n    from train import fit\n")
    (tmp_path / "folder" / "train.py").write_text("import horovod.torch, tensorflow\n")
    (tmp_path / "folder" / "main.py").write_text("from .train import fit\n")
    (tmp_path / "folder" / "__main__.py").write_text("from folder.train import fit\n")
    given = task(tmp_path, script)
    assert [one.name for one in command.Script().helpers(given)] == ["rendezvous"]
    assert "TF_CONFIG" in command.Script().environ(given, {"address": "10.0.0.1", "port": "1"})


def test_a_script_that_needs_its_launchers_variables_is_a_cluster_of_one(tmp_path: Path) -> None:
    found = command.torchrun(task(tmp_path, "train.py"), alone=True)
    where = {"cluster": {"worker": ["10.0.0.2:12"]}, "task": {"type": "worker", "index": 0}}
    assert json.loads(found["TF_CONFIG"]) == where
    assert (found["RANK"], found["WORLD_SIZE"], found["MASTER_PORT"]) == ("0", "1", "12")


def test_an_error_in_a_function_of_tensorflow_is_told_by_what_was_raised(tmp_path: Path) -> None:
    said = 'in user code:\n\n    File "train.py", line 3, in step  *\n        x.y()\n\n    ValueError: no y\n'
    assert lead._where(ValueError(said), tmp_path, "train.py") == "train.py: ValueError: no y"
    assert not lead.is_own("/tmp/__autograph_generated_filecq1.py")


@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.parametrize("library", ["horovod.torch", "jax._src.distributed", "tensorflow.python.eager.context"])
def test_a_library_that_is_imported_has_joined_the_ranks_only_if_it_was_told_to(
    library: str, joins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = SimpleNamespace(coordination_service="standalone" if joins else None)
    module = SimpleNamespace(
        is_initialized=lambda: True,
        size=lambda: 1 + joins,
        global_state=SimpleNamespace(client=joins or None),
        context=lambda: one,
    )
    for name in [name for name in sys.modules if name.startswith(("horovod", "jax", "tensorflow"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, module)
    assert watch.has_joined() is joins


@pytest.mark.parametrize("given", [(1,), (1, 10), (1, 10, 100)])
def test_a_library_waits_longer_for_heartbeats_of_ranks_that_are_stopped(given: tuple[int, ...]) -> None:
    class State:
        def initialize(self, a: int, service_max_missing_heartbeats: int = 10, last: int = 0) -> tuple[int, ...]:
            return a, service_max_missing_heartbeats, last

    class Context:
        def configure_coordination_service(self, heartbeat_timeout_in_ms: int = 0) -> int:
            return heartbeat_timeout_in_ms

    watch.HOOKS["jax._src.distributed"](SimpleNamespace(State=State))
    assert State().initialize(*given) == (1, watch.PATIENCE, *given[2:], 0)[:3]
    watch.HOOKS["tensorflow.python.eager.context"](SimpleNamespace(Context=Context))
    assert Context().configure_coordination_service() == watch.PATIENCE


# ---------------------------------------------------------------- steps


def ends(events: list[int]) -> list[bool]:
    cycle = Cycle()
    return [cycle.ends(event) for event in events]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_a_cycle_of_optimizers_ends_one_step_each(size: int) -> None:
    """A period may itself repeat a shorter one; then that is the step. It may begin with one that ends."""
    for period in product(range(3), repeat=size):
        shortest = next(n for n in range(1, size + 1) if size % n == 0 and period == period[:n] * (size // n))
        cycle = Cycle()
        found = [cycle.ends(event) for event in period * (3 * REPEATS)]
        assert cycle.length == shortest, period
        assert sum(found[-REPEATS * size :]) == REPEATS * size // shortest, period


def test_one_optimizer_ends_each_step_once_it_has_repeated() -> None:
    assert ends([1, 1, 1, 1]) == [False, False, True, True]


def test_an_inner_optimizer_that_steps_once_is_forgotten() -> None:
    assert ends([9, 1, 1, 1, 1]) == [False, False, False, True, True]


def test_a_sequence_that_leaves_its_cycle_is_learnt_anew() -> None:
    cycle = Cycle()
    for event in (1, 2, 1, 2, 1, 2):
        cycle.ends(event)
    assert (cycle.length, cycle.lost) == (2, 0)
    assert not cycle.ends(3) and cycle.lost == 1
    assert [cycle.ends(3) for _ in range(REPLACED + 1)][-2:] == [True, True]


@pytest.mark.parametrize("batches", [63, 64])
def test_the_rarer_of_two_optimizers_ends_a_step_also_where_an_epoch_breaks_the_cycle(batches: int) -> None:
    """A discriminator (0) steps at each batch, a generator (1) at each fifth one of an epoch. The first steps look
    like a discriminator's alone."""
    epoch = [event for index in range(batches) for event in ([0, 1] if index % 5 == 0 else [0])]
    cycle = Cycle()
    found = [event for event in epoch * 20 if cycle.ends(event)]
    assert (set(found[4:]), cycle.lost) == ({1}, 1)
    assert len(found) > 19 * epoch.count(1)


def test_an_optimizer_that_ended_the_steps_and_is_gone_is_noticed() -> None:
    cycle = Cycle()
    assert sum(cycle.ends(event) for event in [0, 1] * 10 + [0] * (2 * REPLACED)) > REPLACED // 2
    assert cycle.lost


# ---------------------------------------------------------------- samples


class Array:
    def __init__(self, *shape: int) -> None:
        self.shape, self.ndim = shape, len(shape)


@pytest.mark.parametrize(
    "batch",
    [Array(8, 3), [Array(8, 3), Array(8)], {"a": "text", "b": (Array(), Array(8))}, ({"x": [Array(8)]}, Array(9))],
)
def test_the_first_array_with_a_dimension_has_the_samples(batch: Any) -> None:
    found = first_tensor(batch)
    assert found.shape[0] == 8


class Loader:
    """An iterator of a DataLoader with this batch size."""

    def __init__(self, batch_size: int) -> None:
        self._index_sampler = SimpleNamespace(batch_size=batch_size)


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (Array(8, 3), 8),
        (Array(5, 3), 5),  # the last of an epoch
        (Array(40, 8), 8),  # tokens x sequences
        (Array(70, 3), 8),  # nodes of graphs
        ([[Array(3, 9, 9)] * 8, [{"box": Array(1, 4)}] * 8], 8),  # images of several sizes
    ],
)
def test_a_batch_has_as_many_samples_as_its_loader_puts_into_one(batch: Any, samples: int) -> None:
    seen = Seen()
    seen.batch(Loader(8), batch)
    seen.stepped(None)
    assert seen.in_loaders == samples


def test_a_loader_counts_if_an_optimizer_steps_after_its_batch() -> None:
    seen, training = Seen(), Loader(8)
    for _ in range(3):
        seen.batch(training, Array(8))
        seen.batch(training, Array(8))  # gradients accumulate
        seen.stepped(None)
        for _ in range(9):
            seen.batch(Loader(8), Array(8))  # evaluation; its iterators may have the address of one before
    assert (seen.in_loaders, seen.counted) == (48, 48)


@pytest.mark.parametrize(("in_forward", "counted"), [(8, 8), (16, 8), (32, 8), (2, 2)])
def test_a_model_that_sees_a_batch_several_times_has_no_more_samples(in_forward: int, counted: int) -> None:
    """With four ranks, two samples of a batch of 8 are its split."""
    seen = Seen()
    seen.world_size = 4
    for step in range(4):
        seen.batch(Loader(8), Array(8))
        seen.forwards[0] = (step + 1) * in_forward
        seen.stepped(None)
    assert seen.counted == 4 * counted


def test_parts_of_a_model_that_see_the_same_batch_have_its_samples_once() -> None:
    """A body and two heads, as of actor and critic, that the script calls one after the other."""
    seen = Seen()
    for _ in range(3):
        seen.probed = {part: samples + 8 for part, samples in (seen.probed or dict.fromkeys(range(3), 0)).items()}
        seen.stepped(None)
    assert seen.probed_samples() == 8


def test_a_model_that_is_frozen_while_another_trains_has_parameters_of_the_training() -> None:
    seen = Seen()
    generator = SimpleNamespace(requires_grad=False, grad=Array(3))
    frozen = SimpleNamespace(requires_grad=False, grad=None)
    discriminator = SimpleNamespace(requires_grad=True, grad=None)
    for params in ([generator, frozen], [discriminator]):
        seen.stepped(SimpleNamespace(param_groups=[{"params": params}]))
    assert seen.parameters == [generator, discriminator]


@pytest.mark.parametrize("batch", ["text", 3, None, [], {"a": Array()}])
def test_a_batch_without_arrays_has_none(batch: Any) -> None:
    assert first_tensor(batch) is None


class Backend:
    def __init__(self, number: int) -> None:
        self.number = number

    def _get_sequence_number_for_group(self) -> int:
        if self.number < 0:
            raise RuntimeError("Backend mpi does not yet support sequence numbers.")
        return self.number


@pytest.mark.parametrize(("numbers", "known"), [((), 0), ((3,), 3), ((3, 4), 7), ((3, -1), None)])
def test_collectives_are_counted_if_each_backend_counts_its_own(
    numbers: Sequence[int], known: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = [
        SimpleNamespace(_device_types=["cpu"], _get_backend=lambda _, at=at: Backend(at), size=lambda: 2)
        for at in numbers
    ]
    groups.append(SimpleNamespace(size=lambda: 1))  # the ranks of it exchange nothing
    module = SimpleNamespace(_world=SimpleNamespace(pg_map=groups))
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", module)
    assert watch.collectives() == known
