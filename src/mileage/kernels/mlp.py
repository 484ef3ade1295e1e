"""Multilayer perceptrons on pointers: forward and backward, tanh or relu, any depth and widths.

A network is a range of a flat float32 parameter vector: for each layer its weights `(inputs, outputs)`, row-major,
then its biases `(outputs,)`. `sizes` points to the `n_sizes` widths, inputs first. Activations of a batch of `rows`
lie one layer's output `(rows, width)` after the other from `hidden` on. The last layer is linear.
"""

from __future__ import annotations

import numpy as np

from mileage.kernels.machine.blas import sgemm
from mileage.kernels.machine.frames import Count, Index, Ptr32, PtrI64, Real32, shift
from mileage.kernels.machine.jit import inner

TANH, RELU = 0, 1
# Fields of every frame with an actor and a critic; O entries of an observation, A of an action.
ACTOR_AND_CRITIC = """
    params: (params,) float32, the actor's, the critic's, then the log deviations of a Gaussian policy
    actor: (n_actor,) int64, widths of the actor, inputs first
    critic: (n_critic,) int64, widths of the critic
    n_actor n_critic critic_offset log_std_offset: int64, numbers of widths; where in `params` the parts start
    activation n_actions obs_size action_size: int64, TANH or RELU; discrete actions or 0; O; A
"""
_F = np.float32
_CLAMP = _F(7.90531110763549805)
# Rational minimax approximation of tanh, odd numerator and even denominator (the coefficients Eigen and XLA use too);
# within 4 ulp of the true value, and vectorised where a call to libm is not.
_A1, _A3, _A5 = _F(4.89352455891786e-03), _F(6.37261928875436e-04), _F(1.48572235717979e-05)
_A7, _A9 = _F(5.12229709037114e-08), _F(-8.60467152213735e-11)
_A11, _A13 = _F(2.00018790482477e-13), _F(-2.76076847742355e-16)
_B0, _B2 = _F(4.89352518554385e-03), _F(2.26843463243900e-03)
_B4, _B6 = _F(1.18534705686654e-04), _F(1.19825839466702e-06)


@inner(fastmath=True)
def tanh(x: Real32) -> Real32:
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


@inner(fastmath=True)
def add_bias(out: Ptr32, rows: Count, width: Count, stride: Count, bias: Ptr32, kind: Count) -> None:
    """Add biases (width,) in place to rows that lie `stride` apart, and apply the activation (`kind` < 0: none)."""
    for i in range(rows):
        row = shift(out, i * stride)
        if kind == TANH:
            for j in range(width):
                row[j] = tanh(row[j] + bias[j])
        elif kind == RELU:
            for j in range(width):
                row[j] = max(row[j] + bias[j], _F(0.0))
        else:
            for j in range(width):
                row[j] += bias[j]


@inner(fastmath=True)
def through_activation(delta: Ptr32, h: Ptr32, rows: Count, width: Count, stride: Count, kind: Count) -> None:
    """Multiply deltas by the activation's derivative, a function of its output `h`; rows lie `stride` apart."""
    for i in range(rows):
        d, out = shift(delta, i * stride), shift(h, i * stride)
        if kind == TANH:
            for j in range(width):
                d[j] *= _F(1.0) - out[j] * out[j]
        else:
            for j in range(width):
                d[j] = d[j] if out[j] > _F(0.0) else _F(0.0)


@inner(fastmath=True)
def column_sums(values: Ptr32, rows: Count, width: Count, stride: Count, out: Ptr32) -> None:
    """Write the sums over rows, which lie `stride` apart, to `out` (width,)."""
    for j in range(width):
        out[j] = _F(0.0)
    for i in range(rows):
        row = shift(values, i * stride)
        for j in range(width):
            out[j] += row[j]


@inner
def forward(params: Ptr32, sizes: PtrI64, n_sizes: Count, rows: Count, x: Ptr32, hidden: Ptr32, kind: Count) -> Ptr32:
    """Run the network on `x` `(rows, sizes[0])`; return the pointer to its output `(rows, sizes[-1])`."""
    source, target, weights = x, hidden, params
    for layer in range(n_sizes - 1):
        inputs, outputs = sizes[layer], sizes[layer + 1]
        sgemm(0, 0, rows, outputs, inputs, source, inputs, weights, outputs, target, outputs)
        biases = shift(weights, inputs * outputs)
        add_bias(target, rows, outputs, outputs, biases, kind if layer < n_sizes - 2 else -1)
        source, target, weights = target, shift(target, rows * outputs), shift(biases, outputs)
    return source


@inner
def _last_layer(sizes: PtrI64, n_sizes: Count, rows: Count) -> tuple[Index, Index]:
    """Where the last layer's weights start, and its output."""
    first, activations = 0, 0
    for layer in range(n_sizes - 2):
        first += sizes[layer] * sizes[layer + 1] + sizes[layer + 1]
        activations += rows * sizes[layer + 1]
    return first, activations


@inner
def backward(
    params: Ptr32, sizes: PtrI64, n_sizes: Count, rows: Count, x: Ptr32, hidden: Ptr32, delta: Ptr32, spare: Ptr32,
    kind: Count, grads: Ptr32,
) -> None:  # fmt: skip
    """Write the gradient of every parameter to `grads`.

    `delta` holds the loss gradient by the output, `(rows, sizes[-1])`; it and `spare` are scratch ranges of
    `rows * max(sizes[1:])` floats each. `forward` must have run with the same `hidden`.
    """
    first, activations = _last_layer(sizes, n_sizes, rows)
    for step in range(n_sizes - 1):
        layer = n_sizes - 2 - step
        inputs, outputs = sizes[layer], sizes[layer + 1]
        activations -= rows * inputs
        source = shift(hidden, activations) if layer > 0 else x
        out = shift(grads, first)
        sgemm(1, 0, inputs, outputs, rows, source, inputs, delta, outputs, out, outputs)
        column_sums(delta, rows, outputs, outputs, shift(out, inputs * outputs))
        if layer > 0:
            sgemm(0, 1, rows, inputs, outputs, delta, outputs, shift(params, first), outputs, spare, inputs)
            through_activation(spare, source, 1, rows * inputs, 0, kind)
            delta, spare = spare, delta
            first -= sizes[layer - 1] * inputs + inputs


@inner
def input_gradient(
    params: Ptr32, sizes: PtrI64, n_sizes: Count, rows: Count, hidden: Ptr32, delta: Ptr32, spare: Ptr32, kind: Count,
    out: Ptr32,
) -> None:  # fmt: skip
    """Write the loss gradient by the input, `(rows, sizes[0])`, to `out`; parameters get none.

    Arguments are those of `backward`; `delta` and `spare` are overwritten.
    """
    first, activations = _last_layer(sizes, n_sizes, rows)
    for step in range(n_sizes - 1):
        layer = n_sizes - 2 - step
        inputs, outputs = sizes[layer], sizes[layer + 1]
        activations -= rows * inputs
        target = spare if layer > 0 else out
        sgemm(0, 1, rows, inputs, outputs, delta, outputs, shift(params, first), outputs, target, inputs)
        if layer > 0:
            through_activation(spare, shift(hidden, activations), 1, rows * inputs, 0, kind)
            delta, spare = spare, delta
            first -= sizes[layer - 1] * inputs + inputs


def work_floats(rows: int, sizes: tuple[int, ...]) -> int:
    """Floats of workspace for input, activations and both scratch ranges of a batch of `rows`."""
    return rows * (sum(sizes) + 2 * max(sizes[1:]))
