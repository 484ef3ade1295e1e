"""rejax PPO on gymnax's CartPole-v1: at matched settings, or to the target at those of its own configuration file.

Compilation is ahead of time and booked apart. The policy is evaluated with NumPy, which needs no compilation.
It clips gradients element by element and always clips the value loss, so that "matched" holds up to these two.
"""

from __future__ import annotations

import os
from typing import Any

from _arm import ENV, MATCHED, TARGET_STEPS, Arm, Panel, TargetWatch

arm = Arm.from_command_line("rejax")
if arm.threads == 1:
    # XLA sizes its pool by the cores it may use.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import jax  # noqa: E402
import numpy as np  # noqa: E402
from rejax import PPO  # noqa: E402

arm.mark("import")


def actor(state: Any) -> Any:
    """Greedy actions of the actor's weights: tanh, tanh, logits."""
    weights = jax.tree.map(np.asarray, state.actor_ts.params["params"])
    hidden = weights["features"]

    def act(observations: Any) -> Any:
        for layer in ("Dense_0", "Dense_1"):
            observations = np.tanh(observations @ hidden[layer]["kernel"] + hidden[layer]["bias"])
        return (observations @ weights["action_logits"]["kernel"] + weights["action_logits"]["bias"]).argmax(1)

    return act


def matched() -> None:
    algorithm = PPO.create(
        env=ENV,
        agent_kwargs={"activation": "tanh", "hidden_layer_sizes": (64, 64)},
        num_envs=MATCHED["n_envs"],
        num_steps=MATCHED["n_steps"],
        num_epochs=MATCHED["n_epochs"],
        num_minibatches=MATCHED["n_envs"] * MATCHED["n_steps"] // MATCHED["batch_size"],
        learning_rate=MATCHED["learning_rate"],
        max_grad_norm=MATCHED["max_grad_norm"],
        gamma=MATCHED["gamma"],
        gae_lambda=MATCHED["gae_lambda"],
        clip_eps=MATCHED["clip"],
        ent_coef=MATCHED["ent_coef"],
        vf_coef=MATCHED["vf_coef"],
        total_timesteps=arm.steps,
        eval_freq=arm.steps,
        skip_initial_evaluation=True,
    )
    # Its own evaluation would count as training time.
    algorithm = algorithm.replace(eval_callback=lambda algorithm, state, rng: ())
    panel = Panel()
    rng = jax.random.PRNGKey(arm.seed)
    arm.mark("init")
    train = jax.jit(algorithm.train).lower(rng).compile()
    arm.mark("compile")
    state, _ = jax.block_until_ready(train(rng))
    arm.mark("train")
    mean = panel.mean_return(actor(state))
    arm.mark("eval")
    arm.print_matched(int(state.global_step), mean)


def target() -> None:
    algorithm = PPO.create(
        env=ENV,
        agent_kwargs={"activation": "tanh"},
        num_envs=5,
        num_steps=100,
        num_epochs=5,
        num_minibatches=5,
        learning_rate=0.00075,
        max_grad_norm=0.5,
        total_timesteps=TARGET_STEPS,
        gamma=0.99,
        gae_lambda=0.95,
        clip_eps=0.2,
        ent_coef=0.01,
        vf_coef=0.5,
    )
    watch = TargetWatch(arm, Panel())
    rng = jax.random.PRNGKey(arm.seed)
    arm.mark("init")

    # Two rollouts of 5 × 100: 1,000 steps between evaluations.
    def two_rollouts(state: Any) -> Any:
        return jax.lax.fori_loop(0, 2, lambda _, each: algorithm.train_iteration(each), state)

    state = jax.jit(algorithm.init_state)(rng)
    train = jax.jit(two_rollouts).lower(state).compile()
    arm.mark("compile")
    for _ in range(TARGET_STEPS // 1000):
        state = jax.block_until_ready(train(state))
        if watch.look(int(state.global_step), actor(state)):
            break
    arm.print_target(watch)


{"matched": matched, "target": target}[arm.mode]()
