"""Host memory that faults on the first byte past its end, or before its start."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence

import torch

_LIBC = ctypes.CDLL(None, use_errno=True)
_PROT_NONE = 0
_MAP_NORESERVE = 0x4000  # Linux; the mmap module does not name it before Python 3.13


def _protect(address: int, size: int) -> None:
    if _LIBC.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), _PROT_NONE) != 0:
        raise OSError(ctypes.get_errno(), "mprotect failed")


def fenced(values: torch.Tensor, *, at_end: bool = True) -> torch.Tensor:
    """A copy of a tensor whose last (or first) element is next to memory that cannot be touched."""
    size = values.numel() * values.element_size()
    page = mmap.PAGESIZE
    inner = -(-size // page) * page
    region = mmap.mmap(-1, inner + 2 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(region))
    _protect(start, page)
    _protect(start + page + inner, page)
    offset = page + (inner - size if at_end else 0)
    copy = torch.frombuffer(region, dtype=values.dtype, count=values.numel(), offset=offset).view(values.shape)
    return copy.copy_(values)


def sparse_memory(shape: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """A huge strided int32 tensor of which only the touched pages take memory."""
    last = sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    region = mmap.mmap(-1, 4 * (last + 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    return torch.frombuffer(region, dtype=torch.int32).as_strided(list(shape), list(stride))
