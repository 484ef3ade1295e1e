"""Kernels made in tests, to call inner functions that Python cannot call."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from typing import Any

from mileage.kernels.machine.jit import kernel


def shim(function: Callable[..., Any]) -> Any:
    """A kernel that is cached under its own source, which the stamp of the package does not cover."""
    return kernel(function, key=hashlib.sha256(inspect.getsource(function).encode()).hexdigest())
