"""Code of a user's file, named FILE:NAME on the command line."""

from __future__ import annotations

import ast
import inspect
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from scaling.errors import UsageError, near


def is_file(module: str) -> bool:
    """Return whether the part before the colon is a file; its name ends in `.py`."""
    return module.endswith(".py")


def of_file(path: str, flag: str) -> ModuleType:
    """Return the module of a file, which is run once in a process. `import_module` finds it by this path, which
    hides no other module. Raises UsageError with the file's line."""
    if path in sys.modules:
        return sys.modules[path]
    if not Path(path).is_file():
        raise UsageError(f"{flag}: there is no file {path} in {Path.cwd()}")
    spec = spec_from_file_location(path, path)
    assert spec is not None and spec.loader is not None
    found = sys.modules[path] = module_from_spec(spec)
    try:
        spec.loader.exec_module(found)
    except BaseException as error:
        del sys.modules[path]
        if isinstance(error, KeyboardInterrupt):
            raise
        raise UsageError(f"{flag}: {where(path, error)}: {type(error).__name__}: {error}") from error
    return found


def where(path: str, error: BaseException, otherwise: int = 1) -> str:
    """Return `FILE:LINE`: the last line of the file that led to the error, or the one that cannot be read.
    If there is none, the line is `otherwise`."""
    frames, own = traceback.extract_tb(error.__traceback__), Path(path).absolute()
    lines = [one.lineno for one in frames if Path(one.filename).absolute() == own]
    return f"{path}:{error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else otherwise}"


# ---------------------------------------------------------------- models


def check_model(text: str) -> None:
    """Check `FILE:NAME` of --model without running the file, which imports its framework. Raises UsageError."""
    path, _, name = text.rpartition(":")
    flag = f"--model {text}"
    if not Path(path).is_file():
        raise UsageError(f"{flag}: there is no file {path} in {Path.cwd()}")
    try:
        body = ast.parse(Path(path).read_bytes(), path).body
    except (SyntaxError, ValueError, OSError) as error:
        raise UsageError(f"{flag}: {where(path, error)}: {type(error).__name__}: {error}") from None
    known = {each for one in body for each in _bound(one)}
    if name not in known and "*" not in known:
        raise UsageError(f"{flag}: {path} has no function or class {name}; {near(name, known)}")
    if not {"batch", "*"} & known:
        raise UsageError(
            f"{flag}: {path} has no function batch(size, ...) that returns inputs and targets; add it"
        )


def _bound(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement binds; "*" if they are unknown."""
    match statement:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            yield from (one.asname or one.name for one in names)
        case ast.Assign() | ast.AnnAssign():
            yield from (one.id for one in ast.walk(statement) if isinstance(one, ast.Name))
        case ast.If() | ast.Try() | ast.With():
            yield "*"


class Model:
    """The functions of a model's file, in a worker."""

    def __init__(self, text: str) -> None:
        self._path, _, self._name = text.rpartition(":")
        self._flag = f"--model {text}"
        self._module = of_file(self._path, self._flag)
        self.loss = getattr(self._module, "loss", None)

    def make(self, *given: Any) -> Any:
        """Return the result of NAME. Raises UsageError with the file's line."""
        return self._call(self._name, *given)

    def batch(self, size: int, generator: Any) -> tuple[Any, Any]:
        """Return inputs and targets of `size` samples. Raises UsageError with the file's line."""
        found = self._call("batch", size, generator)
        if not isinstance(found, tuple) or [getattr(each, "__len__", int)() for each in found] != [size, size]:
            raise self.wrong("batch", found, f"inputs and targets, {size} of each")
        return found

    def wrong(self, name: str, found: Any, wanted: str) -> UsageError:
        """Return the error of a function that returned something else than it should."""
        name = name or self._name
        returned = f"{name}() returned {type(found).__name__}"
        return UsageError(f"{self._flag}: {self._path}:{self._line(name)}: {returned}; return {wanted}")

    @contextmanager
    def located(self, otherwise: int = 0) -> Iterator[None]:
        """Name the file's line in what its code raises, apart from a lack of memory. An error outside of the file
        passes, unless it has the line `otherwise`."""
        try:
            yield
        except Exception as error:
            place = where(self._path, error, otherwise)
            if isinstance(error, UsageError) or "Memory" in type(error).__name__ or place.endswith(":0"):
                raise
            raise UsageError(f"{self._flag}: {place}: {type(error).__name__}: {error}") from error

    def _call(self, name: str, *given: Any) -> Any:
        with self.located(self._line(name)):
            return getattr(self._module, name)(*given)

    def _line(self, name: str) -> int:
        try:
            return inspect.getsourcelines(getattr(self._module, name))[1]
        except (AttributeError, OSError, TypeError):
            return 1
