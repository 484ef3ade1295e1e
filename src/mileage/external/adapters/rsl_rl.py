"""rsl_rl, and with it Isaac Lab and Isaac Gym.

    with rsl_rl.recorded(runner, panel="file.py:Env", target="mean_return>=400"):
        runner.learn(1000)

Phases: `inference`, `env_step`, `advantage`, `learn`, `log`, `checkpoint`, `eval`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Unpack

import numpy as np

from mileage.external.adapters.session import Session, SessionSettings, closing, framework_module, watch_env
from mileage.types import Array, Observation

if TYPE_CHECKING:
    # Stands for every object of the framework, none of which the type checker knows.
    from rsl_rl.runners import OnPolicyRunner as Foreign

NOT_SEPARATED = "copies between devices and storing transitions are other; its timers do not wait for the GPU"


@contextlib.contextmanager
def recorded(
    runner: Foreign, *, observation_key: str | None = None, **settings: Unpack[SessionSettings]
) -> Iterator[Session]:
    """Record `runner.learn`; `observation_key` is the part of its observations that a panel's environment shows."""
    framework_module("rsl_rl", "rsl-rl-lib")
    session = Session(
        "rsl_rl", settings, algorithm=type(runner.alg).__name__.lower(), config=runner.cfg, package="rsl-rl-lib",
        seed=runner.cfg.get("seed"), not_separated=NOT_SEPARATED,
    )  # fmt: skip
    watch_env(session, runner.env, runner.env.num_envs)
    session.wrap(runner.alg, "act", "inference")
    session.wrap(runner.alg, "compute_returns", "advantage")

    def updated(losses: Foreign) -> None:
        claimed = {f"Loss/{name}": value for name, value in losses.items()}
        session.claim(claimed | {"iteration": runner.current_learning_iteration})

    session.wrap(runner.alg, "update", "learn", updated)
    session.wrap(runner.logger, "init_logging_writer", "log", lambda _: session.listen(runner.logger.writer))

    def logged(_: object) -> None:
        if runner.logger.writer is not None:  # otherwise it counts nothing
            session.claim({}, steps=runner.logger.tot_timesteps, seconds=runner.logger.tot_time)
        if session.due():  # here, where its timers do not run
            session.examine(_policy(runner, observation_key), modules=_modules(runner))

    session.wrap(runner.logger, "log", "log", logged)
    session.wrap(runner, "save", "checkpoint")
    with closing(
        session, lambda: session.examine_last(_policy(runner, observation_key), modules=_modules(runner))
    ):  # fmt: skip
        yield session


def _modules(runner: Foreign) -> list[Foreign]:
    return [each for each in vars(runner.alg).values() if _is_module(each)]


def _is_module(value: Foreign) -> bool:
    import torch

    return isinstance(value, torch.nn.Module)


def _policy(runner: Foreign, key: str | None) -> Foreign:
    """The policy of training itself, in evaluation mode for the time of a call, where it is; nothing is moved."""
    import torch
    from tensordict import TensorDict

    sample = runner.env.get_observations()
    names = [key] if key else list(sample.keys())
    modules = _modules(runner)

    def act(observations: Observation) -> Array:
        rows = torch.as_tensor(np.asarray(observations), device=runner.device, dtype=torch.float32)
        for module in modules:
            module.eval()
        with torch.inference_mode():
            shown = TensorDict(dict.fromkeys(names, rows), batch_size=[len(rows)], device=runner.device)
            return np.asarray(runner.alg.get_policy()(shown).cpu())

    return act
