"""Bad input: one line that names the flag or file, before any worker starts."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from scaling.errors import UsageError
from scaling.plan import config, defaults, plan
from scaling.plan.config import flag
from scaling.run import flags, invocation
from scaling.run.flags import Shown
from tests.support.golden import GOLDEN, check_golden
from tests.support.inline import enrol, host
from tests.support.plans import gpu, launch


def refused(*argv: str, on: str = "4 ranks") -> str:
    """Why a command line is refused on a launch: one line, before any worker starts."""
    with pytest.raises(UsageError) as error:
        asked = flags.parse(argv)
        plan.check_given(plan.make(invocation.resolve(asked), launch(on)), asked.given)
    message = str(error.value)
    assert "\n" not in message
    return message


FAKE = ("--strategy", "fake:a")


def test_a_wrong_flag_gets_one_line() -> None:
    """The golden file has command lines, each behind its launch and above its message."""
    lines = (GOLDEN / "refusals.txt").read_text().splitlines()
    asked = [line[2:].partition(": ") for line in lines if line.startswith("$ ")]
    found = (f"$ {on}: {text}\n{refused(*shlex.split(text), on=on)}\n" for on, _, text in asked)
    check_golden("refusals.txt", "".join(found))


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--for", "9" * 400 + "d"), "not a time from 1 s to 366 days"),
        (("--name", "x" * 201), "200 bytes"),
        (("--name", "\udcff"), "not UTF-8"),
        (("--name", "a\nb"), r"--name 'a\nb': a plain folder name without '/' and line breaks"),
    ],
)
def test_a_value_that_no_file_can_show(argv: tuple[str, ...], words: str) -> None:
    assert words in refused(*argv, *FAKE)


@pytest.mark.parametrize(("of", "words"), [(4, "4 cores, the launcher bound them to 2 of 4 ("), (0, "it has 2;")])
def test_too_few_cores_because_of_the_launcher(of: int, words: str) -> None:
    bound = [enrol(host(cores=2, launcher_cores=of))] * 2
    with pytest.raises(UsageError) as error:
        plan.make(invocation.resolve(flags.parse(("--cpus-per-rank", "2", *FAKE))), bound)
    assert words in str(error.value)
    assert ("mpirun --bind-to none" in str(error.value)) == bool(of)


def test_batch_norm_over_places_needs_no_second_sample() -> None:
    argv = ("--model", "resnet50", "--batch-size", "1", "--strategy", "torch:gloo,tensorflow:ring,mxnet:dist_sync")
    made = plan.make(invocation.resolve(flags.parse(argv)), [enrol(host(cores=4))] * 4)
    assert {point.workload.batch_size for point in made.cells} == {1}


def test_more_ranks_than_gpus() -> None:
    with pytest.raises(UsageError, match="ranks 0 and 1 on node1 would share GPU GPU-0"):
        plan.make(invocation.resolve(flags.parse(["--strategy", "torch:nccl"])), [enrol(host(gpus=(gpu(),)))] * 2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rounds = 'three'", ("rounds", "expected a whole number, got text")),
        ("round = 3", ("unknown key 'round'", "'rounds'")),
        ("world_sizes = [1, 'two']", ("world_sizes[1]", "expected a whole number")),
        ("precision = 'bf17'", ("precision", "'bf16'")),
        ("rounds = ", ("not TOML",)),
        ("seed = " + 5000 * "9", ("not TOML", "4300")),
        ("option = " + 100_000 * "[", ("not TOML",)),
        ("malloc = 'kept'", ("malloc", "'kept'", "'keep'")),
        ("malloc = true", ("malloc", "expected")),
        ("interleave = 'yes'", ("interleave", "expected true or false")),
        ("fresh_workers = 1", ("fresh_workers", "expected true or false")),
        ("fresh_worker = true", ("unknown key 'fresh_worker'", "'fresh_workers'")),
        ("window_s = '1'", ("window_s", "expected a number")),
        ("[measure]\nrounds = 3", ("unknown key 'measure'",)),
    ],
)
def test_a_wrong_config_file_gets_one_line(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        flags.parse(["--config", str(path)])
    message = str(error.value)
    assert message.startswith(f"--config {path}: ")
    assert "\n" not in message
    for word in words:
        assert word in message, message


def test_a_config_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        flags.parse(["--config", str(tmp_path / "none.toml")])


def test_a_flag_wins_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(
        'rounds = 5\nwindows = 20\nworld_sizes = [1, 2]\nglobal_batch_size = 64\nstrategy = ["fake:a"]'
    )
    found = invocation.resolve(flags.parse(["--config", str(path), "--rounds", "7", "--batch-size", "8"]))
    assert (found.rounds, found.windows, found.world_sizes) == (7, 20, (1, 2))
    assert (found.batch_size, found.global_batch_size) == (8, None)  # the flag displaces the file's rule
    assert found.placement == "pack"


@pytest.mark.parametrize(
    ("argv", "interleave", "malloc", "fresh"),
    [
        ((), None, "keep", False),
        (("--interleave", "--malloc", "keep"), True, "keep", False),
        (("--no-interleave", "--malloc", "system", "--fresh-workers"), False, "system", True),
    ],
)
def test_turns_heap_and_fresh_workers(
    tmp_path: Path, argv: tuple[str, ...], interleave: bool | None, malloc: str, fresh: bool
) -> None:
    found = invocation.resolve(flags.parse([*FAKE, *argv]))
    assert (found.interleave, found.malloc, found.fresh_workers) == (interleave, malloc, fresh)
    path = tmp_path / "sweep.toml"
    path.write_text("interleave = true\nmalloc = 'system'\nfresh_workers = true")
    named = invocation.resolve(flags.parse(["--config", str(path), *FAKE, *argv]))
    given = (interleave, malloc) if argv else (True, "system")
    assert (named.interleave, named.malloc, named.fresh_workers) == (*given, True)


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(flags.Shown):
        flags.parse(["--help-all"])
    return " ".join(capsys.readouterr().out.split())


def test_rounds_windows_and_their_length_are_shown_as_they_come_out(shown: str) -> None:
    """The defaults depend on whether points take turns, on the framework and the device: the help has all."""
    in_turns, gpus, alone = defaults.PACE_SIDE_BY_SIDE, defaults.PACE_OF_GPUS_IN_TURNS, defaults.PACE_ALONE
    few, fewest, most = defaults.FEW_POINTS, defaults.FEWEST_TURNS, defaults.MOST_TURNS
    on_gpus = f"on GPUs {gpus[0]}, of up to {few} points {defaults.ROUNDS_OF_FEW_POINTS}"
    many = f"{defaults.ROUNDS_OF_MANY_POINTS} of over {defaults.MANY_POINTS} points"
    on_cpus = f"{in_turns[0]} if points take turns, {many}"
    fitting = f"{fewest} to {most} (as many as last {defaults.TURNS_S} s)"
    assert f"[default: {on_cpus}; {on_gpus}; else {alone[0]}]" in shown
    assert f"[default: {fitting} if points take turns, on GPUs {gpus[1]}; else {alone[1]}]" in shown
    queues_s = defaults.WINDOW_OF_QUEUES_S
    assert queues_s == gpus[2]
    lasting = f"{in_turns[2]} if points take turns, MXNet's and those on GPUs {queues_s}; else {alone[2]}"
    assert f"[default: {lasting}]" in shown
    assert all(word in shown for word in ("--[no-]interleave", "keep|system", "--[no-]fresh-workers"))


def test_kvstores_are_strategies_under_mxnets_own_names() -> None:
    argv = ["--strategy", "torch:gloo", "--kv-store", "dist_sync,dist_sync_device,mxnet:local"]
    found = invocation.resolve(flags.parse(argv)).strategy
    assert found == ("torch:gloo", "mxnet:dist_sync", "mxnet:dist_sync_device", "mxnet:local")
    made = plan.make(config.build({"strategy": found, "device": "cpu"}, source="test"), [enrol(host())] * 2)
    assert made.config.strategy == ("torch:gloo", "mxnet:dist_sync", "mxnet:dist_device_sync", "mxnet:local")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "is a folder; name a file in it"),
        ("run.jsonl", "is what a run is kept in; name another file"),
        ("none/x.prom", "there is no folder {folder}/none; make it first"),
        ("file/x.prom", "there is no folder {folder}/file; make it first"),
        ("x" * 300, "File name too long"),
    ],
)
def test_a_file_of_metrics_that_cannot_be_written(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "file").touch()
    file = tmp_path / name
    assert refused("--metrics", str(file)) == f"--metrics {file}: {said.format(folder=tmp_path)}"


def test_a_folder_without_the_right_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    file = tmp_path / "x.prom"
    assert refused("--metrics", str(file)) == (
        f"--metrics {file}: cannot be written; name a file in a folder where you may write"
    )


def test_metrics_may_go_to_a_device_or_a_new_file(tmp_path: Path) -> None:
    for file in ("/dev/null", str(tmp_path / "x.prom")):
        assert flags.parse(["--metrics", file]).metrics == Path(file)


def test_the_flags_are_the_fields() -> None:
    import typer

    app = typer.Typer(add_completion=False)
    app.command()(flags.sweep)
    names = {param.name for param in typer.main.get_command(app).params}
    others = {
        "config", "resume", "like", "dry_run", "list_all", "view", "page", "verbose", "metrics", "version",
        "kv_store", "against", "require_proof",
    }  # fmt: skip
    assert {str(name).rstrip("_") for name in names} - {"help"} == {*config.FIELDS, *others}


def test_every_field_is_in_the_help(shown: str) -> None:
    for field in config.FIELDS:
        assert flag(field) in shown.replace("[no-]", "")
    *controls, last = (kind for kind in config.KINDS if kind != "exchange")
    assert f"{', '.join(controls)} and {last}" in shown
    for panel in (config.WHAT, config.HOW, config.TRAINING, config.LIMITS, config.OUT, "Runs"):
        assert panel in shown


def test_unneeded_settings_of_an_older_run_are_allowed() -> None:
    assert invocation.resolve(flags.parse(["--rounds", "2"]), {"max_rounds": 9}).max_rounds == 9


def test_of_single_values_the_last_holds() -> None:
    assert invocation.resolve(flags.parse(["--rounds", "2", "--rounds=3"])).rounds == 3


def test_help_by_its_short_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Shown):
        flags.parse(["-h"])
    assert "Usage: python -m scaling.run" in capsys.readouterr().out


# Trainings to an accuracy.

TRAIN = ("--epochs", "5", *FAKE)


@pytest.mark.parametrize("permille", [19, 939, 984, 999, 1000])
def test_a_target_is_reached_by_what_is_exactly_that(permille: int) -> None:
    argv = (*TRAIN, "--target-top1", f"{permille / 10:g}", "--world-sizes", "1")
    (cell,) = plan.make(invocation.resolve(flags.parse(argv)), [enrol(host())]).cells
    assert cell.regime is not None
    assert cell.regime.target_top1 == permille / 1000


def test_one_rank_needs_no_average_of_batch_norm() -> None:
    argv = ("--model", "fashion-cnn", "--data", "digits", "--epochs", "5", "--strategy", "fake:ps")
    made = plan.make(invocation.resolve(flags.parse((*argv, "--world-sizes", "1"))), [enrol(host())])
    assert [point.kind for point in made.cells] == ["train"]


@pytest.mark.parametrize(
    ("argv", "rates"),
    [
        (("--batch-size", "32"), [0.005, 0.01, 0.02]),  # the recipe's, at its own batch
        (("--batch-size", "16"), [0.0025, 0.005, 0.01]),
        (("--batch-size", "16", "--lr", "0.1"), [0.1, 0.2, 0.4]),  # of one device at its batch
        (("--global-batch-size", "64", "--lr", "0.1"), [0.1, 0.1, 0.1]),  # an update stays as it is
        (("--batch-size", "16", "--lr", "0.1", "--lr-scale", "sqrt"), [0.1, 0.1 * 2**0.5, 0.2]),
        (("--batch-size", "16", "--lr", "0.1", "--optimizer", "adam"), [0.1, 0.1 * 2**0.5, 0.2]),
        (("--batch-size", "16", "--lr", "0.1", "--optimizer", "adadelta"), [0.1, 0.1, 0.1]),
        (("--batch-size", "16", "--lr", "0.1", "--strategy", "fake:async"), [0.1, 0.1, 0.1]),
    ],
)
def test_the_rate_follows_the_samples_of_an_update(argv: tuple[str, ...], rates: list[float]) -> None:
    chosen = argv if "--strategy" in argv else (*argv, *FAKE)
    made = plan.make(invocation.resolve(flags.parse(("--epochs", "5", *chosen))), [enrol(host(cores=4))] * 4)
    assert [cell.regime.rate for cell in made.cells if cell.regime] == pytest.approx(rates)
