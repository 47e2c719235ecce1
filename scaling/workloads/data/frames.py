"""Files of consecutive records: find where each begins, and read one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from scaling.errors import UsageError
from scaling.workloads.data.specs import reading

# For each record of a file: where its content begins, and its bytes.
Frames: TypeAlias = Iterator[tuple[int, int]]
# Returns the picture in a record, and its class.
Parse: TypeAlias = Callable[[bytes], tuple[bytes, int]]

# A process may open 1,024 files by default, and frameworks need some.
MOST_OPEN = 64


class Records:
    """All records of the files at `paths`. Only their heads are read until a record is requested. `frames` finds
    the records of an open file of a given size in bytes. `parse` raises ValueError if a record has no picture."""

    def __init__(self, paths: Sequence[Path], frames: Callable[[int, int], Frames], parse: Parse) -> None:
        self.paths, self._parse = tuple(map(str, paths)), parse
        self._open: dict[int, int] = {}
        found = [(number, *one) for number in range(len(paths)) for one in self._frames(number, frames)]
        if not found:
            raise UsageError(f"{self.paths[0]}: no records in it{' or its fellows' if len(paths) > 1 else ''}")
        self._where = np.array(found, np.int64).reshape(-1, 3)

    def _frames(self, number: int, frames: Callable[[int, int], Frames]) -> Frames:
        file = self._file(number)
        try:
            yield from frames(file, os.fstat(file).st_size)
        except ValueError as error:
            raise UsageError(f"{self.paths[number]}: {error}") from None
        finally:
            os.close(self._open.pop(number))

    def _file(self, number: int) -> int:
        if number not in self._open:
            if len(self._open) >= MOST_OPEN:
                os.close(self._open.pop(next(iter(self._open))))
            with reading(self.paths[number]):
                self._open[number] = os.open(self.paths[number], os.O_RDONLY | os.O_CLOEXEC)
        return self._open[number]

    def __len__(self) -> int:
        return len(self._where)

    def name(self, index: int) -> str:
        """Return the place of a record, for messages."""
        number, begin, _ = self._where[index]
        return f"{self.paths[number]} at {begin:,}"

    def read(self, index: int) -> tuple[bytes, int]:
        """Return an encoded picture and its class. Raises UsageError if the record has none."""
        number, begin, size = map(int, self._where[index])
        content = os.pread(self._file(number), size, begin)
        try:
            return self._parse(content)
        except (ValueError, IndexError) as error:
            raise UsageError(f"{self.name(index)}: {error}") from None

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    __del__ = close
