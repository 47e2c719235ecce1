"""First weights from a file: .safetensors or .npz, for every framework.

* Arrays are matched by order, since names differ. torchvision's state dicts of the same networks fit as .npz.
* A .safetensors file keeps no order. Its names must be this project's (`path.parameter`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaling import files
from scaling.errors import UsageError
from scaling.text import one_line
from scaling.workloads.layers import BatchNorm, Dense, Shape
from scaling.workloads.specs import ModelSpec

Array = NDArray[Any]
Arrays = dict[str, Array]
BFLOAT16 = "bf16"
# Batch norm's statistics are gathered, not trained. The number of batches is not needed.
STATISTICS = (("running_mean", "moving_mean"), ("running_var", "moving_variance"))
COUNTS = ("num_batches_tracked",)
# Auxiliary classifiers with which torchvision trains GoogLeNet and Inception.
BESIDE = ("aux",)
# Kinds of NumPy types that weights may have.
NUMBERS = "fiu"
# By the names of safetensors. bfloat16 is the upper half of a float32.
DTYPES = {"F32": "<f4", "F64": "<f8", "F16": "<f2", "BF16": BFLOAT16, "I64": "<i8", "I32": "<i4"}
# How PyTorch's own files become one that is read, in the order of their arrays.
OF_TORCH = (".pth", ".pt")
CONVERT = "numpy.savez('w.npz', **{k: v.float().numpy() for k, v in torch.load('%s', weights_only=True).items()})"


class Weights(NamedTuple):
    """The weights of a file for a network.

    * trained: arrays in the network's order; None for one that is drawn anew.
    * statistics: means and variances of batch norm, in order; () if the file has none.
    """

    trained: tuple[Array | None, ...]
    statistics: tuple[tuple[Array, Array], ...]


def weights(spec: ModelSpec) -> Weights:
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


# ---------------------------------------------------------------- against the network


def _trained(spec: ModelSpec, found: Arrays) -> Iterator[Array | None]:
    wanted = {f"{placed.path}.{each.name}": each for placed in spec.placed for each in placed.parameters}
    anew = _last(spec)
    if set(found) == set(wanted):
        pairs = [(name, found[name]) for name in wanted]
    elif spec.weights.endswith(SAFETENSORS):
        name = next(iter(sorted(set(wanted) ^ set(found))))
        raise _refused(spec, f"safetensors keeps no order, and {name!r} is not in both the file and {spec.name}")
    else:
        pairs = list(found.items())
    for (name, array), (path, parameter) in zip(pairs, wanted.items(), strict=False):
        if array.dtype.kind not in NUMBERS:
            raise _refused(spec, f"{name} holds no real numbers ({array.dtype})")
        if array.shape == parameter.shape:
            yield np.array(array, np.float32, order="C")
        elif path in anew and array.shape[1:] == parameter.shape[1:]:
            yield None  # other classes
        else:
            raise _refused(
                spec, f"{name} is {_sizes(array.shape)}, {path} of {spec.name} is {_sizes(parameter.shape)}"
            )
    if len(pairs) != len(wanted):
        raise _refused(spec, f"has {len(pairs)} arrays that are trained, {spec.name} has {len(wanted)}")


def _last(spec: ModelSpec) -> frozenset[str]:
    *_, last = (placed for placed in spec.placed if placed.parameters)
    names = last.parameters if isinstance(last.layer, Dense) else ()
    return frozenset(f"{last.path}.{each.name}" for each in names)


def _statistics(spec: ModelSpec, means: list[Any], variances: list[Any]) -> tuple[tuple[Array, Array], ...]:
    widths = [placed.shape[0] for placed in spec.placed if isinstance(placed.layer, BatchNorm)]
    if not means and not variances:
        return ()
    if [each.shape for each in means] != [(width,) for width in widths] or len(means) != len(variances):
        raise _refused(
            spec, f"has statistics of {len(means)} batch norms, {spec.name} has {len(widths)} or others"
        )
    return tuple(
        (np.array(mean, np.float32), np.array(variance, np.float32))
        for mean, variance in zip(means, variances, strict=True)
    )


def _sizes(shape: Shape) -> str:
    return " x ".join(map(str, shape)) or "one number"


# ---------------------------------------------------------------- saved


def save(path: str, spec: ModelSpec, trained: Arrays, statistics: Sequence[tuple[Array, Array]]) -> None:
    """Write a network's weights in the description's names and order, float32, for `weights` to read. The file is
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


# ---------------------------------------------------------------- formats


def _read(path: str) -> Arrays:
    ending = Path(path).suffix
    if ending in OF_TORCH:
        raise UsageError(f"--weights {path}: not one of {', '.join(READERS)}; in Python: {CONVERT % path}")
    if ending not in READERS:
        raise UsageError(f"--weights {path}: not one of {', '.join(READERS)}")
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
    data = memoryview(content)[8 + length :]
    return {
        name: _numbers(data[slice(*each["data_offsets"])], each["dtype"], tuple(each["shape"]))
        for name, each in header.items()
        if name != "__metadata__"
    }


def _numbers(data: bytes | memoryview, kind: str, shape: Shape) -> Array:
    if kind not in DTYPES:
        raise ValueError(f"numbers of type {kind}")
    if DTYPES[kind] == BFLOAT16:
        upper = np.frombuffer(data, "<u2").astype("<u4") << 16
        return upper.view("<f4").reshape(shape)
    return np.frombuffer(data, DTYPES[kind]).reshape(shape)


SAFETENSORS = ".safetensors"
READERS: Mapping[str, Callable[[Path], Arrays]] = {SAFETENSORS: _safetensors, ".npz": _npz}
WRITERS: Mapping[str, Callable[[Path, Arrays], None]] = {
    ".npz": lambda path, arrays: np.savez(path, **arrays),
    SAFETENSORS: _to_safetensors,
}
