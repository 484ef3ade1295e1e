"""A user's plain function made ready for compilation: constants as float32, helpers compiled.

Numba takes a Python float for a double, so that one literal turns a whole expression to double precision and
halves the speed. Here they are float32, and `math.sin` and its like become float32 functions that vectorise.
"""

from __future__ import annotations

import math
import types
from typing import Any

import numpy as np

from mileage.envs.native import draw, float32
from mileage.envs.native.part import part
from mileage.envs.native.refused import refuse
from mileage.envs.native.rewriter import Rewriter
from mileage.kernels.arrays import random


def _substitutes() -> dict[int, Any]:
    """Compiled replacements for functions that environment code may name, by the identity of the original."""
    pairs = [(getattr(draw, name), getattr(random, name)) for name in ("uniform", "normal", "integers")]
    for name in ("sin", "cos"):
        pairs += [(getattr(module, name), getattr(float32, name)) for module in (math, np)]
    return {id(original): compiled for original, compiled in pairs}


class Portable(Rewriter):
    """Makes functions that Numba compiles; helpers shared by several functions are compiled once."""

    def __init__(self, *, checked: bool = False) -> None:
        """With `checked`, numbers that are not finite are to raise."""
        super().__init__(_substitutes())
        self.checked = checked

    def _rewrite(self, function: types.FunctionType) -> types.FunctionType:
        refuse(function)
        return super()._rewrite(function)

    def _finish(self, rewritten: types.FunctionType) -> Any:
        """A Numba dispatcher, always inlined into its caller."""
        return part(rewritten)
