"""A hash of parameters that a GPU computes: one thread would take seconds to copy and hash gigabytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor

# Odd constants of splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
GAMMA, MIX = -0x61C8864680B583EB, -0x40A7B892E31B1A47
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
CHUNK = 1 << 24


def device_digest(parameters: Iterable[Tensor], chunk: int = CHUNK) -> str:
    """Hash the bits of the parameters in their order, as 16 hexadecimal digits. Any changed, moved or exchanged
    value changes it. Integer sums do not depend on their order, so ranks with equal parameters agree."""
    sums = [part for each in parameters for part in _sums(each.detach(), chunk)]
    found = torch.stack(sums).cpu().numpy().tobytes() if sums else b""
    return hashlib.sha256(found).hexdigest()[:16]


def _sums(tensor: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """Return two sums of mixed values, modulo 2**64: alone, and times their odd places."""
    bits = tensor.contiguous().flatten().view(INTEGERS[tensor.element_size()])
    first = second = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for start in range(0, len(bits), chunk):
        values = bits[start : start + chunk].long()
        places = torch.arange(start, start + len(values), device=tensor.device)
        mixed = (values + places * GAMMA) * MIX
        mixed = (mixed ^ (mixed >> 31)) * MIX
        first = first + mixed.sum()
        second = second + (mixed * (2 * places + 1)).sum()
    return first, second
