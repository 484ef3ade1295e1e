"""RLlib.

    algorithm = config.build_algo()
    with rllib.recorded(algorithm, panel="CartPole-v1", target="mean_return>=475") as run:
        while not run.stop:
            algorithm.train()

Phases: `learn` (the learner group), `checkpoint`, `eval` for exams; the rest of `train` is `rollout`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Unpack

import numpy as np

from mileage.external.adapters.session import Session, SessionSettings, closing, framework_module
from mileage.types import Array, Observation

if TYPE_CHECKING:
    # Stands for every object of the framework, none of which the type checker knows.
    from ray.rllib.algorithms import Algorithm as Foreign

NOT_SEPARATED = "steps are RLlib's own count: they are taken in actors; stepping, choosing and waiting are rollout"


@contextlib.contextmanager
def recorded(algorithm: Foreign, **settings: Unpack[SessionSettings]) -> Iterator[Session]:
    """Record the `train` calls of an algorithm of the new API stack."""
    framework_module("ray.rllib", "'ray[rllib]'")
    config = algorithm.config.to_dict()
    session = Session(
        "rllib", settings, algorithm=type(algorithm).__name__.lower(), package="ray", seed=config.get("seed"),
        config={name: value for name, value in config.items() if isinstance(value, bool | int | float | str)},
        env_id=str(config.get("env") or ""), not_separated=NOT_SEPARATED,
    )  # fmt: skip
    session.wrap(algorithm.learner_group, "update", "learn")
    session.wrap(algorithm, "save_to_path", "checkpoint")

    def trained(result: Foreign) -> None:
        runners = result.get("env_runners", {})
        session.steps = int(runners.get("num_env_steps_sampled_lifetime", 0))
        session.claim(
            {name: runners.get(name) for name in ("episode_return_mean", "num_episodes_lifetime")},
            steps=session.steps, seconds=result.get("time_total_s"),
        )  # fmt: skip
        if session.due():
            session.examine(_policy(algorithm))

    session.wrap(algorithm, "train", "rollout", trained)
    with closing(session, lambda: session.examine_last(_policy(algorithm))):
        yield session


def _policy(algorithm: Foreign) -> Foreign:
    import torch

    module = algorithm.get_module()

    def act(observations: Observation) -> Array:
        rows = torch.as_tensor(np.asarray(observations), dtype=torch.float32)
        with torch.no_grad():
            found = module.forward_inference({"obs": rows})
        if "actions" in found:
            return np.asarray(found["actions"])
        kind = module.get_inference_action_dist_cls()
        return np.asarray(kind.from_logits(found["action_dist_inputs"]).to_deterministic().sample())

    return act
