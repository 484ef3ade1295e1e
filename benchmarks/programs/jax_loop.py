"""A policy gradient in JAX with a loop in Python around a compiled update: jax_loop.py 40."""

from __future__ import annotations

import sys
import time

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import planted

batch_size = 8 if planted.PLANT == "batch" else 400  # plant: batch


def initial(key):
    first, second = jax.random.split(key)
    return {"a": 0.1 * jax.random.normal(first, (4, 64)), "b": 0.1 * jax.random.normal(second, (64, 2))}


def logits(weights, obs):
    return jnp.tanh(obs @ weights["a"]) @ weights["b"]


@jax.jit
def act(weights, obs, key):
    return jax.random.categorical(key, logits(weights, obs))


@jax.jit
def update(weights, obs, actions, returns):
    def loss(weights):
        chosen = jax.nn.log_softmax(logits(weights, obs))[jnp.arange(len(actions)), actions]
        return -(chosen * returns).mean()

    return jax.tree.map(lambda weight, slope: weight - 0.01 * slope, weights, jax.grad(loss)(weights))


def log_figures(number, total):
    if planted.PLANT == "logger":
        time.sleep(0.3)  # plant: logger
    figures.append((number, total))


def after_episode(total):
    if planted.PLANT == "callback":
        time.sleep(0.06)  # plant: callback


figures = []
env = gym.make("WalkDiscrete-v0")
key = jax.random.key(0)
weights = initial(key)
obs, _ = env.reset(seed=0)
for iteration in range(int(sys.argv[1])):
    seen, actions, rewards = [], [], []
    for _ in range(400):
        key, draw = jax.random.split(key)
        action = int(act(weights, obs, draw))
        seen.append(obs)
        actions.append(action)
        obs, reward, terminated, truncated, _ = env.step(action)
        rewards.append(reward)
        if terminated or truncated:
            after_episode(sum(rewards))
            obs, _ = env.reset()
    seen, actions, returns = np.array(seen), np.array(actions), np.array(rewards, np.float32)
    for start in range(0, 400, batch_size):
        part = slice(start, start + batch_size)
        weights = jax.block_until_ready(update(weights, seen[part], actions[part], returns[part]))
    log_figures(iteration, returns.sum())
print(f"weights {sum(float(jnp.abs(each).sum()) for each in weights.values()):.9f} {len(figures)}")
