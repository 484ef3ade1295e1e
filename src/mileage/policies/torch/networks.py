"""The networks of the native back end as modules, with the same weights: both back ends start equal."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from mileage.kernels.random import n_params
from mileage.policies.actor_critic import ActorCritic
from mileage.policies.mlp import FlatPolicy
from mileage.policies.off_policy import QNetwork, TwinCriticPolicy
from mileage.records import Record
from mileage.types import F32

_ACTIVATIONS: Record = {"tanh": torch.tanh, "relu": torch.relu}


class StackedMlp(nn.Module):
    """`count` networks of the same widths: one batched product per layer computes them all.

    Weights are (count, inputs, outputs), as native ones are stored; biases (count, 1, outputs).
    """

    def __init__(self, sizes: Sequence[int], activation: str, count: int = 1, *, activate_last: bool = False) -> None:
        super().__init__()
        self.sizes, self.count = tuple(sizes), count
        self._activation, self._activate_last = _ACTIVATIONS[activation], activate_last
        pairs = list(itertools.pairwise(sizes))
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(count, a, b)) for a, b in pairs])
        self.biases = nn.ParameterList([nn.Parameter(torch.zeros(count, 1, b)) for _, b in pairs])

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (count, N, outputs) for inputs (N, inputs)."""
        x = x.expand(self.count, *x.shape)
        last = len(self.weights) - 1
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x, weight)
            if layer < last or self._activate_last:
                x = self._activation(x)
        return x

    def load(self, networks: Sequence[F32]) -> None:
        """Take over `count` native networks, each one flat vector of weights and biases, layer after layer."""
        with torch.no_grad():
            for index, params in enumerate(networks):
                start = 0
                for weight, bias in zip(self.weights, self.biases, strict=True):
                    inputs, outputs = weight.shape[1:]
                    stop = start + inputs * outputs
                    weight[index].copy_(torch.from_numpy(params[start:stop].reshape(inputs, outputs)))
                    bias[index, 0].copy_(torch.from_numpy(params[stop : stop + outputs]))
                    start = stop + outputs

    def flat(self) -> F32:
        """All networks in the order of native vectors, (P,) float32."""
        parts = []
        for index in range(self.count):
            for weight, bias in zip(self.weights, self.biases, strict=True):
                parts += [weight[index].detach().cpu().numpy().ravel(), bias[index].detach().cpu().numpy().ravel()]
        return np.concatenate(parts)


class MlpActorCritic(nn.Module):
    """Actor and critic of the same hidden widths, computed side by side."""

    def __init__(self, native: ActorCritic) -> None:
        super().__init__()
        hidden = (native.obs_size, *native.hidden)
        self.hidden = StackedMlp(hidden, native.activation, 2, activate_last=True)
        self.actor = StackedMlp((hidden[-1], native.actor_sizes[-1]), native.activation)
        self.critic = StackedMlp((hidden[-1], 1), native.activation)
        self._gaussian = native.log_std.size > 0
        if self._gaussian:
            self.log_std = nn.Parameter(torch.from_numpy(native.params[native.log_std_offset :].copy()))
        actor, critic, _ = np.split(native.params, [native.critic_offset, native.log_std_offset])
        cut = n_params(hidden)
        self.hidden.load([actor[:cut], critic[:cut]])
        self.actor.load([actor[cut:]])
        self.critic.load([critic[cut:]])

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Logits or means (N, A) and values (N,) of observations (N, O)."""
        hidden = self.hidden(obs)
        # The first layer of `actor` sees (N, width); `StackedMlp` adds the axis of one network.
        return self.actor(hidden[0])[0], self.critic(hidden[1])[0, :, 0]

    def flat(self) -> F32:
        """The parameters as the native policy's vector, (P,) float32."""
        both = np.split(self.hidden.flat(), 2)
        parts = [both[0], self.actor.flat(), both[1], self.critic.flat()]
        if self._gaussian:
            parts.append(self.log_std.detach().cpu().numpy())
        return np.concatenate(parts)


class MlpActor(nn.Module):
    """One network from observations to whatever chooses actions."""

    def __init__(self, native: FlatPolicy) -> None:
        super().__init__()
        self.network = StackedMlp(native.actor_sizes, native.activation)
        self.network.load([native.params])

    def forward(self, obs: Tensor) -> Tensor:
        """Outputs (N, outputs) of observations (N, O)."""
        return self.network(obs)[0]  # type: ignore[no-any-return]

    def flat(self) -> F32:
        """The parameters as the native vector, (P,) float32."""
        return self.network.flat()


class MlpQ(MlpActor):
    """Action values, dueling if the native network is."""

    def __init__(self, native: QNetwork) -> None:
        super().__init__(native)
        self._dueling = native.dueling

    def forward(self, obs: Tensor) -> Tensor:
        """Action values (N, actions) of observations (N, O)."""
        head = super().forward(obs)
        return dueling(head) if self._dueling else head


def dueling(head: Tensor) -> Tensor:
    """Action values (N, n) of a head (N, 1 + n): the state's value first, then the actions' advantages."""
    advantages = head[:, 1:]
    return head[:, :1] + advantages - advantages.mean(1, keepdim=True)


class MlpTwinCritic(nn.Module):
    """Two critics on (observation, action), computed side by side."""

    def __init__(self, native: TwinCriticPolicy) -> None:
        super().__init__()
        self.network = StackedMlp(native.critic_sizes, native.activation, 2)
        self.network.load(np.split(native.critic_params, 2))

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Values (2, N) of observations (N, O) and actions (N, A) in [-1, 1]."""
        return self.network(torch.cat([obs, action], 1))[..., 0]  # type: ignore[no-any-return]

    def flat(self) -> F32:
        """The parameters as the native vector, (P,) float32."""
        return self.network.flat()


class MlpActorTwinCritic(nn.Module):
    """Actor and twin critics of SAC and TD3."""

    def __init__(self, native: TwinCriticPolicy) -> None:
        super().__init__()
        self.actor, self.critic = MlpActor(native), MlpTwinCritic(native)


def sizes_of(module: nn.Module) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Widths of actor or Q-network and of the critic, if any, inputs first; None for networks of another kind."""
    if isinstance(module, MlpActorCritic):
        hidden = module.hidden.sizes
        return (*hidden, module.actor.sizes[-1]), (*hidden, 1)
    if isinstance(module, MlpActorTwinCritic):
        return module.actor.network.sizes, module.critic.network.sizes
    return (module.network.sizes, ()) if isinstance(module, MlpActor) else None
