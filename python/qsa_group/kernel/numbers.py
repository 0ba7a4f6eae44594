"""Arithmetic of the kernel: packed halves, addresses, and live numbers of 32 or 64 bits."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

__all__ = [
    "HIGHEST",
    "LOWEST",
    "Halves",
    "LiveVector",
    "clip",
    "divide",
    "high_half",
    "int32_pointer",
    "int32_pointer_at",
    "load_clipped",
    "load_exact",
    "load_halves",
    "low_half",
    "remainder",
    "scale",
]

# Below every length that an offset could lift to 1: offsets end at 2**29 and table widths below 2**30, so that every
# length is an int32 once it is clipped.
LOWEST = tl.constexpr(-(1 << 30))
# Above every table width, and still an int32 with any offset added.
HIGHEST = tl.constexpr((1 << 30) + 1)


class LiveVector(NamedTuple):
    """A vector of the live batch, int32 or int64.

    The kernel learns the dtype at run time only. So every element is read as two halves of 32 bits, and the second read
    is masked off where the elements are int32.
    """

    address: Any
    """Address of the first element."""
    stride: Any
    """Bytes from an element to the next."""
    high_limit: Any
    """Elements before this one have a high half: the real requests of an int64 vector, 0 of an int32 vector."""


class Halves(NamedTuple):
    """The two halves of live numbers, each an int32."""

    low: Any
    high: Any


@triton.jit
def low_half(word):
    """The lower half of an argument word, as int32."""
    return word.to(tl.int64).to(tl.int32)


@triton.jit
def high_half(word):
    """The upper half of an argument word, as int32.

    The shift is unsigned for the interpreter, which holds a word from 2**31 to 2**32 as a negative number of 32 bits: a
    signed shift of that gives -1 instead of 0.
    """
    return (word.to(tl.uint64) >> 32).to(tl.int32)


@triton.jit
def int32_pointer(address):
    """An address as a pointer to int32. The first cast serves the interpreter, which takes a null address for int32."""
    return address.to(tl.int64).to(tl.pointer_type(tl.int32))


@triton.jit
def int32_pointer_at(address, num_bytes):
    """A pointer to the int32 that stands `num_bytes` behind an address."""
    return int32_pointer(address.to(tl.int64) + num_bytes)


@triton.jit
def scale(index, stride):
    """`index * stride` in bytes, as int64.

    Both factors are taken as unsigned numbers of 32 bits, since such a product is one instruction. The index is an
    int32; where it is negative, as a slot may be that was never allocated, the result must be masked.
    """
    return (index.to(tl.uint32).to(tl.uint64) * stride.to(tl.uint32).to(tl.uint64)).to(tl.int64)


@triton.jit
def divide(value, divisor: tl.constexpr):
    """`value // divisor` of an int32 that is not negative. Unsigned division takes fewer instructions than signed."""
    return (value.to(tl.uint32) // divisor).to(tl.int32)


@triton.jit
def remainder(value, divisor: tl.constexpr):
    """`value % divisor` of an int32 that is not negative, unsigned as `divide`."""
    return (value.to(tl.uint32) % divisor).to(tl.int32)


@triton.jit
def load_halves(vector, index, limit):
    """Both halves of elements `index` of a live vector; 0 for the elements from `limit` on."""
    pointer = int32_pointer_at(vector.address, scale(index, vector.stride))
    low = tl.load(pointer, index < limit, other=0)
    high = tl.load(pointer + 1, index < vector.high_limit, other=0)
    return Halves(low=low, high=high)


@triton.jit
def clip(halves, vector):
    """Elements of a live vector as int32: at most `HIGHEST`, and `LOWEST` for whatever is below all int32."""
    fits = (halves.high == (halves.low >> 31)) | (vector.high_limit == 0)
    return tl.where(fits, tl.minimum(halves.low, HIGHEST), tl.where(halves.high < 0, LOWEST, HIGHEST))


@triton.jit
def load_clipped(vector, index, limit):
    """Elements `index` of a live vector as int32, clipped by `clip`; 0 for the elements from `limit` on."""
    return clip(load_halves(vector, index, limit), vector)


@triton.jit
def load_exact(vector, index, limit):
    """Elements `index` of a live vector as int64; 0 for the elements from `limit` on."""
    halves = load_halves(vector, index, limit)
    high = tl.where(vector.high_limit == 0, halves.low >> 31, halves.high)
    return (high.to(tl.int64) << 32) | (halves.low.to(tl.int64) & 0xFFFFFFFF)
