"""A network's first weights, the same for every framework: drawn by NumPy or from a file; its rotary angles.

* .safetensors and .npz are read and written.
* Arrays are matched by order, since names differ. torchvision's state dicts of the same networks fit as .npz.
* A .safetensors file keeps no order. Its names must be this project's (`path.parameter`).
"""

from __future__ import annotations

import json
import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaling import files
from scaling.errors import UsageError
from scaling.text import one_line
from scaling.workloads import layers
from scaling.workloads.layers import BatchNorm, Dense, Parameter, Shape
from scaling.workloads.specs import ModelSpec

Array = NDArray[np.float32]
Random = np.random.Generator
# Arrays of a file, of any kind.
Arrays = dict[str, NDArray[Any]]

# ---------------------------------------------------------------- drawn


def draw(spec: ModelSpec, seed: int) -> Iterator[tuple[str, Array]]:
    """Yield `path.parameter` and values of every parameter, in order. Each is drawn from the seed and its index,
    or read from the model's file. Each core of this process draws one; twice as many are in memory at most. Raises
    UsageError for a file of another network."""
    kept = of_file(spec).trained if spec.weights else ()
    parameters = layers.parameters(spec.layers, spec.input.shape)

    def value(index: int, parameter: Parameter, known: Array | None) -> Array:
        return values(parameter, Random(np.random.SFC64((seed, index)))) if known is None else known

    with ThreadPoolExecutor(cores := len(os.sched_getaffinity(0))) as pool:
        begun: deque[Future[Array]] = deque()
        remaining = iter(parameters)
        for index, (parameter, known) in enumerate(zip_longest(parameters.values(), kept)):
            begun.append(pool.submit(value, index, parameter, known))
            if len(begun) == 2 * cores:  # every other one is a small bias
                yield next(remaining), begun.popleft().result()
        for one in begun:
            yield next(remaining), one.result()


def names(spec: ModelSpec) -> list[str]:
    return list(layers.parameters(spec.layers, spec.input.shape))


def statistics(spec: ModelSpec) -> tuple[tuple[Array, Array], ...]:
    """Return the first means and variances of every batch norm, in order; () if they are 0 and 1."""
    return of_file(spec).statistics if spec.weights else ()


