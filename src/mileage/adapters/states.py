"""What an exam must leave as it was: the state of random generators, and whether modules train."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator

import numpy as np


@contextlib.contextmanager
def untouched(modules: object = ()) -> Iterator[None]:
    """Put generators (Python's, NumPy's, torch's) and the training mode of torch `modules` back afterwards."""
    torch = sys.modules.get("torch")
    given = modules if isinstance(modules, list | tuple) else (modules,)
    parts = (
        [] if torch is None else [each for one in given if isinstance(one, torch.nn.Module) for each in one.modules()]
    )
    modes = [each.training for each in parts]
    before, legacy = random.getstate(), np.random.get_state()
    own = None if torch is None else torch.get_rng_state()
    gpus = torch.cuda.get_rng_state_all() if torch is not None and torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(legacy)
        if torch is not None:
            torch.set_rng_state(own)
            if gpus is not None:
                torch.cuda.set_rng_state_all(gpus)
        for each, mode in zip(parts, modes, strict=True):
            each.training = mode
