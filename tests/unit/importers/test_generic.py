"""Logs of any program, tables, and public logs: what is read, what is offered, and how rows are compared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from scaling.analysis.table.imported import cells
from scaling.errors import UsageError
from scaling.records import store
from scaling.records.run import ImportedBandwidth, ImportedRow
from scaling.tools.importers import __main__ as command
from scaling.tools.importers.logs import Form, Given
from scaling.tools.importers.tools import TOOLS, Unknown, of_one_work
from tests.support.imported_logs import BY_RATE, PUBLIC, SOURCES, damaged, imported, only_row, refusal, written

LINE = "iter {}: loss 2.1, tok/s: {}k | dt 3.1\n"
TOKENS = Form(rate=r"tok/s: ([\d.]+k)", unit="tokens", step=r"iter (\d+)")


def steps(*rates: float, first: int = 1) -> str:
    return "".join(LINE.format(first + at, rate) for at, rate in enumerate(rates))


def given(form: Form, world_size: int = 4, batch_size: int = 0) -> Given:
    return Given(world_size=world_size, batch_size=batch_size, form=form)


# ---------------------------------------------------------------- public logs


@pytest.mark.parametrize("name", [*SOURCES, *BY_RATE])
def test_a_public_log_says_its_number(name: str) -> None:
    source = (SOURCES | BY_RATE)[name]
    found = imported(PUBLIC / name, source.given)
    rate = found.rows[0].rate if found.rows else max(one.busbw_gbytes_per_s for one in found.bandwidths)
    said: list[ImportedRow | ImportedBandwidth] = [*found.rows, *found.bandwidths]
    assert rate == pytest.approx(source.rate, rel=1e-3)
    assert {one.world_size for one in said} == {source.world_size}


def test_every_tool_has_a_public_log() -> None:
    assert {Path(name).stem for name in SOURCES} == TOOLS.keys()
    assert {path.name for path in PUBLIC.iterdir()} == SOURCES.keys() | BY_RATE.keys()


# ---------------------------------------------------------------- the generic reader


def test_the_first_step_is_left_out_and_the_spread_is_said(tmp_path: Path) -> None:
    row = only_row(written(tmp_path, steps(2, 10, 12, 11)), given(TOKENS))
    assert (row.tool, row.unit, row.rate, row.steps) == ("generic", "tokens", 11000, 3)
    assert row.spread == pytest.approx(2 / 11)


def test_a_rate_of_a_device_is_multiplied(tmp_path: Path) -> None:
    form = Form(rate=TOKENS.rate, unit="tokens", per_device=True)
    assert only_row(written(tmp_path, steps(2, 10, 10)), given(form)).rate == 40000


@pytest.mark.parametrize(("unit", "rate"), [("s/step", 0.5), ("ms/step", 500.0)])
def test_durations_are_steps_and_samples_with_a_batch(unit: str, rate: float, tmp_path: Path) -> None:
    log = written(tmp_path, "time 9.0\ntime 2.0\ntime 2.0\n")
    form = Form(rate=r"time ([\d.]+)", unit=unit)
    assert (only_row(log, given(form)).rate, only_row(log, given(form)).unit) == (rate, "steps")
    assert only_row(log, given(form, batch_size=8)).rate == 32 * rate


def test_a_restart_is_another_launch(tmp_path: Path) -> None:
    again = written(tmp_path, steps(2, 10, 10) + steps(2, 11, 11))
    assert "the lower median of 2 launches" in only_row(again, given(TOKENS)).notes[-1]
    slower = written(tmp_path, steps(2, 10, 10) + steps(2, 5, 5))
    assert "has launches from 5000 to 10000" in refusal(slower, given(TOKENS))


def test_a_resumed_training_at_another_rate_is_no_median_of_both(tmp_path: Path) -> None:
    text = steps(2, 10, 10, 10) + "Resuming from checkpoint at step 5\n" + steps(2, 5, 5, 5, first=5)
    assert "has launches from 5000 to 10000" in refusal(written(tmp_path, text), given(TOKENS))


PARTS = ("12 345.6", "12'345.6", "12_345.6", "12\u202f345.6", "12.345,6", "12345,6", "10.61K", "1.25e+04", "nan")


@pytest.mark.parametrize("said", PARTS)
def test_a_part_of_a_number_is_no_rate(said: str, tmp_path: Path) -> None:
    log = written(tmp_path, f"step 1 tok/s: {said} loss 2\n" * 3)
    form = Form(rate=r"tok/s: ([\d.,]+)", unit="tokens")
    assert "finds a whole number" in refusal(log, given(form))


def test_a_loss_that_is_no_number_is_a_failure(tmp_path: Path) -> None:
    """karpathy/nanoGPT#215; the loss of a validation, and a score of llm.c, are none."""
    text = "iter 3000: loss 4.2490, time 1019.95ms\niter 3010: loss nan, time 1015.95ms, mfu 14.36%\n"
    form = Form(rate=r"time ([\d.]+)ms", unit="ms/step")
    row = only_row(written(tmp_path, text), given(form))
    assert (row.rate, row.failed) == (None, "the loss is no number")
    for other in ("val_loss nan", "loss 3.2 (+nanz)"):
        assert only_row(written(tmp_path, text.replace("loss nan", other)), given(form)).rate == 1000 / 1015.95


