"""A native environment in plain Python: slow, and stopped by Python itself at an index beyond a row.

Its functions run as they stand, but for numbers: floats are float32, and a logarithm of zero or a division by it is
infinite, as in compiled code.
"""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from mileage._types import F32, U8, U64
from mileage.envs.native import draw
from mileage.envs.native.functions import Source
from mileage.envs.native.refused import refuse
from mileage.envs.native.rewriter import Rewriter
from mileage.kernels.arrays.random import streams

# Functions of `math` that have another name in NumPy.
_OTHER_NAMES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "atan2": "arctan2", "pow": "power"}
# Those whose result is a float, which Python's own versions refuse at the edges of their domain.
_FLOAT_FUNCTIONS = [
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "atan2",
    "sinh",
    "cosh",
    "tanh",
    "exp",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sqrt",
    "pow",
    "fabs",
    "hypot",
    "fmod",
    "copysign",
]


def _float_function(name: str) -> Callable[..., Any]:
    function = getattr(np, _OTHER_NAMES.get(name, name))
    return lambda *numbers: function(*(np.float32(number) for number in numbers))


_SUBSTITUTES = {id(vars(math)[name]): _float_function(name) for name in _FLOAT_FUNCTIONS} | {
    id(function): functools.partial(function) for function in (draw.uniform, draw.normal, draw.integers)
}


class _Strict(Rewriter):
    """Makes plain functions of those alone that may be compiled."""

    def _rewrite(self, function: types.FunctionType) -> types.FunctionType:
        refuse(function)
        return super()._rewrite(function)


class PlainEnv:
    """One environment; `state` and `obs` are its rows."""

    def __init__(self, source: Source, seed: int, *, strict: bool = False) -> None:
        """With `strict`, EnvCompileError for what compiled code would refuse."""
        self.elapsed = 0
        """Steps of the episode so far."""
        self.state: F32 = np.zeros(source.sizes.state, np.float32)
        self.obs: F32 = np.zeros(source.sizes.obs, np.float32)
        self.rng: U64 = streams(seed, 1, "env")[0]
        plain = (_Strict if strict else Rewriter)(_SUBSTITUTES)
        self.mask: U8 = np.ones(source.choices, np.uint8)
        """What is possible, as `rule_out` left it."""
        (reset, step, observe), _, rule_out, _ = source
        self._reset, self._step = plain.make(reset), plain.make(step)
        self._observe = None if observe is None else plain.make(observe)
        self._rule_out = None if rule_out is None else plain.make(rule_out)

    def reset(self) -> None:
        """Start an episode."""
        with np.errstate(all="ignore"):
            self._reset(self.state, self.rng)
        self.elapsed = 0

    def step(self, action: Any) -> Any:
        """One step; returns whatever the user's function does. `observe` fills the observation."""
        with np.errstate(all="ignore"):
            outcome = self._step(self.state, action, self.rng)
        self.elapsed += 1
        return outcome

    def observe(self) -> None:
        """Fill `obs`."""
        with np.errstate(all="ignore"):
            if self._observe is None:
                self.obs[:] = self.state
            else:
                self._observe(self.state, self.obs)

    def rule_out(self) -> None:
        """Fill `mask`."""
        self.mask[:] = 1
        if self._rule_out is not None:
            with np.errstate(all="ignore"):
                self._rule_out(self.state, self.mask)
