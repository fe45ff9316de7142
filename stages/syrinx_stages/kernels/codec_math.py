"""Device functions of the codec kernels: rounding, activations and saturating stores."""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from .launch import INTERPRETED

_INTERPRETED = tl.constexpr(INTERPRETED)
_PI_HIGH = tl.constexpr(3.140625)
_PI_LOW = tl.constexpr(9.67653589793e-4)
_INVERSE_PI = tl.constexpr(0.31830988618)
_ROUNDING_BIAS = tl.constexpr(12582912.0)
"""1.5 x 2^23. Adding it to a float32 and subtracting it again rounds the value to the nearest integer."""


@triton.jit
def round_half_even(x):
    """Returns float32 x rounded to the nearest integer, ties to even. Requires |x| < 2^22."""
    return (x + _ROUNDING_BIAS) - _ROUNDING_BIAS


@triton.jit
def snake_beta(x, frequency, magnitude):
    """Returns x + magnitude * sin(x * frequency)^2.

    The squared sine has period pi, so the angle is reduced to one period, where the hardware sine is accurate to 2^-20.
    """
    angle = x * frequency
    if _INTERPRETED:
        wave = tl.sin(angle)
    else:
        turns = round_half_even(angle * _INVERSE_PI)
        wave = libdevice.fast_sinf((angle - turns * _PI_HIGH) - turns * _PI_LOW)
    return x + magnitude * wave * wave


@triton.jit
def cosine(x):
    """Returns cos(x) with full range reduction: rotary angles grow with the position."""
    return tl.cos(x) if _INTERPRETED else libdevice.cos(x)


@triton.jit
def sine(x):
    """Returns sin(x) with full range reduction."""
    return tl.sin(x) if _INTERPRETED else libdevice.sin(x)


@triton.jit
def store_saturated(ptr, value, mask):
    """Stores float32 `value` in the pointer's dtype. float16 saturates at its largest finite value."""
    if ptr.dtype.element_ty == tl.float16:
        value = tl.minimum(tl.maximum(value, -65504.0), 65504.0)
    tl.store(ptr, value.to(ptr.dtype.element_ty), mask=mask)
