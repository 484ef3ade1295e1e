"""PPO and A2C on torch, for any module, with actions of several parts and masks.

Collection runs one forward pass per step for action and value, and stores into memory that is allocated once.
Advantages are computed by the native kernel on the same memory. A recurrent module learns from whole columns of the
rollout, through time and across the ends of episodes, from the memory it had when the rollout began.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mileage.algorithms.a2c import A2C, A2CConfig
from mileage.algorithms.configs import OnPolicyConfig
from mileage.algorithms.describe import Untimed
from mileage.algorithms.ppo import PPO, PPOConfig
from mileage.algorithms.rollout_learner import RolloutLearner
from mileage.algorithms.rpo import RPO, PerturbedMeans, RPOConfig, epoch_by_epoch
from mileage.algorithms.torch import TorchLearner
from mileage.contracts import Clock, Saved, VectorEnv
from mileage.description import Description
from mileage.errors import UsageError
from mileage.kernels import actor_critic, random
from mileage.kernels.machine.memory import denormals_flushed
from mileage.kernels.random import HALF_LOG_TWO_PI, KL_SLACK
from mileage.measure import Phase
from mileage.policies.torch.policy import TorchActorCritic, reset_rows
from mileage.policies.torch.tensors import (
    Adam,
    HostDevice,
    LiveTensors,
    SampleThreads,
    added,
    keep_freed_memory,
    map_state,
    n_pieces,
    state_tensors,
    torch_threads,
    useful_threads,
)
from mileage.records import Record
from mileage.types import Array, Team

# --- Actions of several parts, and masks, on tensors: what `mileage.kernels.heads` is to the native back end ---
# Stands for the logit of what is impossible: its probability is 0, and 0 times its logarithm is 0 as well.
_NEVER = -1e30


def _log_probs(head: Tensor, branches: Sequence[int], masks: Tensor) -> list[Tensor]:
    """Log-probabilities of every way to choose each part, (N, n) each."""
    logits = head[:, : sum(branches)].masked_fill(masks == 0, _NEVER)
    return [torch.log_softmax(each, 1) for each in logits.split(list(branches), 1)]


def sample(
    head: Tensor, branches: Sequence[int], log_std: Tensor, masks: Tensor, noise: Tensor, action: Tensor
) -> Tensor:
    """Write actions (N, A) and return their log-probabilities (N,).

    Args:
        head: logits of every choice, then means, (N, M + G).
        branches: how many ways there are to choose each part, C of them.
        log_std: log deviations (G,).
        masks: (N, M) uint8, 0 for what is impossible.
        noise: (N, C + G), a uniform draw for every choice and a normal one for every number.
        action: (N, C + G), written.
    """
    log_prob = torch.zeros(len(head), device=head.device)
    allowed = masks.split(list(branches), 1)
    for part, log_probs in enumerate(_log_probs(head, branches, masks)):
        # The number of choices whose cumulative probability is not above the draw, as in the native sampler; rounding
        # must not lead beyond the last one that is possible.
        below = (log_probs.exp().cumsum(1)[:, :-1] <= noise[:, [part]]).sum(1)
        last = log_probs.shape[1] - 1 - (allowed[part] != 0).flip(1).int().argmax(1)
        choice = torch.minimum(below, last)
        action[:, part] = choice
        log_prob = log_prob + log_probs.gather(1, choice[:, None])[:, 0]
    mean, normal = head[:, sum(branches) :], noise[:, len(branches) :]
    action[:, len(branches) :] = torch.addcmul(mean, normal, log_std.exp())
    return log_prob - (0.5 * normal * normal + log_std + HALF_LOG_TWO_PI).sum(1)


def judge(
    head: Tensor, branches: Sequence[int], log_std: Tensor, masks: Tensor, actions: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of actions (N, A) and entropies, (N,) each; arguments as those of `sample`."""
    log_prob, entropy = torch.zeros(len(head), device=head.device), torch.zeros(len(head), device=head.device)
    for part, log_probs in enumerate(_log_probs(head, branches, masks)):
        log_prob = log_prob + log_probs.gather(1, actions[:, [part]].long())[:, 0]
        entropy = entropy - (log_probs.exp() * log_probs).sum(1)
    z = (actions[:, len(branches) :] - head[:, sum(branches) :]) * torch.exp(-log_std)
    log_prob = log_prob - (0.5 * z * z + log_std + HALF_LOG_TWO_PI).sum(1)
    return log_prob, entropy + (log_std + 0.5 + HALF_LOG_TWO_PI).sum()


