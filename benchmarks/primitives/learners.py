"""Networks, updates, rollouts and evaluation by Stable-Baselines3 and rejax; products and copies by array libraries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mileage.profiling.bench import cases, plain
from mileage.profiling.bench.cases import Way

from .arms import on_jax_device, torch_threads


def mlp_numpy(rows: int, sizes: list[int], threads: int) -> Iterator[Way]:
    """NumPy."""
    yield plain.mlp(rows, sizes, threads)


def mlp_torch(rows: int, sizes: list[int], threads: int) -> Iterator[Way]:
    """A torch module, without gradients."""
    import torch

    parts: list[Any] = []
    for weights, bias in cases.layers(sizes):
        layer = torch.nn.Linear(*weights.shape)
        layer.weight.data, layer.bias.data = torch.from_numpy(weights.T.copy()), torch.from_numpy(bias)
        parts += [layer, torch.nn.Tanh()]
    network, x = torch.nn.Sequential(*parts[:-1]), torch.from_numpy(cases.batch(rows, sizes[0]))

    def run() -> Any:
        with torch.inference_mode():
            return network(x)

    for label, prepare in torch_threads(threads):
        yield Way(run, answer=np.asarray, label=label, prepare=prepare)


def mlp_jax(rows: int, sizes: list[int], threads: int) -> Iterator[Way]:
    """One jitted function."""
    import jax
    import jax.numpy as jnp

    (x,), layers = on_jax_device(cases.batch(rows, sizes[0])), cases.layers(sizes)

    def forward(x: Any, layers: Any) -> Any:
        for weights, bias in layers[:-1]:
            x = jnp.tanh(x @ weights + bias)
        return x @ layers[-1][0] + layers[-1][1]

    function, weights = jax.jit(forward), jax.device_put(layers)
    yield Way(lambda: jax.block_until_ready(function(x, weights)), answer=np.asarray)


def _squares(size: int) -> list[Any]:
    return [np.ones((size, size), np.float32) for _ in range(3)]


def gemm_numpy(size: int, threads: int) -> Iterator[Way]:
    """The BLAS of NumPy, on the threads it chooses."""
    a, b, out = _squares(size)
    yield Way(lambda: np.dot(a, b, out=out))


def gemm_torch(size: int, threads: int) -> Iterator[Way]:
    """The BLAS of torch."""
    import torch

    a, b, out = (torch.from_numpy(array) for array in _squares(size))
    for label, prepare in torch_threads(threads):
        yield Way(lambda: torch.mm(a, b, out=out), label=label, prepare=prepare)


def gemm_jax(size: int, threads: int) -> Iterator[Way]:
    """The BLAS of XLA."""
    import jax

    a, b, _ = on_jax_device(*_squares(size))
    function = jax.jit(lambda a, b: a @ b)
    yield Way(lambda: jax.block_until_ready(function(a, b)))


def memory_numpy(mib: int, threads: int) -> Iterator[Way]:
    """A copy on one thread."""
    source = np.ones(mib << 18, np.float32)
    to = np.empty_like(source)
    yield Way(lambda: np.copyto(to, source))


def memory_torch(mib: int, threads: int) -> Iterator[Way]:
    """A copy on one thread and on all."""
    import torch

    source = torch.ones(mib << 18)
    to = torch.empty_like(source)
    for label, prepare in torch_threads(threads):
        yield Way(lambda: to.copy_(source), label=label, prepare=prepare)


def _sb3_ppo(n_envs: int, n_steps: int, minibatch: int, epochs: int) -> Any:
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    network = {"net_arch": {"pi": [64, 64], "vf": [64, 64]}, "activation_fn": torch.nn.Tanh}
    model = PPO(
        "MlpPolicy", make_vec_env("CartPole-v1", n_envs, seed=0), n_steps=n_steps, batch_size=minibatch,
        n_epochs=epochs, learning_rate=2.5e-4, policy_kwargs=network, seed=0, device="cpu",
    )  # fmt: skip
    model.learn(n_envs * n_steps)
    return model


def _collect(model: Any, n_steps: int) -> Any:
    from stable_baselines3.common.callbacks import BaseCallback

    class Silent(BaseCallback):  # type: ignore[misc]
        def _on_step(self) -> bool:
            return True

    callback = Silent()
    callback.init_callback(model)
    return lambda: model.collect_rollouts(model.env, callback, model.rollout_buffer, n_steps)


def rollout_sb3(n_envs: int, n_steps: int, threads: int) -> Iterator[Way]:
    """`collect_rollouts` of PPO."""
    run = _collect(_sb3_ppo(n_envs, n_steps, n_envs * n_steps, 1), n_steps)
    for label, prepare in torch_threads(threads):
        yield Way(run, label=label, prepare=prepare)


def ppo_sb3(n_envs: int, n_steps: int, minibatch: int, epochs: int, threads: int) -> Iterator[Way]:
    """`train` of PPO on a full rollout."""
    model = _sb3_ppo(n_envs, n_steps, minibatch, epochs)
    for label, prepare in torch_threads(threads):
        yield Way(model.train, label=label, prepare=prepare)


def iteration_sb3(n_envs: int, n_steps: int, minibatch: int, epochs: int, threads: int) -> Iterator[Way]:
    """A rollout and an update of PPO."""
    model = _sb3_ppo(n_envs, n_steps, minibatch, epochs)
    collect = _collect(model, n_steps)

    def run() -> None:
        collect()
        model.train()

    for label, prepare in torch_threads(threads):
        yield Way(run, label=label, prepare=prepare)


def iteration_rejax(n_envs: int, n_steps: int, minibatch: int, epochs: int, threads: int) -> Iterator[Way]:
    """`train_iteration` of PPO, jitted."""
    import jax
    from rejax import PPO

    algorithm = PPO.create(
        env="CartPole-v1", num_envs=n_envs, num_steps=n_steps, num_epochs=epochs, learning_rate=2.5e-4,
        num_minibatches=n_envs * n_steps // minibatch, agent_kwargs={"activation": "tanh"},
    )  # fmt: skip
    state = algorithm.init_state(jax.random.PRNGKey(0))
    step = jax.jit(algorithm.train_iteration)

    def run() -> None:
        nonlocal state
        state = jax.block_until_ready(step(state))

    yield Way(run)


def sac_sb3(width: int, batch: int, threads: int) -> Iterator[Way]:
    """One gradient step of SAC on Pendulum-v1."""
    from stable_baselines3 import SAC

    model = SAC(
        "MlpPolicy", "Pendulum-v1", batch_size=batch, learning_starts=100, seed=0, device="cpu",
        policy_kwargs={"net_arch": [width, width]}, train_freq=1000,
    )  # fmt: skip
    model.learn(600)
    for label, prepare in torch_threads(threads):
        yield Way(lambda: model.train(gradient_steps=1, batch_size=batch), label=label, prepare=prepare)


def evaluation_sb3(episodes: int, threads: int) -> Iterator[Way]:
    """`evaluate_policy` of an untrained policy on as many environments as episodes."""
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    model, envs = _sb3_ppo(8, 128, 256, 1), make_vec_env("CartPole-v1", episodes, seed=0)
    for label, prepare in torch_threads(threads):
        yield Way(
            lambda: evaluate_policy(model, envs, n_eval_episodes=episodes, warn=False), label=label, prepare=prepare
        )
