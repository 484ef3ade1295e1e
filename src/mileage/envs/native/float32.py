"""Float32 functions for environment code, written so that loops over them vectorise.

A call into the C library's `sinf` stops LLVM from vectorising the loop around it; these are plain arithmetic without
branches. Sine and cosine reduce the argument by multiples of pi/2 in three parts (Cody and Waite, 1980) and are
within 2 ulp of the exact value for arguments up to about 10,000.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_TWO_OVER_PI = np.float32(0.636619772367581343)
# pi/2 split so that k * _HALF_PI_1 and k * _HALF_PI_2 are exact for |k| < 2**13.
_HALF_PI_1 = np.float32(1.5703125)
_HALF_PI_2 = np.float32(4.8375129699707031e-4)
_HALF_PI_3 = np.float32(7.5497899548918822e-8)
# Adding and subtracting 1.5 * 2**23 rounds a float32 to the nearest integer without a branch or a conversion.
_ROUND = np.float32(12582912.0)
_HALF, _ONE = np.float32(0.5), np.float32(1.0)
# Minimax polynomials on [-pi/4, pi/4] (Cephes, Moshier): sin x = x + x^3 S(x^2), cos x = 1 - x^2/2 + x^4 C(x^2).
_S1, _S2, _S3 = np.float32(-1.6666654611e-1), np.float32(8.3321608736e-3), np.float32(-1.9515295891e-4)
_C1, _C2, _C3 = np.float32(4.166664568298827e-2), np.float32(-1.388731625493765e-3), np.float32(2.443315711809948e-5)


def sin_quadrant(x: Any, shift: Any) -> Any:
    """Sine of `x + shift * pi/2` for a float32 `x` and an integer `shift`."""
    k = (x * _TWO_OVER_PI + _ROUND) - _ROUND
    y = ((x - k * _HALF_PI_1) - k * _HALF_PI_2) - k * _HALF_PI_3
    z = y * y
    sine = y + y * z * (_S1 + z * (_S2 + z * _S3))
    cosine = (_ONE - _HALF * z) + z * z * (_C1 + z * (_C2 + z * _C3))
    quadrant = np.int32(k) + np.int32(shift)
    value = cosine if quadrant & np.int32(1) else sine
    return -value if quadrant & np.int32(2) else value


def sin(x: Any) -> Any:
    """Sine, float32 to float32."""
    return sin_quadrant(np.float32(x), np.int32(0))


def cos(x: Any) -> Any:
    """Cosine, float32 to float32."""
    return sin_quadrant(np.float32(x), np.int32(1))
