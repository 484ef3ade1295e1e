"""Replay buffers of rlox, Stable-Baselines3, cpprb, tianshou and torchrl, filled before they are timed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from mileage.profiling.bench import cases
from mileage.profiling.bench.cases import BATCH, Way

_FIELDS = {"obs": {"shape": 4}, "next_obs": {"shape": 4}, "act": {"shape": 1}, "rew": {}, "done": {}}


def _turns(rows: int, n: int) -> range:
    return range(rows // n + 1)


def _rlox(rows: int, n: int, size: int) -> tuple[Any, Any]:
    import rlox

    data, buffer = cases.transitions(n, size), rlox.ReplayBuffer(rows, size, 1)
    flags = data["flags"].astype(np.uint8)
    arrays = (data["obs"], data["next_obs"], data["actions"])
    batch = (*(array.ravel() for array in arrays), data["rewards"], flags, flags)
    for _ in _turns(rows, n):
        buffer.push_batch(*batch)
    return buffer, lambda: buffer.push_batch(*batch)


def push_rlox(rows: int, n: int, size: int, threads: int) -> Iterator[Way]:
    """One batched push."""
    yield Way(_rlox(rows, n, size)[1])


def sample_rlox(rows: int, n: int, size: int, threads: int) -> Iterator[Way]:
    """A sample of BATCH."""
    buffer, _ = _rlox(rows, n, size)
    seeds = itertools.count()
    yield Way(lambda: buffer.sample(BATCH, next(seeds)))


def _sb3(rows: int, n: int, size: int) -> tuple[Any, Any]:
    from gymnasium.spaces import Box
    from stable_baselines3.common.buffers import ReplayBuffer

    spaces = Box(-np.inf, np.inf, (size,), np.float32), Box(-1, 1, (1,), np.float32)
    data, buffer = cases.transitions(n, size), ReplayBuffer(rows, *spaces, device="cpu", n_envs=n)
    infos: list[dict[str, Any]] = [{} for _ in range(n)]
    batch = (data["obs"], data["next_obs"], data["actions"], data["rewards"], data["flags"], infos)
    for _ in _turns(rows, n):
        buffer.add(*batch)
    return buffer, lambda: buffer.add(*batch)


def push_sb3(rows: int, n: int, size: int, threads: int) -> Iterator[Way]:
    """One batched push."""
    yield Way(_sb3(rows, n, size)[1])


def sample_sb3(rows: int, n: int, size: int, threads: int) -> Iterator[Way]:
    """A sample of BATCH."""
    buffer, _ = _sb3(rows, n, size)
    yield Way(lambda: buffer.sample(BATCH))


def _cpprb(rows: int, n: int, size: int) -> tuple[Any, Any]:
    import cpprb

    shape = {"shape": size, "dtype": np.float32}
    buffer = cpprb.ReplayBuffer(rows, _FIELDS | {"obs": shape, "next_obs": shape, "cut": {}})
    data = cases.transitions(n, size)
    flags = data["flags"].astype(np.float32)
    batch = {"obs": data["obs"], "next_obs": data["next_obs"], "act": data["actions"], "rew": data["rewards"]}
    batch |= {"done": flags, "cut": flags}
    for _ in _turns(rows, n):
        buffer.add(**batch)
    return buffer, lambda: buffer.add(**batch)


def push_cpprb(rows: int, n: int, size: int, threads: int) -> Iterator[Way]:
    """One batched push."""
    yield Way(_cpprb(rows, n, size)[1])


def sample_cpprb(rows: int, n: int, size: int, threads: int) -> Iterator[Way]:
    """A sample of BATCH."""
    buffer, _ = _cpprb(rows, n, size)
    yield Way(lambda: buffer.sample(BATCH))


def _tianshou(rows: int, n: int, size: int) -> tuple[Any, Any]:
    from tianshou.data import Batch, VectorReplayBuffer

    data, buffer, environments = cases.transitions(n, size), VectorReplayBuffer(rows, n), np.arange(n)
    flags = {"terminated": data["flags"], "truncated": data["flags"], "info": Batch()}
    batch = Batch(obs=data["obs"], act=data["actions"], rew=data["rewards"], obs_next=data["next_obs"], **flags)
    for _ in _turns(rows, n):
        buffer.add(batch, environments)
    return buffer, lambda: buffer.add(batch, environments)


def push_tianshou(rows: int, n: int, size: int, threads: int) -> Iterator[Way]:
    """One batched push."""
    yield Way(_tianshou(rows, n, size)[1])


def sample_tianshou(rows: int, n: int, size: int, threads: int) -> Iterator[Way]:
    """A sample of BATCH."""
    buffer, _ = _tianshou(rows, n, size)
    yield Way(lambda: buffer.sample(BATCH))


def _torchrl_data(n: int, size: int) -> Any:
    import torch
    from tensordict import TensorDict

    data = {name: torch.from_numpy(array) for name, array in cases.transitions(n, size).items()}
    return TensorDict(data, batch_size=[n])


def _torchrl(rows: int, n: int, size: int) -> tuple[Any, Any]:
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(rows), batch_size=BATCH)
    batch = _torchrl_data(n, size)
    for _ in _turns(rows, n):
        buffer.extend(batch)
    return buffer, lambda: buffer.extend(batch)


def push_torchrl(rows: int, n: int, size: int, threads: int) -> Iterator[Way]:
    """One batched push."""
    yield Way(_torchrl(rows, n, size)[1])


def sample_torchrl(rows: int, n: int, size: int, threads: int) -> Iterator[Way]:
    """A sample of BATCH."""
    buffer, _ = _torchrl(rows, n, size)
    yield Way(lambda: buffer.sample())


def _flat(entries: int) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    return rng.random((entries, 4)).astype(np.float32), np.ones(entries, np.float32), np.zeros(entries, np.bool_)


def prioritized_rlox(entries: int, threads: int) -> Iterator[Way]:
    """A sample of BATCH and new priorities for it."""
    import rlox

    obs, one, _ = _flat(entries)
    buffer = rlox.PrioritizedReplayBuffer(entries, 4, 1, 0.6, 0.4)
    for i in range(entries):
        buffer.push(obs[i], one[:1], 1.0, False, False, obs[i])
    fresh = itertools.cycle([priorities.astype(np.float64) for priorities in cases.priorities()])
    seeds = itertools.count()
    yield Way(lambda: buffer.update_priorities(buffer.sample(BATCH, next(seeds))["indices"], next(fresh)))


def prioritized_cpprb(entries: int, threads: int) -> Iterator[Way]:
    """A sample of BATCH and new priorities for it."""
    import cpprb

    obs, one, _ = _flat(entries)
    buffer = cpprb.PrioritizedReplayBuffer(entries, _FIELDS)
    buffer.add(obs=obs, next_obs=obs, act=one[:, None], rew=one, done=one)
    fresh = itertools.cycle(cases.priorities())
    yield Way(lambda: buffer.update_priorities(buffer.sample(BATCH, 0.4)["indexes"], next(fresh)))


def prioritized_tianshou(entries: int, threads: int) -> Iterator[Way]:
    """A sample of BATCH and new priorities for it."""
    from tianshou.data import PrioritizedReplayBuffer, ReplayBuffer

    obs, one, flags = _flat(entries)
    buffer = PrioritizedReplayBuffer(entries, alpha=0.6, beta=0.4)
    buffer.update(ReplayBuffer.from_data(obs, one, one, flags, flags, flags, obs))
    fresh = itertools.cycle(cases.priorities())
    yield Way(lambda: buffer.update_weight(buffer.sample(BATCH)[1], next(fresh)))


def prioritized_torchrl(entries: int, threads: int) -> Iterator[Way]:
    """A sample of BATCH and new priorities for it."""
    import torch
    from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer

    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=0.6, beta=0.4, storage=LazyTensorStorage(entries), batch_size=BATCH
    )
    for _ in _turns(entries, 10_000):
        buffer.extend(_torchrl_data(10_000, 4))
    fresh = itertools.cycle([torch.from_numpy(priorities) for priorities in cases.priorities()])

    def run() -> None:
        batch = buffer.sample()
        batch["td_error"] = next(fresh)
        buffer.update_tensordict_priority(batch)

    yield Way(run)
