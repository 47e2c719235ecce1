"""Code of a user's file, named FILE:NAME on the command line."""

from __future__ import annotations

import sys
import traceback
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from scaling.errors import UsageError


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


def where(path: str, error: BaseException) -> str:
    """Return `FILE:LINE`, the last line of the file that led to the error, or that cannot be read."""
    frames, own = traceback.extract_tb(error.__traceback__), Path(path).absolute()
    lines = [one.lineno for one in frames if Path(one.filename).absolute() == own]
    return f"{path}:{error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else 1}"
