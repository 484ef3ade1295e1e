"""Storage of experience: replay rings, prioritized and memory-mapped replay, rollouts."""

from __future__ import annotations

from mileage.buffers.layout import NextObs
from mileage.buffers.mapped import MappedReplay
from mileage.buffers.prioritised import PrioritizedReplay
from mileage.buffers.replay import Batch, ReplayBuffer
from mileage.buffers.rollout import Minibatch, RolloutBuffer

__all__ = ["Batch", "MappedReplay", "Minibatch", "NextObs", "PrioritizedReplay", "ReplayBuffer", "RolloutBuffer"]
