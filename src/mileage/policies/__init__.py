"""Policies: the native actor-critic network that kernels run."""

from __future__ import annotations

from mileage.policies.actor_critic import ActorCritic

__all__ = ["ActorCritic"]
