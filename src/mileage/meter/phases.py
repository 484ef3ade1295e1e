"""The names of the phases a run's wall-clock is divided into."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """What a run is doing; at any instant exactly one phase is open. Other names are allowed beside these."""

    INIT = "init"
    """Process start, imports, building environments, networks and buffers."""
    COMPILE = "compile"
    """JIT compilation, or loading of compiled kernels (Numba, torch.compile, XLA)."""
    ENV_STEP = "env_step"
    """Environments stepping."""
    INFERENCE = "inference"
    """Policy forward passes that choose actions."""
    ROLLOUT = "rollout"
    """A fused collection whose environment and inference shares cannot be told apart from outside."""
    ADVANTAGE = "advantage"
    """GAE, V-trace, returns, group advantages."""
    LEARN = "learn"
    """Minibatch gather, forward, backward, optimizer."""
    TRANSFER = "transfer"
    """Copies between host and device."""
    SYNC = "sync"
    """Waiting for workers, gradient exchange, parameter broadcast."""
    EVAL = "eval"
    """Held-out evaluation."""
    CHECKPOINT = "checkpoint"
    """Writing checkpoints."""
    LOG = "log"
    """Metrics, ledger writes, progress output."""
    OTHER = "other"
    """Wall-clock minus all of the above."""


# Above this share of the wall-clock, unexplained time is a finding of its own.
OTHER_SHARE_LIMIT = 0.02
