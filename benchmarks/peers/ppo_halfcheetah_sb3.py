"""Stable-Baselines3's arm of `ppo_halfcheetah.py`: PPO with `VecNormalize` on HalfCheetah-v5.

`speed` trains for some rollouts and prints one line of JSON; `learn` trains to the end, and records itself in a ledger
through the same few lines that any training loop would use.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

from halfcheetah import ENV, EVAL_EVERY, PRICE, ROLLOUT, SETTINGS, TARGET, TOTAL_STEPS, panel


def make_model(seed: int, *, processes: bool, hidden: int) -> PPO:
    """PPO with the settings of both arms."""
    kind = SubprocVecEnv if processes else DummyVecEnv
    envs = VecNormalize(
        make_vec_env(ENV, n_envs=SETTINGS["n_envs"], seed=seed, vec_env_cls=kind),
        gamma=SETTINGS["gamma"],
        clip_obs=10.0,
        clip_reward=10.0,
    )
    return PPO(
        "MlpPolicy",
        envs,
        n_steps=SETTINGS["n_steps"],
        n_epochs=SETTINGS["epochs"],
        batch_size=SETTINGS["minibatch"],
        learning_rate=SETTINGS["learning_rate"],
        gamma=SETTINGS["gamma"],
        gae_lambda=SETTINGS["gae_lambda"],
        clip_range=SETTINGS["clip"],
        ent_coef=SETTINGS["entropy_coef"],
        vf_coef=SETTINGS["value_coef"],
        max_grad_norm=SETTINGS["max_grad_norm"],
        policy_kwargs={
            "net_arch": {"pi": [hidden, hidden], "vf": [hidden, hidden]},
            "activation_fn": torch.nn.Tanh,
            "log_std_init": SETTINGS["log_std_init"],
        },
        seed=seed,
        device="cpu",
    )


class AfterFirstRollout(BaseCallback):
    """Notes when the first rollout is over and learnt from, so that warming up is not measured."""

    started = 0.0
    steps = 0

    def _on_rollout_start(self) -> None:
        if self.num_timesteps and not self.started:
            self.started, self.steps = time.perf_counter(), self.num_timesteps

    def _on_step(self) -> bool:
        return True


def speed(options: argparse.Namespace) -> None:
    model = make_model(options.seed, processes=options.processes, hidden=options.hidden)
    watch = AfterFirstRollout()
    model.learn((options.rollouts + 1) * ROLLOUT, callback=watch)
    seconds = time.perf_counter() - watch.started
    steps = model.num_timesteps - watch.steps
    parameters = sum(each.numel() for each in model.policy.parameters())
    print(json.dumps({"steps_per_second": steps / seconds, "seconds": seconds, "parameters": parameters}))
    model.get_env().close()


def play(model: PPO, seeds: Any) -> tuple[Any, Any]:
    """Greedy returns and lengths of one episode per seed, with the statistics as they are."""
    envs = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make(ENV)] * len(seeds))
    statistics = model.get_vec_normalize_env()
    returns, lengths = np.zeros(len(seeds)), np.zeros(len(seeds), np.int64)
    alive = np.ones(len(seeds), bool)
    obs, _ = envs.reset(seed=list(seeds))
    while alive.any():
        actions, _ = model.predict(statistics.normalize_obs(obs), deterministic=True)
        obs, rewards, terminated, truncated, _ = envs.step(actions)
        returns[alive] += rewards[alive]
        lengths[alive] += 1
        alive &= ~(terminated | truncated)
    envs.close()
    return returns, lengths


class Recorded(BaseCallback):
    """Divides the run into phases, and evaluates after the update that passes every 100,000th step."""

    def __init__(self, run: Any, exam: Any) -> None:
        super().__init__()
        self.run, self.exam, self.next_eval = run, exam, EVAL_EVERY
        self._rollout, self._learn = run.phase("rollout"), run.phase("learn")
        self._learning = False

    def _on_rollout_start(self) -> None:
        self._stop_learning()
        if self.num_timesteps >= self.next_eval:
            self.evaluate()
        self._rollout.__enter__()

    def _on_rollout_end(self) -> None:
        self._rollout.__exit__(None, None, None)
        self._learn.__enter__()
        self._learning = True

    def _on_training_end(self) -> None:
        self._stop_learning()
        self.evaluate()

    def _on_step(self) -> bool:
        return True

    def _stop_learning(self) -> None:
        if self._learning:
            self._learn.__exit__(None, None, None)
            self._learning = False

    def evaluate(self) -> None:
        from mileage.ledger import Evaluation

        self.next_eval += EVAL_EVERY
        with self.run.phase("eval"):
            returns, lengths = play(self.model, self.exam.seeds)
        ended = np.zeros(len(returns), bool)
        successes = self.exam.successes(returns, lengths, ended, ~ended)
        self.run.checkpoint(self.num_timesteps, Evaluation.of(self.exam.seeds, returns, lengths, successes))
        print(f"{self.num_timesteps:,}: {returns.mean():.0f}", file=sys.stderr, flush=True)


def learn(options: argparse.Namespace) -> None:
    from mileage import Ledger

    model = make_model(options.seed, processes=False, hidden=options.hidden)
    exam = panel()
    with Ledger(options.db).run(
        "sb3-halfcheetah",
        panel=exam,
        target=TARGET,
        price_usd_per_hour=PRICE,
        seed=options.seed,
        config={key: value for key, value in SETTINGS.items() if key != "hidden"},
        algorithm="ppo",
        framework="stable-baselines3",
        eval_every_steps=EVAL_EVERY,
        batch_size=ROLLOUT,
        step_budget=options.steps,
    ) as run:
        model.learn(options.steps, callback=Recorded(run, exam))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=("speed", "learn"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--processes", action="store_true", help="step every environment in a process of its own")
    parser.add_argument("--hidden", type=int, default=SETTINGS["hidden"][0], help="width of both hidden layers")
    parser.add_argument("--rollouts", type=int, default=4, help="measured by speed, after one that is not")
    parser.add_argument("--steps", type=int, default=TOTAL_STEPS, help="of learn")
    parser.add_argument("--db", help="ledger of learn")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    {"speed": speed, "learn": learn}[options.mode](options)


if __name__ == "__main__":
    main()
