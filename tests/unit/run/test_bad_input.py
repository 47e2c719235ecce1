"""Bad input: one line that names the flag or file, before any worker starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaling.errors import UsageError
from scaling.plan import config, defaults, plan
from scaling.plan.config import flag
from scaling.records.host import Gpu
from scaling.run import flags, invocation
from scaling.run.flags import Shown
from tests.support.inline import enrol, host

# Bad input, tried: each gets one line that names the flag or file, before any worker starts.

GPU = Gpu(index=0, name="NVIDIA H200", uuid="GPU-0", memory_bytes=1 << 37)


def refused(*argv: str, size: int = 4, cores: int = 4, gpus: tuple[Gpu, ...] = ()) -> str:
    one = host(cores=cores, gpus=gpus)
    missing = {} if gpus else {"torch:nccl": "torch's build has no CUDA"}
    with pytest.raises(UsageError) as error:
        plan.make(invocation.resolve(flags.parse(argv)), [enrol(one, missing=missing)] * size)
    message = str(error.value)
    assert "\n" not in message
    return message


FAKE = ("--strategy", "fake:a")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--world-sizes", "1,8", *FAKE), ("--world-sizes 1,8", "8 is more than the 4 ranks", "mpirun -np 8")),
        (("--world-sizes", "0,1", *FAKE), ("--world-sizes 0,1", "at least 1")),
        (("--world-sizes", "4,2", *FAKE), ("--world-sizes 4,2", "not ascending", "2,4")),
        (("--world-sizes", "1,two", *FAKE), ("--world-sizes 1,two", "not numbers")),
        (("--world-sizes", "", *FAKE), ("--world-sizes", "empty")),
        (("--batch-size", "8", "--global-batch-size", "8"), ("--batch-size and --global-batch-size", "give one")),
        (("--batch-size", "0", *FAKE), ("--batch-size 0", "above 0")),
        (("--batch-sizes", "16,32", "--batch-size", "8"), ("--batch-sizes and --batch-size", "give one")),
        (("--batch-sizes", "16", "--global-batch-size", "8"), ("--batch-sizes and --global-batch-size", "give")),
        (("--batch-sizes", "32,16", *FAKE), ("--batch-sizes 32,16", "not ascending", "16,32")),
        (("--batch-sizes", "0,16", *FAKE), ("--batch-sizes 0,16", "at least 1")),
        (("--batch-sizes", "16,big", *FAKE), ("--batch-sizes 16,big", "not numbers")),
        (("--batch-sizes", "", *FAKE), ("--batch-sizes", "empty", "16,32,64")),
        (("--batch-sizes", "8", "--batch-rule", "node", *FAKE), ("--batch-sizes 8", "--batch-rule node", "weak")),
        (("--pass", "forwards"), ("--pass: ", "'forwards'", "'forward'", "forward, backward, step")),
        (("--pass", ""), ("--pass", "empty")),
        (("--pass", "forward", "--strategy", "torch:gloo"), ("--pass forward", "torch:gloo", "torch:plain")),
        (("--pass", "forward,step", *FAKE), ("--pass forward,step", "fake:a", "--strategy fake:plain")),
        (("--pass", "backward", "--world-sizes", "1,2"), ("--world-sizes 1,2", "--pass backward", "one device")),
        (
            ("--pass", "forward", "--option", "accumulate=2", "--strategy", "torch:plain"),
            ("accumulate=2", "--pass forward", "leave it out"),
        ),
        (
            ("--pass", "forward", "--device", "emulated:p100", "--strategy", "torch:plain"),
            ("--pass forward", "emulated", "leave it out"),
        ),
        (("--baseline-device", "tpu", *FAKE), ("--baseline-device: ", "'tpu'")),
        (("--baseline-device", "cpu", *FAKE), ("--baseline-device cpu", "measures on cpu", "leave it out")),
        (("--global-batch-size", "30", *FAKE), ("--global-batch-size 30", "not divisible by world size 4", "28")),
        (("--batch-rule", "nodes", *FAKE), ("--batch-rule: ", "'nodes'", "'node'")),
        (("--batch-rule", "strong", *FAKE), ("--batch-rule strong", "--global-batch-size")),
        (
            ("--batch-rule", "node", "--global-batch-size", "8"),
            ("--global-batch-size 8", "--batch-rule node", "per node", "--batch-size"),
        ),
        (("--batch-rule", "weak", "--global-batch-size", "8"), ("--batch-rule weak", "per device")),
        (("--batch-rule", "node", "--batch-size", "6", *FAKE), ("--batch-size 6", "the 4 devices", "4 would")),
        (("--strategy", "torch:glo"), ("--strategy torch:glo", "'torch:gloo'")),
        (("--strategy", "nowhere.at.all:mode"), ("--strategy nowhere.at.all:mode", "cannot import")),
        (("--strategy", "torch:nccl"), ("--strategy torch:nccl", "cuda", "cpu")),
        (("--strategy", ""), ("--strategy", "empty")),
        (("--model", "resnet5", *FAKE), ("--model resnet5", "'resnet50'")),
        (("--data", "digit", *FAKE), ("--data digit", "'digits'")),
        (("--data", "digits", "--model", "resnet50", "--strategy", "nowhere:x"), ("--strategy nowhere:x",)),
        (("--precision", "bf17", *FAKE), ("--precision: ", "'bf17'", "'bf16'")),
        (("--precision", "fp16", *FAKE), ("--precision fp16", "needs CUDA")),
        (("--placement", "packed", *FAKE), ("--placement: ", "'pack'")),
        (
            ("--model", "fashion-cnn", "--data", "digits", "--batch-size", "1", "--strategy", "torch:gloo"),
            ("--batch-size 1", "batch norm, layer 28 of fashion-cnn", "one value", "larger batch per device"),
        ),
        (
            ("--model", "fashion-cnn", "--data", "digits", "--global-batch-size", "4", "--strategy", "torch:gloo"),
            ("--global-batch-size 4 at world size 4", "layer 28 of fashion-cnn", "larger batch per device"),
        ),
        (
            (
                "--model", "resnet50", "--image-size", "32", "--batch-size", "2", "--option", "accumulate=2",
                "--strategy", "mxnet:dist_sync",
            ),
            ("--batch-size 2 --option accumulate=2", "batch norm, layer"),
        ),
        (("--kinds", "solo", *FAKE), ("--kinds", "exchange")),
        (("--kinds", "exchange,sol", *FAKE), ("--kinds: ", "'sol'", "'solo'")),
        (("--memory-format", "channels_first", *FAKE), ("--memory-format: ", "'channels_last'")),
        (("--device", "cuda", *FAKE), ("--device cuda", "no NVIDIA GPU", "--device cpu")),
        (("--device", "tpu", *FAKE), ("device", "'tpu'")),
        (("--device", "gpu", *FAKE), ("--device gpu: write --device cuda",)),
        (("--batch-size", "1,2", *FAKE), ("--batch-size 1,2: takes one number; for several: --batch-sizes 1,2",)),
        (("--strategy", "torch:ddp"), ("--strategy torch:ddp: unknown; take torch:nccl on GPUs, torch:gloo on",)),
        (("--strategy", "torch:nccl"), ("torch:nccl: needs cuda, this launch runs on cpu", "; take torch:gloo")),
        (("--cpus-per-rank", "2", *FAKE), ("--cpus-per-rank 2", "8 cores, it has 4", "at most 1")),
        (("--cpus-per-rank", "9", *FAKE), ("--cpus-per-rank 9",)),
        (("--rounds", "0", *FAKE), ("--rounds 0", "above 0")),
        (("--rounds", "many", *FAKE), ("--rounds", "not a whole number")),
        (("--rounds", "9" * 20, *FAKE), ("--rounds 99999999999999999999", "at most 4,294,967,296")),
        (("--batch-sizes", "16," + "9" * 20, *FAKE), ("--batch-sizes 99999999999999999999", "at most")),
        (("--epochs", "9" * 20, *FAKE), ("--epochs 99999999999999999999", "at most")),
        (("--windows", "1", *FAKE), ("--windows 1", "at least 3")),
        (("--target-ci", "wide", *FAKE), ("--target-ci wide", "1%")),
        (("--for", "", *FAKE), ("--for '': not a time", "30m, 2h or 7d")),
        (("--for", "0", *FAKE), ("--for 0: not a time", "2h")),
        (("--for", "0s", *FAKE), ("--for 0s: not a time", "2h")),
        (("--for", "-1h", *FAKE), ("--for -1h: not a time", "2h")),
        (("--for", "nan", *FAKE), ("--for nan: not a time", "2h")),
        (("--for", "2x", *FAKE), ("--for 2x: not a time", "2h")),
        (("--for", "2", *FAKE), ("--for 2: not a time", "2h")),
        (("--for", "367d", *FAKE), ("--for 367d: not a time", "366 days")),
        (("--for", "9" * 400 + "d", *FAKE), ("not a time from 1 s to 366 days",)),
        (("--for", "2h", "--rounds", "5", *FAKE), ("--for 2h with --rounds 5", "give one")),
        (("--for", "2h", "--rounds", "2", *FAKE), ("--for 2h with --rounds 2", "give one")),
        (("--for", "2h", "--target-ci", "1%", *FAKE), ("--for 2h with --target-ci 1%", "give one")),
        (("--for", "2h", "--max-rounds", "9", *FAKE), ("--max-rounds 9", "--target-ci 1%")),
        (("--for", "2h", "--epochs", "2", *FAKE), ("--for with --epochs", "leave it out")),
        (("--target-ci", "1%", "--max-rounds", "2", *FAKE), ("--max-rounds 2", "--rounds 6")),
        (("--max-rounds", "9", *FAKE), ("--max-rounds 9", "--target-ci 1%", "--rounds")),
        (("--strategy=fake:b", *FAKE), ("--strategy: given twice", "--strategy fake:b,fake")),
        (("--seeds", "0", "--epochs", "2", "--seeds", "1", *FAKE), ("--seeds: given twice", "--seeds 0,1")),
        (("--option", "step_s", *FAKE), ("--option step_s", "key=value")),
        (("--option", "stap_s=1", *FAKE), ("--option stap_s=1", "'step_s'")),
        (("--option", "step_s=fast", *FAKE), ("--option step_s=fast", "float")),
        (("--option", "fake:b.step_s=1", *FAKE), ("--option fake:b.step_s=1", "fake:b")),
        (("--name", "a/b", *FAKE), ("--name 'a/b'",)),
        (("--view", "fancy", *FAKE), ("--view fancy", "live, plain, none")),
        (("--wrold-sizes", "1"), ("--wrold-sizes", "--world-sizes")),
        (("--resume", "x", "--rounds", "5"), ("--resume", "--rounds", "--like")),
        (("surplus",), ("surplus",)),
        (("--stall-timeout-s", "inf", *FAKE), ("--stall-timeout-s inf", "a number above 0")),
        (("--window-s", "nan", *FAKE), ("--window-s nan", "a number above 0")),
        (("--seed", "-1", *FAKE), ("--seed -1", "from 0")),
        (("--seed", "9" * 30, *FAKE), ("--seed",)),
        (("--name", "x" * 201, *FAKE), ("--name", "200 bytes")),
        (("--name", "\udcff", *FAKE), ("not UTF-8",)),
        (("--option", "fail=nosuch", *FAKE), ("--option fail=nosuch",)),
        (("--servers", "0", *FAKE), ("--servers 0", "at least 1", "per-node")),
        (("--servers=--5", *FAKE), ("servers", "'--5'", "per-node")),
        (("--servers", "\N{SUPERSCRIPT TWO}", *FAKE), ("servers", "per-node")),
        (("--name", "a\nb", *FAKE), (r"--name 'a\nb'", "line breaks")),
        (("--servers", "some", *FAKE), ("servers", "'some'", "per-node")),
        (("--servers", "2", *FAKE), ("--servers", "fake:a", "parameter servers")),
        (("--server-hosts", "own", *FAKE), ("--server-hosts: ", "'own'", "shared, dedicated")),
        (("--server-hosts", "dedicated", "--strategy", "fake:ps"), ("--server-hosts dedicated", "one host")),
        (("--kv-store", "dist_synk"), ("mxnet:dist_synk", "'mxnet:dist_sync'")),
        (("--kv-store", ""), ("--strategy", "empty")),
        (("--window-s", "120", *FAKE), ("--window-s 120", "--stall-timeout-s 120")),
        (("--window-s", "60", "--windows", "30"), ("--windows 30 of --window-s 60", "--point-timeout-s 1800")),
        (("--malloc", "kept", *FAKE), ("--malloc: ", "'kept'", "keep, system", "'keep'")),
        (("--malloc", "", *FAKE), ("--malloc: ", "keep, system")),
        (("--malloc",), ("--malloc: needs a value, keep|system",)),
        (("--interleave=maybe", *FAKE), ("--interleave", "value")),
        (("--interleave", "no", *FAKE), ("no",)),
        (("--fresh-worker", *FAKE), ("--fresh-worker", "--fresh-workers")),
        (("--window-s", "0", *FAKE), ("--window-s 0", "above 0")),
        (("--window-s", "-0.5", *FAKE), ("--window-s -0.5", "above 0")),
        (("--window-s", "short", *FAKE), ("--window-s", "not a number")),
        (("--windows", "2", "--interleave", *FAKE), ("--windows 2", "at least 3")),
        (("--rounds", "-1", "--no-interleave", *FAKE), ("--rounds -1", "above 0")),
    ],
)  # fmt: skip
def test_a_wrong_flag_gets_one_line(argv: tuple[str, ...], words: tuple[str, ...]) -> None:
    message = refused(*argv)
    for word in words:
        assert word in message, message


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
    message = refused("--strategy", "torch:nccl", size=2, gpus=(GPU,))
    assert "ranks 0 and 1 on node1 would share GPU GPU-0" in message


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


# Flags that would change nothing are refused, and a list that is given twice.


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            "--target-ci 1% --kinds exchange,comm",
            "--target-ci 1%: efficiencies need a baseline, which --kinds exchange,comm lacks",
        ),
        ("--pass forward --kinds exchange,solo", "--kinds with --pass forward: passes have no controls"),
        ("--memory-format channels_last --model gpt2-tiny", "gpt2-tiny reads tokens, and this is for images"),
        ("--world-sizes 1 --seed 2 --world-sizes 2", "--world-sizes: given twice; write --world-sizes 1,2"),
    ],
)
def test_a_flag_that_changes_nothing_is_refused(command: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        invocation.resolve(flags.parse(command.split()))
    assert words in str(refused.value)


@pytest.mark.parametrize(
    "command",
    [
        "--for 90s",
        "--for 1h30m",
        "--max-rounds 9 --target-ci 1%",
        "--target-ci 1% --kinds exchange,solo",
        "--pass forward --kinds exchange",
        "--memory-format contiguous --model gpt2-tiny",
        "--option step_s=1 --option error_at=2",
    ],
)
def test_what_has_its_use_is_taken(command: str) -> None:
    invocation.resolve(flags.parse(command.split()))


def test_unneeded_settings_of_an_older_run_are_allowed() -> None:
    assert invocation.resolve(flags.parse(["--rounds", "2"]), {"max_rounds": 9}).max_rounds == 9


def test_of_single_values_the_last_holds() -> None:
    assert invocation.resolve(flags.parse(["--rounds", "2", "--rounds=3"])).rounds == 3


def test_help_by_its_short_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Shown):
        flags.parse(["-h"])
    assert "Usage: python -m scaling.run" in capsys.readouterr().out


# Bad input for trainings to an accuracy, tried: one line that names the flag and the mend.

TRAIN = ("--epochs", "5", *FAKE)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--augment-epochs", "2", *FAKE), ("--augment-epochs", "--epochs N")),
        (("--target-top1", "98", *FAKE), ("--target-top1", "--epochs N")),
        (("--seeds", "0,1", *FAKE), ("--seeds", "--epochs N")),
        (("--lr", "0.1", *FAKE), ("--lr:", "--epochs N")),
        (("--lr-scale", "none", *FAKE), ("--lr-scale", "--epochs N")),
        (("--weights", "a.pth", *FAKE), ("--weights", "--epochs N")),
        (("--train-samples", "9", *FAKE), ("--train-samples", "--epochs N")),
        (("--train-samples", "0", *TRAIN), ("--train-samples 0", "at least 1")),
        (("--test-samples", "0", *TRAIN), ("--test-samples 0", "at least 1")),
        (("--train-samples", "1438", *TRAIN), ("--train-samples 1438", "digits has 1,437", "take fewer")),
        (("--test-samples", "361", *TRAIN), ("--test-samples 361", "digits has 360", "take fewer")),
        (
            ("--train-samples", "100", "--batch-size", "32", *TRAIN),
            ("--train-samples 100", "fewer than one step of 128 samples on 4 devices", "--batch-size"),
        ),
        (("--save-weights", "a.npz", *FAKE), ("--save-weights", "--epochs N")),
        (("--save-weights", "a.pth", *TRAIN), ("--save-weights a.pth", ".npz, .safetensors")),
        (
            ("--save-weights", "a.npz", "--seeds", "0,1", *TRAIN),
            ("--save-weights a.npz", "6 trainings", "3 of --world-sizes", "2 of --seeds", "ask for one"),
        ),
        (
            ("--save-weights", "a.npz", "--batch-sizes", "16,32", "--world-sizes", "1", *TRAIN),
            ("--save-weights a.npz", "2 trainings would write it (2 of --batch-sizes)"),
        ),
        (("--kinds", "exchange,train", *FAKE), ("--kinds train", "--epochs N")),
        (("--epochs", "0", *FAKE), ("--epochs 0", "at least 1")),
        (("--target-top1", "101", *TRAIN), ("--target-top1 101", "from 1 to 100")),
        (("--target-top1", "0", *TRAIN), ("--target-top1 0", "from 1 to 100")),
        (("--target-top1", "0.98", *TRAIN), ("--target-top1 0.98", "in percent", "write for example 98")),
        (("--target-top1", "nan", *TRAIN), ("--target-top1 nan", "from 1")),
        (("--lr", "0", *TRAIN), ("--lr 0", "above 0")),
        (("--lr", "inf", *TRAIN), ("--lr inf", "above 0")),
        (("--lr-scale", "cubic", *TRAIN), ("--lr-scale: ", "'cubic'", "linear, sqrt, none")),
        (("--lr-scale", "", *TRAIN), ("--lr-scale", "empty", "linear,none")),
        (("--seeds", "", *TRAIN), ("--seeds", "0,1")),
        (("--seeds", "1,1", *TRAIN), ("--seeds 1,1", "each once")),
        (("--seeds", "-1", *TRAIN), ("--seeds -1", "from 0")),
        (("--seeds", "a", *TRAIN), ("--seeds a", "not numbers")),
        (("--warmup-epochs", "6", *TRAIN), ("--warmup-epochs 6", "--epochs 5")),
        (("--warmup-epochs", "-1", *TRAIN), ("--warmup-epochs -1", "at least 0")),
        (("--augment-epochs", "6", *TRAIN), ("--augment-epochs 6", "--epochs 5")),
        (("--lr-steps", "5", *TRAIN), ("--lr-steps 5", "--epochs 5")),
        (("--lr-steps", "2,4", "--warmup-epochs", "3", *TRAIN), ("--lr-steps 2", "within --warmup-epochs 3")),
        (("--lr-steps", "3,2", *TRAIN), ("--lr-steps 3,2", "ascending")),
        (("--rounds", "3", *TRAIN), ("--rounds 3", "--seeds 0,1,2")),
        (("--target-ci", "1%", *TRAIN), ("--target-ci", "--epochs", "leave it out")),
        (("--kinds", "exchange,solo", *TRAIN), ("--kinds with --epochs", "leave it out")),
        (("--windows", "9", *TRAIN), ("--windows with --epochs", "leave it out")),
        (("--window-s", "2", *TRAIN), ("--window-s with --epochs", "leave it out")),
        (("--interleave", *TRAIN), ("--interleave with --epochs", "leave it out")),
        (("--max-rounds", "9", *TRAIN), ("--max-rounds with --epochs", "leave it out")),
        (("--trace", *TRAIN), ("--trace", "--epochs", "leave it out")),
        (("--pass", "forward", "--epochs", "5", "--strategy", "fake:plain"), ("--pass", "--epochs")),
        (("--model", "gpt2-tiny", *TRAIN), ("--epochs 5", "gpt2-tiny", "no top-1", "digits-cnn")),
        (("--model", "bert-tiny", *TRAIN), ("--epochs 5", "bert-tiny", "no top-1")),
        (("--data", "synthetic", *TRAIN), ("--epochs 5", "synthetic", "noise")),
        (("--model", "imdb-lstm", "--augment-epochs", "1", *TRAIN), ("--augment-epochs 1", "imdb")),
        (("--warmup-epochs", "1", "--epochs", "5", "--strategy", "fake:ps"), ("--warmup-epochs", "fake:ps")),
        (
            ("--model", "fashion-cnn", "--data", "digits", "--epochs", "5", "--strategy", "fake:ps"),
            ("--epochs 5", "fashion-cnn", "batch norm", "fake:ps"),
        ),
        (
            ("--model", "fashion-cnn", "--data", "digits", "--batch-size", "1", *TRAIN),
            ("--batch-size 1", "batch norm needs 2"),
        ),
        (
            ("--device", "emulated:p100", "--model", "resnet50", "--epochs", "5", "--strategy", "torch:gloo"),
            ("--epochs 5", "emulated"),
        ),
    ],
)  # fmt: skip
def test_is_refused(argv: tuple[str, ...], words: tuple[str, ...]) -> None:
    message = refused(*argv)
    for word in words:
        assert word in message


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
