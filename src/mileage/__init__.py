"""Train reinforcement-learning policies at native speed, and know what reaching the target cost."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mileage._version import __version__

# Loaded on first use, so that `import mileage` is quick.
_HOMES = {
    "A2C": "mileage.training.agents",
    "DQN": "mileage.training.agents",
    "IMPALA": "mileage.training.agents",
    "Ledger": "mileage.recording.recorder",
    "MileageError": "mileage._errors",
    "PPO": "mileage.training.agents",
    "Panel": "mileage.ledger.panels",
    "SAC": "mileage.training.agents",
    "TD3": "mileage.training.agents",
    "RecordedRun": "mileage.ledger.runs",
    "RunRecord": "mileage.ledger.runs",
    "Target": "mileage.ledger.targets",
    "VecEnv": "mileage.envs.native.vector",
    "env": "mileage.envs.native.env",
    "load": "mileage.training.agents",
}

__all__ = [
    "A2C",
    "DQN",
    "IMPALA",
    "PPO",
    "SAC",
    "TD3",
    "Ledger",
    "MileageError",
    "Panel",
    "RecordedRun",
    "RunRecord",
    "Target",
    "VecEnv",
    "__version__",
    "env",
    "load",
]

if TYPE_CHECKING:
    from mileage._errors import MileageError
    from mileage.envs.native.env import env
    from mileage.envs.native.vector import VecEnv
    from mileage.ledger.panels import Panel
    from mileage.ledger.runs import RecordedRun, RunRecord
    from mileage.ledger.targets import Target
    from mileage.recording.recorder import Ledger
    from mileage.training.agents import A2C, DQN, IMPALA, PPO, SAC, TD3, load


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'mileage' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
