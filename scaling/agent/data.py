"""Whether the data of a run lies on this agent's host."""

from __future__ import annotations

from scaling.errors import UsageError
from scaling.records.messages import Locate, Located
from scaling.workloads import data


def located(order: Locate) -> Located:
    """What the answer to rank 0 is. Files are looked for, not opened: rank 0 has read them."""
    try:
        data.locate(data.spec(order.data), order.data_dir)
    except UsageError as error:
        return Located(error=str(error))
    return Located()
