"""Multilayer perceptrons on flat buffers: forward and backward, tanh or relu, any depth and widths.

A network is a range of a flat float32 parameter vector: for each layer its weights `(inputs, outputs)`, row-major, then its
biases `(outputs,)`. `sizes` holds the widths, inputs first. Activations of a batch of `rows` lie in a flat workspace: each
layer's output `(rows, width)` after the other from `h_offset` on, the input `(rows, sizes[0])` at `x_offset`. The last layer is linear.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mileage.kernels._blas import sgemm
from mileage.kernels._jit import kernel

TANH, RELU = 0, 1
_F = np.float32
_CLAMP = _F(7.90531110763549805)
# Rational minimax approximation of tanh, odd numerator and even denominator (the coefficients Eigen and XLA use too);
# within 4 ulp of the true value, and vectorised where a call to libm is not.
_A1, _A3, _A5 = _F(4.89352455891786e-03), _F(6.37261928875436e-04), _F(1.48572235717979e-05)
_A7, _A9, _A11, _A13 = (
    _F(5.12229709037114e-08),
    _F(-8.60467152213735e-11),
    _F(2.00018790482477e-13),
    _F(-2.76076847742355e-16),
)
_B0, _B2, _B4, _B6 = (
    _F(4.89352518554385e-03),
    _F(2.26843463243900e-03),
    _F(1.18534705686654e-04),
    _F(1.19825839466702e-06),
)


@kernel(fastmath=True)
def tanh(x: Any) -> Any:
    """Hyperbolic tangent of a float32."""
    x = min(max(x, -_CLAMP), _CLAMP)
    s = x * x
    p = s * _A13 + _A11
    p = s * p + _A9
    p = s * p + _A7
    p = s * p + _A5
    p = s * p + _A3
    p = s * p + _A1
    q = s * _B6 + _B4
    q = s * q + _B2
    q = s * q + _B0
    return x * p / q


# Inner loops index with unsigned integers: a signed index may count from the end, which keeps LLVM from vectorising.
_U = np.uint64


@kernel(fastmath=True)
def _add_bias(out: Any, offset: Any, rows: Any, width: Any, params: Any, biases: Any, kind: Any) -> None:
    """Add biases in place and apply the activation (`kind` < 0: none)."""
    columns, bias = _U(width), _U(biases)
    for i in range(rows):
        row = _U(offset + i * width)
        if kind == TANH:
            for j in range(columns):
                out[row + j] = tanh(out[row + j] + params[bias + j])
        elif kind == RELU:
            for j in range(columns):
                out[row + j] = max(out[row + j] + params[bias + j], _F(0.0))
        else:
            for j in range(columns):
                out[row + j] += params[bias + j]


@kernel(fastmath=True)
def _through_activation(work: Any, deltas: Any, size: Any, activations: Any, kind: Any) -> None:
    """Multiply deltas by the activation's derivative, a function of its output (both ranges of one workspace)."""
    delta, h, n = _U(deltas), _U(activations), _U(size)
    if kind == TANH:
        for i in range(n):
            work[delta + i] *= _F(1.0) - work[h + i] * work[h + i]
    else:
        for i in range(n):
            work[delta + i] = work[delta + i] if work[h + i] > _F(0.0) else _F(0.0)


@kernel(fastmath=True)
def _column_sums(values: Any, offset: Any, rows: Any, width: Any, out: Any, sums: Any) -> None:
    columns, target = _U(width), _U(sums)
    for j in range(columns):
        out[target + j] = _F(0.0)
    for i in range(rows):
        row = _U(offset + i * width)
        for j in range(columns):
            out[target + j] += values[row + j]


@kernel
def forward(
    params: Any, p_offset: Any, sizes: Any, rows: Any, work: Any, x_offset: Any, h_offset: Any, kind: Any
) -> Any:
    """Run the network on the rows at `x_offset`; return the offset of its output `(rows, sizes[-1])` in `work`."""
    last = sizes.shape[0] - 2
    source, target, weights = x_offset, h_offset, p_offset
    for layer in range(last + 1):
        inputs, outputs = sizes[layer], sizes[layer + 1]
        sgemm(
            0, 0, rows, outputs, inputs, work, source, inputs, params, weights, outputs, _F(0.0), work, target, outputs
        )
        biases = weights + inputs * outputs
        _add_bias(work, target, rows, outputs, params, biases, kind if layer < last else -1)
        source, target, weights = target, target + rows * outputs, biases + outputs
    return source


@kernel
def backward(
    params: Any,
    p_offset: Any,
    sizes: Any,
    rows: Any,
    work: Any,
    x_offset: Any,
    h_offset: Any,
    delta: Any,
    spare: Any,
    kind: Any,
    grads: Any,
    g_offset: Any,
) -> None:
    """Write the gradient of every parameter to `grads` from `g_offset` on.

    `delta` is the offset in `work` of the loss gradient with respect to the output, `(rows, sizes[-1])`; it and `spare`
    are scratch ranges of `rows * max(sizes[1:])` floats each. `forward` must have run with the same workspace.
    """
    layers = sizes.shape[0] - 1
    weights, h = p_offset, h_offset
    for layer in range(layers - 1):
        weights += sizes[layer] * sizes[layer + 1] + sizes[layer + 1]
        h += rows * sizes[layer + 1]
    for step in range(layers):
        layer = layers - 1 - step
        inputs, outputs = sizes[layer], sizes[layer + 1]
        h -= rows * inputs
        source = h if layer > 0 else x_offset
        out = g_offset + weights - p_offset
        sgemm(1, 0, inputs, outputs, rows, work, source, inputs, work, delta, outputs, _F(0.0), grads, out, outputs)
        _column_sums(work, delta, rows, outputs, grads, out + inputs * outputs)
        if layer > 0:
            sgemm(
                0,
                1,
                rows,
                inputs,
                outputs,
                work,
                delta,
                outputs,
                params,
                weights,
                outputs,
                _F(0.0),
                work,
                spare,
                inputs,
            )
            _through_activation(work, spare, rows * inputs, source, kind)
            delta, spare = spare, delta
            weights -= sizes[layer - 1] * inputs + inputs


def n_params(sizes: tuple[int, ...]) -> int:
    """Number of parameters of a network with these widths."""
    return sum(a * b + b for a, b in zip(sizes, sizes[1:], strict=False))