def test_rates_of_an_evaluation_are_left_out(tmp_path: Path) -> None:
    train = "epoch 0 step {} | val loss 2.1, val: n/a, val_f1 0.5 | 100{}.0 samples/s\n"
    evaluation = "epoch 0 eval step {} | loss 2.1 | 3000.0 samples/s\nEvaluating: 25%|# | 5/20 300 samples/s\n"
    text = "".join(train.format(step, step) for step in range(3)) + evaluation * 5
    form = Form(rate=r"([\d.]+) samples/s", unit="samples")
    row = only_row(written(tmp_path, text), given(form))
    assert (row.rate, row.steps) == (1001.5, 2)
    assert "and lines of an evaluation" in row.notes[0]


@pytest.mark.parametrize("unit", ["steps", "s/step"])
def test_a_bar_around_one_step_a_second_says_its_unit(unit: str, tmp_path: Path) -> None:
    bars = " 1%|# | 1/9 [00:01<00:09,  2.00it/s]\n" + " 2%|# | 2/9 [00:02<00:08,  {}]\n" * 3
    form = Form(rate=r"([\d.]+(?:it/s|s/it))", unit=unit)
    log = written(tmp_path, bars.format("1.25it/s", "1.25s/it", "1.60s/it"))
    assert only_row(log, given(form)).rate == 0.8


@pytest.mark.parametrize(
    ("form", "said"),
    [
        (Form(rate=r"tok/s: [\d.]+k", unit="tokens"), r"--rate 'tok/s: [\d.]+k' has no group"),
        (Form(rate=TOKENS.rate, unit="tokens", step="iter"), "--step 'iter' has no group"),
        (Form(rate=TOKENS.rate), "needs --rate 'WORDS ([\\d.,]+)' and --unit NAME (images, "),
    ],
)
def test_a_form_that_cannot_read_is_refused(form: Form, said: str, tmp_path: Path) -> None:
    assert said in refusal(written(tmp_path, steps(2, 10, 10)), given(form))


def test_a_program_that_a_log_begins_with_says_no_number_of_devices(tmp_path: Path) -> None:
    """records of KellerJordan/modded-nanogpt hold the program."""
    code = "    def __init__(self, params, rank=0, world_size=1):\n"
    assert only_row(written(tmp_path, code + steps(2, 10, 10)), given(TOKENS)).world_size == 4
    said = code.replace("1):", "1)")
    assert "--world-size 4: the log says 1" in refusal(written(tmp_path, said + steps(2, 10, 10)), given(TOKENS))


