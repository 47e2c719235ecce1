"""Checks of rank 0 before a sweep: ranks, strategies from outside, the folder of the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.agent.agent import data_located
from scaling.errors import LaunchError, SilentRanks, UsageError
from scaling.plan import config, plan
from scaling.plan.config import SweepConfig
from scaling.records.events import Failed, Finished
from scaling.records.host import HostInfo, Nic
from scaling.records.messages import SWEEP_DECODER, Locate, Located, ToAgent, ToSweep
from scaling.report.formats import terminal
from scaling.run import flags, invocation, listing
from scaling.run.enrolment import ask_of_outside, check_same_launch, check_versions, locate
from scaling.transport.base import Hub, Mailbox
from scaling.workloads import data
from tests.support import faulty, scripted_records, written
from tests.support.inline import Launch, Run, enrol, host
from tests.support.points import POINT

QUICK: dict[str, Any] = {"rounds": 1, "kinds": ["exchange"], "world_sizes": [2]}


def node(number: int) -> HostInfo:
    nic = Nic(name="ib0", address=f"10.0.0.{number}", netmask="255.255.255.0", up=True, mtu=1500)
    return host(f"node{number}", cores=2, nics=(nic,))


def beside(tmp_path: Path, mode: str) -> tuple[Run, Failed]:
    """A sweep of a faulty strategy and of one that works, which must have been measured; how the other failed."""
    name = f"{faulty.MODULE}:{mode}"
    run = Launch(2).sweep(tmp_path, strategy=[name, "fake:a"], **QUICK)
    (other,) = run.of(size=2, strategy="fake:a")
    assert isinstance(other.outcome, Finished)
    (record,) = run.of(size=2, strategy=name)
    assert isinstance(record.outcome, Failed)
    assert len(run.records) == 2
    return run, record.outcome


@pytest.mark.parametrize("hook", ["environ", "helpers"])
def test_what_a_strategy_raises_costs_its_point_alone(tmp_path: Path, hook: str) -> None:
    run, failed = beside(tmp_path, hook)
    assert failed.cause == "error"
    assert f"strategy {faulty.MODULE}:{hook}: {hook}() raised KeyError: 'planted in {hook}'" in failed.message
    assert f'raise KeyError("planted in {hook}")' in failed.log_tail  # its traceback
    assert "failed: error" in terminal.render(run.header, run.records, color=False)


@pytest.mark.parametrize(
    ("mode", "cause", "told"),
    [
        ("number", "error", "environ() is of a wrong type: Expected `str`, got `int`"),
        ("leaving", "error", "environ() raised SystemExit: planted in environ"),
        ("helping", "error", "helpers() is of a wrong type: Expected `str`, got `int` - at `$[0].name`"),
        ("beyond", "error", "helpers() names a rank or server that the point does not have"),
        ("refuse", "refused", "refuse() raised KeyError: 'planted in refuse'"),
        ("refusing", "refused", "refuse() is of a wrong type: Expected `str | null`, got `int`"),
    ],
)
def test_a_wrong_answer_costs_its_point_alone(tmp_path: Path, mode: str, cause: str, told: str) -> None:
    _, failed = beside(tmp_path, mode)
    assert failed.cause == cause
    assert f"strategy {faulty.MODULE}:{mode}: {told}" in failed.message


def test_what_a_strategy_lacks_is_its_cells_cause(tmp_path: Path) -> None:
    run, failed = beside(tmp_path, "lacking")
    assert failed == Failed(cause="missing", message="no licence: buy one (on node1)")
    assert "no licence: buy one" in " ".join(terminal.render(run.header, run.records, color=False).split())


def test_a_package_that_only_another_rank_lacks_counts_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faulty, "ANSWERS", [None, "no licence"])
    _, failed = beside(tmp_path, "sometimes")
    assert failed == Failed(cause="missing", message="no licence (on node1)")
    assert faulty.ANSWERS == []  # each rank was asked once


def test_the_host_that_lacks_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faulty, "ANSWERS", [None, "no licence"])
    launch = Launch(2, [node(1), node(2)])
    mailbox = Mailbox[ToAgent, ToSweep](launch.hub.rank(0), SWEEP_DECODER, turn=launch.turn, wait=launch.wait)
    names = ("fake:a", f"{faulty.MODULE}:sometimes")
    made = plan.make(SweepConfig(strategy=names, device="cpu"), ask_of_outside(mailbox, launch.enrolled, names))
    assert made.missing == {names[1]: "no licence (on node2)"}


def test_a_strategy_that_cannot_say_what_it_lacks_is_missing(tmp_path: Path) -> None:
    _, failed = beside(tmp_path, "missing")
    assert failed.cause == "missing"
    assert "missing() raised KeyError: 'planted in missing' (on node1)" in failed.message


def test_one_that_lacks_nothing_is_measured(tmp_path: Path) -> None:
    run = Launch(2).sweep(tmp_path, strategy=[f"{faulty.MODULE}:fine"], **QUICK)
    assert [type(record.outcome) for record in run.records] == [Finished]


def test_a_launch_with_nothing_but_what_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"faulty:lacking: no licence: buy one \(on node1\)"):
        Launch(2).sweep(tmp_path, strategy=[f"{faulty.MODULE}:lacking"], **QUICK)


def test_strategies_of_the_package_are_not_asked_again() -> None:
    enrolled = [enrol(host())]

    def fail() -> None:
        raise AssertionError("nobody is to be asked")

    mailbox = Mailbox[ToAgent, ToSweep](Hub(1).rank(0), SWEEP_DECODER, turn=fail, wait=fail)
    assert ask_of_outside(mailbox, enrolled, ["torch:gloo", "fake:a", "kvstore", "nowhere:x"]) == tuple(enrolled)


def test_a_rank_that_does_not_answer_is_named() -> None:
    mailbox = Mailbox[ToAgent, ToSweep](Hub(1).rank(0), SWEEP_DECODER, turn=lambda: None, wait=lambda: None)
    with pytest.raises(SilentRanks, match=r"node7: no answer about a\.b:c within 0\.01 s"):
        ask_of_outside(mailbox, [enrol(host("node7"))], ["a.b:c"], within_s=0.01)


# Who may take part in a launch.


def test_ranks_of_another_version_are_refused_by_host() -> None:
    with pytest.raises(LaunchError) as error:
        check_versions([enrol(host("node1")), enrol(host("node2"), version="0.0.9")])
    assert "rank 1 on node2 runs scaling 0.0.9" in str(error.value)
    with pytest.raises(LaunchError, match="node3"):
        check_versions([enrol(host("node1")), enrol(host("node3"), code="beef")])


def test_a_run_goes_on_with_the_variables_that_it_began_with() -> None:
    ring = host(variables={"NCCL_ALGO": "Ring"})
    begun = scripted_records.header([ring], host_of_rank=("node1", "node1"))
    check_same_launch(begun, [enrol(ring)] * 2, Path("run"))
    with pytest.raises(UsageError, match=r"NCCL_ALGO was Ring, is unset \| Tree; TF_X was unset"):
        other = [enrol(host(variables={})), enrol(host(variables={"NCCL_ALGO": "Tree", "TF_X": "1"}))]
        check_same_launch(begun, other, Path("run"))
    older = scripted_records.header([host()], host_of_rank=("node1",))
    check_same_launch(older, [enrol(ring)], Path("run"))


# --data-dir: what it names is opened by rank 0, looked for on every other host, and known to every worker.


TWO_NODES = [node(1), node(1), node(2), node(2)]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """MNIST is smaller here."""
    for name in ("mnist", "fashion-mnist"):
        monkeypatch.setitem(data.CATALOGUE, name, replace(written.few(name), usual=("/nowhere",)))


def planned(launch: Launch, **fields: object) -> tuple[plan.Plan, Mailbox[ToAgent, ToSweep]]:
    settings = {"strategy": ["fake:a"], "device": "cpu", "model": "mnist-mlp", "rounds": 1, **fields}
    made = plan.make(config.build(settings, source="test"), launch.enrolled)
    return made, Mailbox(launch.hub.rank(0), SWEEP_DECODER, turn=launch.turn, wait=launch.wait)


def test_the_place_is_in_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written.idx(tmp_path / "MNIST/raw")
    monkeypatch.chdir(tmp_path)
    launch = Launch(2)
    made, mailbox = planned(launch, data_dir=".")
    found = locate(made, mailbox, launch.enrolled)
    assert found.config.data_dir == f"{tmp_path}/MNIST/raw"
    # A run that goes on looks there again.
    again, mailbox = planned(launch, data_dir=found.config.data_dir)
    assert locate(again, mailbox, launch.enrolled).config == found.config


def test_a_file_for_what_is_learnt_can_be_written_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.npz").mkdir()
    one: dict[str, object] = {"model": "digits-cnn", "rounds": None, "epochs": 1, "world_sizes": [1]}
    for path, why in (
        ("none/b.npz", "there is no folder .*/none; make it first"),
        ("a.npz", "is a folder; name a file in it"),
        (f"{'x' * 300}/b.npz", "File name too long"),
    ):
        launch = Launch(1)
        made, mailbox = planned(launch, save_weights=path, **one)
        with pytest.raises(UsageError, match=f"--save-weights {path}: {why}"):
            locate(made, mailbox, launch.enrolled)
    launch = Launch(1)
    made, mailbox = planned(launch, save_weights="b.npz", **one)
    assert locate(made, mailbox, launch.enrolled).config.save_weights == f"{tmp_path}/b.npz"
    # What another run has learnt is kept; a run that goes on may have written it itself.
    (tmp_path / "b.npz").touch()
    with pytest.raises(UsageError, match=r"--save-weights b\.npz: exists already; name another file"):
        locate(made, mailbox, launch.enrolled)
    found = locate(made, mailbox, launch.enrolled, goes_on=True)
    assert found.config.save_weights == f"{tmp_path}/b.npz"


def test_every_task_carries_it(tmp_path: Path) -> None:
    place = str(written.idx(tmp_path / "data"))
    launch = Launch(2)
    launch.sweep(tmp_path, model="mnist-mlp", data_dir=place, rounds=1, windows=3)
    assert {task.data_dir for task in launch.tasks} == {place}


def test_where_the_system_has_it_no_folder_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = replace(data.spec("fashion-mnist"), usual=(str(tmp_path),))
    monkeypatch.setitem(data.CATALOGUE, "fashion-mnist", spec)
    launch = Launch(1)
    made, mailbox = planned(launch, data="fashion-mnist")
    with pytest.raises(UsageError, match=rf"--data fashion-mnist: needs --data-dir, .* \(not in {tmp_path}\)"):
        locate(made, mailbox, launch.enrolled)
    written.idx(tmp_path, packed=True)
    assert locate(made, mailbox, launch.enrolled).config.data_dir == str(tmp_path)


def test_another_host_that_lacks_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = str(written.idx(tmp_path))
    asked = []

    def lacking(order: Locate) -> Located:
        asked.append(order)
        return Located(error=f"--data-dir {order.data_dir}: no such folder")

    launch = Launch(4, TWO_NODES)
    made, mailbox = planned(launch, data_dir=place)
    assert locate(made, mailbox, launch.enrolled).config.data_dir == place
    monkeypatch.setattr("scaling.agent.agent.data_located", lacking)
    with pytest.raises(UsageError) as refused:
        locate(made, mailbox, launch.enrolled)
    assert str(refused.value) == f"--data-dir {place}: no such folder (on node2; node1 has it)"
    # One rank answers for its host.
    assert asked == [Locate(data="mnist", data_dir=place)]


def test_an_agent_looks_for_the_files(tmp_path: Path) -> None:
    order = Locate(data="mnist", data_dir=str(tmp_path))
    assert data_located(order).error.startswith(f"--data-dir {tmp_path}: --data mnist has no train-images-idx3")
    written.idx(tmp_path)
    assert data_located(order) == Located()


def test_a_host_that_does_not_answer_is_named(tmp_path: Path) -> None:
    place = str(written.idx(tmp_path))
    launch = Launch(4, TWO_NODES)
    made, _ = planned(launch, data_dir=place)
    mailbox = Mailbox[ToAgent, ToSweep](Hub(4).rank(0), SWEEP_DECODER, turn=lambda: None, wait=lambda: None)
    with pytest.raises(SilentRanks, match=rf"node2: no answer about --data-dir {place} within 0\.01 s"):
        locate(made, mailbox, launch.enrolled, within_s=0.01)


def test_a_folder_for_data_that_lies_in_no_files(tmp_path: Path) -> None:
    launch = Launch(1)
    made, mailbox = planned(launch, model="digits-cnn", data_dir=str(tmp_path))
    with pytest.raises(UsageError, match=rf"--data-dir {tmp_path}: --data digits is not read from files; "):
        locate(made, mailbox, launch.enrolled)
    made, mailbox = planned(launch, model="digits-cnn")
    assert locate(made, mailbox, launch.enrolled) == made


def test_emulated_devices_read_no_data() -> None:
    launch = Launch(1)
    fields = {"strategy": ["torch:gloo"], "device": "emulated:p100", "model": "resnet50", "data": "imagenet"}
    made, mailbox = planned(launch, **fields)
    assert locate(made, mailbox, launch.enrolled) == made


# ---------------------------------------------------------------- flags and lists


def test_another_model_or_data_displaces_the_folder_of_an_older_run() -> None:
    older = {"model": "mnist-mlp", "data": "mnist", "data_dir": "/mnist", "device": "cpu"}
    for argv, kept in (
        (["--rounds", "3"], "/mnist"),
        (["--data", "mnist"], "/mnist"),
        (["--data", "fashion-mnist"], None),
        (["--model", "gpt2"], None),
        (["--data", "fashion-mnist", "--data-dir", "/new"], "/new"),
    ):
        assert invocation.resolve(flags.parse(argv), older).data_dir == kept


def test_the_list_says_where_data_was_looked_for(tmp_path: Path) -> None:
    place = written.idx(tmp_path)
    without = listing.everything({}, [enrol(host())]).partition("\ndata (--data)\n")[2]
    assert "ready: 1,797 real handwritten digits" in without
    assert "needs --data-dir, the folder with train-images-idx3-ubyte" in without
    assert "(not in /nowhere)\n" in without
    assert "257 classes" in without
    for name in data.CATALOGUE:
        assert f"\n  {name:<18}" in f"\n{without}"
    assert f"ready in {place}" in listing.everything({}, [enrol(host())], str(place))


def test_the_plan_says_where_it_lies(tmp_path: Path) -> None:
    launch = Launch(1)
    made, mailbox = planned(launch, data_dir=str(written.idx(tmp_path)))
    said = listing.dry_run(locate(made, mailbox, launch.enrolled), launch.enrolled)
    assert f"model mnist-mlp, data mnist in {tmp_path}, batch 128 per device" in said


# Servers that anybody may reach are named where they are listed and where they are used.


@pytest.mark.parametrize("strategy", ["tensorflow:ring", "tensorflow:ps"])
def test_a_sweep_with_tensorflow_s_servers_says_so(strategy: str) -> None:
    (line,) = listing.open_servers([replace(POINT, strategy=strategy)] * 2)
    assert line.startswith(f"{strategy} listens on all addresses of each host without auth")


@pytest.mark.parametrize("strategy", ["torch:gloo", "tensorflow:horovod", "mxnet:dist_sync"])
def test_others_do_not(strategy: str) -> None:
    assert listing.open_servers([replace(POINT, strategy=strategy)]) == []


def test_the_list_of_strategies_says_so() -> None:
    lines = listing.everything({}, ()).splitlines()
    (ring,) = (line for line in lines if line.split()[:1] == ["tensorflow:ring"])
    assert "listens on all addresses without authentication" in ring
