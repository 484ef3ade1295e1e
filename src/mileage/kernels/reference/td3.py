"""The losses of `mileage.kernels.learners.td3`."""

from __future__ import annotations

from typing import Any

import numpy as np

from mileage._types import F64
from mileage.kernels.reference import sac
from mileage.kernels.reference.twin_critic import Networks, Transitions


def targets(nets: Networks, target_actor: Any, targets: Any, batch: Transitions, noise: Any) -> F64:
    """Bellman targets (N,) at smoothed actions (Fujimoto et al., 2018, equation 14); `noise` is clipped already."""
    actions = np.clip(np.tanh(nets.head(target_actor, batch.next_obs)) + noise, -1.0, 1.0)
    return batch.bootstrapped(nets.values(targets, batch.next_obs, actions).min(axis=0))


def critic_loss(nets: Networks, critics: Any, batch: Transitions, targets: Any) -> float:
    """Mean squared error, summed over both critics."""
    return 2.0 * sac.critic_loss(nets, critics, batch, targets)


def actor_loss(nets: Networks, actor: Any, critics: Any, obs: Any) -> float:
    """Minus the mean value that the first critic gives the actor's actions."""
    return -float(nets.values(critics, obs, np.tanh(nets.head(actor, obs)))[0].mean())
