"""Scripts of CleanRL and LeanRL, as they are.

    python -m mileage.external.adapters.cleanrl \
        --panel CartPole-v1 --target "mean_return>=475" ppo.py --total-timesteps 50000

Or inside a program: `with cleanrl.recorded(panel=…) as run: …; run.agent = agent`. Phases: `env_step` and `eval`;
choosing actions and learning share one script and are `other`. What `SummaryWriter.add_scalar` and `wandb.log` are told
is claimed.
"""

from __future__ import annotations

import contextlib
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import numpy as np

from mileage.errors import UsageError
from mileage.external.adapters.session import Session, SessionSettings, closing, framework_module, watch_resets
from mileage.types import Array, Observation

if TYPE_CHECKING:
    # Stands for every object of the framework, none of which the type checker knows.
    from wandb import Run as Foreign

NOT_SEPARATED = "choosing actions, advantages and learning are lines of one script: other"
_NAMES = ("agent", "actor", "q_network")


class Watched:
    """A script under way."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.agent: Foreign = None
        """The network to examine at the end."""
        self.envs: Foreign = None
        """What it was trained in, with all its wrappers; the vector environment that stepped first, if nobody says."""
        self._first: Foreign = None

    def trains(self, env: Foreign) -> bool:
        """Whether a vector environment is that of training, the first that is used: others are for evaluation."""
        if self._first is None:
            self._first = env
            watch_resets(self.session, vars(env).get("envs", ()))
        return self._first is env

    def last(self) -> None:
        """The exam at the end, through the wrappers of training."""
        if self.agent is not None:
            self.session.examine_last(policy_of(self.agent), modules=self.agent, through=self.envs)


@contextlib.contextmanager
def recorded(**settings: Unpack[SessionSettings]) -> Iterator[Watched]:
    """Record what happens inside; vector environments are watched through Gymnasium, figures through the trackers."""
    import gymnasium

    session = Session("cleanrl", settings, package="cleanrl", not_separated=NOT_SEPARATED)
    watched = Watched(session)
    with contextlib.ExitStack() as stack:
        stack.enter_context(closing(session, watched.last))
        for kind in (gymnasium.vector.SyncVectorEnv, gymnasium.vector.AsyncVectorEnv):
            stack.enter_context(_watching(watched, kind))
        _trackers(session)
        yield watched


@contextlib.contextmanager
def _watching(watched: Watched, kind: Foreign) -> Iterator[None]:
    """Time and count the steps of every vector environment of a class."""
    session = watched.session
    step, reset, span = kind.step, kind.reset, session.phase("env_step")

    def stepped(env: Foreign, actions: Foreign) -> Foreign:
        with span:
            found = step(env, actions)
        if watched.trains(env):
            session.steps += env.num_envs
        if watched.envs is None:
            watched.envs = env
        return found

    def began(env: Foreign, **kwargs: object) -> Foreign:
        watched.trains(env)
        return reset(env, **kwargs)

    kind.step, kind.reset = stepped, began
    try:
        yield
    finally:
        kind.step, kind.reset = step, reset


def _trackers(session: Session) -> None:
    """Listen to TensorBoard's writer and to W&B where they are installed."""
    last = 0.0

    def claim(figures: Foreign, step: Foreign) -> None:
        nonlocal last
        on = step is not None and step >= last  # an evaluation at the end counts its episodes
        last = step if on else last
        session.claim(figures, steps=step if on else None)

    with contextlib.suppress(ImportError, UsageError):
        tracker: Foreign = framework_module("torch.utils.tensorboard", "tensorboard")
        SummaryWriter = tracker.SummaryWriter  # noqa: N806 (its name)
        add = SummaryWriter.add_scalar

        def add_scalar(
            writer: Foreign,
            tag: str,
            scalar_value: Foreign,
            global_step: Foreign = None,
            *rest: object,
            **more: object,
        ) -> None:
            add(writer, tag, scalar_value, global_step, *rest, **more)
            claim({tag: scalar_value}, global_step)

        SummaryWriter.add_scalar = add_scalar
        session.on_close(lambda: setattr(SummaryWriter, "add_scalar", add))
    with contextlib.suppress(ImportError):
        import wandb

        log = wandb.log

        def logged(data: Foreign, step: Foreign = None, *rest: object, **more: object) -> None:
            log(data, step, *rest, **more)
            claim(data, step)

        wandb.log = logged
        session.on_close(lambda: setattr(wandb, "log", log))


def policy_of(agent: Foreign) -> Foreign:
    """How CleanRL's networks act at their best: scores, a mean, or the mean of `get_action`."""
    import torch

    parts = dict(agent.named_children())
    network = parts.get("actor", parts.get("actor_mean", parts.get("network")))
    device = next(agent.parameters()).device

    def act(observations: Observation) -> Array:
        rows = torch.as_tensor(np.asarray(observations), dtype=torch.float32, device=device)
        with torch.no_grad():
            if network is not None:
                return np.asarray(network(rows).cpu())
            found = agent.get_action(rows)
            return np.asarray((found[2] if isinstance(found, tuple) else found).cpu())

    return act


def main(arguments: list[str]) -> None:
    """Run a script with its arguments, recorded."""
    settings: dict[str, Foreign] = {}
    options = {
        "--panel": "panel",
        "--target": "target",
        "--name": "name",
        "--price": "price_usd_per_hour",
        "--db": "ledger",
    }
    while arguments and arguments[0] in options:
        settings[options[arguments[0]]] = arguments[1]
        arguments = arguments[2:]
    if not arguments or not arguments[0].endswith(".py"):
        raise UsageError(
            "name the script: python -m mileage.external.adapters.cleanrl [--panel ENV] [--target T] ppo.py …"
        )
    sys.argv, sys.path[0] = arguments, str(Path(arguments[0]).resolve().parent)  # as `python script.py` has them
    with recorded(**settings) as watched:
        found = runpy.run_path(arguments[0], run_name="__main__")
        watched.agent = next((found[name] for name in _NAMES if name in found), None)
        watched.envs = found.get("envs", watched.envs)


if __name__ == "__main__":
    main(sys.argv[1:])
