"""--data-dir: what it names is opened by rank 0, looked for on every other host, and known to every worker."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from scaling.agent.agent import data_located
from scaling.errors import SilentRanks, UsageError
from scaling.plan import config, plan
from scaling.records.host import HostInfo, Nic
from scaling.records.messages import SWEEP_DECODER, Locate, Located, ToAgent, ToSweep
from scaling.run import flags, invocation, listing
from scaling.run.enrolment import locate
from scaling.transport.base import Hub, Mailbox
from scaling.workloads import data
from tests.support import written
from tests.support.inline import Launch, enrol, host


def node(number: int) -> HostInfo:
    nic = Nic(name="ib0", address=f"10.0.0.{number}", netmask="255.255.255.0", up=True, mtu=1500)
    return host(f"node{number}", cores=2, nics=(nic,))


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
