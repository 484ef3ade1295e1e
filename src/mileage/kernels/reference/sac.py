"""The losses of `mileage.kernels.learners.sac`."""

from __future__ import annotations

from typing import Any

import numpy as np

from mileage._types import F64
from mileage.kernels.reference.heads import squashed
from mileage.kernels.reference.twin_critic import Networks, Transitions


def targets(nets: Networks, actor: Any, targets: Any, batch: Transitions, noise: Any, alpha: float) -> F64:
    """Soft Bellman targets (N,) (Haarnoja et al., 2018, equation 3)."""
    actions, log_probs = squashed(nets.head(actor, batch.next_obs), noise)
    return batch.bootstrapped(nets.values(targets, batch.next_obs, actions).min(axis=0) - alpha * log_probs)


def critic_loss(nets: Networks, critics: Any, batch: Transitions, targets: Any) -> float:
    """Half the mean squared error, summed over both critics."""
    errors = nets.values(critics, batch.obs, np.asarray(batch.actions, np.float64)) - targets
    return float(0.5 * (errors**2).mean(axis=1).sum())


def actor_loss(nets: Networks, actor: Any, critics: Any, obs: Any, noise: Any, alpha: float) -> tuple[float, float]:
    """Mean of alpha times the log-density minus the smaller value; and the mean log-density."""
    actions, log_probs = squashed(nets.head(actor, obs), noise)
    values = nets.values(critics, obs, actions).min(axis=0)
    return float((alpha * log_probs - values).mean()), float(log_probs.mean())
