"""Exponentials that LLVM can vectorise: a call to the C library inside a loop would keep the loop scalar.

exp(x) = 2^k · exp(r) with k = round(x / ln 2) and |r| ≤ ln(2)/2, where the Taylor series of degree 7 (float32) or 13
(float64) is exact to rounding. Rounding is done by adding and subtracting 1.5 · 2^mantissa_bits, which leaves k in the
low bits of the sum: shifted into the exponent field it is 2^k, without a conversion between integers and floats.
A caller may let LLVM reorder its own sums: Numba's fastmath flags stay within the function that sets them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from mileage.kernels.machine.frames import Real32, Real64
from mileage.kernels.machine.jit import kernel

_LOG2_E = 1.0 / math.log(2.0)
# ln 2 in two pieces: the first has zeros at its end, so that k times it is exact.
_LN2_HIGH_32 = np.float32(math.floor(math.log(2.0) * 2**15) / 2**15)
_LN2_LOW_32 = np.float32(math.log(2.0) - float(_LN2_HIGH_32))
_LN2_HIGH_64 = math.floor(math.log(2.0) * 2**40) / 2**40
# ln 2 beyond the 53 bits of math.log(2.0).
_LN2_LOW_64 = (math.log(2.0) - _LN2_HIGH_64) + 2.3190468138462996e-17
_MAGIC_32 = np.float32(1.5 * 2**23)
_MAGIC_64 = 1.5 * 2**52

# Where 2^k and the result are normal numbers.
LOW_32, HIGH_32 = np.float32(-87.33), np.float32(88.37)
LOW_64, HIGH_64 = -708.39, 709.4
_INF_32 = np.float32(np.inf)


@intrinsic
def _power_of_low_bits(typingctx: Any, shifted: Any) -> Any:
    """2^k as a float, for the integer k in the low bits of `shifted`."""
    width, bias, mantissa = {types.float32: (32, 127, 23), types.float64: (64, 1023, 52)}[shifted]

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        integer = ir.IntType(width)
        k = builder.add(builder.bitcast(args[0], integer), ir.Constant(integer, bias))
        return builder.bitcast(builder.shl(k, ir.Constant(integer, mantissa)), args[0].type)

    return shifted(shifted), codegen


@kernel(fastmath={"contract"})
def _split_32(x: Real32) -> tuple[Real32, Real32, Real32]:
    """(2^k, r, q) with exp(x) = 2^k · (1 + r + r²·q), for float32 x in [LOW_32, HIGH_32]."""
    f = np.float32
    shifted = x * f(_LOG2_E) + _MAGIC_32
    k = shifted - _MAGIC_32
    scale = _power_of_low_bits(shifted)
    r = (x - k * _LN2_HIGH_32) - k * _LN2_LOW_32
    q = f(1 / 5040)
    q = q * r + f(1 / 720)
    q = q * r + f(1 / 120)
    q = q * r + f(1 / 24)
    q = q * r + f(1 / 6)
    q = q * r + f(0.5)
    return scale, r, q


@kernel(fastmath={"contract"})
def _split_64(x: Real64) -> tuple[Real64, Real64, Real64]:
    """(2^k, r, q) with exp(x) = 2^k · (1 + r + r²·q), for float64 x in [LOW_64, HIGH_64]."""
    shifted = x * _LOG2_E + _MAGIC_64
    k = shifted - _MAGIC_64
    scale = _power_of_low_bits(shifted)
    r = (x - k * _LN2_HIGH_64) - k * _LN2_LOW_64
    q = 1 / 6227020800
    q = q * r + 1 / 479001600
    q = q * r + 1 / 39916800
    q = q * r + 1 / 3628800
    q = q * r + 1 / 362880
    q = q * r + 1 / 40320
    q = q * r + 1 / 5040
    q = q * r + 1 / 720
    q = q * r + 1 / 120
    q = q * r + 1 / 24
    q = q * r + 1 / 6
    q = q * r + 0.5
    return scale, r, q


@kernel
def _exp_32(x: Real32) -> Real32:
    clamped = LOW_32 if x < LOW_32 else (HIGH_32 if x > HIGH_32 else x)
    scale, r, q = _split_32(clamped)
    value = scale + scale * (r + r * r * q)
    return np.float32(0.0) if x < LOW_32 else (_INF_32 if x > HIGH_32 else value)


@kernel
def _exp_64(x: Real64) -> Real64:
    clamped = LOW_64 if x < LOW_64 else (HIGH_64 if x > HIGH_64 else x)
    scale, r, q = _split_64(clamped)
    value = scale + scale * (r + r * r * q)
    return 0.0 if x < LOW_64 else (np.inf if x > HIGH_64 else value)


@kernel
def _exp_excess_32(x: Real32) -> Real32:
    clamped = LOW_32 if x < LOW_32 else (HIGH_32 if x > HIGH_32 else x)
    scale, r, q = _split_32(clamped)
    value = scale * (r * r * q) + ((scale * r - x) + (scale - np.float32(1.0)))
    return _INF_32 if x > HIGH_32 else value


@kernel
def _exp_excess_64(x: Real64) -> Real64:
    clamped = LOW_64 if x < LOW_64 else (HIGH_64 if x > HIGH_64 else x)
    scale, r, q = _split_64(clamped)
    value = scale * (r * r * q) + ((scale * r - x) + (scale - 1.0))
    return np.inf if x > HIGH_64 else value


def exp(x: Any) -> Any:
    """e^x for a float32 or float64 inside a kernel, to 2 units in the last place.

    Results that would not be normal numbers become 0 or infinity (float32: x outside -87.33 … 88.37).
    """
    return np.exp(x)


def exp_excess(x: Any) -> Any:
    """e^x − 1 − x inside a kernel, accurate near 0, where the plain expression cancels to noise.

    With k = 0 the terms left over after r²·q are exactly zero, so the relative error stays near rounding.
    """
    return np.expm1(x) - x


def _overload(function: Any, narrow: Any, wide: Any) -> None:
    """Have kernels call `narrow` or `wide` for `function` of a float32 or float64."""

    @overload(function, strict=False)
    def choose(x: Any) -> Any:
        found = {types.float32: narrow, types.float64: wide}.get(x)
        return None if found is None else lambda x: found(x)


_overload(exp, _exp_32, _exp_64)
_overload(exp_excess, _exp_excess_32, _exp_excess_64)
