"""The kernels once more, as plain as they can be written: float64, what belongs together step by step.

These are what the compiled kernels are tested against, and the place to read what they compute. A module has the name
of the kernels' module that it mirrors. Arguments and results of array functions are those of the function of the same
name in `mileage.kernels`, without `out` and checks.
"""

from __future__ import annotations

from mileage.kernels.reference.advantages import (
    gae,
    group_advantages,
    mean_and_variance,
    nstep_returns,
    token_kl,
    vtrace,
)

__all__ = ["gae", "group_advantages", "mean_and_variance", "nstep_returns", "token_kl", "vtrace"]
