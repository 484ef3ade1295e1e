"""rejax's PPO on gymnax's CartPole-v1 to the target, at the settings of its own configuration file."""

from __future__ import annotations

from typing import Any

from _sitting import exam, options

wanted = options()
import jax  # noqa: E402
import numpy as np  # noqa: E402
from rejax import PPO  # noqa: E402

STEPS, EVERY = 100_000, 1000
sitting = exam("rejax", wanted.threads, "rejax", "gymnax", "jax")
algorithm = PPO.create(
    env="CartPole-v1", agent_kwargs={"activation": "tanh"}, num_envs=5, num_steps=100, num_epochs=5, num_minibatches=5,
    learning_rate=0.00075, max_grad_norm=0.5, total_timesteps=STEPS, gamma=0.99, gae_lambda=0.95, clip_eps=0.2,
    ent_coef=0.01, vf_coef=0.5,
)  # fmt: skip


def actor(state: Any) -> Any:
    """Greedy actions of the actor's weights with NumPy, which needs no compilation: tanh, tanh, logits."""
    weights = jax.tree.map(np.asarray, state.actor_ts.params["params"])
    hidden = weights["features"]

    def act(rows: list[list[float]]) -> Any:
        found = np.asarray(rows, np.float32)
        for layer in ("Dense_0", "Dense_1"):
            found = np.tanh(found @ hidden[layer]["kernel"] + hidden[layer]["bias"])
        return (found @ weights["action_logits"]["kernel"] + weights["action_logits"]["bias"]).argmax(1)

    return act


def two_rollouts(state: Any) -> Any:
    return jax.lax.fori_loop(0, 2, lambda _, each: algorithm.train_iteration(each), state)


state = jax.jit(algorithm.init_state)(jax.random.PRNGKey(wanted.seed))
train = jax.jit(two_rollouts)
for _ in range(STEPS // EVERY):
    state = jax.block_until_ready(train(state))
    if sitting.look(int(state.global_step), actor(state)):
        break
