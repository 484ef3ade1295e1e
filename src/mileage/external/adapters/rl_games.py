"""rl_games, and with it Isaac Gym and Isaac Lab.

    with rl_games.recorded(panel="file.py:Env", target="mean_return>=400") as observer:
        runner = Runner(algo_observer=observer)
        ...

Phases: `rollout` with `env_step` in it, `learn`, `checkpoint`, `eval`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Unpack

import numpy as np

from mileage.errors import UsageError
from mileage.external.adapters.session import Session, SessionSettings, closing, framework_module, watch_env
from mileage.types import Array, Observation

if TYPE_CHECKING:
    # Stands for every object of the framework, none of which the type checker knows.
    from rl_games.common.a2c_common import A2CBase as Foreign

NOT_SEPARATED = "choosing actions is rollout; advantages are part of rollout too; its frame lags an epoch behind"


@contextlib.contextmanager
def recorded(*, observer: Foreign = None, **settings: Unpack[SessionSettings]) -> Iterator[Foreign]:
    """Record one `runner.run`; yields the observer for it. `observer` is one of yours, which is told everything too."""
    module = framework_module("rl_games.common.algo_observer", "rl-games")
    session = Session("rl_games", settings, package="rl-games", not_separated=NOT_SEPARATED)
    made = _observer_class(module)(session, observer or module.DefaultAlgoObserver())
    with closing(session, made.last):
        yield made


def _observer_class(module: Foreign) -> type:
    class Recording(module.AlgoObserver):  # type: ignore[misc]
        """Times the parts of an epoch and passes everything on."""

        def __init__(self, session: Session, other: Foreign) -> None:
            super().__init__()
            self.session, self.other = session, other
            self.algo: Foreign = None
            self._before = 0
            self._restored: int | None = None
            """Frames of the checkpoint that it goes on from."""

        def before_init(self, base_name: str, config: Foreign, experiment_name: str) -> None:
            self.other.before_init(base_name, config, experiment_name)

        def after_init(self, algo: Foreign) -> None:
            self.algo = algo
            session = self.session
            if session.run.panel is not None:
                _check(algo)
            watch_env(session, algo.vec_env, algo.num_actors)
            session.wrap(algo, "play_steps", "rollout")
            session.wrap(algo, "train_actor_critic", "learn")
            session.wrap(algo, "save", "checkpoint")
            session.listen(algo.writer)
            self.other.after_init(algo)
            session.begin()

        def process_infos(self, infos: Foreign, done_indices: Foreign) -> None:
            self.other.process_infos(infos, done_indices)

        def after_steps(self) -> None:
            if self._restored is None:
                self._restored = self.algo.frame // self.algo.num_agents
            self.other.after_steps()

        def after_clear_stats(self) -> None:
            if callable(clear := vars(type(self.other)).get("after_clear_stats")):
                clear(self.other)

        def after_print_stats(self, frame: int, epoch_num: int, total_time: float) -> None:
            session = self.session
            # Its frames are those before this epoch, in most versions.
            steps = frame - (self._restored or 0)
            at = self._before if steps <= self._before else None
            session.claim({"frame": frame, "epoch": epoch_num}, steps=steps, seconds=total_time, at=at)
            self._before = session.steps
            if session.due():
                session.examine(_policy(self.algo), modules=self.algo.model)
            self.other.after_print_stats(frame, epoch_num, total_time)

        def last(self) -> None:
            if self.algo is not None:
                self.session.examine_last(_policy(self.algo), modules=self.algo.model)

    return Recording


def _check(algo: Foreign) -> None:
    """UsageError if the policy needs more than one observation to act."""
    from rl_games.common.a2c_common import A2CBase

    has = vars(algo)
    for kind, found in {
        type(algo).__name__: not isinstance(algo, A2CBase),
        "a recurrent policy": has.get("is_rnn"),
        "a policy with several discrete actions": has.get("is_multi_discrete"),
        "a policy with action masks": has.get("use_action_masks"),
        "a policy of several observations": isinstance(has.get("obs_shape"), dict),
    }.items():
        if found:
            raise UsageError(f"{kind} of rl_games sits no exam of this adapter: leave panel and target out")


def _policy(algo: Foreign) -> Foreign:
    import torch

    def act(observations: Observation) -> Array:
        shown = torch.as_tensor(np.asarray(observations), device=algo.ppo_device)
        rows = algo._preproc_obs(shown if shown.dtype == torch.uint8 else shown.float())  # pictures are scaled
        algo.model.eval()
        with torch.inference_mode():
            # Normalisation is part of the model, and does not learn in evaluation mode.
            found = algo.model({"is_train": False, "prev_actions": None, "obs": rows, "rnn_states": None})
        if "mus" not in found:
            return np.asarray(found["logits"].cpu())
        # Clipped and scaled to the environment's bounds, where its configuration says so.
        taken = algo.preprocess_actions(found["mus"])
        return np.asarray(taken.cpu() if isinstance(taken, torch.Tensor) else taken)

    return act
