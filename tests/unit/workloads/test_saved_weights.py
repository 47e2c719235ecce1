"""Weights that were saved: what is read of them again, and what becomes of a file that cannot be written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from scaling.plan import validation
from scaling.workloads import models, weights, weights_file
from scaling.workloads.layers import BatchNorm, Conv, Dense, GlobalMean, Layer
from scaling.workloads.specs import Classes, Images, ModelSpec


def network(_size: int, classes: int) -> tuple[Layer, ...]:
    norm = BatchNorm()
    return (Conv(channels=4, kernel=3, bias=False), norm, Conv(channels=2, kernel=1), norm, GlobalMean(),
            Dense(width=classes))  # fmt: skip


SPEC: ModelSpec = replace(
    models.spec("digits-cnn"), name="tiny", network=network, input=Images(channels=1, height=8, width=8),
    target=Classes(count=3),
)  # fmt: skip
DRAWN = dict(weights.draw(SPEC, seed=3))
STATISTICS = tuple(
    (np.arange(width, dtype=np.float32) + width, np.arange(1, width + 1, dtype=np.float32)) for width in (4, 2)
)


def saved(folder: Path, ending: str) -> str:
    path = str(folder / f"learnt{ending}")
    weights_file.save(path, SPEC, DRAWN, STATISTICS)
    return path


@pytest.mark.parametrize("ending", validation.SAVED)
def test_what_is_saved_is_read_again(tmp_path: Path, ending: str) -> None:
    spec = replace(SPEC, weights=saved(tmp_path, ending))
    again = dict(weights.draw(spec, seed=8))
    assert list(again) == weights.names(SPEC)
    for name, array in again.items():
        assert np.array_equal(array, DRAWN[name])
    for read, wanted in zip(weights.statistics(spec), STATISTICS, strict=True):
        assert np.array_equal(read, wanted)
    assert [one.name for one in tmp_path.iterdir()] == [f"learnt{ending}"]


@pytest.mark.parametrize("ending", validation.SAVED)
def test_a_network_of_other_classes_begins_its_last_layer_anew(tmp_path: Path, ending: str) -> None:
    other = replace(SPEC, target=Classes(count=7), weights=saved(tmp_path, ending))
    again = dict(weights.draw(other, seed=8))
    *_, (last, wanted) = weights.draw(replace(other, weights=""), seed=8)
    assert np.array_equal(again[last], wanted)
    assert np.array_equal(again["0.weight"], DRAWN["0.weight"])


def test_safetensors_are_as_the_format_s_page_has_them(tmp_path: Path) -> None:
    content = Path(saved(tmp_path, ".safetensors")).read_bytes()
    length = int.from_bytes(content[:8], "little")
    header: dict[str, Any] = json.loads(content[8 : 8 + length])
    assert (8 + length) % 8 == 0
    ends = [0, *(each["data_offsets"][1] for each in header.values())]
    assert [each["data_offsets"][0] for each in header.values()] == ends[:-1]
    assert ends[-1] == len(content) - 8 - length
    begin, end = header["0.weight"]["data_offsets"]
    data = np.frombuffer(content[8 + length :][begin:end], "<f4")
    assert np.array_equal(data.reshape(header["0.weight"]["shape"]), DRAWN["0.weight"])


def test_an_older_file_stays_where_a_new_one_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(saved(tmp_path, ".npz"))
    before = path.read_bytes()

    def full(part: Path, _arrays: object) -> None:
        part.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(weights_file, "WRITERS", {".npz": full})
    with pytest.raises(OSError, match="No space left"):
        weights_file.save(str(path), SPEC, DRAWN, STATISTICS)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_every_ending_that_the_plan_lets_pass_has_a_writer_and_a_reader() -> None:
    assert set(validation.SAVED) == set(weights_file.WRITERS) <= set(weights_file.READERS)
