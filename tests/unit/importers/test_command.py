"""`python -m scaling import`: the run it writes, in every format of the report, and what it refuses."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scaling.records import store
from scaling.report import __main__ as report
from scaling.report.formats import json as schema
from scaling.tools.compare import __main__ as compare
from scaling.tools.history import __main__ as history
from scaling.tools.importers import __main__ as command
from scaling.tools.predict import __main__ as predict
from tests.support.imported_logs import SAMPLES, written
from tests.support.report_scenes import SCENES
from tests.support.scripted_records import written as written_run

N1, N4 = str(SAMPLES / "horovod_n1.log"), str(SAMPLES / "horovod_n4.log")
FP32 = ("--precision", "fp32")


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert command.main([N1, N4, *FP32, "-o", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    return str(tmp_path / "run")


def shown(capsys: pytest.CaptureFixture[str], run: str, *arguments: str) -> str:
    assert report.main([run, *arguments]) == 0
    return capsys.readouterr().out


def refusal(capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> str:
    assert command.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("scaling import: error: ") and err.count("\n") == 1
    return err.removeprefix("scaling import: error: ").rstrip()


# ---------------------------------------------------------------- what is written


def test_the_table_is_printed_and_the_report_says_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "run")
    assert command.main([N4, N1, *FP32, "-o", folder]) == 0
    printed = capsys.readouterr().out
    assert shown(capsys, folder) == printed
    assert printed.splitlines()[-1] == (
        "scaling: imported:horovod N=4 432.8 images/s speedup 3.86 efficiency 0.964 flags IMPORTED"
    )


def test_a_log_whose_name_is_in_another_encoding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / os.fsdecode(b"rank\xff.log")
    log.write_text((SAMPLES / "horovod_n4.log").read_text())
    run = tmp_path / os.fsdecode(b"run\xfe")
    assert command.main([str(log), "-o", str(run)]) == 0
    capsys.readouterr()
    for format_ in ("table", "csv", "json", "markdown", "latex"):
        assert "432.8" in shown(capsys, str(run), "--format", format_)


def test_rows_are_marked_and_nothing_is_claimed_beside_the_rate(
    run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(capsys, run)
    assert "Imported: horovod, resnet50, batch 32 per device" in text
    (line,) = (line for line in text.splitlines() if "432.8" in line and "scaling:" not in line)
    words = line.split()
    assert words[:5] == ["4", "432.8", "3.86", "96.4", "%"]
    assert words[6:] == ["1", "2", "1.1", "horovod_n4.log", "IMPORTED", "[2]"]  # after the bar
    assert "best" not in text and "±" not in text


@pytest.mark.parametrize("format_", ["table", "markdown", "latex", "csv", "json", "html"])
def test_every_format_has_the_rows_and_the_mark(
    format_: str, run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out"
    assert report.main([run, "--format", format_, "-o", str(path)]) == 0
    text = path.read_text()
    assert "IMPORTED" in text and "432.8" in text
    assert "No exchange of this run has ended" not in text


def test_the_json_is_of_the_schema(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, run, "--format", "json")
    found: Any = msgspec.json.decode(text, type=schema.report_type())
    assert [(row["world_size"], row["rate"]["mean"]) for row in json.loads(text)["imported"]] == [
        (1, pytest.approx(112.2)),
        (4, pytest.approx(432.8)),
    ]
    assert found.rows == ()


def test_the_csv_names_the_tool_as_strategy(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(shown(capsys, run, "--format", "csv"))))
    assert [(row["strategy"], row["world_size"], row["flags"], row["standing"]) for row in rows] == [
        ("imported:horovod", "1", "IMPORTED", ""),
        ("imported:horovod", "4", "IMPORTED", ""),
    ]
    assert rows[1]["samples_per_s_low"] == ""


def test_beside_a_run_of_ours_it_stands_apart(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its rows change nothing of the others', and both orders are allowed without --join."""
    ours = written_run(tmp_path / "ours", SCENES["default"]())
    alone = [line for line in shown(capsys, str(ours)).splitlines() if " torch:" in line]
    for order in ((str(ours), run), (run, str(ours))):
        text = shown(capsys, *order)
        assert "Imported: horovod" in text
        assert [line for line in text.splitlines() if " torch:" in line] == alone


