"""Bad input for trainings to an accuracy, tried: one line that names the flag and the mend."""

from __future__ import annotations

import pytest

from scaling.errors import UsageError
from scaling.plan import plan
from scaling.run import flags, invocation
from tests.support.inline import enrol, host

FAKE = ("--strategy", "fake:a")
TRAIN = ("--epochs", "5", *FAKE)


def refused(*argv: str) -> str:
    with pytest.raises(UsageError) as error:
        plan.make(invocation.resolve(flags.parse(argv)), [enrol(host(cores=4))] * 4)
    message = str(error.value)
    assert "\n" not in message
    return message


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
            ("--train-samples 100", "less than one step takes, 128 samples on 4 devices", "--batch-size"),
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
