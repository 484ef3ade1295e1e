"""Know what it costs to train an RL policy until it passes a held-out test."""

from __future__ import annotations

from mileage.version import __version__ as __version__

TYPE_CHECKING = False  # as in `typing`, which takes longer to import than a process may live that is to leave a trace

# Loaded on first use, so that `import mileage` is quick.
_OTHERS = {
    "Ledger": "mileage.ledger.recorder",
    "MileageError": "mileage.errors",
    "Panel": "mileage.ledger.panels",
    "RecordedRun": "mileage.ledger.runs",
    "RunRecord": "mileage.ledger.runs",
    "Target": "mileage.ledger.targets",
    "VecEnv": "mileage.envs.native.vector",
    "agent_class": "mileage.training.agents",
    "compare": "mileage.report.compare",
    "env": "mileage.envs.native.spec",
    "load": "mileage.training.agents",
    "register_algorithm": "mileage.algorithms.registry",
}


def _homes() -> dict[str, str]:
    """Where each public name is: the agent classes of the registry, and the others."""
    from mileage.algorithms.registry import BUILT_IN

    return {algorithm.class_name: "mileage.training.agents" for algorithm in BUILT_IN} | _OTHERS


if TYPE_CHECKING:
    from typing import Any

    from mileage.algorithms.registry import register_algorithm as register_algorithm
    from mileage.envs.native.spec import env as env
    from mileage.envs.native.vector import VecEnv as VecEnv
    from mileage.errors import MileageError as MileageError
    from mileage.ledger.panels import Panel as Panel
    from mileage.ledger.recorder import Ledger as Ledger
    from mileage.ledger.runs import RecordedRun as RecordedRun
    from mileage.ledger.runs import RunRecord as RunRecord
    from mileage.ledger.targets import Target as Target
    from mileage.report.compare import compare as compare
    from mileage.training.agents import A2C as A2C
    from mileage.training.agents import DQN as DQN
    from mileage.training.agents import IMPALA as IMPALA
    from mileage.training.agents import PPO as PPO
    from mileage.training.agents import RPO as RPO
    from mileage.training.agents import SAC as SAC
    from mileage.training.agents import TD3 as TD3
    from mileage.training.agents import agent_class as agent_class
    from mileage.training.agents import load as load


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted([*_homes(), "__version__"])
    home = None if name.startswith("_") else _homes().get(name)
    if home is None:
        raise AttributeError(f"module 'mileage' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*_homes(), "__version__"])
