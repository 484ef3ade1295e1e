"""From a name or a user's module to the policy of an algorithm."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from mileage._errors import UsageError
from mileage._types import ObsLeaf
from mileage.policies.torch import images, networks
from mileage.policies.torch.policy import TorchActorCritic, TorchDeterministic, TorchPolicy, TorchQ, TorchSquashed

_POLICIES: dict[str, type[TorchPolicy]] = {"dqn": TorchQ, "sac": TorchSquashed, "td3": TorchDeterministic}


def build_policy(
    algorithm: str, chosen: Any, native: Any, config: Any, spec: Any, device: torch.device, compile_mode: str | None
) -> TorchPolicy:
    """The policy of `algorithm` for an environment.

    Args:
        algorithm: its name.
        chosen: the name of a network, a module, or a function from `spec` to one.
        native: the native policy whose weights to start from; None unless the network is the native one.
        config: the algorithm's configuration.
        spec: description of the environment.
        device: where the module lives.
        compile_mode: of `torch.compile`; None for none.
    """
    _check_actions(algorithm, spec)
    if native is not None:
        module = _from_native(algorithm, native)
    elif isinstance(chosen, str):
        module = _from_trunk(algorithm, config, spec)
    else:
        module = chosen if isinstance(chosen, nn.Module) else chosen(spec)
        _check_module(algorithm, module)
    if algorithm in _POLICIES:
        return _POLICIES[algorithm](module, spec, device, compile_mode)
    return TorchActorCritic(module, spec, device, compile_mode, log_std_init=config.log_std_init)


def _from_native(algorithm: str, native: Any) -> nn.Module:
    if algorithm == "dqn":
        return networks.MlpQ(native)
    if algorithm in ("sac", "td3"):
        return networks.MlpActorTwinCritic(native)
    return networks.MlpActorCritic(native)


def _from_trunk(algorithm: str, config: Any, spec: Any) -> nn.Module:
    leaves = getattr(spec, "leaves", None) or (ObsLeaf("", (spec.obs_size,), "float32", 0, 4 * spec.obs_size),)
    if algorithm == "dqn":
        outputs = spec.n_actions + int(config.dueling)
        return images.TrunkHead(leaves, config.hidden, outputs, is_dueling=config.dueling)
    if algorithm in ("sac", "td3"):
        outputs = spec.action_size * (2 if algorithm == "sac" else 1)
        return images.TrunkActorTwinCritic(leaves, config.hidden, outputs, spec.action_size)
    return images.TrunkActorCritic(leaves, spec.n_actions or spec.action_size)


def _check_actions(algorithm: str, spec: Any) -> None:
    if algorithm == "dqn" and not spec.n_actions:
        raise UsageError("dqn needs discrete actions: use sac, td3 or ppo for continuous ones")
    if algorithm in ("sac", "td3") and spec.n_actions:
        raise UsageError(f"{algorithm} needs continuous actions: use dqn or ppo for discrete ones")


def _check_module(algorithm: str, module: Any) -> None:
    if not isinstance(module, nn.Module):
        raise UsageError(f"policy must be a torch.nn.Module or make one, not {module!r}")
    if algorithm in ("sac", "td3") and not (hasattr(module, "actor") and hasattr(module, "critic")):
        raise UsageError(f"policy of {algorithm} must have the parts actor(obs) and critic(obs, action)")
    if algorithm in _POLICIES and hasattr(module, "initial_state"):
        raise UsageError(f"{algorithm} learns from single steps and cannot train a memory: use ppo, or stack frames")