class TorchOnPolicy(TorchLearner, RolloutLearner):
    """One learner on torch: collects `n_steps` from every environment, then learns from them.

    `pieces` is into how many a minibatch is cut, to be learned from on threads of their own.
    """

    Policy = TorchActorCritic
    policy: TorchActorCritic
    separate: bool | None = None
    """Memory of its own on the device even if that is the CPU; for tests of the copies."""

    def __init__(self, config: OnPolicyConfig, env: VectorEnv, policy: TorchActorCritic, team: Team, seed: int) -> None:
        if config.normalise_observations and policy.leaves is not None:
            raise UsageError("normalise_observations is for observations that are vectors: set it to false")
        super().__init__(config, env, policy, team, seed)

    @classmethod
    def kernels(cls, native: bool) -> tuple[str, ...]:
        """The native kernels that a run needs all the same."""
        return ("gae",)

    def _allocate(self) -> None:
        n, policy, device = self.batch, self.policy, self.policy.device

        def twin(*shape: int, dtype: Any = np.float32) -> HostDevice:
            return HostDevice(shape, dtype, device, separate=self.separate)

        self._obs_twin = twin(n, policy.obs_size, dtype=policy.obs_dtype)
        self._final_twin = twin(self.n_envs, policy.obs_size, dtype=policy.obs_dtype)
        self._action_twin = twin(n, policy.action_size)
        # Columns: log-probability, value, advantage, return.
        self._columns = {name: twin(n) for name in ("log_probs", "values", "advantages", "returns")}
        self._order_twin = twin(n, dtype=np.int64)
        self._noise_twin = twin(self.config.n_steps, self.n_envs, policy.action_size)
        self._mask_twin = twin(n, sum(policy.branches) if policy.structured_actions else 0, dtype=np.uint8)
        self._mask_twin.host[:] = 1
        self._mask_twin.push()
        self._last_twin = twin(self.n_envs)
        self.obs, self.actions = self._obs_twin.host, self._action_twin.host
        self.log_probs, self.values = self._columns["log_probs"].host, self._columns["values"].host
        self.advantages, self.returns = self._columns["advantages"].host, self._columns["returns"].host
        self.last_values, self.order = self._last_twin.host, self._order_twin.host
        self.order[:] = np.arange(n)
        normalises = self.config.normalise_observations
        self.raw_obs = np.zeros((n, policy.obs_size), np.float32) if normalises else self.obs
        if not normalises:
            self.obs_moments = np.zeros((3, 1))
        self.episode_sums = np.zeros((1, 3))
        self.adam = Adam(dict(policy.module.named_parameters()), eps=self.config.adam_eps)
        self._memory = policy.initial_state(self.n_envs)
        self._live_adam = LiveTensors(self.adam.tensors())
        self._saved_memory = LiveTensors({})
        self._plan_threads(min(self.config.minibatch, n))

    def _plan_threads(self, minibatch: int) -> None:
        """How many threads torch may use to act and to learn, and into how many pieces minibatches are cut."""
        policy, limit = self.policy, self.team.n_ranks
        if policy.device.type == "cpu":
            keep_freed_memory()
        splits = policy.row_by_row and policy.device.type == "cpu" and policy.compile_mode is None
        # A gradient costs about as much as two forward passes more.
        self.pieces = n_pieces(minibatch, 3.0 * policy.operations) if splits else 1
        self._acting_threads = useful_threads(self.n_envs * policy.operations, limit)
        whole = useful_threads(minibatch * policy.operations, limit)
        self._learning_threads = 1 if self.pieces > 1 else whole
        self._sample_threads = SampleThreads(min(limit, self.pieces))

    def _send(self, clock: Clock) -> None:
        self._transfer(clock, self._columns["advantages"], self._columns["returns"])

    def _transfer(self, clock: Clock, *twins: HostDevice, rows: slice = slice(None), fetch: bool = False) -> None:
        """Send rows to the device, or fetch them."""
        if twins[0].separate:
            with clock.phase(Phase.TRANSFER):
                for twin in twins:
                    twin.pull(rows) if fetch else twin.push(rows)

    def _collect(self, clock: Clock) -> None:
        self.episode_sums[:] = 0.0
        with torch_threads(self._acting_threads):
            self._fill(clock)

    def _fill(self, clock: Clock) -> None:
        """Fill the rollout; what a time limit cut off is valued in one pass at the end."""
        env, n, policy = self.env, self.n_envs, self.policy
        inference, env_step = clock.phase(Phase.INFERENCE), clock.phase(Phase.ENV_STEP)
        with inference:
            self._draw_noise()
        self._transfer(clock, self._noise_twin)
        self._memory_start = map_state(Tensor.clone, self._memory) if policy.recurrent else None
        cut: list[tuple[NDArray[np.int64], Array, Any]] = []
        for t in range(self.config.n_steps):
            rows = slice(t * n, (t + 1) * n)
            with inference:
                action = self._act(clock, t, rows)
            with env_step:
                _, reward, terminated, truncated, infos = env.step(action)
                self.rewards[rows] = reward
                self.terminated[rows] = terminated
                self.truncated[rows] = truncated & ~terminated
                self.episode[:, 0] += reward
                self.episode[:, 1] += 1.0
            if infos:
                done = terminated | truncated
                if done.any():
                    self._note_ends(done, rows, infos, cut)
        with inference:
            self._value_cut_and_last(cut, env.obs)
        self._transfer(clock, self._last_twin, self._columns["values"], self._columns["log_probs"], fetch=True)

    def _draw_noise(self) -> None:
        """All the noise of a rollout at once, from the streams and in the order of the native collector."""
        steps, width = self.config.n_steps, self._noise_twin.host.shape[2]
        if self.policy.structured_actions:
            choices, numbers = len(self.policy.branches), self.policy.numbers
            draws = random.uniform_rows(self.action_rng, (choices + 2 * numbers) * steps)
            draws = draws.reshape(self.n_envs * steps, -1)
            noise = np.concatenate([draws[:, :choices], normals(draws[:, choices:])], axis=1)
            noise = noise.reshape(self.n_envs, steps, width)
        elif self.policy.n_actions:
            noise = random.uniform_rows(self.action_rng, steps)[:, :, None]
        else:
            noise = normals(random.uniform_rows(self.action_rng, 2 * width * steps)).reshape(self.n_envs, steps, width)
        self._noise_twin.host[:] = noise.transpose(1, 0, 2)

    @torch.no_grad()
    def _act(self, clock: Clock, t: int, rows: slice) -> Array:
        """One forward pass: store observation, action, log-probability and value; return the environment's action."""
        policy, twin = self.policy, self._obs_twin
        if self.raw_obs is not self.obs:
            self.raw_obs[rows] = self.env.obs
        policy.normalised(self.env.obs, out=self.obs[rows])
        self._transfer(clock, twin, rows=rows)
        head, value, self._memory = policy.run(policy.view(twin.tensor[rows]), self._memory, fast=True)
        noise, action = self._noise_twin.tensor[t], self._action_twin.tensor[rows]
        if policy.structured_actions:
            masks = self._masks(clock, rows)
            log_prob = sample(head, policy.branches, policy.log_std, masks, noise, action)
        elif policy.n_actions:
            log_probs = torch.log_softmax(head, 1)
            # The number of choices whose cumulative probability is not above the draw, as in the native sampler.
            below = log_probs.exp().cumsum(1)[:, :-1] <= noise
            choice = below.sum(1, keepdim=True)
            action.copy_(choice)
            log_prob = log_probs.gather(1, choice)[:, 0]
        else:
            log_std = policy.log_std
            torch.addcmul(head, noise, log_std.exp(), out=action)
            log_prob = -(0.5 * noise * noise + log_std + HALF_LOG_TWO_PI).sum(1)
        self._columns["log_probs"].tensor[rows] = log_prob
        self._columns["values"].tensor[rows] = value
        self._transfer(clock, self._action_twin, rows=rows, fetch=True)
        chosen = self.actions[rows]
        return chosen[:, 0].astype(np.int64) if policy.n_actions else policy.to_env(chosen)

    def _masks(self, clock: Clock, rows: slice) -> Tensor:
        """What is possible now, stored in `rows` of the rollout."""
        twin, shown = self._mask_twin, self.env.masks
        if shown is not None:
            twin.host[rows] = shown
            if twin.separate:
                with clock.phase(Phase.TRANSFER):
                    twin.push(rows)
        return twin.tensor[rows]

    def _note_ends(self, done: Any, rows: slice, infos: Record, cut: list[Any]) -> None:
        """Count episodes that ended, keep final observations that need a value, and forget what was remembered."""
        ended = self.episode[done]
        self.episode_sums[0] += (len(ended), *ended.sum(axis=0))
        self.episode[done] = 0.0
        limited = np.flatnonzero(self.truncated[rows])
        if len(limited):
            index = torch.from_numpy(limited).to(self.policy.device)
            memory = map_state(lambda part: part[index], self._memory) if self.policy.recurrent else None
            cut.append((rows.start + limited, infos["final_obs"][limited], memory))
        if self.policy.recurrent:
            starts = torch.from_numpy(np.asarray(done)).to(self.policy.device)
            self._memory = reset_rows(self._memory, self.policy.initial_state(self.n_envs), starts)

    @torch.no_grad()
    def _value_cut_and_last(self, cut: list[Any], last_obs: Array) -> None:
        policy, device = self.policy, self.policy.device
        if cut:
            where, obs, memories = zip(*cut, strict=True)
            rows = torch.from_numpy(policy.normalised(np.concatenate(obs))).to(device)
            memory = map_state(lambda *parts: torch.cat(parts), *memories) if policy.recurrent else None
            values = policy.run(policy.view(rows), memory)[1]
            self.truncated_values[np.concatenate(where)] = values.cpu().numpy()
        policy.normalised(last_obs, out=self._final_twin.host)
        self._final_twin.push()
        values = policy.run(policy.view(self._final_twin.tensor), self._memory, fast=True)[1]
        self._last_twin.tensor.copy_(values)

    def _update_policy(self, rate: float, clip: float) -> None:
        with torch_threads(self._learning_threads), denormals_flushed():
            self.totals[:] = self._learn(rate, clip).double().cpu().numpy()
        self.adam_steps = self.adam.steps

    def _learn(self, rate: float, clip: float) -> Tensor:
        """All epochs; returns the sums that `UpdateStats` is made of, in the order of the native kernel."""
        totals = torch.zeros(actor_critic.N_STATS, device=self.policy.device)
        for _ in range(self.config.epochs):
            for index in self._minibatches():
                stats, gradients = self._gradients(index, clip)
                if self.config.target_kl > 0.0:
                    kl = float(stats[actor_critic.KL] / stats[actor_critic.SAMPLES])
                    if kl > KL_SLACK * self.config.target_kl:
                        return totals
                norm = self.adam.descend(gradients, rate, self.config.max_grad_norm, measured=True)
                totals += stats
                totals[actor_critic.GRAD_NORM] += norm
                totals[actor_critic.MINIBATCHES] += 1.0
        return totals

    def _gradients(self, index: Tensor, clip: float) -> tuple[Tensor, Any]:
        """Sums over a minibatch's samples and the loss's gradients, computed in pieces where that pays."""
        samples = index.reshape(-1)
        advantage = self._columns["advantages"].tensor.index_select(0, samples)
        centre, scale = advantage.new_zeros(()), advantage.new_ones(())
        if self.config.normalise_advantages and len(samples) > 1:
            deviation, centre = torch.std_mean(advantage)
            scale = 1.0 / (deviation + 1e-8)

        def of_piece(piece: Tensor) -> tuple[Tensor, Any]:
            stats, loss = self._loss(piece, clip, centre, scale)
            return stats, self.adam.gradients(loss / len(samples))

        if self.pieces == 1:
            return of_piece(index)
        parts = self._sample_threads.run(of_piece, index.tensor_split(self.pieces))
        stats, gradients = zip(*parts, strict=True)
        return torch.stack(stats).sum(0), added(gradients)

    def _minibatches(self) -> Iterator[Tensor]:
        """Indices of samples in a new order: (samples,), or (n_steps, columns) where the module has a memory."""
        shuffler = np.random.default_rng(self.shuffle_rng[0])
        self.shuffle_rng[0, 1] += np.uint64(1)
        shuffler.shuffle(self.order)
        self._order_twin.push()
        size = min(self.config.minibatch, self.batch)
        if not self.policy.recurrent:
            yield from torch.split(self._order_twin.tensor, size)
            return
        first = self._order_twin.tensor
        columns = first[first < self.n_envs]
        steps = torch.arange(self.config.n_steps, device=first.device)[:, None] * self.n_envs
        for chosen in torch.split(columns, max(1, size // self.config.n_steps)):
            yield steps + chosen

    def _run(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Heads and values of samples, in the order of `index` flattened."""
        policy = self.policy
        if not policy.recurrent:
            obs = self._obs_twin.tensor.index_select(0, index)
            head, value, _ = policy.run(policy.view(obs), None, fast=True)
            return head, value
        columns = index[0]
        state = map_state(lambda part: part[columns], self._memory_start)
        fresh = policy.initial_state(len(columns))
        ended = torch.from_numpy(self.terminated | self.truncated).to(index.device).bool()
        heads, values = [], []
        for t, samples in enumerate(index):
            if t:
                state = reset_rows(state, fresh, ended[index[t - 1]])
            head, value, state = policy.run(policy.view(self._obs_twin.tensor[samples]), state, fast=True)
            heads.append(head)
            values.append(value)
        return torch.cat(heads), torch.cat(values)

    def _loss(self, index: Tensor, clip: float, centre: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over samples: statistics, and the loss of clipped surrogate, squared value error and entropy bonus.

        Advantages are shifted by `centre` and multiplied by `scale`.
        """
        config = self.config
        head, value = self._run(index)
        index = index.reshape(-1)
        actions = self._action_twin.tensor.index_select(0, index)
        old_log_prob, old_value, advantage, target = (
            self._columns[name].tensor.index_select(0, index)
            for name in ("log_probs", "values", "advantages", "returns")
        )
        advantage = (advantage - centre) * scale
        log_prob, entropy = self._distribution(head, actions, index)
        log_ratio = log_prob - old_log_prob
        ratio = log_ratio.exp()
        inside = ratio.clamp(1.0 - clip, 1.0 + clip)
        policy_loss = -torch.minimum(ratio * advantage, inside * advantage)
        value_loss = (value - target).square()
        if config.value_clip > 0.0:
            moved = old_value + (value - old_value).clamp(-config.value_clip, config.value_clip)
            value_loss = torch.maximum(value_loss, (moved - target).square())
        policy_sum, value_sum, entropy_sum = policy_loss.sum(), value_loss.sum(), entropy.sum()
        loss = policy_sum + config.value_coef * value_sum - config.entropy_coef * entropy_sum
        with torch.no_grad():
            kl = (ratio - 1.0 - log_ratio).sum()
            clipped = (inside != ratio).sum()
            counts = torch.tensor([0.0, float(len(index)), 0.0], device=head.device)
            stats = torch.cat([torch.stack([policy_sum, value_sum, entropy_sum, kl, clipped.float()]), counts])
        return stats, loss

    def _distribution(self, head: Tensor, actions: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of actions (N, A) and entropies, (N,) each, of the samples `index` (N,)."""
        if self.policy.structured_actions:
            masks = self._mask_twin.tensor.index_select(0, index)
            return judge(head, self.policy.branches, self.policy.log_std, masks, actions)
        if self.policy.n_actions:
            log_probs = torch.log_softmax(head, 1)
            chosen = log_probs.gather(1, actions.long())[:, 0]
            return chosen, -(log_probs.exp() * log_probs).sum(1)
        log_std = self.policy.log_std
        z = (actions - head) * torch.exp(-log_std)
        log_prob = -(0.5 * z * z + log_std + HALF_LOG_TWO_PI).sum(1)
        return log_prob, (log_std + 0.5 + HALF_LOG_TWO_PI).sum().expand(len(head))

    def _live_memory(self) -> LiveTensors:
        return LiveTensors(state_tensors(self._memory) if self.policy.recurrent else {})

    def describe(self) -> Description:
        """Acting and learning: their work, and the methods that an update spends its time in."""
        from mileage.algorithms.torch.describe import on_policy, stages

        rows = slice(0, self.n_envs)
        clock = Untimed()
        return on_policy(
            self,
            choose=lambda: self._act(clock, 0, rows),
            value=lambda: self._value(self._obs_twin.tensor[rows]),
            update=lambda: self._update_policy(0.0, self.config.clip),
            moments=list(self._live_adam.arrays().values()),
            methods=(
                *stages(self, _run="forward", _loss="loss", _learn="bookkeeping"),
                *stages(self.adam, gradients="backward", descend="clip and optimizer"),
            ),
        )

    @torch.no_grad()
    def _value(self, obs: Tensor) -> Tensor:
        return self.policy.run(self.policy.view(obs), self._memory, fast=True)[1]

    def _learner_arrays(self) -> dict[str, Array]:
        return super()._learner_arrays() | self._live_adam.arrays()

    def _episode_arrays(self) -> dict[str, Array]:
        self._saved_memory = self._live_memory()
        return super()._episode_arrays() | self._saved_memory.arrays()

    def restore(self, saved: Saved) -> None:
        """Go on where `saved` was taken; without an environment's arrays its episodes start anew."""
        self._saved_memory = LiveTensors({})
        super().restore(saved)

    def _set_counters(self, counters: Mapping[str, int]) -> None:
        super()._set_counters(counters)
        self._live_adam.load()
        self.adam.set_steps(self.adam_steps)
        self._saved_memory.load()


class TorchPPO(TorchOnPolicy):
    """PPO with any module from observations to actions and values."""

    Native, Config = PPO, PPOConfig


class TorchRPO(PerturbedMeans, TorchOnPolicy):
    """RPO with any module from observations to actions and values."""

    Native, Config = RPO, RPOConfig
    _learn_epoch = TorchOnPolicy._update_policy

    def _learn_from(self, actions: Array) -> None:
        super()._learn_from(actions)
        self._action_twin.push()

    def describe(self) -> Description:
        """As PPO's, with as many calls to learn as there are epochs."""
        return epoch_by_epoch(TorchOnPolicy.describe(self), self.epochs)


class TorchA2C(TorchOnPolicy):
    """A2C with any module from observations to actions and values."""

    Native, Config = A2C, A2CConfig


def normals(uniforms: NDArray[np.float32]) -> NDArray[np.float32]:
    """Standard normal draws (N, n) from pairs of uniform ones (N, 2n), as `kernels.random.normal` makes them."""
    u, v = np.float32(1.0) - uniforms[:, 0::2], uniforms[:, 1::2]
    return np.asarray(np.sqrt(np.float32(-2.0) * np.log(u)) * np.cos(np.float32(2.0 * math.pi) * v))
