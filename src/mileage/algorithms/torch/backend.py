"""Chooses networks and engines of the torch back end; stands where an algorithm's native class does."""

from __future__ import annotations

import importlib
from typing import Any

from mileage._errors import MissingExtraError, UnknownNameError, UsageError

# Names of built-in networks, those of Stable-Baselines3 among them.
NETWORKS = {"mlp": "mlp", "cnn": "cnn", "MlpPolicy": "mlp", "CnnPolicy": "cnn", "MultiInputPolicy": "cnn"}
_ENGINES = {
    "ppo": "on_policy",
    "a2c": "on_policy",
    "sac": "sac",
    "td3": "td3",
    "dqn": "dqn",
}


def is_native(policy: Any) -> bool:
    """Whether the native back end has this network."""
    return policy is None or (isinstance(policy, str) and NETWORKS.get(policy) == "mlp")


class TorchAlgorithm:
    """An algorithm on torch, with the verbs of its native class: configuration, policy, kernels, building."""

    def __init__(self, name: str, native: Any, policy: Any, device: str, compile: bool | str) -> None:  # noqa: A002
        """Check what was asked for.

        Args:
            name: of the algorithm.
            native: its native class.
            policy: "mlp", "cnn", a `torch.nn.Module`, or a function that makes one from the environment's description.
            device: "auto", "cpu", "cuda" or another that torch knows.
            compile: whether to use `torch.compile`, or the mode to use it in.
        """
        if name not in _ENGINES:
            raise UsageError(f"{name} has no torch back end: leave backend, policy, device and compile as they are")
        try:
            import torch
        except ImportError as error:
            raise MissingExtraError("the torch back end", "torch") from error
        from mileage.policies.torch.tensors import resolve_device

        self._name, self._native = name, native
        self._policy = "mlp" if policy is None else policy
        if isinstance(self._policy, str) and self._policy not in NETWORKS:
            raise UnknownNameError("policy", self._policy, NETWORKS)
        if not isinstance(self._policy, str) and not callable(self._policy):
            raise UsageError(f"policy must be 'mlp', 'cnn' or a torch.nn.Module, not {self._policy!r}")
        self.device = resolve_device(device)
        self.compile_mode = None if compile is False else "default" if compile is True else compile
        if self.compile_mode is not None:
            modes = ("default", *torch._inductor.list_mode_options())
            if self.compile_mode not in modes:
                raise UsageError(f"compile must be true, false or one of {', '.join(modes)}, not {compile!r}")

    @property
    def policy_name(self) -> str:
        """`mlp`, `cnn`, or `module` for a user's own."""
        return NETWORKS[self._policy] if isinstance(self._policy, str) else "module"

    def seen(self, spec: Any) -> Any:
        """The environment with observations in the form that the network wants: flat for `mlp`, else as they are."""
        if self.policy_name == "mlp":
            return spec
        from mileage.envs.native.env import NativeEnv

        if isinstance(spec, NativeEnv):
            return spec
        from mileage.envs.gymnasium.structured import structured

        return structured(spec)

    def kernels(self, native: bool) -> tuple[str, ...]:
        """Native kernels that a run needs all the same."""
        return ("gae",) if self._name in ("ppo", "a2c") else ()

    def make_policy(self, config: Any, spec: Any, seed: int) -> Any:
        """The networks for an environment; built-in ones start with the weights of the native policy or of `seed`."""
        import torch

        from mileage.policies.torch.build import build_policy

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            native = self._native.make_policy(config, spec, seed) if self.policy_name == "mlp" else None
            return build_policy(self._name, self._policy, native, config, spec, self.device, self.compile_mode)

    def __call__(self, config: Any, env: Any, policy: Any, team: Any, seed: int) -> Any:
        """The algorithm on built parts."""
        module = importlib.import_module(f"mileage.algorithms.torch.{_ENGINES[self._name]}")
        if self._name in ("ppo", "a2c"):
            bound = type(self._native.__name__, (self._native,), {"Engine": module.TorchOnPolicy})
            return bound(config, env, policy, team, seed)
        return module.ENGINE(config, env, policy, team, seed)
