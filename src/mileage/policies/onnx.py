"""A native policy as an ONNX file, for robots, browsers, and exams elsewhere.

The file is written field by field (protocol buffers, onnx.proto of ir_version 8), so that no library is needed. Its
input is `obs` (batch, O) float32; normalisation and bounds are in it. Outputs: `actions`, (batch,) int64 or (batch, A)
float32 in the environment's units, and `logits` (batch, n) where actions are discrete, or `values` of a Q-network.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mileage.errors import UsageError
from mileage.kernels.random import n_params
from mileage.policies.mlp import FlatPolicy, has_width, views
from mileage.types import F32, Array
from mileage.version import __version__

_IR_VERSION, _OPSET = 8, 17
_FLOAT, _INT64 = 1, 7


def write(policy: object, path: Path, about: dict[str, str]) -> None:
    """Write `policy` with the metadata `about`; UsageError if it is not one of a native network."""
    if not isinstance(policy, FlatPolicy):
        raise UsageError("only native networks (backend 'native', policy 'mlp') can be exported to ONNX")
    if policy.structured_actions and not policy.n_actions:
        raise UsageError("a policy whose actions have several parts cannot be exported to ONNX")
    graph = _Graph()
    _network(graph, policy)
    path.write_bytes(graph.model(policy, about))


def _network(graph: _Graph, policy: FlatPolicy) -> None:
    x = graph.node("Sub", "obs", graph.constant("mean", policy.obs_mean))
    x = graph.node("Mul", x, graph.constant("scale", policy.obs_scale))
    if np.isfinite(policy.obs_limit):
        low, high = np.float32(-policy.obs_limit), np.float32(policy.obs_limit)
        x = graph.node("Clip", x, graph.constant("obs_low", low), graph.constant("obs_high", high))
    layers = views(policy.params[: n_params(policy.actor_sizes)], policy.actor_sizes, "actor")
    last = len(policy.actor_sizes) - 2
    wanted = slice(policy.head_skip, None) if policy.n_actions else slice(0, policy.action_size)
    for layer in range(last + 1):
        weight, bias = layers[f"actor.{layer}.weight"], layers[f"actor.{layer}.bias"]
        if layer == last:  # values of states and deviations do not choose the best action
            weight, bias = weight[:, wanted], bias[wanted]
        named = graph.constant(f"weight{layer}", weight), graph.constant(f"bias{layer}", bias)
        x = graph.node("Gemm", x, *named, to=_scores(policy) if layer == last and policy.n_actions else None)
        if layer < last:
            x = graph.node("Tanh" if policy.activation == "tanh" else "Relu", x)
    if policy.n_actions:
        graph.node("ArgMax", x, to="actions", axis=1, keepdims=0)
        return
    x = graph.node("Tanh", x) if policy.squashed else x
    wide = has_width(policy.low, policy.high)
    least, most = np.where(wide, policy.low, np.float32(-1.0)), np.where(wide, policy.high, np.float32(1.0))
    half = (most - least) * np.float32(0.5)
    middle = np.where(wide, least + half, np.float32(0.0))
    largest = np.float32(np.finfo(np.float32).max)
    x = graph.node("Mul", x, graph.constant("half", half))
    x = graph.node("Add", x, graph.constant("middle", middle))
    x = graph.node("Max", x, graph.constant("low", np.maximum(policy.low, -largest)))
    graph.node("Min", x, graph.constant("high", np.minimum(policy.high, largest)), to="actions")


def _scores(policy: FlatPolicy) -> str:
    """What the scores of discrete actions are called: only an actor's are probabilities."""
    return "logits" if policy.critic_sizes else "values"


class _Graph:
    """Nodes and constants as they come."""

    def __init__(self) -> None:
        self._nodes: list[bytes] = []
        self._constants: list[bytes] = []

    def constant(self, name: str, values: Array | np.float32) -> str:
        array: F32 = np.ascontiguousarray(values, np.float32)
        if np.ndim(values) == 0:
            array = array.reshape(())
        dims = b"".join(_number(1, size) for size in array.shape)
        data = array.astype("<f4").tobytes()
        self._constants.append(dims + _number(2, _FLOAT) + _text(8, name) + _bytes(9, data))
        return name

    def node(self, kind: str, *inputs: str, to: str | None = None, **attributes: int) -> str:
        output = to or f"x{len(self._nodes)}"
        parts = [_text(1, name) for name in inputs] + [_text(2, output), _text(4, kind)]
        parts += [_bytes(5, _text(1, name) + _number(3, value) + _number(20, 2)) for name, value in attributes.items()]
        self._nodes.append(b"".join(parts))
        return output

    def model(self, policy: FlatPolicy, about: dict[str, str]) -> bytes:
        outputs = [_value("actions", _INT64, ["batch"]), _value(_scores(policy), _FLOAT, ["batch", policy.n_actions])]
        if not policy.n_actions:
            outputs = [_value("actions", _FLOAT, ["batch", policy.action_size])]
        parts = [_bytes(1, node) for node in self._nodes] + [_text(2, "policy")]
        parts += [_bytes(5, constant) for constant in self._constants]
        parts += [_bytes(11, _value("obs", _FLOAT, ["batch", policy.obs_size]))]
        parts += [_bytes(12, output) for output in outputs]
        head = _number(1, _IR_VERSION) + _text(2, "mileage") + _text(3, __version__)
        tail = b"".join(_bytes(14, _text(1, key) + _text(2, value)) for key, value in about.items())
        return head + _bytes(7, b"".join(parts)) + _bytes(8, _text(1, "") + _number(2, _OPSET)) + tail


def _value(name: str, kind: int, shape: Sequence[str | int]) -> bytes:
    dims = b"".join(_bytes(1, _number(1, size) if isinstance(size, int) else _text(2, size)) for size in shape)
    return _text(1, name) + _bytes(2, _bytes(1, _number(1, kind) + _bytes(2, dims)))


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _text(field: int, text: str) -> bytes:
    return _bytes(field, text.encode())
