"""From a name or a user's module to the policy of an algorithm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from mileage._errors import UsageError
from mileage._types import ObsLeaf
from mileage.contracts import EnvSpec, Policy
from mileage.policies.torch.policy import TorchActorCritic, TorchPolicy

Chosen = str | nn.Module | Callable[[EnvSpec], nn.Module]
"""The name of a network, a module, or a function from the environment's description to one."""


def build_policy(
    kind: type[TorchPolicy], algorithm: str, chosen: Chosen, native: Policy | None, config: Any, spec: EnvSpec,
    device: torch.device, compile_mode: str | None,
) -> TorchPolicy:  # fmt: skip
    """The policy of an algorithm, of the `kind` that it learns, for an environment; its name is for messages.

    `native` is the native policy whose weights to start from, None unless the `chosen` network is the native one.
    """
    if native is not None:
        module = kind.like(native)
    elif isinstance(chosen, str):
        leaves = spec.leaves or (ObsLeaf("", (spec.obs_size,), "float32", 0, 4 * spec.obs_size),)
        module = kind.for_leaves(leaves, config, spec)
    else:
        module = chosen if isinstance(chosen, nn.Module) else chosen(spec)
        if not isinstance(module, nn.Module):
            raise UsageError(f"policy must be a torch.nn.Module or make one, not {module!r}")
        kind.check(module, algorithm)
    if issubclass(kind, TorchActorCritic):
        return kind(module, spec, device, compile_mode, log_std_init=config.log_std_init)
    return kind(module, spec, device, compile_mode)
