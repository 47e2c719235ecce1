"""Weights: drawn, read from files of several kinds, saved, and refused."""

from __future__ import annotations

import json
import math
import os
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from scaling.errors import UsageError
from scaling.plan import validation
from scaling.workloads import layers, models, weights
from scaling.workloads.layers import BatchNorm, Conv, Dense, GlobalMean, Layer, Parameter, Start
from scaling.workloads.specs import Classes, Images, ModelSpec

Arrays = Mapping[str, NDArray[Any]]


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
# As torchvision orders and names what it has.
STATE = {
    "conv1.weight": DRAWN["0.weight"],
    "bn1.weight": DRAWN["1.weight"], "bn1.bias": DRAWN["1.bias"],
    "bn1.running_mean": STATISTICS[0][0], "bn1.running_var": STATISTICS[0][1],
    "bn1.num_batches_tracked": np.array(7), "aux.fc.weight": np.ones((2, 2), np.float32),
    "conv2.weight": DRAWN["2.weight"], "conv2.bias": DRAWN["2.bias"],
    "bn2.weight": DRAWN["3.weight"], "bn2.bias": DRAWN["3.bias"],
    "bn2.running_mean": STATISTICS[1][0], "bn2.running_var": STATISTICS[1][1],
    "fc.weight": DRAWN["5.weight"], "fc.bias": DRAWN["5.bias"],
}  # fmt: skip


def npz(path: Path, arrays: Arrays) -> str:
    np.savez(path / "weights.npz", **dict(arrays))
    return str(path / "weights.npz")


def safetensors(path: Path, arrays: Arrays, kind: str = "F32") -> str:
    header: dict[str, Any] = {"__metadata__": {"format": "np"}}
    data = b""
    for name, array in sorted(arrays.items()):
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    return headed(path, json.dumps(header).encode(), data)


def headed(folder: Path, header: bytes, data: bytes = b"") -> str:
    (folder / "weights.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    return str(folder / "weights.safetensors")


def saved(folder: Path, ending: str) -> str:
    path = str(folder / f"learnt{ending}")
    weights.save(path, SPEC, DRAWN, STATISTICS)
    return path


def read(path: str, spec: ModelSpec = SPEC) -> dict[str, Any]:
    return dict(weights.draw(replace(spec, weights=path), seed=9))


def assert_drawn(found: Arrays) -> None:
    assert list(found) == list(DRAWN)
    for name, array in DRAWN.items():
        assert np.array_equal(found[name], array), name


@pytest.mark.parametrize(
    "written",
    [lambda path: npz(path, STATE), *(lambda path, end=end: saved(path, end) for end in validation.SAVED)],
    ids=["library", *validation.SAVED],
)
def test_a_library_s_order_and_what_is_saved_are_read(tmp_path: Path, written: Callable[[Path], str]) -> None:
    path = written(tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == [Path(path).name]
    assert_drawn(read(path))
    found = weights.statistics(replace(SPEC, weights=path))
    assert [[each.tolist() for each in both] for both in found] == [
        [each.tolist() for each in both] for both in STATISTICS
    ]
    # The last layer begins anew for other classes.
    five = replace(SPEC, target=Classes(count=5))
    read_five, drawn_five = read(path, five), dict(weights.draw(five, seed=9))
    assert np.array_equal(read_five["0.weight"], DRAWN["0.weight"])
    assert np.array_equal(read_five["5.weight"], drawn_five["5.weight"])
    assert read_five["5.bias"].shape == (5,)


def test_our_names_are_found_in_any_order(tmp_path: Path) -> None:
    assert_drawn(read(safetensors(tmp_path, DRAWN)))
    assert_drawn(read(npz(tmp_path, dict(reversed(DRAWN.items())))))
    assert weights.statistics(replace(SPEC, weights=npz(tmp_path, DRAWN))) == ()


def test_half_precision_is_widened(tmp_path: Path) -> None:
    upper = {name: (array.view(np.uint32) >> 16).astype(np.uint16) for name, array in DRAWN.items()}
    found = read(safetensors(tmp_path, upper, "BF16"))
    for name, array in DRAWN.items():
        assert found[name].dtype == np.float32
        assert found[name] == pytest.approx(array, rel=1 / 128)


# ---------------------------------------------------------------- refused


def damaged(folder: Path) -> str:
    """A packed .npz whose first array, behind 30 bytes and two texts, begins as no block does."""
    np.savez_compressed(folder / "packed.npz", **{"0.weight": np.arange(1000.0)})
    content = bytearray((folder / "packed.npz").read_bytes())
    content[30 + sum(struct.unpack_from("<2H", content, 26))] = 0xFF
    (folder / "packed.npz").write_bytes(content)
    return str(folder / "packed.npz")


def packed(folder: Path, name: str, content: bytes) -> str:
    with zipfile.ZipFile(folder / "packed.npz", "w") as file:
        file.writestr(name, content)
    return str(folder / "packed.npz")


def rubbish(folder: Path, name: str) -> str:
    (folder / name).write_bytes(b"\xff" * 100)
    return str(folder / name)


def changed(**arrays: Any) -> Callable[[Path], str]:
    return lambda folder: npz(folder, STATE | {name.replace("_", ".", 1): each for name, each in arrays.items()})


UNCLOSED = b"\x93NUMPY\x01\x00\x76\x00" + b"{'shape': (1,".ljust(0x75) + b"\n"
UNORDERED = {name: each for name, each in STATE.items() if "tracked" not in name}


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (changed(conv1_weight=np.ones((4, 1, 5, 5))),
         "conv1.weight is 4 x 1 x 5 x 5, 0.weight of tiny is 4 x 1 x 3 x 3"),
        (changed(conv1_weight=np.full((4, 1, 3, 3), "a")), "conv1.weight holds no real numbers (<U1)"),
        (changed(conv1_weight=np.full((4, 1, 3, 3), 1j)), "conv1.weight holds no real numbers (complex128)"),
        (changed(bn1_running_mean=np.ones(3)), "has statistics of 2 batch norms"),
        (lambda folder: npz(folder, {name: STATE[name] for name in ("conv1.weight", "bn1.weight")}),
         "has 2 arrays that are trained, tiny has 9"),
        (lambda folder: safetensors(folder, UNORDERED), "safetensors keeps no order, and '0.weight'"),
        (lambda folder: str(folder / "weights.h5"), "not one of .safetensors, .npz"),
        (lambda folder: str(folder / "a.pth"), "not one of .safetensors, .npz; in Python: numpy.savez("),
        (lambda folder: str(folder / "none.npz"), "No such file or directory"),
        (lambda folder: rubbish(folder, "rubbish.npz"), ""),
        (lambda folder: rubbish(folder, "rubbish.safetensors"), "not such a file: its header ends beyond"),
        (damaged, "not such a file: Error -3 while decompressing data"),
        (lambda folder: packed(folder, "0.weight.npy", UNCLOSED), "not such a file: "),
        (lambda folder: packed(folder, "README", b"weights"), "not such a file: README in it is no array"),
        (lambda folder: headed(folder, b"[1]"), "not such a file: its header names no tensors"),
        (lambda folder: headed(folder, b"[" * 100_000), "not such a file: it is nested too deeply"),
    ],
)  # fmt: skip
def test_what_holds_no_such_weights_is_refused_on_one_line(
    tmp_path: Path, written: Callable[[Path], str], words: str
) -> None:
    path = written(tmp_path)
    with pytest.raises(UsageError) as error:
        read(path)
    assert str(error.value).startswith(f"--weights {path}: {words}")
    assert "\n" not in str(error.value)