@pytest.mark.parametrize(
    ("rate", "line"),
    [
        (r"tok/s ([\d.]+)", "x tok/s {}\n"), (r"^tok/s ([\d.]+)$", "tok/s {}\n"),
        (r"(?<=tok/s )([\d.]+)", "tok/s {}\n"), (r"^r  ([\d.]+)", "| r | {} |\n"),
        (r"tok/s ([\d.]+)", "[1,0]<stdout>:to[1,0]<stdout>:k/s {}\n"),
    ],
)  # fmt: skip
def test_blocks_without_a_rate_are_skipped_and_no_other(rate: str, line: str, tmp_path: Path) -> None:
    """Two MiB without a word of the form are between two lines with it; numbers of lines count them."""
    rest = f"{'.' * 999}\n" * (2**21 // 1000)
    log = written(tmp_path, line.format(5) + rest + line.format(10) + line.format(10) + rest + "batch_size: 7\n")
    form = Form(rate=rate, unit="tokens")
    row = only_row(log, given(form, world_size=1))
    assert (row.rate, row.steps) == (10, 2)
    assert "the log says 7 (line 4198" in refusal(log, given(form, batch_size=5))


def test_a_number_that_a_terminal_wrapped_is_no_rate_at_the_edge_of_a_block(tmp_path: Path) -> None:
    """The first line of the second MiB is the rest of the last number of the first one."""
    form, line = Form(rate=r"tok/s ([\d.]+)", unit="tokens"), "tok/s 10\n"
    head = line * 3 + f"{'.' * 999}\n" * 1048
    head += "." * (2**20 - len(head) - len("tok/s 10\n") - 1) + "\ntok/s 10\n"
    log = written(tmp_path, f"{head}31\n" + f"{'.' * 999}\n" * 1100)
    assert len(head) == 2**20
    row = only_row(log, given(form, world_size=1))
    assert (row.rate, row.steps) == (10, 2)


def test_damage_invents_no_rate(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    for data in damaged(steps(2, 10, 10, 10, 10).encode(), 5, 200):
        path.write_bytes(data)
        try:
            assert imported(path, given(TOKENS)).rows[0].rate == 10000
        except UsageError:
            continue


def test_an_unknown_log_is_answered_with_its_lines_and_a_command_that_reads_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = written(tmp_path, "hello\n" + steps(2, 10, 10) + "epoch 1: 3.5 it/s\nstep time: 0.5 s\n")
    assert command.main([str(log), "-o", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err.splitlines()
    assert "no line of it is of a known tool" in error[0]
    assert error[1] == "These lines look most like rates:" and len(error[2:-2]) == 3
    rate, unit = error[-1].partition("--rate '")[2].split("' --unit ")
    form = Form(rate=rate, unit=unit.split()[0])
    assert only_row(log, given(form)).rate == 10000


# a line of a log, and what the command that is offered reads of it; {} is the step
STYLES = [
    ("iter {} loss 3.21 tok/s: 1000", "tokens", 1000.0),
    ("epoch=0 step={} loss=2.1 step_time=0.5s", "s/step", 2.0),
    ("iter {}: loss=2.1 step_time=500ms lr=1e-4", "ms/step", 2.0),
    ("iter_time_ms=500.0 step {}", "ms/step", 2.0),
    ('{{"iteration": {}, "tokens_per_sec": 1231.5, "lr": 0.001}}', "tokens", 1231.5),
    ("{{'loss': 2.3, 'samples_per_second': '451', 'at': {}}}", "samples", 451.0),
    ("Step {} | loss 2.3 | throughput (samples/sec) 123.4", "samples", 123.4),
    ("step {0}/100 {0}% | gpu util 95% | mfu 41.2% | tokens/s 2234.5", "tokens", 2234.5),
    (" 9%|#     | {}/100 [00:01<00:50,  1.91it/s, loss=2.3]", "steps", 1.91),
    (" 9%|#     | {}/100 [00:01<00:50,  2.00s/it, loss=2.3]", "steps", 0.5),
    ("step {}: loss 2.3, 12,341 tokens/s, 1,021 ms", "tokens", 12341.0),
    ("\x1b[32mINFO\x1b[0m step {} \x1b[36mtokens/sec\x1b[0m: \x1b[1m9816.5\x1b[0m", "tokens", 9816.5),
    ("step {} loss 2.1 | 15.5K tok/s | 41.3 TFLOPs", "tokens", 15500.0),
    ("throughput: 1.25e+04 samples/s, step {}", "samples", 12500.0),
    ("speed 301.1 img/sec/gpu, step {}", "images --per-device", 301.1),
    ("step {} tokens/sec/device: 411.0", "tokens --per-device", 411.0),
    ("iteration {} | time per iteration (ms): 500.0 | loss 2.3", "ms/step", 2.0),
    ("{} sequences per second: 51.5", "sequences", 51.5),
    ("iter {} speed(tokens/s)=4112 loss=1.0", "tokens", 4112.0),
    # of public logs: fms-fsdp, word_language_model, llm.c, fairseq, timm, Keras, Caffe, Paddle, MindSpore
    ("step: {} overall token per gpu per sec: 3650 overall token per day: 2522880", "tokens --per-device", 3650.0),
    ("| epoch   1 | {}/2983 batches | lr 20.00 | ms/batch 12.50 | loss  7.62 | ppl  2044.30", "ms/step", 80.0),
    ("step {}/100 | loss 3.2 (+1.2z)| norm 1.2 | 500.12 ms | 41.2% bf16 MFU | 10485 tok/s", "tokens", 10485.0),
    ("| epoch 001:  {} / 100 loss=8, wps=10234.5, ups=1.2, wpb=8000", "tokens", 10234.5),
    ("Train: 0 [ {}/1251 ( 4%)] Time: 0.500s, 2432.1/s (0.421s, 2430.5/s) Data: 0.01", "s/step", 2.0),
    ("{}/100 [====] - 12s 500ms/step - loss: 1.2", "ms/step", 2.0),
    ("Iteration {} (5.2 iter/s, 19.2s/100 iters), loss = 2", "steps", 5.2),
    ("batch: {}, avg_reader_cost: 0.1 sec, avg_batch_cost: 0.5 sec, ips: 128.1 images/sec", "images", 128.1),
    ("epoch: 1 step: {}, epoch time: 15062.123 ms, per step time: 125.0 ms", "ms/step", 8.0),
    ("{} tokens_per_sec: 1.2M | tokens_per_sec_per_gpu: 150K | lm_loss: 3.2", "tokens", 1.2e6),
    ("tps: 4,023 (avg 4,000) step {}", "tokens", 4023.0),
    ("TGS: 3400 step {}", "tokens --per-device", 3400.0),
    ("img/gpu/s 301.5 step {}", "images --per-device", 301.5),
    ("tokens per device per second = 812 ({})", "tokens --per-device", 812.0),
    ("{} | 1.25 sec/step | 12.8k tok/sec", "s/step", 0.8),
    ("s/it: 0.5, step {}", "s/step", 2.0),
    ("12.5 steps per sec ({})", "steps", 12.5),
    ("train_samples_per_second=17.5 at {}", "samples", 17.5),
    ("step:{}/4578 train_loss:3.2 train_time:619224ms step_avg:125.00ms", "ms/step", 8.0),
    ("Epoch[0] Batch [{}]\tSpeed: 71.18 samples/sec 1971.60 tokens/sec 1.27 updates/sec", "samples", 71.18),
    ("iter {}: loss 4.0863, time 500.00ms, mfu 15.34%", "ms/step", 2.0),
]


@pytest.mark.parametrize(("line", "flags", "rate"), STYLES)
def test_the_command_that_is_offered_reads_the_rate(line: str, flags: str, rate: float, tmp_path: Path) -> None:
    log = written(tmp_path, "start\n" + "".join(line.format(step) + "\n" for step in (11, 12, 13)))
    hints = hints_of(log)
    said, unit = hints[-1].partition("--rate '")[2].split("' --unit ")
    assert unit.partition(" --world-size")[0] == flags
    read = only_row(log, given(Form(rate=said, unit=flags.split()[0]), world_size=1)).rate
    assert read == pytest.approx(rate)


@pytest.mark.parametrize(
    "line",
    ["step 12 batch_time 0.25 data_time 0.01", "eta: 0:12:01 time: 0.41 data: 0.001", "perf/throughput:12.5"],
)
def test_a_unit_that_no_line_says_is_left_to_the_user(line: str, tmp_path: Path) -> None:
    assert "--unit NAME --world-size N" in hints_of(written(tmp_path, f"{line}\n" * 3))[-1]


@pytest.mark.parametrize(
    "line",
    [
        "step 12 elapsed time 12.5 loss 2.3", "uptime: 12.1 s, steps: 12, tests: 31", "steps: 101 tokens: 5200",
        "step 12 read 12.5 MB/s loss 2.3", "download speed: 12.5 MB/s", "speed=12.5MiB/s eta 5s", "speedup: 1.5",
        "time: 12:00:01 loss 2.1", "1 231 tokens/s", "step 1 tokens per second 411.0", "tokens/s: nan",
        "tokens/s: 101.0-121.0", "items: 12, timeout: 30.0 s", "step 1 mem 12.3GiB speed 1.2x", "tokens/s: -12.0",
        "Step 50/ 1000; acc: 10.2; tok/s: 5120/5600; 3 sec", "5 ms/batch 13.11", "eval_samples_per_second: 12.5",
        "val tokens per second 12.0", "eval samples/s 100.0 train samples/s 200.0", "throughput=12.3GB/s",
        "samples/gpu/sec: 13.2%", "step:9/1000 train_time:2500ms", "1.5e3 ms/iter 12", "loss 2.0 tok/s: nan",
        "tokens/s: 12 345.6", "tokens/s: 12'345.6", "tokens/s: 12_345.6", "12\u202f345.6 tokens/s",
        "100: 2.1, 2.2 avg, 0.001 rate, 3.2 seconds, 6400 images", "elapsed_time_per_iteration_ms 512.3",
    ],
)  # fmt: skip
def test_no_command_is_offered_for_what_may_be_no_rate(line: str, tmp_path: Path) -> None:
    assert hints_of(written(tmp_path, f"{line}\n" * 3)) == ()


# lines of public logs, where they were found, and what the command that is offered reads
_AWS = "https://github.com/aws-samples/awsome-distributed-training/blob/main/3.test_cases"
OFFERED = [
    (
        "https://github.com/karpathy/nanoGPT/issues/110",
        "iter 1631: loss 4.0863, time 561.94ms\niter 1632: loss 3.7441, time 563.15ms\n"
        "iter 1633: loss 3.9848, time 562.11ms\n",
        "ms/step", 1.77737,
    ),
    (
        f"{_AWS}/pytorch/picotron/SmolLM-1.7B/ec2/README.md",
        "Generating train split: 100%|#####| 2119719/2119719 [00:05<00:00, 356503.03 examples/s]\n"
        "[rank 2] Step: 1     | Loss: 10.9062 | Tokens/s:  199.02 | Tokens/s/GPU: 24.88\n"
        "[rank 2] Step: 2     | Loss: 8.5469 | Tokens/s:   1.68K | Tokens/s/GPU: 209.63\n"
        "[rank 2] Step: 3     | Loss: 8.9219 | Tokens/s:  10.61K | Tokens/s/GPU: 1.33K\n",
        "tokens", 6145.0,
    ),
    (
        f"{_AWS}/23.SMHP-esm2/README.md",
        "Flattening the indices: 100%|####| 10000000/10000000 [00:32<00:00, 306990.36 examples/s]\n"
        " 19%|#8        | 18/97 [01:50<08:31,  6.39s/it]\n 36%|###5      | 35/97 [03:39<06:42,  6.39s/it]\n"
        " 68%|######7   | 65/97 [06:57<03:24,  6.38s/it]\n",
        "steps", 1 / 6.385,
    ),
    (
        "https://github.com/kubeflow/trainer/blob/master/examples/torchtune/llama3_2/alpaca-trainjob-yaml.ipynb",
        "Fetching 3 files: 100%|######| 3/3 [00:01<00:00,  1.82it/s]\n"
        "1|1624|Loss: 1.4217: 100%|###| 1624/1625 [21:54<00:00,  1.22it/s]\n"
        "1|1625|Loss: 1.5839784145355225: 100%|####| 1625/1625 [21:54<00:00,  1.23it/s]INFO:torchtune.utils\n",
        "steps", 1.23,
    ),
    (
        "https://github.com/Lightning-AI/pytorch-lightning/issues/3403, without its v_num",
        "Validating: 60it [00:21,  3.61it/s]\nEpoch 26: : 632it [08:13,  1.28it/s, loss=0.111]\n"
        "Validating: 62it [00:22,  4.62it/s]\nEpoch 26: : 634it [08:14,  1.28it/s, loss=0.111]\n",
        "steps", 1.28,
    ),
    (
        "https://github.com/AI-Hypercomputer/maxtext/issues/8",
        "completed step: 15107, seconds: 2.167, TFLOP/s: 36.722, loss: 2.191\n"
        "completed step: 15108, seconds: 2.164, TFLOP/s: 36.771, loss: 2.173\n",
        "NAME", 1 / 2.164,
    ),
    (
        "a public log of OLMo, 2024",
        "[2024-04-17 09:42:38] INFO     [olmo.train:816, rank=0] [step=2/739328]\n"
        "    throughput/device/tokens_per_second=45,538\n    throughput/device/batches_per_second=0.0869\n"
        "[2024-04-17 09:42:50] INFO     [olmo.train:816, rank=0] [step=3/739328]\n"
        "    throughput/device/tokens_per_second=45,368\n    throughput/device/batches_per_second=0.0865\n",
        "tokens --per-device", 45368.0,
    ),
    (
        "https://github.com/phamdinhkhanh/general_backbone/blob/main/README.md, of timm",
        "Train: 0 [   0/33 (  0%)]  Loss: 8.863 (8.86)  Time: 1.663s,    9.62/s  (1.663s,    9.62/s)\n"
        "Train: 0 [  32/33 (100%)]  Loss: 1.336 (4.00)  Time: 0.934s,    8.57/s  (0.218s,   36.68/s)\n"
        "Test: [   0/29]  Time: 0.560 (0.560)  Loss:  0.6912 (0.6912)  Acc@1: 87.5000 (87.5000)\n"
        "Test: [  29/29]  Time: 0.041 (0.064)  Loss:  0.5951 (0.5882)  Acc@1: 81.2500 (87.5000)\n",
        "s/step", 1 / 0.934,
    ),
    (
        "https://github.com/mlfoundations/open_clip/pull/129",
        "Train Epoch: 1 [ 32833536/407371776 (8%)] Loss: 0.40883 (0.4749) Data (t): 0.080 Batch (t): 1.762s, "
        "37194/s LR: 0.000156 Logit Scale: 100.000\n" * 2,
        "NAME", 1 / 37194,
    ),
    (f"{_AWS}/pytorch/mosaicml-composer/mpt/README.md", "  Train time/batch: 0\n  Train time/token: 0\n", "", 0.0),
]  # fmt: skip


@pytest.mark.parametrize(("_", "text", "unit", "rate"), OFFERED)
def test_the_command_that_is_offered_reads_a_public_log(
    _: str, text: str, unit: str, rate: float, tmp_path: Path
) -> None:
    """No bar of a preparation or an evaluation, and no counter. A unit that the user must give is s/step here."""
    log = written(tmp_path, text)
    said, _, rest = (hints_of(log) or ("--rate '' --unit  ",))[-1].partition("--rate '")[2].rpartition("' --unit ")
    assert rest.partition(" --world-size")[0].strip() == unit
    if unit:
        form = Form(rate=said, unit=unit.replace("NAME", "s/step").removesuffix(" --per-device"))
        assert only_row(log, given(form, world_size=1)).rate == pytest.approx(rate, rel=1e-4)


def hints_of(log: Path) -> tuple[str, ...]:
    with pytest.raises(Unknown) as error:
        imported(log)
    return error.value.hints


# ---------------------------------------------------------------- tables

CSV = "N,rate,unit,batch,model,precision\n1,100,images/s,32,rn50,fp16\n8,720,images/s,32,rn50,fp16\n"
LINES = '{"N": 1, "rate": 100, "unit": "images"}\n{"N": 8, "rate": 720.0, "unit": "images"}\n'


@pytest.mark.parametrize("text", [CSV, CSV.replace(",", "\t"), CSV.replace(",", ";"), LINES])
def test_a_table_has_a_row_for_each_line(text: str, tmp_path: Path) -> None:
    rows = imported(written(tmp_path, text)).rows
    assert [(row.world_size, row.rate, row.unit) for row in rows] == [(1, 100, "images"), (8, 720, "images")]


def test_steps_of_tensorboard_are_one_launch(tmp_path: Path) -> None:
    text = "Wall time,Step,Value\n1.5,0,50\n2.5,1,100\n3.5,2,102\n"
    row = only_row(written(tmp_path, text), given(Form(unit="tokens")))
    assert (row.rate, row.steps, row.unit) == (101, 2, "tokens")
    assert "add --unit" in refusal(written(tmp_path, text), Given(world_size=4))


def test_a_column_of_weights_and_biases_is_chosen(tmp_path: Path) -> None:
    text = '"Step","a - throughput","a - throughput__MIN","b - throughput"\n' + "".join(
        f'"{step}","{100 + step}","1","{50 + step}"\n' for step in range(3)
    )
    log = written(tmp_path, text)
    assert "several columns of rates (a - throughput, b - throughput)" in refusal(log, given(Form(unit="samples")))
    assert only_row(log, given(Form(rate="^a -", unit="samples"))).rate == 101.5


@pytest.mark.parametrize(
    "name", ["throughput/device/tokens_per_sec", "train/tokens_per_second_per_gpu", "tokens/s/gpu"]
)
def test_a_column_of_one_device_is_multiplied(name: str, tmp_path: Path) -> None:
    """As Composer, OLMo and torchtune name it; the x axis of Hugging Face's Trainer."""
    text = f'"train/global_step","run - {name}"\n"1","50"\n"2","100"\n"3","102"\n'
    assert only_row(written(tmp_path, text), Given(world_size=8)).rate == 808
    both = (
        text.replace('step",', 'step","tokens/s",').replace('","', '","1","').replace('","1","tokens', '","tokens')
    )
    assert only_row(written(tmp_path, both.replace('s","1","r', 's","r')), Given(world_size=8)).rate == 1


def test_a_table_says_that_its_loss_is_no_number(tmp_path: Path) -> None:
    text = '{"step": 1, "tokens/s": 9, "loss": 2.1}\n{"step": 2, "tokens/s": 9, "loss": NaN}\n'
    row = only_row(written(tmp_path, text), Given(world_size=8))
    assert (row.rate, row.failed) == (None, "the loss is no number")


def test_a_table_without_a_whole_row_shows_one(tmp_path: Path) -> None:
    said = refusal(written(tmp_path, "N;tokens/s\n1;12345,5\n8;90000,5\n"))
    assert said.endswith("2 lines skipped that looked like data: the first is line 2: 1;12345,5")


def test_a_damaged_row_is_skipped_and_counted(tmp_path: Path) -> None:
    (row,) = imported(written(tmp_path, CSV[:-5])).rows
    assert row.rate == 100 and "1 line skipped" in row.notes[-1]
    for data in damaged(CSV.encode(), 7, 200):
        log = tmp_path / "b.csv"
        log.write_bytes(data)
        try:
            assert {one.rate for one in imported(log).rows} <= {100, 720}
        except UsageError:
            continue


@pytest.mark.parametrize("form", ["csv", "tsv", "json"])
@pytest.mark.parametrize(
    ("columns", "flags", "said"),
    [
        ({"N": 8}, Given(world_size=16), "--world-size 16: the log says 8"),
        ({"N": 8, "batch": 32}, Given(batch_size=64), "--batch-size 64: the log says 32"),
        ({"N": 8, "train_batch_size": 256}, Given(batch_size=100), "--batch-size 100: the log says 256 (line "),
        ({"step": 1, "num_processes": 8}, Given(world_size=16), "--world-size 16: the log says 8 (line "),
        ({"N": 8, "model": "rn50"}, Given(model="vgg"), "--model vgg: the log says rn50"),
        ({"N": 8, "precision": "fp16"}, Given(precision="fp32"), "--precision fp32: the log says fp16"),
        ({"N": 8, "parallelism": "tp=2"}, Given(parallelism="tp=4"), "--parallelism tp=4: the log says tp=2"),
    ],
)
def test_a_flag_that_contradicts_a_table_is_refused(
    form: str, columns: dict[str, object], flags: Given, said: str, tmp_path: Path
) -> None:
    rows = [{**columns, "images/s": 100.5}] * 2
    if "step" in columns:
        rows = [{**row, "step": step} for step, row in enumerate(rows)]
    mark = "\t" if form == "tsv" else ","
    lines = [mark.join(map(str, line)) for line in (rows[0], *(row.values() for row in rows))]
    text = "\n".join(map(json.dumps, rows) if form == "json" else lines) + "\n"
    log = written(tmp_path, text)
    assert said in refusal(log, flags)
    assert imported(log, Given(world_size=8)).rows[0].world_size == 8


# ---------------------------------------------------------------- logs of one work


def test_logs_at_one_global_batch_are_a_strong_scaling(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The batch of a device shrinks while N grows. Efficiency is still of a device's rate."""
    logs = [
        f"{written(tmp_path, steps(1, rate, rate), f'{devices}.log')}:{devices}:batch={256 // devices}"
        for devices, rate in ((1, 10.0), (4, 38.0), (8, 70.0))
    ]
    form = ["--rate", TOKENS.rate, "--unit", "tokens", "--model", "m", "--precision", "bf16"]
    assert command.main([*logs, *form, "-o", str(tmp_path / "run")]) == 0
    found = cells(store.load(tmp_path / "run")[0].imported)
    assert [(cell.world_size, cell.strong, cell.efficiency) for cell in found] == [
        (1, 256, 1.0), (4, 256, pytest.approx(0.95)), (8, 256, pytest.approx(0.875)),
    ]  # fmt: skip
    assert "256" in capsys.readouterr().out


def test_logs_at_one_batch_of_a_device_are_a_weak_scaling(tmp_path: Path) -> None:
    logs = [
        f"{written(tmp_path, steps(1, rate, rate), f'{devices}.log')}:{devices}:batch=32"
        for devices, rate in ((1, 10.0), (4, 38.0))
    ]
    form = ["--rate", TOKENS.rate, "--unit", "tokens", "--model", "m", "--precision", "bf16"]
    assert command.main([*logs, *form, "-o", str(tmp_path / "run")]) == 0
    assert {cell.strong for cell in cells(store.load(tmp_path / "run")[0].imported)} == {0}


def rows(tmp_path: Path, logs: Sequence[tuple[int, float]], *flags: str) -> list[tuple[int, float | None]]:
    """Each number of devices and its efficiency, as the command says them."""
    names = [
        f"{written(tmp_path, steps(1, rate, rate, rate), f'{devices}.log')}:{devices}" for devices, rate in logs
    ]
    form = ["--rate", TOKENS.rate, "--unit", "tokens"]
    assert command.main([*names, *form, *flags, "-o", str(tmp_path / "run")]) == 0
    found = cells(store.load(tmp_path / "run")[0].imported)
    return [(cell.world_size, cell.efficiency and round(cell.efficiency, 3)) for cell in found]


def test_three_logs_are_one_table_over_the_smallest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = ((8, 8.0), (64, 57.6), (512, 409.6))
    assert rows(tmp_path, logs, "--same-work", "--base", "8") == [(8, 1.0), (64, 0.9), (512, 0.8)]
    assert "base N=8" in capsys.readouterr().out


def test_without_a_base_none_is_claimed_and_the_flag_is_offered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rows(tmp_path, ((8, 8.0), (64, 57.6)), "--same-work") == [(8, None), (64, None)]
    assert "--base 8" in capsys.readouterr().out


def test_above_100_percent_is_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rows(tmp_path, ((1, 1.0), (8, 9.6)), "--same-work") == [(1, 1.0), (8, 1.2)]
    out = capsys.readouterr().out
    assert "SUPERLINEAR" in out and "above 100 %" in out


ROW = ImportedRow(tool="a", log="a.log", unit="tokens", world_size=8, rate=1.0, precision="fp16")


def test_a_base_without_a_log_and_works_that_differ_are_refused() -> None:
    with pytest.raises(UsageError, match=r"--base 4: no log is of 4 devices \(8 are\)"):
        of_one_work([ROW], same_work=False, base=4)
    other = ImportedRow(tool="a", log="b.log", unit="tokens", world_size=16, rate=1.0, precision="bf16")
    with pytest.raises(UsageError, match=r"--same-work: the precision of a\.log is fp16, of b\.log it is bf16"):
        of_one_work([ROW, other], same_work=True, base=0)


@pytest.mark.parametrize("output", ["---", "--same-work"])
def test_a_run_of_dashes_makes_no_folder(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command.main(["a.log", "-o", output]) == 2
    assert f"--output {output}: a folder's name" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_list_has_each_tool_and_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == 0
    out = capsys.readouterr().out
    assert all(f"{name}\n    " in out for name in TOOLS)