def values(parameter: Parameter, random: Random) -> Array:
    """Return the first values of one parameter, float32, contiguous."""
    shape, fan_in, fan_out = parameter.shape, parameter.fan_in, parameter.fan_out
    match parameter.start:
        case "zeros" | "ones":
            return np.full(shape, float(parameter.start == "ones"), np.float32)
        case "forget":
            # Ones for the forget gates, the second quarter, as in Keras (Jozefowicz 2015).
            return np.repeat(np.array([0, 1, 0, 0], np.float32), parameter.size // 4)
        case "orthogonal":
            # A matrix with orthonormal columns (Saxe 2013).
            matrix, upper = np.linalg.qr(random.standard_normal(shape))
            return np.ascontiguousarray(matrix * np.sign(np.diag(upper)), np.float32)
        case "he-in" | "he-out" | "normal-0.01" | "normal-0.02":
            fan = fan_in if parameter.start == "he-in" else fan_out
            fixed = {"normal-0.01": 0.01, "normal-0.02": 0.02}
            drawn = random.standard_normal(shape, dtype=np.float32)
            drawn *= np.float32(fixed.get(parameter.start) or math.sqrt(2 / fan))
            return drawn
    limits = {"glorot": math.sqrt(6 / (fan_in + fan_out)), "uniform": 1 / math.sqrt(fan_in), "uniform-0.05": 0.05}
    width = np.float32(limits[parameter.start])
    drawn = random.random(shape, dtype=np.float32)
    drawn *= 2 * width
    drawn -= width
    return drawn


def angles(length: int, size: int, base: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return cosine and sine of each position's angles of rotary embeddings: (length, size / 2), float32 (Su 2021,
    section 3.2.2)."""
    turns = np.outer(np.arange(length), base ** -(np.arange(0, size, 2) / size))
    return np.cos(turns).astype(np.float32), np.sin(turns).astype(np.float32)


# ---------------------------------------------------------------- from a file

# Batch norm's statistics are gathered, not trained. The number of batches is not needed.
STATISTICS = (("running_mean", "moving_mean"), ("running_var", "moving_variance"))
COUNTS = ("num_batches_tracked",)
# Auxiliary classifiers with which torchvision trains GoogLeNet and Inception.
BESIDE = ("aux",)
# Kinds of NumPy types that weights may have.
NUMBERS = "fiu"


class Weights(NamedTuple):
    """The weights of a file for a network.

    * trained: arrays in the network's order; None for one that is drawn anew.
    * statistics: means and variances of batch norm, in order; () if the file has none.
    """

    trained: tuple[Array | None, ...]
    statistics: tuple[tuple[Array, Array], ...]


def of_file(spec: ModelSpec) -> Weights:
    """Return the weights of the model's file. Raises UsageError with the first array whose shape differs."""
    found = {
        name: array
        for name, array in _read(spec.weights).items()
        if not (name.endswith(COUNTS) or name.lower().startswith(BESIDE))
    }
    means, variances = ([found[name] for name in found if name.endswith(ends)] for ends in STATISTICS)
    trained = {name: array for name, array in found.items() if not name.endswith(STATISTICS[0] + STATISTICS[1])}
    return Weights(tuple(_trained(spec, trained)), _statistics(spec, means, variances))


def _refused(spec: ModelSpec, why: str) -> UsageError:
    return UsageError(f"--weights {spec.weights}: {why}")


def _trained(spec: ModelSpec, found: Arrays) -> Iterator[Array | None]:
    wanted = layers.parameters(spec.layers, spec.input.shape)
    if set(found) == set(wanted):
        found = {name: found[name] for name in wanted}
    elif spec.weights.endswith(SAFETENSORS):
        name = next(iter(sorted(set(wanted) ^ set(found))))
        raise _refused(spec, f"safetensors keeps no order, and {name!r} is not in both the file and {spec.name}")
    *_, last = (placed for placed in spec.placed if placed.parameters)
    for (name, array), (path, parameter) in zip(found.items(), wanted.items(), strict=False):
        if array.dtype.kind not in NUMBERS:
            raise _refused(spec, f"{name} holds no real numbers ({array.dtype})")
        if array.shape == parameter.shape:
            yield np.array(array, np.float32, order="C")
        elif (
            isinstance(last.layer, Dense)
            and path.rpartition(".")[0] == last.path
            and array.shape[1:] == parameter.shape[1:]
        ):
            yield None  # other classes
        else:
            sizes, expected = _sizes(array.shape), _sizes(parameter.shape)
            raise _refused(spec, f"{name} is {sizes}, {path} of {spec.name} is {expected}")
    if len(found) != len(wanted):
        raise _refused(spec, f"has {len(found)} arrays that are trained, {spec.name} has {len(wanted)}")


def _sizes(shape: Shape) -> str:
    return " x ".join(map(str, shape)) or "one number"


def _statistics(spec: ModelSpec, means: list[Any], variances: list[Any]) -> tuple[tuple[Array, Array], ...]:
    widths = [placed.shape[0] for placed in spec.placed if isinstance(placed.layer, BatchNorm)]
    if not means and not variances:
        return ()
    if [each.shape for each in means] != [(width,) for width in widths] or len(means) != len(variances):
        raise _refused(
            spec, f"has statistics of {len(means)} batch norms, {spec.name} has {len(widths)} or others"
        )
    both = zip(means, variances, strict=True)
    return tuple((np.array(mean, np.float32), np.array(variance, np.float32)) for mean, variance in both)


def save(
    path: str, spec: ModelSpec, trained: Arrays, statistics: Sequence[tuple[NDArray[Any], NDArray[Any]]]
) -> None:
    """Write a network's weights in the description's names and order, float32, for `of_file` to read. The file is
    complete or not written. Raises OSError."""
    left = iter(statistics)
    arrays: Arrays = {}
    for placed in spec.placed:
        names = [f"{placed.path}.{each.name}" for each in placed.parameters]
        arrays |= {name: trained[name] for name in names}
        if statistics and isinstance(placed.layer, BatchNorm):
            arrays |= {f"{placed.path}.{STATISTICS[at][0]}": one for at, one in enumerate(next(left))}
    file = Path(path)
    part = file.with_name(f".{file.stem}.part{file.suffix}")
    try:
        WRITERS[file.suffix](part, {name: np.ascontiguousarray(one, "<f4") for name, one in arrays.items()})
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


# ---------------------------------------------------------------- formats

# How PyTorch's own files become one that is read, in the order of their arrays.
OF_TORCH = (".pth", ".pt")
CONVERT = "numpy.savez('w.npz', **{k: v.float().numpy() for k, v in torch.load('%s', weights_only=True).items()})"
SAFETENSORS = ".safetensors"
# By the names of safetensors. bfloat16 is the upper half of a float32.
DTYPES = {"F32": "<f4", "F64": "<f8", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4"}


def _read(path: str) -> Arrays:
    ending = Path(path).suffix
    if ending not in READERS:
        convert = f"; in Python: {CONVERT % path}" if ending in OF_TORCH else ""
        raise UsageError(f"--weights {path}: not one of {', '.join(READERS)}{convert}")
    try:
        with files.loading(path):
            files.check(file := Path(path).expanduser())
            return READERS[ending](file)
    except OSError as error:
        raise UsageError(f"--weights {path}: {error.strerror or error}") from None
    except RecursionError:
        raise UsageError(f"--weights {path}: not such a file: it is nested too deeply") from None
    except Exception as error:  # zlib and tokenize raise a dozen kinds
        why = one_line(str(error)) or type(error).__name__
        raise UsageError(f"--weights {path}: not such a file: {why}") from None


def _npz(path: Path) -> Arrays:
    with np.load(path, allow_pickle=False) as file:
        found = {name: file[name] for name in file.files}
    if other := next((name for name, array in found.items() if not isinstance(array, np.ndarray)), None):
        raise ValueError(f"{other} in it is no array")
    return found


def _safetensors(path: Path) -> Arrays:
    """Eight bytes of length, a header in JSON, the numbers (github.com/huggingface/safetensors)."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    if not 0 < length <= len(content) - 8:
        raise ValueError("its header ends beyond the file")
    header = json.loads(content[8 : 8 + length])
    if not isinstance(header, dict):
        raise ValueError("its header names no tensors")
    data, found = memoryview(content)[8 + length :], {}
    for name, each in header.items():
        if name == "__metadata__":
            continue
        if (kind := each["dtype"]) not in DTYPES:
            raise ValueError(f"numbers of type {kind}")
        array = np.frombuffer(data[slice(*each["data_offsets"])], DTYPES[kind])
        wide = (array.astype("<u4") << 16).view("<f4") if kind == "BF16" else array
        found[name] = wide.reshape(tuple(each["shape"]))
    return found


def _to_safetensors(path: Path, arrays: Arrays) -> None:
    ends = list(accumulate(array.nbytes for array in arrays.values()))
    header = {
        name: {"dtype": "F32", "shape": array.shape, "data_offsets": [end - array.nbytes, end]}
        for (name, array), end in zip(arrays.items(), ends, strict=True)
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.writelines(array.data for array in arrays.values())


READERS: Mapping[str, Callable[[Path], Arrays]] = {SAFETENSORS: _safetensors, ".npz": _npz}
WRITERS: Mapping[str, Callable[[Path, Arrays], None]] = {
    ".npz": lambda path, arrays: np.savez(path, **arrays),
    SAFETENSORS: _to_safetensors,
}