# ---------------------------------------------------------------- drawn


def drawn(start: Start, shape: tuple[int, ...] = (400, 500)) -> weights.Array:
    return weights.values(Parameter("weight", shape, start, 200, 300), np.random.default_rng(1))


@pytest.mark.parametrize(
    ("start", "deviation"),
    [("he-in", math.sqrt(2 / 200)), ("he-out", math.sqrt(2 / 300)), ("glorot", math.sqrt(2 / 500)),
     ("uniform", 1 / math.sqrt(3 * 200)), ("uniform-0.05", 0.05 / math.sqrt(3)), ("normal-0.01", 0.01),
     ("normal-0.02", 0.02)],
)  # fmt: skip
def test_deviations(start: Start, deviation: float) -> None:
    """Of 200,000 values: the standard error is 0.2 %."""
    values = drawn(start)
    assert values.dtype == np.float32
    assert values.std() == pytest.approx(deviation, rel=0.01)
    assert abs(values.mean()) < 0.02 * deviation
    if start in ("glorot", "uniform", "uniform-0.05"):
        assert np.abs(values).max() <= math.sqrt(3) * deviation * 1.001


def test_states_start_orthogonal_and_gates_remember() -> None:
    matrix = drawn("orthogonal", (64, 16))
    assert np.allclose(matrix.T @ matrix, np.eye(16), atol=1e-6)
    assert drawn("forget", (8,)).tolist() == [0, 0, 1, 1, 0, 0, 0, 0]
    assert (drawn("ones", (2,)).tolist(), drawn("zeros", (2,)).tolist()) == ([1, 1], [0, 0])


def test_a_seed_gives_the_same_weights_in_the_descriptions_order() -> None:
    spec = models.spec("imdb-lstm")
    first, again, other = (dict(weights.draw(spec, seed)) for seed in (1, 1, 2))
    wanted = layers.parameters(spec.layers, spec.input.shape)
    assert {name: each.shape for name, each in first.items()} == {
        name: each.shape for name, each in wanted.items()
    }
    assert list(first) == list(wanted) == weights.names(spec)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["0.weight"], other["0.weight"])


@pytest.mark.parametrize("cores", [1, 3])
def test_weights_are_the_same_on_any_number_of_cores(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert_drawn(dict(weights.draw(SPEC, seed=3)))


# ---------------------------------------------------------------- saved


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

    monkeypatch.setattr(weights, "WRITERS", {".npz": full})
    with pytest.raises(OSError, match="No space left"):
        weights.save(str(path), SPEC, DRAWN, STATISTICS)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_every_ending_that_the_plan_lets_pass_has_a_writer_and_a_reader() -> None:
    assert set(validation.SAVED) == set(weights.WRITERS) <= set(weights.READERS)