def test_several_logs_of_a_cell_are_launches_with_an_interval(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = Path(N1).read_text()
    logs = [written(tmp_path, text.replace("112.2 +", f"112.{digit} +"), f"{digit}.log") for digit in (2, 3)]
    assert command.main([*map(str, logs), *FP32, "-o", str(tmp_path / "run")]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "±" in line)
    assert "2.log 3.log" in line


def test_efficiency_needs_the_same_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = written(tmp_path, Path(N1).read_text().replace("Batch size: 32", "Batch size: 64"))
    assert command.main([str(other), N4, *FP32, "-o", str(tmp_path / "run")]) == 0
    assert "N=4 432.8 images/s speedup - efficiency - flags IMPORTED" in capsys.readouterr().out


def test_a_run_of_an_older_version_is_read(run: str) -> None:
    """Its rows lack the fields that came later."""
    path = Path(run) / "run.jsonl"
    first, *rest = path.read_text().splitlines(keepends=True)
    plain = json.loads(first)
    for row in plain["imported"]:
        for name in ("device_kind", "framework", "variables", "parallelism"):
            row.pop(name, None)
    path.write_text("".join([json.dumps(plain) + "\n", *rest]))
    header, _ = store.load(Path(run))
    assert [(row.rate, row.device_kind, row.parallelism) for row in header.imported] == [
        (112.2, "", ""),
        (432.8, "", ""),
    ]


def titan(degrees: dict[str, int], tokens_per_s: int) -> str:
    """A log of torchtitan; tokens/s are of one device."""
    names, sizes = ", ".join(f"'{name}'" for name in degrees), ", ".join(map(str, degrees.values()))
    return (
        f"[titan] - Building {len(degrees)}-D device mesh with [{names}], [{sizes}]\n"
        "[titan] - Model llama3 8B size: 8,030,261,248 total parameters\n"
        "[titan] - Training starts at step 1, with local batch size 1, sequence length 8192\n"
    ) + "".join(f"step: {step}  loss: 7.2  memory: 40GiB  tps: {tokens_per_s:,}  mfu: 1%\n" for step in (1, 2, 3))


@pytest.fixture
def split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """A model on one device, and split over four: 53 % at 8 over the one device, 88 % over the four."""
    told = (({"tp": 1}, 9000), ({"tp": 4}, 5420), ({"dp_shard": 2, "tp": 4}, 4770))
    logs = [written(tmp_path, titan(degrees, rate), f"{rate}.log") for degrees, rate in told]
    assert command.main([*map(str, logs), "--precision", "bf16", "-o", str(tmp_path / "run")]) == 0
    return capsys.readouterr().out


def test_an_efficiency_over_four_devices_names_its_base(
    split: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert split.splitlines()[-1].endswith("efficiency 0.880 base N=4 flags IMPORTED")
    (line,) = (line for line in split.splitlines() if "4770.log" in line and "%" in line)
    assert line.split()[2:5] == ["1.76", "88.0", "%"] and line.split()[6] == "4"
    assert "53.0 %" not in split
    run = str(tmp_path / "run")
    assert "1.76x its own rate on 4: 88.0 % of linear scaling" in shown(capsys, run, "--format", "html")
    rows = list(csv.DictReader(io.StringIO(shown(capsys, run, "--format", "csv"))))
    found = [(row["world_size"], row["base_world_size"], row["parallelism"]) for row in rows]
    assert found == [("1", "1", ""), ("4", "4", "tp=4"), ("8", "4", "tp=4")]
    of_json = json.loads(shown(capsys, run, "--format", "json"))["imported"]
    assert [row["base_world_size"] for row in of_json] == [1, 4, 4]
    assert history.main([str(tmp_path), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["headline"]["efficiency"] is None


# ---------------------------------------------------------------- who else reads it


def test_history_has_a_line(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert history.main([str(Path(run).parent), "--format", "json"]) == 0
    (line,) = json.loads(capsys.readouterr().out)["runs"]
    assert (line["headline"]["strategy"], line["headline"]["world_size"]) == ("imported:horovod", 4)
    assert (line["headline"]["flags"], line["like"]) == (["IMPORTED"], "")
    assert history.main([str(Path(run).parent)]) == 0
    assert "IMPORTED" in capsys.readouterr().out


def test_nothing_that_needs_points_takes_it(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main([run, run]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "is IMPORTED from logs of other tools" in line
    with pytest.raises(Exception, match="is IMPORTED"):
        store.load_measured(Path(run))


def test_predict_takes_its_rates_as_evidence(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    node = ["--devices-per-node", "4", "--network", "ib:100", "--bus", "nvlink", "--device", "V100"]
    assert predict.main([run, *node, "--world-sizes", "16", "--strategy", "torch:horovod"]) == 0
    out = capsys.readouterr().out
    assert "note: IMPORTED, not measured by scaling; assumed: the exchange of torch:horovod" in out
    assert [line.split()[2] for line in out.splitlines() if line[:3].strip().isdigit()] == [
        "measured", "measured", "PREDICTED",
    ]  # fmt: skip
    assert predict.main([run]) == 2
    assert "is IMPORTED, and a log does not say where devices are" in capsys.readouterr().err


# ---------------------------------------------------------------- bad input


def test_an_output_that_exists_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "there").mkdir()
    said = refusal(capsys, [N1, "-o", str(tmp_path / "there")])
    assert said == f"--output {tmp_path / 'there'}: exists already; name a folder that does not"


def test_an_output_below_a_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, "")
    assert "cannot be written: Not a directory" in refusal(capsys, [N1, "-o", str(file / "run")])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty"),
        (b"hello\n", "no line of it is of a known tool"),
        (bytes(range(256)) * 9, "is a binary file, not a log"),
        (b"\x1f\x8b\x08" + bytes(50), "is compressed: gunzip it first"),
        (b"\x28\xb5\x2f\xfd" + bytes(50), "is compressed: unzstd it first"),
        ("Total img/sec".encode("utf-16"), "is UTF-16"),
    ],
)
def test_what_is_no_log_is_refused(
    data: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(data)
    assert said in refusal(capsys, [str(path), "-o", str(tmp_path / "run")])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["/nowhere/a.log"], "LOG /nowhere/a.log: no such file"),
        (["/dev/null"], "LOG /dev/null: is no regular file: it is read twice, save it first"),
        (["/"], "LOG /: is a folder: give the logs in it"),
        ([N1, N1], f"LOG {N1}: is {N1} again: a launch counts once"),
        ([N1, "--tool", "horowod"], "--tool horowod: did you mean 'horovod'?"),
        ([N1, "--world-size", "0"], "--world-size 0: must be 1 or more"),
        ([N1, "--world-size", "8"], f"LOG {N1}: --world-size 8: the log says 1 (line 3: Number of GPUs: 1)"),
        ([N1, "--batch-size", "64"], f"LOG {N1}: --batch-size 64: the log says 32 (line 2: Batch size: 32)"),
        ([N1, "--model", "vgg16"], f"LOG {N1}: --model vgg16: the log says resnet50"),
    ],
)
def test_bad_input_is_one_line(
    arguments: Sequence[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refusal(capsys, [*arguments, "-o", str(tmp_path / "run")]) == said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("ending", ["", "\n\n", "\r\n"])
def test_a_copy_that_ends_otherwise_is_no_second_launch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: str
) -> None:
    """As editors save it; two launches would have an interval."""
    copy = tmp_path / "copy.log"
    copy.write_bytes(Path(N4).read_bytes().rstrip(b"\n") + ending.encode())
    said = refusal(capsys, [N4, str(copy), "-o", str(tmp_path / "run")])
    assert said == f"LOG {copy}: is {N4} again: a launch counts once"


@pytest.mark.parametrize("tag", ["[1,0]<stdout>:", "  [1,0]<stdout>:", "[pod/a-0/b] ", "\x1b[32m> "])
def test_a_log_and_its_twin_with_tags_are_one_launch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tag: str
) -> None:
    lines = Path(N4).read_text().splitlines()
    twin = written(tmp_path, "".join(f"{tag}{line}\n" for line in lines), "twin.log")
    said = refusal(capsys, [N4, str(twin), "-o", str(tmp_path / "run")])
    assert said == f"LOG {twin}: is {N4} again: a launch counts once"


@pytest.mark.parametrize("name", ["rccl_tests.json", "horovod_n4.log"])
def test_a_byte_order_mark_is_no_part_of_a_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    plain, marked = SAMPLES / name, tmp_path / name
    marked.write_bytes(b"\xef\xbb\xbf" + plain.read_bytes())
    found = []
    for number, log in enumerate((plain, marked)):
        folder = tmp_path / f"run-{number}"
        assert command.main([str(log), "-o", str(folder)]) == 0
        header, _ = store.load(folder)
        found.append((header.imported, header.bandwidths))
    assert found[0] == found[1]
