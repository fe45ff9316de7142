"""The codec's activations, inside of kernels."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from .launch import INTERPRETED

_INTERPRETED = tl.constexpr(INTERPRETED)
_PI_HIGH = tl.constexpr(3.140625)
_PI_LOW = tl.constexpr(9.67653589793e-4)
_INVERSE_PI = tl.constexpr(0.31830988618)
_ROUNDER = tl.constexpr(12582912.0)
"""1.5 x 2^23: added to a float32 and taken off again, it leaves the nearest integer."""


@triton.jit
def nearest(x):
    """The nearest integer of a float32 below 2^22, halves to the even one, as a float32."""
    return (x + _ROUNDER) - _ROUNDER


@triton.jit
def snake(x, frequency, magnitude):
    """x + magnitude sin^2(x frequency). The square has period pi; within one the hardware's sine errs by 2^-20."""
    angle = x * frequency
    if _INTERPRETED:
        wave = tl.sin(angle)
    else:
        turns = nearest(angle * _INVERSE_PI)
        wave = libdevice.fast_sinf((angle - turns * _PI_HIGH) - turns * _PI_LOW)
    return x + magnitude * wave * wave


@triton.jit
def gelu(x):
    """x P(X <= x) of a normal X."""
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def cosine(x):
    """Of any angle: rotary ones grow with the position."""
    return tl.cos(x) if _INTERPRETED else libdevice.cos(x)


@triton.jit
def sine(x):
    """As `cosine`."""
    return tl.sin(x) if _INTERPRETED else libdevice.sin(x)


@triton.jit
def put(to, value, mask):
    """Stores a float32 in the type of `to`; what a float16 cannot hold becomes the largest that it can."""
    if to.dtype.element_ty == tl.float16:
        value = tl.minimum(tl.maximum(value, -65504.0), 65504.0)
    tl.store(to, value.to(to.dtype.element_ty), mask=mask)
